// What `rmsnorm-export plugin check` asks either library where no TensorRT is: its creators, and
// each plugin taken through what an engine does with it. TensorRT's headers say in which order the
// virtual functions stand, so nothing outside of the library has to know.
#include <NvInferRuntime.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& count);

namespace {

using namespace nvinfer1;

constexpr char const* kCreatorKind = "PLUGIN CREATOR_V3ONE";

using Value = std::tuple<std::string, PluginFieldType, std::string>;  // name, type, bytes

std::int32_t sizeOf(PluginFieldType type) {
    constexpr std::int32_t kSizes[] = {2, 4, 8, 1, 2, 4, 1, 0, 0, 2, 8};
    auto const code = std::size_t(type);
    return code < sizeof kSizes / sizeof *kSizes ? kSizes[code] : 0;
}

std::vector<Value> copied(PluginFieldCollection const* fields) {
    std::vector<Value> values;
    for (std::int32_t i = 0; fields && i < fields->nbFields; ++i) {
        auto const& field = fields->fields[i];
        auto const size = field.data ? std::size_t(sizeOf(field.type)) * field.length : 0;
        std::string const bytes(size ? static_cast<char const*>(field.data) : "", size);
        values.emplace_back(field.name, field.type, bytes);
    }
    return values;
}

std::string hex(std::string const& bytes) {
    std::string text{"0x"};
    for (unsigned char const byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

template <typename Capability>
Capability* as(IPluginV3& plugin, PluginCapabilityType type) {
    return static_cast<Capability*>(plugin.getCapabilityInterface(type));
}

std::vector<Value> serialized(IPluginV3& plugin) {
    auto* const runtime = as<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    return copied(runtime ? runtime->getFieldsToSerialize() : nullptr);
}

// What is wrong with a plugin that was made of `given`; "" when nothing is. A plugin of its own
// serialised fields, a clone and an attached copy are equal to it, and point into none of it.
std::string problemOf(IPluginCreatorV3One& creator, std::unique_ptr<IPluginV3> plugin,
                      PluginFieldCollection const& given, std::int32_t& outputs) {
    auto* const build = as<IPluginV3OneBuild>(*plugin, PluginCapabilityType::kBUILD);
    auto* const runtime = as<IPluginV3OneRuntime>(*plugin, PluginCapabilityType::kRUNTIME);
    if (!build || !runtime) {
        return "it has no capability to be built, or to run";
    }
    outputs = build->getNbOutputs();
    auto const saved = serialized(*plugin);
    if (saved.empty()) {
        return "it serialises nothing";
    }
    if (auto const* const id = build->getTimingCacheID(); !id || !*id) {
        return "it has no timing cache id";
    }
    using Copy = std::pair<char const*, std::unique_ptr<IPluginV3>>;
    auto const* const fields = runtime->getFieldsToSerialize();
    Copy copies[3];
    copies[0].first = "plugin of its own fields";
    copies[0].second.reset(creator.createPlugin("check", fields, TensorRTPhase::kRUNTIME));
    copies[1].first = "clone";
    copies[1].second.reset(plugin->clone());
    copies[2].first = "attached copy";
    copies[2].second.reset(runtime->attachToContext(nullptr));
    plugin.reset();
    for (auto& [name, copy] : copies) {
        if (!copy) {
            return std::string{"there is no "} + name;
        }
        if (serialized(*copy) != saved) {
            return std::string{"the "} + name + " serialises other fields than the original";
        }
    }
    for (auto const& [name, type, bytes] : copied(&given)) {
        for (auto const& own : saved) {
            if (std::get<0>(own) == name && std::get<2>(own) != bytes) {
                return name + " was given as " + hex(bytes) + ", kept as " + hex(std::get<2>(own));
            }
        }
    }
    return "";
}

}  // namespace

// A line for each creator: kind, name, version and namespace, then the names of its fields, with
// tabs between them. Of another kind nothing more is asked.
extern "C" [[gnu::visibility("default")]] char const* rmsnormSelfTestCreators() {
    static std::string lines;
    lines.clear();
    std::int32_t count = 0;
    auto const* const all = getCreators(count);
    for (std::int32_t i = 0; i < count; ++i) {
        lines += all[i]->getInterfaceInfo().kind;
        if (!std::strcmp(all[i]->getInterfaceInfo().kind, kCreatorKind)) {
            auto& creator = static_cast<IPluginCreatorV3One&>(*all[i]);
            for (auto const* text : {creator.getPluginName(), creator.getPluginVersion(),
                                     creator.getPluginNamespace()}) {
                lines += std::string{"\t"} + text;
            }
            auto const* const names = creator.getFieldNames();
            for (std::int32_t j = 0; names && j < names->nbFields; ++j) {
                lines += std::string{"\t"} + names->fields[j].name;
            }
        }
        lines += "\n";
    }
    return lines.c_str();
}

// Makes and tries the plugin of creator number `place`, which must be of the kind above. Returns
// its number of outputs, -1 when the creator refuses the fields; `problem` is "" or what is wrong.
extern "C" [[gnu::visibility("default")]] std::int32_t rmsnormSelfTest(
    std::int32_t place, PluginField const* fields, std::int32_t count, char const** problem) {
    static std::string text;
    std::int32_t creators = 0;
    auto& creator = static_cast<IPluginCreatorV3One&>(*getCreators(creators)[place]);
    PluginFieldCollection const given{count, fields};
    std::int32_t outputs = -1;
    std::unique_ptr<IPluginV3> plugin{
        creator.createPlugin("check", &given, TensorRTPhase::kBUILD)};
    text = plugin ? problemOf(creator, std::move(plugin), given, outputs) : "";
    *problem = text.c_str();
    return outputs;
}
