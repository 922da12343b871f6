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

// One thing is wrong in each: what the sentence has in it, beside the name of the operator.
struct Bad {
    char const* word;
    Fields fields;
    char const* op = "RMSNorm";
};

Fields plain() { return ordinary("RMSNorm"); }
Fields gated() { return ordinary("GatedRMSNorm"); }
Fields coded() { return ordinary("QuantizedRMSNorm"); }
Fields turned() { return ordinary("RotaryRMSNorm"); }
Fields channels() { return plain().integer("axis", -2).integer("last_axis", -2); }

template <typename T>
std::vector<Bad> each(char const* name, PluginFieldType type, std::vector<T> const& values) {
    std::vector<Bad> all;
    for (auto const value : values) all.push_back({name, plain().set<T>(name, type, {value})});
    return all;
}

std::vector<Bad> numbers() {
    constexpr auto kReal = PluginFieldType::kFLOAT32;
    constexpr auto kInteger = PluginFieldType::kINT32;
    constexpr auto kLong = PluginFieldType::kINT64;
    auto const inf = std::numeric_limits<float>::infinity();
    auto const least = std::numeric_limits<std::int64_t>::min();
    std::vector<Bad> all{
        {"epsilon", plain().set<double>("epsilon", PluginFieldType::kFLOAT64, {1e300})},
        {"epsilon", plain().integer("epsilon", 0)},
        {"epsilon", plain().set<float>("epsilon", kReal, {0, 0})},
        {"epsilon", plain().set<float>("epsilon", kReal, {})},
        {"epsilon", plain().set<short>("epsilon", PluginFieldType::kFLOAT16, {0})},
        {"axis", plain().set<std::int64_t>("axis", kLong, {least})},
        {"axis", plain().real("axis", -1)},
        {"axis", plain().text("axis", "-1")}};
    auto const add = [&](std::vector<Bad> const& some) {
        all.insert(all.end(), some.begin(), some.end());
    };
    add(each<float>("epsilon", kReal, {-1, -1e-30F, inf, -inf, std::nanf("")}));
    add(each<float>("scale_offset", kReal, {inf, -inf, std::nanf("")}));
    add(each<std::int32_t>("axis", kInteger, {0, 1, -9}));
    add(each<std::int32_t>("stash_type", kInteger, {0, 7, 11, 17}));
    add(each<std::int32_t>("association", kInteger, {3}));
    for (auto const* flag : {"scale_before_cast", "epsilon_outside", "epsilon_clamp", "round_rstd"}) {
        add(each<std::int32_t>(flag, kInteger, {2, -1}));
    }
    for (auto const* size : {"partial_size", "group_size"}) {
        add(each<std::int32_t>(size, kInteger, {-1, (1 << 20) + 1}));
        add(each<std::int64_t>(size, kLong, {std::int64_t{1} << 32}));
    }
    return all;
}

std::vector<Bad> words() {
    std::vector<char> const endless(1000, 'a');
    std::vector<Bad> all{
        {"activation", gated().integer("activation", 0), "GatedRMSNorm"},
        {"activation", gated().set("activation", PluginFieldType::kCHAR, endless), "GatedRMSNorm"}};
    for (auto const* word : {"gelu", "", "SiLU", "silu sigmoid", "sil", "silusilu"}) {
        all.push_back({"activation", gated().text("activation", word), "GatedRMSNorm"});
    }
    for (auto const* word : {"fp4", "FP8", "", "fp8_per_tensor", "mxfp8"}) {
        all.push_back({"quantize", coded().text("quantize", word), "QuantizedRMSNorm"});
    }
    return all;
}

std::vector<Bad> combinations() {
    auto const* const rotary = "RotaryRMSNorm";
    return {
        {"cannot be combined", plain().integer("partial_size", 8).integer("group_size", 8)},
        {"axis", plain().integer("partial_size", 8).integer("axis", -2)},
        {"axis", plain().integer("group_size", 8).integer("axis", -2)},
        {"axis", channels().integer("group_size", 8)},
        {"association", channels().integer("association", 2)},
        {"association", plain().integer("association", 2).integer("group_size", 8)},
        {"last_axis", plain().integer("last_axis", -2)},
        {"round_rstd", plain().integer("association", 1).integer("stash_type", 10)},
        {"round_rstd", plain().integer("round_rstd", 1).integer("scale_before_cast", 1)},
        {"epsilon_clamp", plain().integer("epsilon_outside", 1).integer("epsilon_clamp", 1)},
        {"rotary_dim", plain().integer("rotary_dim", 8)},
        {"no rotary embedding", turned().integer("partial_size", 8), rotary},
        {"no rotary embedding", turned().integer("group_size", 8), rotary},
        {"axis -1", turned().integer("axis", -2), rotary},
        {"even", turned().integer("rotary_dim", 7), rotary},
        {"rotary_dim", turned().integer("rotary_dim", -2), rotary},
        {"from 0 to 1", turned().integer("rotary_interleaved", 2), rotary},
    };
}

// Collections that are none.
void lists() {
    refusedList("no collection", nullptr);
    PluginField const anonymous{};
    PluginField const hollow{"epsilon", nullptr, PluginFieldType::kFLOAT32, 1};
    auto const byte = std::make_unique<char>();
    PluginField const unread{"epsilon", byte.get(), PluginFieldType::kFLOAT32, 0};
    std::pair<char const*, PluginFieldCollection> const kinds[] = {
        {"a collection without its fields", {12, nullptr}},
        {"a field without a name", {1, &anonymous}},
        {"a negative count", {-3, &anonymous}},
        {"a field without its value", {1, &hollow}},
        {"a field of no elements, which must not be read", {1, &unread}}};
    for (auto const& [what, fields] : kinds) refusedList(what, &fields);
    Owner const unnamed{creator("RMSNorm")->createPlugin(nullptr, nullptr, TensorRTPhase::kBUILD)};
    check(!unnamed, "refused: a layer without a name");
}

}  // namespace

void badFields(Log& log) {
    sink = &log;
    for (auto const& some : {numbers(), words(), combinations()}) {
        for (auto const& bad : some) refused(bad.op, bad.word, bad.fields, bad.word);
    }
    for (std::string const op : {"RMSNorm", "GatedRMSNorm", "QuantizedSkipRMSNorm", "RotaryRMSNorm"}) {
        absent(op);
        later(op);
    }
    lists();
    PluginFieldCollection const none{0, nullptr};
    Owner const bare{creator("RMSNorm")->createPlugin("layer", &none, TensorRTPhase::kBUILD)};
    check(bare && bytes(*runtime(bare).getFieldsToSerialize()) ==
                      bytes(*plain().real("epsilon", 1e-5F).collection()),
          "taken: a node without attributes, the ordinary norm");
    taken("RMSNorm", "int64 and float64",
          plain().set<std::int64_t>("axis", PluginFieldType::kINT64, {-2})
              .set<double>("epsilon", PluginFieldType::kFLOAT64, {1e-6}));
    taken("RMSNorm", "the parser's own attributes",
          plain().text("plugin_version", "1").text("plugin_namespace", "rmsnorm_export"));
    std::string const sigmoid = "sigmoid";
    taken("GatedRMSNorm", "a string without its NUL",
          gated().set<char>("activation", PluginFieldType::kCHAR, {sigmoid.begin(), sigmoid.end()}));
    taken("RMSNorm", "the longest group", plain().integer("group_size", 1 << 20));
}
