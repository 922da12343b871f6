// A plugin library with one fault, whose number is written into it behind RMSNORM_BUG=, compiled
// together with the self-test of the real one: with TensorRT's headers, or where there are none with those of the folder headers/.
//
// Every field that is given is kept as it is, behind one that says who wrote them, so the plugin
// accepts what a real one has to refuse. NAMES are the fields of the creator NAME.
#include <NvInferRuntime.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

using namespace nvinfer1;

enum {
    kNone, kRefuseAll, kLoseField, kNoClone, kOneMoreOutput, kCrash, kNoTimingId, kOtherNamespace,
    kOtherFields, kAttachedDiffers, kHang, kAbort, kExit, kNoCreator, kOtherKind,
};

static int bug() {
    static char const volatile marker[] = "RMSNORM_BUG=00";
    return (marker[12] - '0') * 10 + marker[13] - '0';
}
#define BUG bug()

struct Core final : IPluginV3OneCore {
    char const* getPluginName() const noexcept override { return NAME; }
    char const* getPluginVersion() const noexcept override { return "1"; }
    char const* getPluginNamespace() const noexcept override { return "rmsnorm_export"; }
};

struct Build final : IPluginV3OneBuild {
    using In = DynamicPluginTensorDesc const*;
    std::int32_t configurePlugin(In, std::int32_t, In, std::int32_t) noexcept override { return 0; }
    std::int32_t getOutputDataTypes(DataType*, std::int32_t, DataType const*,
                                    std::int32_t) const noexcept override {
        return 0;
    }
    std::int32_t getOutputShapes(DimsExprs const*, std::int32_t, DimsExprs const*, std::int32_t,
                                 DimsExprs*, std::int32_t, IExprBuilder&) noexcept override {
        return 0;
    }
    bool supportsFormatCombination(std::int32_t, In, std::int32_t, std::int32_t) noexcept override {
        return true;
    }
    std::int32_t getNbOutputs() const noexcept override { return OUTPUTS + (BUG == kOneMoreOutput); }
    char const* getTimingCacheID() noexcept override { return BUG == kNoTimingId ? nullptr : "id"; }
};

struct Plugin;

struct Runtime final : IPluginV3OneRuntime {
    explicit Runtime(Plugin& whose) : owner{whose} {}
    using In = PluginTensorDesc const*;
    std::int32_t onShapeChange(In, std::int32_t, In, std::int32_t) noexcept override { return 0; }
    std::int32_t enqueue(In, In, void const* const*, void* const*, void*,
                         CUstream_st*) noexcept override {
        return 0;
    }
    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override;
    PluginFieldCollection const* getFieldsToSerialize() noexcept override;
    Plugin& owner;
};

struct Kept { std::string name; PluginFieldType type; std::int32_t length; std::string data; };

struct Plugin final : IPluginV3 {
    explicit Plugin(std::vector<Kept> const& given) : values{given} {}
    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
        IPluginCapability* const all[] = {&core, &build, &runtime};
        return all[std::size_t(type)];
    }
    IPluginV3* clone() noexcept override { return BUG == kNoClone ? nullptr : new Plugin{values}; }

    std::vector<Kept> values;
    std::vector<PluginField> list;
    PluginFieldCollection fields{};
    Core core;
    Build build;
    Runtime runtime{*this};
};

IPluginV3* Runtime::attachToContext(IPluginResourceContext*) noexcept {
    auto values = owner.values;
    if (BUG == kAttachedDiffers && !values.empty()) {
        values[0].data[0] ^= 1;
    }
    return new Plugin{values};
}

PluginFieldCollection const* Runtime::getFieldsToSerialize() noexcept {
    owner.list.clear();
    for (auto const& value : owner.values) {
        if (BUG != kLoseField || value.name != "axis") {
            owner.list.push_back({value.name.c_str(), value.data.data(), value.type, value.length});
        } else {
            static std::int32_t const other = 0;
            owner.list.push_back({"axis", &other, PluginFieldType::kINT32, 1});
        }
    }
    owner.fields = {static_cast<std::int32_t>(owner.list.size()), owner.list.data()};
    return &owner.fields;
}

struct Creator final : IPluginCreatorV3One {
    InterfaceInfo getInterfaceInfo() const noexcept override {
        return {BUG == kOtherKind ? "PLUGIN CREATOR_V2" : "PLUGIN CREATOR_V3ONE", 1, 0};
    }
    IPluginV3* createPlugin(char const*, PluginFieldCollection const* given,
                            TensorRTPhase) noexcept override {
        if (BUG == kRefuseAll) {
            return nullptr;
        }
        if (BUG == kCrash) {
            std::raise(11);
        }
        std::vector<Kept> values{{"library", PluginFieldType::kCHAR, 5, "fake"}};
        values[0].data.push_back('\0');
        for (std::int32_t i = 0; i < given->nbFields; ++i) {
            auto const& f = given->fields[i];
            if (f.name == values[0].name) {
                continue;
            }
            std::size_t const size = (f.type == PluginFieldType::kCHAR ? 1 : 4) * f.length;
            values.push_back({f.name, f.type, f.length,
                              f.data ? std::string(static_cast<char const*>(f.data), size) : ""});
        }
        return new Plugin{values};
    }
    PluginFieldCollection const* getFieldNames() noexcept override {
        static char const* const all[] = {NAMES};
        static std::vector<PluginField> list;
        list.clear();
        for (auto const* name : all) {
            list.push_back({name, nullptr, PluginFieldType::kFLOAT32, 1});
        }
        static PluginFieldCollection fields;
        fields = {static_cast<std::int32_t>(list.size()) - (BUG == kOtherFields), list.data()};
        return &fields;
    }
    char const* getPluginName() const noexcept override { return NAME; }
    char const* getPluginVersion() const noexcept override { return "1"; }
    char const* getPluginNamespace() const noexcept override {
        return BUG == kOtherNamespace ? "elsewhere" : "rmsnorm_export";
    }
};

extern "C" void setLoggerFinder(void*) {}
extern "C" IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
    if (BUG == kHang) {
        for (;;) {
            ::pause();
        }
    }
    if (BUG == kAbort) {
        std::abort();
    }
    if (BUG == kExit) {
        std::exit(3);
    }
    static Creator creator;
    static IPluginCreatorInterface* list[] = {&creator};
    count = BUG != kNoCreator;
    return list;
}
