// The attributes of a node: read from fields, checked, and written.
#include "node.h"

#include <array>
#include <utility>

namespace rmsnorm_export {
namespace {

using Field = Attribute<Node>;
using Sent = PluginFieldType;

constexpr auto kReal = Sort::kReal;
constexpr auto kInteger = Sort::kInteger;
constexpr auto kWord = Sort::kWord;
constexpr Sent kSentAs[] = {Sent::kFLOAT32, Sent::kINT32, Sent::kCHAR};  // by Sort

// No operator is quantised in a way that nobody chose: there is no value of before.
double quantize(Node& node, double const* value) {
    auto const given = value ? *value : -1;
    constexpr std::pair<Quantize, Type> kHow[] = {
        {Quantize::kStatic, Type::kFP8E4M3}, {Quantize::kStatic, Type::kINT8},
        {Quantize::kPerRow, Type::kFP8E4M3}, {Quantize::kPerRow, Type::kINT8}};
    auto const& [how, codes] = kHow[given < 0 ? 0 : std::int32_t(given)];
    node.problem.quantize = how;
    node.problem.y = codes;
    return given;
}

// Those of the kernels, and that of the operators whose result is codes.
constexpr auto kFields = [] {
    std::array<Field, std::size(kAttributes<Node>) + 1> all{};
    std::size_t used = 0;
    for (auto const& attribute : kAttributes<Node>) {
        all[used++] = attribute;
    }
    all[used] = {"quantize", kWord, 0, 3, quantize, "Quantized",
                 {"fp8", "int8", "fp8_per_row", "int8_per_row"}};
    return all;
}();
static_assert(kFields.size() <= Node::kMost && kMaxAxes == Dims::MAX_DIMS);

template <typename T>
T load(PluginField const& given) noexcept {
    T value;
    std::memcpy(&value, given.data, sizeof value);
    return value;
}

// The value of a plugin field; false when it is not one number, or a text, as `field` has to be.
bool parse(PluginField const& given, Field const& field, double& value) noexcept {
    if (!given.data || given.length < 1 || (given.length > 1 && given.type != Sent::kCHAR)) {
        return false;
    }
    auto const* const text = static_cast<char const*>(given.data);
    switch (given.type) {
        case Sent::kFLOAT32: value = load<float>(given); return field.sort == kReal;
        case Sent::kFLOAT64: value = load<double>(given); return field.sort == kReal;
        case Sent::kINT32: value = load<std::int32_t>(given); return field.sort == kInteger;
        case Sent::kINT64: value = double(load<std::int64_t>(given)); return field.sort == kInteger;
        case Sent::kCHAR:
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

// Fields that are no attributes: the library that wrote an engine, and two of the parser.
constexpr char const* kLibraryField = "library";
constexpr char const* kNoAttributes[] = {kLibraryField, "plugin_version", "plugin_namespace"};
constexpr char kLibrary[] = RMSNORM_EXPORT_VERSION ", kernels " RMSNORM_EXPORT_KERNELS;

PluginField const* find(PluginFieldCollection const& given, char const* name) noexcept {
    auto const* const end = given.fields + given.nbFields;
    auto const* const found = std::find_if(given.fields, end, [&](PluginField const& each) {
        return each.name && !std::strcmp(each.name, name);
    });
    return found == end ? nullptr : found;
}

// What a later library computes with a field that this one does not know must not be computed
// without it.
bool knowsAll(char const* who, char const* op, PluginFieldCollection const& given) noexcept {
    for (std::int32_t i = 0; i < given.nbFields; ++i) {
        auto const* const name = given.fields[i].name ? given.fields[i].name : "";
        auto const same = [&](char const* known) { return !std::strcmp(known, name); };
        bool const known =
            std::any_of(std::begin(kFields), std::end(kFields), [&](auto const& field) {
                return field.belongs(op) && same(field.name);
            });
        if (known || std::any_of(std::begin(kNoAttributes), std::end(kNoAttributes), same)) {
            continue;
        }
        auto const* const writer = find(given, kLibraryField);
        bool const named = writer && writer->data && writer->type == Sent::kCHAR && writer->length > 0;
        return refuse(
            "%s: this library (%s) does not know the attribute '%.40s'; it was written by %.*s; "
            "load the library of that version, or build the engine again with this one",
            who, kLibrary, name, named ? std::min(writer->length, 40) : 40,
            named ? static_cast<char const*>(writer->data) : "another version");
    }
    return true;
}

}  // namespace

bool Node::read(char const* layer, PluginFieldCollection const* given) noexcept {
    char who[160];
    std::snprintf(who, sizeof who, "%s '%.80s'", name, layer ? layer : "");
    if (!given || given->nbFields < 0 || (given->nbFields > 0 && !given->fields)) {
        return refuse("%s: no fields were given", who);
    }
    if (!knowsAll(who, name, *given)) {
        return false;
    }
    auto used = std::snprintf(id, sizeof id, "%s", name);
    for (auto const& field : kFields) {
        if (!field.belongs(name)) {
            continue;
        }
        // One that is absent has the default of the schema, which is that of the members: so ONNX
        // says, and an engine of an earlier library lacks what came later.
        auto const* const found = find(*given, field.name);
        double value = field.member(*this, nullptr);
        bool const good = !found || parse(*found, field, value);
        if (!found && value < field.low) {
            return refuse("%s: the attribute %s is missing, and has no default", who, field.name);
        }
        if (!good || !(value >= field.low && value <= field.high)) {
            return refuseField(who, field, *found);  // NaN too
        }
        field.member(*this, &value);
        auto& own = values_[&field - kFields.data()];
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
    problem.n = std::max<std::int64_t>({1, partial_size, group_size, rotary_dim});
    if (rotary()) {
        problem.n += problem.n % 2;
        problem.table_width = rotary_dim != 0 ? rotary_dim : problem.n;
    }
    problem.x = stash_type == 1 ? Type::kF32 : stash_type == 10 ? Type::kF16 : Type::kBF16;
    problem.y = quantized() ? problem.y : problem.x;
    auto const* why = refusal(problem);
    if ((partial_size || group_size) && axis != -1) {
        why = "partial_size and group_size need axis -1";
    }
    if (rotary() && axis != -1) {
        why = "a rotary embedding needs axis -1";
    }
    if (last_axis < axis) {
        why = "last_axis must not be before axis";
    }
    if (association != 0 && last_axis != -1) {
        why = "association needs last_axis -1";
    }
    if (stash_type != 1 && stash_type != 10 && stash_type != 16) {
        why =
            "stash_type must be 1 (float32), or 10 (float16) or 16 (bfloat16) for X of that type; "
            "there are no kernels for 11 (float64)";
    }
    if (why) {
        return refuse("%s: %s; found %s", who, why, id);
    }
    // Kernels of other sources take other times.
    std::snprintf(id + used, sizeof id - std::size_t(used), " kernels=%s", RMSNORM_EXPORT_KERNELS);
    return true;
}

PluginFieldCollection const* Node::attributes() noexcept {
    collection_ = {0, fields_};
    for (auto const& field : kFields) {
        if (field.belongs(name)) {
            auto const& own = values_[&field - kFields.data()];
            auto const word = field.words[field.sort == kWord ? own.integer : 0];
            void const* const number =
                field.sort == kReal ? static_cast<void const*>(&own.real) : &own.integer;
            void const* const data = word.empty() ? number : word.data();
            auto const length = std::int32_t(word.size()) + 1;  // with the NUL of a word
            fields_[collection_.nbFields++] = {field.name, data, kSentAs[int(field.sort)], length};
        }
    }
    return &collection_;
}

PluginFieldCollection const* Node::serialized() noexcept {
    attributes();
    fields_[collection_.nbFields++] = {kLibraryField, kLibrary, Sent::kCHAR, sizeof kLibrary};
    return &collection_;
}

}  // namespace rmsnorm_export
