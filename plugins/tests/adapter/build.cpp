// What the builder asks: number, types and shapes of outputs, formats, configuration, tactics.
#include "check.h"
#include "fakes.h"

#include <set>

namespace {

constexpr DataType kTypes[] = {
    DataType::kFLOAT, DataType::kHALF, DataType::kINT8, DataType::kINT32, DataType::kBOOL,
    DataType::kUINT8, DataType::kFP8,  DataType::kBF16, DataType::kINT64, DataType::kINT4};
constexpr TensorFormat kFormats[] = {TensorFormat::kLINEAR, TensorFormat::kCHW2,
                                     TensorFormat::kHWC8};

using Combination = std::vector<DataType>;

// All combinations that the plugin supports, found position by position as the builder does. The
// array ends with the position asked about, so that a look beyond it is an error under ASan.
void negotiate(nvinfer1::IPluginV3OneBuild& plugin, int inputs, int outputs, Combination& chosen,
               std::set<Combination>& found, bool& linear) {
    auto const position = chosen.size();
    if (position == static_cast<std::size_t>(inputs + outputs)) {
        found.insert(chosen);
        return;
    }
    for (auto const format : kFormats) {
        for (auto const type : kTypes) {
            std::vector<DynamicPluginTensorDesc> descriptions;
            for (auto const earlier : chosen) {
                descriptions.push_back(dynamic({tensor(earlier, dims({-1, 4, 64}))})[0]);
            }
            descriptions.push_back(dynamic({tensor(type, dims({-1, 4, 64}))})[0]);
            descriptions.back().desc.format = format;
            descriptions.shrink_to_fit();
            if (plugin.supportsFormatCombination(static_cast<int>(position), descriptions.data(),
                                                 inputs, outputs)) {
                linear = linear && format == TensorFormat::kLINEAR;
                chosen.push_back(type);
                negotiate(plugin, inputs, outputs, chosen, found, linear);
                chosen.pop_back();
            }
        }
    }
}

// What they should be.
std::set<Combination> expected(Case const& one, int weights) {
    std::set<Combination> all;
    for (auto const x : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16}) {
        bool const stash = one.stash_type == 1 || x == typeOf(one);
        for (int mask = 0; stash && mask < 1 << weights; ++mask) {
            for (auto const angles : {x, DataType::kFLOAT}) {
                Combination types(one.other() ? 2 : 1, x);
                types.insert(types.end(), one.rotary() ? 2 : 0, angles);
                for (int i = 0; i < weights; ++i) {
                    types.push_back(mask >> i & 1 ? DataType::kFLOAT : x);
                }
                auto const full = tensors(one, x, x, weights, {2, 4, 64});
                for (auto i = types.size(); i < full.size(); ++i) {
                    types.push_back(full[i].type);
                }
                all.insert(types);
            }
        }
    }
    return all;
}

void outputs(Case const& one, nvinfer1::IPluginV3OneBuild& plugin, int weights) {
    auto const label = one.name + ", " + std::to_string(weights) + " weights: ";
    auto const all = tensors(one, typeOf(one), DataType::kFLOAT, weights, {2, 4, 64});
    auto const inputs = one.inputs(weights);
    check(plugin.getNbOutputs() == one.outputs(), label + "number of outputs");

    std::vector<DataType> given;
    for (int i = 0; i < inputs; ++i) {
        given.push_back(all[static_cast<std::size_t>(i)].type);
    }
    std::vector<DataType> types(static_cast<std::size_t>(one.outputs()), DataType::kBOOL);
    bool good = plugin.getOutputDataTypes(types.data(), one.outputs(), given.data(), inputs) == 0;
    for (std::size_t i = 0; i < types.size(); ++i) {
        good = good && types[i] == all[static_cast<std::size_t>(inputs) + i].type;
    }
    check(good, label + "output types");

    static Expression sizes[3];
    static Expressions expressions;
    std::vector<nvinfer1::DimsExprs> shapes(static_cast<std::size_t>(inputs));
    for (auto& shape : shapes) {
        shape = {3, {&sizes[0], &sizes[1], &sizes[2]}};
    }
    std::vector<nvinfer1::DimsExprs> made(types.size());
    good = plugin.getOutputShapes(shapes.data(), inputs, nullptr, 0, made.data(), one.outputs(),
                                  expressions) == 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
        good = good && made[i].nbDims == all[static_cast<std::size_t>(inputs) + i].dims.nbDims;
        bool const scales = one.perRow() && i + 1 == made.size();
        for (int d = 0; good && d < made[i].nbDims; ++d) {
            bool const normalised = d >= 3 + one.axis && d <= 3 + one.last_axis;
            auto const* const less = expressions.constant(1);
            good = made[i].d[d] == (scales && normalised ? less : &sizes[d]) && made[i].d[d];
        }
    }
    check(good, label + "output shapes");
}

