// Fields that a creator must refuse with a sentence, and odd ones that it must take.
#include "check.h"
#include "fakes.h"

#include <cmath>
#include <limits>

namespace {

Log* sink = nullptr;

void refused(std::string const& op, std::string const& what, Fields fields,
             std::string const& word) {
    auto const before = sink->errors;
    auto const plugin = make(op, std::move(fields));
    check(!plugin && said(*sink, before, word) && said(*sink, before, op),
          "refused: " + op + " " + what + " (" + sink->last + ")");
}

void taken(std::string const& op, std::string const& what, Fields fields) {
    auto const before = sink->errors;
    check(make(op, std::move(fields)) && sink->errors == before, "taken: " + op + " " + what);
}

// An attribute that is absent has its default, in an engine of an earlier library as in a model.
void absent(std::string const& op) {
    auto const* const names = creator(op)->getFieldNames();
    for (std::int32_t i = 0; i < names->nbFields; ++i) {
        std::string const name = names->fields[i].name;
        if (name == "quantize") {
            refused(op, "without " + name, ordinary(op).remove(name), name);
            continue;
        }
        auto given = ordinary(op).real("epsilon", 1e-5F);
        auto const whole = make(op, given);
        auto const before = sink->errors;
        auto const part = make(op, given.remove(name));
        check(part && sink->errors == before &&
                  bytes(*runtime(part).getFieldsToSerialize()) ==
                      bytes(*runtime(whole).getFieldsToSerialize()),
              op + " without " + name + ": its default");
    }
}

// An engine of a later library is refused, with both versions.
void later(std::string const& op) {
    auto given = ordinary(op).integer("of_the_future", 0);
    refused(op, "an unknown attribute", given, "'of_the_future'");
    check(sink->last.find("another version") != sink->last.npos, "no version is no version");
    given.text("library", "9.8.7, kernels 0123456789ab");
    refused(op, "an unknown attribute of a library", given, "9.8.7, kernels 0123456789ab");
    check(sink->last.find(RMSNORM_EXPORT_VERSION ", kernels " RMSNORM_EXPORT_KERNELS) !=
              sink->last.npos,
          "the library names itself");
    given.set<char>("library", PluginFieldType::kCHAR, std::vector<char>(1000, 'x'));
    refused(op, "an unknown attribute of a long version without an end", given, "xxxx");
    given.integer("library", 7);
    refused(op, "an unknown attribute of a version that is a number", given, "another version");
    taken(op, "an engine of another library with known attributes",
          ordinary(op).text("library", "9.8.7, kernels 0123456789ab"));
}

void refusedList(char const* what, PluginFieldCollection const* fields) {
    auto const before = sink->errors;
    Owner const plugin{creator("RMSNorm")->createPlugin("layer", fields, TensorRTPhase::kBUILD)};
    check(!plugin && sink->errors > before, std::string{"refused: "} + what);
}

void numbers() {
    std::string const op = "RMSNorm";
    auto const inf = std::numeric_limits<float>::infinity();
    for (float const value : {-1.0F, -1e-30F, inf, -inf, std::nanf("")}) {
        refused(op, "epsilon", ordinary(op).real("epsilon", value), "epsilon");
    }
    for (float const value : {inf, -inf, std::nanf("")}) {
        refused(op, "scale_offset", ordinary(op).real("scale_offset", value), "scale_offset");
    }
    auto const wide = PluginFieldType::kFLOAT64;
    refused(op, "epsilon 1e300", ordinary(op).set<double>("epsilon", wide, {1e300}), "epsilon");
    refused(op, "epsilon as integer", ordinary(op).integer("epsilon", 0), "epsilon");
    refused(op, "two epsilons",
            ordinary(op).set<float>("epsilon", PluginFieldType::kFLOAT32, {0, 0}), "epsilon");
    refused(op, "no epsilon in its field",
            ordinary(op).set<float>("epsilon", PluginFieldType::kFLOAT32, {}), "epsilon");
    refused(op, "epsilon of half",
            ordinary(op).set<short>("epsilon", PluginFieldType::kFLOAT16, {0}), "epsilon");
    for (int const axis : {0, 1, -9}) {
        refused(op, "axis", ordinary(op).integer("axis", axis), "axis");
    }
    auto const least = std::numeric_limits<std::int64_t>::min();
    refused(op, "axis -2^63",
            ordinary(op).set<std::int64_t>("axis", PluginFieldType::kINT64, {least}), "axis");
    refused(op, "axis as float", ordinary(op).real("axis", -1), "axis");
    refused(op, "axis as string", ordinary(op).text("axis", "-1"), "axis");
    for (int const type : {0, 7, 11, 17}) {
        refused(op, "stash_type", ordinary(op).integer("stash_type", type), "stash_type");
    }
    for (auto const* flag : {"scale_before_cast", "epsilon_outside", "epsilon_clamp", "round_rstd"}) {
        refused(op, "a flag of 2", ordinary(op).integer(flag, 2), flag);
        refused(op, "a flag of -1", ordinary(op).integer(flag, -1), flag);
    }
    refused(op, "association 3", ordinary(op).integer("association", 3), "association");
    for (auto const* size : {"partial_size", "group_size"}) {
        refused(op, "a size of -1", ordinary(op).integer(size, -1), size);
        refused(op, "a size past the longest row", ordinary(op).integer(size, (1 << 20) + 1), size);
        refused(
            op, "a size of 2^32",
            ordinary(op).set<std::int64_t>(size, PluginFieldType::kINT64, {std::int64_t{1} << 32}),
            size);
    }
}

void words() {
    for (auto const* word : {"gelu", "", "SiLU", "silu sigmoid", "sil", "silusilu"}) {
        refused("GatedRMSNorm", "activation", ordinary("GatedRMSNorm").text("activation", word),
                "activation");
    }
    refused("GatedRMSNorm", "activation as integer",
            ordinary("GatedRMSNorm").integer("activation", 0), "activation");
    std::vector<char> const endless(1000, 'a');
    refused("GatedRMSNorm", "a long word without an end",
            ordinary("GatedRMSNorm").set("activation", PluginFieldType::kCHAR, endless),
            "activation");
    for (auto const* word : {"fp4", "FP8", "", "fp8_per_tensor"}) {
        refused("QuantizedRMSNorm", "quantize", ordinary("QuantizedRMSNorm").text("quantize", word),
                "quantize");
    }
}

void combinations() {
    std::string const op = "RMSNorm";
    refused(op, "partial and group",
            ordinary(op).integer("partial_size", 8).integer("group_size", 8), "cannot be combined");
    refused(op, "partial of two axes", ordinary(op).integer("partial_size", 8).integer("axis", -2),
            "axis");
    refused(op, "group of two axes", ordinary(op).integer("group_size", 8).integer("axis", -2),
            "axis");
    refused(op, "association 1 without round_rstd",
            ordinary(op).integer("association", 1).integer("stash_type", 10), "round_rstd");
    refused(op, "the last axis before the first", ordinary(op).integer("last_axis", -2), "last_axis");
    refused(op, "a group of channels",
            ordinary(op).integer("group_size", 8).integer("axis", -2).integer("last_axis", -2),
            "axis");
    refused(op, "epsilon outside and as a bound",
            ordinary(op).integer("epsilon_outside", 1).integer("epsilon_clamp", 1),
            "epsilon_clamp");
    refused(op, "association of channels",
            ordinary(op).integer("association", 2).integer("axis", -2).integer("last_axis", -2),
            "association");
    refused(op, "association of groups",
            ordinary(op).integer("association", 2).integer("group_size", 8), "association");
    std::string const turned = "RotaryRMSNorm";
    for (auto const* size : {"partial_size", "group_size"}) {
        refused(turned, size, ordinary(turned).integer(size, 8), "no rotary embedding");
    }
    refused(turned, "two axes", ordinary(turned).integer("axis", -2), "axis -1");
    refused(turned, "7 elements", ordinary(turned).integer("rotary_dim", 7), "even");
    refused(turned, "-2 elements", ordinary(turned).integer("rotary_dim", -2), "rotary_dim");
    refused(turned, "a flag of 2", ordinary(turned).integer("rotary_interleaved", 2), "from 0 to 1");
    refused(op, "attributes of another operator", ordinary(op).integer("rotary_dim", 8), "rotary_dim");
    refused(op, "round_rstd and scale_before_cast",
            ordinary(op).integer("round_rstd", 1).integer("scale_before_cast", 1), "round_rstd");
}

}  // namespace

