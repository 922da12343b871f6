// The attributes of a node: one table, from which fields are read, checked, and written.
#include "node.h"

#include <cfloat>
#include <string_view>
#include <type_traits>

namespace rmsnorm_export {
namespace {

using Sort = PluginFieldType;

constexpr auto kReal = Sort::kFLOAT32;
constexpr auto kInteger = Sort::kINT32;
constexpr auto kWord = Sort::kCHAR;

struct Field {
    char const* name;
    Sort sort;
    double low;
    double high;
    void (*set)(Node&, double);
    char const* only{""};         // for the operators with this in their name
    std::string_view words[4]{};  // the value of a word is its place here
};

template <auto Member>
void set(Node& node, double value) {
    auto& member = node.*Member;
    member = static_cast<std::remove_reference_t<decltype(member)>>(value);
}

void setQuantize(Node& node, double value) {
    node.problem.quantize = value < 2 ? Quantize::kStatic : Quantize::kPerRow;
    node.problem.y = value == 0 || value == 2 ? Type::kFP8E4M3 : Type::kINT8;
}

constexpr Field kFields[] = {
    {"epsilon", kReal, 0, FLT_MAX, set<&Norm::epsilon>},
    {"axis", kInteger, -Dims::MAX_DIMS, -1, set<&Node::axis>},
    {"stash_type", kInteger, 1, 16, set<&Node::stash_type>},
    {"scale_before_cast", kInteger, 0, 1, set<&Norm::scale_before_cast>},
    {"scale_offset", kReal, -FLT_MAX, FLT_MAX, set<&Norm::scale_offset>},
    {"epsilon_outside", kInteger, 0, 1, set<&Norm::epsilon_outside>},
    {"partial_size", kInteger, 0, kMaxRow, set<&Norm::partial_size>},
    {"group_size", kInteger, 0, kMaxRow, set<&Norm::group_size>},
    {"round_rstd", kInteger, 0, 1, set<&Norm::round_rstd>},
    {"association", kInteger, 0, 2, set<&Norm::association>},
    {"activation", kWord, 0, 1, set<&Norm::activation>, "Gated", {"silu", "sigmoid"}},
    {"gate_first", kInteger, 0, 1, set<&Norm::gate_first>, "Gated"},
    {"quantize", kWord, 0, 3, setQuantize, "Quantized",
     {"fp8", "int8", "fp8_per_row", "int8_per_row"}}};
static_assert(std::size(kFields) == Node::kCount);

template <typename T>
T load(PluginField const& given) noexcept {
    T value;
    std::memcpy(&value, given.data, sizeof value);
    return value;
}

// The value of a plugin field; false when it is not one number, or a text, as `field` has to be.
bool parse(PluginField const& given, Field const& field, double& value) noexcept {
    if (!given.data || given.length < 1 || (given.length > 1 && given.type != kWord)) {
        return false;
    }
    auto const* const text = static_cast<char const*>(given.data);
    switch (given.type) {
        case Sort::kFLOAT32: value = load<float>(given); return field.sort == kReal;
        case Sort::kFLOAT64: value = load<double>(given); return field.sort == kReal;
        case Sort::kINT32: value = load<std::int32_t>(given); return field.sort == kInteger;
        case Sort::kINT64: value = double(load<std::int64_t>(given)); return field.sort == kInteger;
        case Sort::kCHAR:
            value = std::find(field.words, std::end(field.words),
                              std::string_view{text, ::strnlen(text, given.length)}) -
                    field.words;
            return field.sort == kWord;
        default: return false;
    }
}

// Says what a field must be, and what `given` is.
bool refuseField(char const* who, Field const& field, PluginField const& given) noexcept {
    double value = 0;
    if (!parse(given, field, value)) {
        char const* const sort = field.sort == kReal      ? "float"
                                 : field.sort == kInteger ? "integer"
                                                          : "string";
        return refuse("%s: %s must be one %s; found field type %d with %d elements", who,
                      field.name, sort, int(given.type), given.length);
    }
    if (field.sort != kWord) {
        return refuse("%s: %s must be from %.9g to %.9g; found %.9g", who, field.name, field.low,
                      field.high, value);
    }
    char words[64];
    std::size_t used = 0;
    for (std::size_t i = 0; i <= field.high; ++i) {
        used += std::snprintf(words + used, sizeof words - used, " %s", field.words[i].data());
    }
    return refuse("%s: %s must be one of:%s; found '%.*s'", who, field.name, words,
                  std::min(given.length, 40), static_cast<char const*>(given.data));
}

}  // namespace

bool Node::read(char const* layer, PluginFieldCollection const* given) noexcept {
    char who[160];
    std::snprintf(who, sizeof who, "%s '%.80s'", name, layer ? layer : "");
    if (!given || !given->fields) {
        return refuse("%s: no fields were given", who);
    }
    auto const* const end = given->fields + std::max(0, given->nbFields);
    auto used = std::snprintf(id, sizeof id, "%s", name);
    for (auto const& field : kFields) {
        if (!std::strstr(name, field.only)) {
            continue;
        }
        auto const* const found = std::find_if(given->fields, end, [&](PluginField const& each) {
            return each.name && !std::strcmp(each.name, field.name);
        });
        if (found == end) {
            return refuse(
                "%s: the attribute %s is missing; `rmsnorm-export optimize --target portable` "
                "writes all of them",
                who, field.name);
        }
        double value = 0;
        if (!parse(*found, field, value) || !(value >= field.low && value <= field.high)) {
            return refuseField(who, field, *found);  // NaN too
        }
        field.set(*this, value);
        auto& own = values_[&field - kFields];
        own = {float(value), field.sort == kReal ? 0 : std::int32_t(value)};
        auto const word = field.words[field.sort == kWord ? own.integer : 0];  // empty of a number
        auto const room = sizeof id - std::size_t(used);
        used += word.empty() ? std::snprintf(id + used, room, " %s=%.9g", field.name, own.real)
                             : std::snprintf(id + used, room, " %s=%s", field.name, word.data());
    }
    stash_half = stash_type != 1;
    // What is wrong whatever the tensors are: the kernels are asked about the smallest row that has
    // room for these attributes.
    problem.norm = *this;
    problem.n = std::max<std::int64_t>({1, partial_size, group_size});
    problem.x = stash_type == 1 ? Type::kF32 : stash_type == 10 ? Type::kF16 : Type::kBF16;
    problem.y = quantized() ? problem.y : problem.x;
    auto const* why = refusal(problem);
    if ((partial_size || group_size) && axis != -1) {
        why = "partial_size and group_size need axis -1";
    }
    if (stash_type != 1 && stash_type != 10 && stash_type != 16) {
        why =
            "stash_type must be 1 (float32), or 10 (float16) or 16 (bfloat16) for X of that type; "
            "there are no kernels for 11 (float64)";
    }
    return !why || refuse("%s: %s; found %s", who, why, id);
}

PluginFieldCollection const* Node::fields() noexcept {
    collection_ = {0, fields_};
    for (auto const& field : kFields) {
        if (std::strstr(name, field.only)) {
            auto const& own = values_[&field - kFields];
            auto const word = field.words[field.sort == kWord ? own.integer : 0];
            void const* const number =
                field.sort == kReal ? static_cast<void const*>(&own.real) : &own.integer;
            void const* const data = word.empty() ? number : word.data();
            auto const length = std::int32_t(word.size()) + 1;  // with the NUL of a word
            fields_[collection_.nbFields++] = {field.name, data, field.sort, length};
        }
    }
    return &collection_;
}

}  // namespace rmsnorm_export