void configured(Case const& one, nvinfer1::IPluginV3OneBuild& plugin, int weights) {
    auto const label = one.name + ", " + std::to_string(weights) + " weights: ";
    auto const inputs = one.inputs(weights);
    auto const configure = [&](std::vector<PluginTensorDesc> const& all) {
        auto const list = dynamic(all);
        return plugin.configurePlugin(list.data(), inputs, list.data() + inputs, one.outputs());
    };
    auto const type = typeOf(one);
    check(configure(tensors(one, type, type, weights, {2, 4, 64})) == 0, label + "configured");
    check(configure(tensors(one, type, DataType::kFLOAT, weights, {-1, 4, 64})) == 0,
          label + "configured with dynamic rows");
    check(configure(tensors(one, type, type, weights, {-1, -1, -1})) == 0,
          label + "configured with all sizes dynamic");
    if (weights > 0 && !one.needs_scale) {
        auto absent = tensors(one, type, type, weights, {2, 4, 64});
        absent[static_cast<std::size_t>(one.inputs(0) - one.fixed())].dims = noDims();
        check(configure(absent) == 0, label + "configured, null scale");
    }
    if (weights > 0 && one.last_axis != -1) {
        for (auto const& shape : {std::vector<std::int64_t>{4, 1}, {1, 4, 1}, {1, 1, 4, 1, 1}}) {
            auto spread = tensors(one, type, type, weights, {2, 4, 64});
            spread[static_cast<std::size_t>(one.inputs(0) - one.fixed())].dims = dims(shape);
            check(configure(spread) == 0, label + "configured, scale with 1s around it");
        }
    }
    if (one.fixed()) {
        auto deep = tensors(one, type, type, weights, {2, 4, 64});
        deep[static_cast<std::size_t>(inputs - 1)].dims = dims({1, 1, 1, 1});
        check(configure(deep) == 0, label + "configured, one number of a higher rank than X");
    }
}

}  // namespace