void badFields(Log& log) {
    sink = &log;
    numbers();
    words();
    combinations();
    for (std::string const op : {"RMSNorm", "GatedRMSNorm", "QuantizedSkipRMSNorm", "RotaryRMSNorm"}) {
        absent(op);
        later(op);
    }
    refusedList("no collection", nullptr);
    PluginFieldCollection const none{0, nullptr};
    Owner const bare{creator("RMSNorm")->createPlugin("layer", &none, TensorRTPhase::kBUILD)};
    check(bare && bytes(*runtime(bare).getFieldsToSerialize()) ==
                      bytes(*ordinary("RMSNorm").real("epsilon", 1e-5F).collection()),
          "taken: a node without attributes, the ordinary norm");
    PluginFieldCollection const lying{12, nullptr};
    refusedList("a collection without its fields", &lying);
    PluginField const anonymous{};
    PluginFieldCollection const nameless{1, &anonymous};
    refusedList("a field without a name", &nameless);
    PluginFieldCollection const negative{-3, &anonymous};
    refusedList("a negative count", &negative);
    PluginField const empty{"epsilon", nullptr, PluginFieldType::kFLOAT32, 1};
    PluginFieldCollection const hollow{1, &empty};
    refusedList("a field without its value", &hollow);
    auto const byte = std::make_unique<char>();
    PluginField const brief{"epsilon", byte.get(), PluginFieldType::kFLOAT32, 0};
    PluginFieldCollection const unread{1, &brief};
    refusedList("a field of no elements, which must not be read", &unread);
    Owner const unnamed{creator("RMSNorm")->createPlugin(nullptr, nullptr, TensorRTPhase::kBUILD)};
    check(!unnamed, "refused: a layer without a name");

    taken("RMSNorm", "int64 and float64",
          ordinary("RMSNorm")
              .set<std::int64_t>("axis", PluginFieldType::kINT64, {-2})
              .set<double>("epsilon", PluginFieldType::kFLOAT64, {1e-6}));
    taken(
        "RMSNorm", "the parser's own attributes",
        ordinary("RMSNorm").text("plugin_version", "1").text("plugin_namespace", "rmsnorm_export"));
    taken(
        "GatedRMSNorm", "a string without its NUL",
        ordinary("GatedRMSNorm")
            .set<char>("activation", PluginFieldType::kCHAR, {'s', 'i', 'g', 'm', 'o', 'i', 'd'}));
    taken("RMSNorm", "the longest group", ordinary("RMSNorm").integer("group_size", 1 << 20));
}