void build(Case const& given, Log& log) {
    auto one = given;
    auto const before = log.errors;
    auto const plugin = make(one.op, one.fields);
    if (!check(plugin != nullptr, one.name + ": made")) {
        return;
    }
    auto* const names = creator(one.op)->getFieldNames();
    auto* const fields = one.fields.collection();
    bool same = names->nbFields == fields->nbFields;
    for (int i = 0; same && i < names->nbFields; ++i) {
        same = !std::strcmp(names->fields[i].name, fields->fields[i].name) &&
               names->fields[i].type == fields->fields[i].type;
    }
    check(same, one.name + ": field names and types, in order");

    auto* const core = static_cast<nvinfer1::IPluginV3OneCore*>(
        plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
    auto& part = builder(plugin);
    check(core && one.op == core->getPluginName() && std::string{"1"} == core->getPluginVersion() &&
              std::string{"rmsnorm_export"} == core->getPluginNamespace(),
          one.name + ": core");
    check(std::string{"PLUGIN_V3ONE_CORE"} == core->getInterfaceInfo().kind &&
              std::string{"PLUGIN_V3ONE_BUILD"} == part.getInterfaceInfo().kind &&
              std::string{"PLUGIN_V3ONE_RUNTIME"} == runtime(plugin).getInterfaceInfo().kind &&
              !plugin->getCapabilityInterface(static_cast<PluginCapabilityType>(7)),
          one.name + ": capabilities");

    for (int weights = one.needs_scale; weights <= 2; ++weights) {
        outputs(one, part, weights);
        std::set<Combination> found;
        Combination chosen;
        bool linear = true;
        negotiate(part, one.inputs(weights), one.outputs(), chosen, found, linear);
        check(found == expected(one, weights) && linear,
              one.name + ", " + std::to_string(weights) +
                  " weights: " + std::to_string(found.size()) + " combinations of types");
        configured(one, part, weights);
    }

    std::int32_t tactics[2] = {0, 0};
    check(part.getNbTactics() == 2 && part.getValidTactics(tactics, 2) == 0 && tactics[0] > 0 &&
              tactics[1] > 0 && tactics[0] != tactics[1],
          one.name + ": two tactics");
    static std::set<std::string> ids;
    check(part.getTimingCacheID() && ids.insert(part.getTimingCacheID()).second,
          one.name + ": a timing cache ID of its own");
    check(log.errors == before, one.name + ": nothing to complain about (" + log.last + ")");
}

void badBuild(Log& log) {
    // Each case changes one thing in a node that configurePlugin accepts.
    auto const refused = [&](Case one, std::string const& what, std::string const& word,
                             int weights, auto change,
                             std::vector<std::int64_t> const& shape = {2, 4, 64}) {
        auto const plugin = make(one.op, one.fields);
        auto all = tensors(one, DataType::kHALF, DataType::kHALF, weights, shape);
        change(all);
        auto const list = dynamic(all);
        auto const before = log.errors;
        auto const inputs = static_cast<int>(all.size()) - one.outputs();
        auto const status = builder(plugin).configurePlugin(list.data(), inputs,
                                                            list.data() + inputs, one.outputs());
        check(status != 0 && said(log, before, word) && said(log, before, one.op),
              "refused: " + one.op + " " + what + " (" + log.last + ")");
    };
    auto const same = [](auto&) {};
    auto const plain = cases("RMSNorm")[0];
    auto const skip = cases("SkipRMSNorm")[0];
    auto const fixed = cases("QuantizedRMSNorm")[0];
    auto const of = [](char const* op, char const* field, int value) {
        auto one = cases(op)[0];
        one.fields.integer(field, value);
        return one;
    };
    auto deep = of("RMSNorm", "axis", -3);
    refused(deep, "rank 2 with axis -3", "dimensions", 0, same, {2, 64});
    refused(of("RMSNorm", "group_size", 48), "a group that does not divide", "group_size", 1, same);
    refused(of("RMSNorm", "partial_size", 65), "a partial longer than the row", "partial_size", 1,
            same);
    refused(plain, "a row of 2^20 + 1", "1048576", 0, same, {2, (1 << 20) + 1});
    refused(plain, "a row of 0", "1048576", 0, same, {2, 0});
    refused(plain, "more elements than int64", "counted", 0, same,
            {std::int64_t{1} << 40, std::int64_t{1} << 40, 64});
    refused(plain, "float32 X with a float16 scale", "type", 1,
            [](auto& all) { all[0].type = DataType::kFLOAT; });
    refused(plain, "a bfloat16 scale", "bfloat16", 1,
            [](auto& all) { all[1].type = DataType::kBF16; });
    refused(plain, "X of int32", "int32", 0, [](auto& all) { all[0].type = DataType::kINT32; });
    refused(of("RMSNorm", "stash_type", 16), "a stash of another half type", "stash_type", 0, same);
    refused(plain, "a scale of another length", "4", 1, [](auto& all) { all[1].dims = dims({4}); });
    refused(plain, "a scale of one number", "1", 1, [](auto& all) { all[1].dims = dims({1}); });
    refused(plain, "a scale for each row", "2x4x64", 1,
            [](auto& all) { all[1].dims = dims({2, 4, 64}); });
    auto channels = of("RMSNorm", "axis", -2);
    channels.fields.integer("last_axis", -2);
    channels.axis = channels.last_axis = -2;
    refused(channels, "a scale of the axis behind the channels", "64", 1,
            [](auto& all) { all[1].dims = dims({64}); });
    refused(channels, "a scale along the axis behind the channels", "4x64", 1,
            [](auto& all) { all[1].dims = dims({4, 64}); });
    refused(of("RMSNorm", "axis", -2), "a scale of the last axis only", "64", 1,
            [](auto& all) { all[1].dims = dims({64}); });
    refused(skip, "a residual of another type", "type", 1,
            [](auto& all) { all[1].type = DataType::kFLOAT; });
    refused(skip, "a residual that would broadcast", "shape", 1,
            [](auto& all) { all[1].dims = dims({1, 4, 64}); });
    refused(skip, "a residual of more dimensions", "shape", 1,
            [](auto& all) { all[1].dims = dims({1, 2, 4, 64}); });
    refused(skip, "a null residual", "left out", 1, [](auto& all) { all[1].dims = noDims(); });
    refused(plain, "X of unknown rank", "rank", 1, [](auto& all) { all[0].dims = noDims(); });
    auto const rotary = cases("RotaryRMSNorm")[0];
    refused(rotary, "angles of two types", "one type", 0,
            [](auto& all) { all[2].type = DataType::kFLOAT; });
    refused(rotary, "angles of two shapes", "one shape", 0,
            [](auto& all) { all[2].dims = dims({1, 64}); });
    refused(rotary, "null angles", "left out", 0, [](auto& all) { all[2].dims = noDims(); });
    refused(rotary, "bfloat16 angles of float16", "bfloat16", 0,
            [](auto& all) { all[1].type = all[2].type = DataType::kBF16; });
    refused(rotary, "angles of a third of the row", "half as many", 0,
            [](auto& all) { all[1].dims = all[2].dims = dims({4, 21}); });
    refused(rotary, "angles for other rows", "3x64", 0,
            [](auto& all) { all[1].dims = all[2].dims = dims({3, 64}); });
    refused(rotary, "angles of four runs", "at most two runs", 0,
            [](auto& all) { all[1].dims = all[2].dims = dims({1, 2, 1, 4, 64}); },
            {3, 2, 3, 4, 64});
    refused(rotary, "two inputs", "X, cos, sin", 0, [](auto& all) { all.erase(all.begin() + 1); });
    refused(rotary, "an odd row", "even", 0, same, {2, 4, 63});
    auto longer = of("RotaryRMSNorm", "rotary_dim", 66);
    longer.width = 66;
    refused(longer, "a turn longer than the row", "at most the elements", 0, same);
    refused(plain, "four inputs", "found 4", 2, [](auto& all) { all.push_back(all[0]); });
    refused(skip, "one input", "found 1", 0, [](auto& all) { all.erase(all.begin()); });
    refused(fixed, "no scale for the output", "found 1", 0,
            [](auto& all) { all.erase(all.begin() + 1); });
    refused(fixed, "64 scales for the output", "one number", 0,
            [](auto& all) { all[1].dims = dims({64}); });
    refused(fixed, "a float16 scale for the output", "float32", 0,
            [](auto& all) { all[1].type = DataType::kHALF; });
    auto offset = plain;
    offset.fields.real("scale_offset", 1);
    refused(offset, "scale_offset without a scale", "scale_offset", 0, same);

    auto const plugin = make("RMSNorm", ordinary("RMSNorm"));
    auto const before = log.errors;
    DataType const pair[] = {DataType::kHALF, DataType::kBF16};
    DataType type = DataType::kBOOL;
    check(
        builder(plugin).getOutputDataTypes(&type, 1, pair, 2) != 0 && said(log, before, "bfloat16"),
        "refused: output types for a pair of half types");
    check(builder(plugin).getOutputDataTypes(&type, 2, pair, 1) != 0, "refused: two output types");
    static Expressions expressions;
    nvinfer1::DimsExprs const scalar{0, {}};
    nvinfer1::DimsExprs shape{};
    check(builder(plugin).getOutputShapes(&scalar, 1, nullptr, 0, &shape, 1, expressions) != 0,
          "refused: output shape of a scalar");
    auto const two = dynamic(tensors(plain, DataType::kHALF, DataType::kHALF, 0, {2, 64}));
    check(!builder(plugin).supportsFormatCombination(0, two.data(), 4, 1),
          "refused: formats of 4 inputs");
}
