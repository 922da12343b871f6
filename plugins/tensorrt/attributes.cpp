// Implementation of attributes.h, around one table of fields.
#include "attributes.h"

#include "log.h"

#include <algorithm>
#include <cfloat>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace rmsnorm_export {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

constexpr auto kReal = PluginFieldType::kFLOAT32;
constexpr auto kInteger = PluginFieldType::kINT32;
constexpr auto kText = PluginFieldType::kCHAR;
constexpr double kMostAxes = nvinfer1::Dims::MAX_DIMS;

struct Field {
    char const* name;
    PluginFieldType type;
    std::size_t offset;
    double low;
    double high;
    std::string_view words{};  // that a text may be
};

#define FIELD(name, type, ...) {#name, type, offsetof(Attributes, name), __VA_ARGS__}
constexpr Field kFields[] = {
    FIELD(epsilon, kReal, 0, FLT_MAX),
    FIELD(axis, kInteger, -kMostAxes, -1),
    FIELD(stash_type, kInteger, 1, 16),
    FIELD(scale_before_cast, kInteger, 0, 1),
    FIELD(scale_offset, kReal, -FLT_MAX, FLT_MAX),
    FIELD(epsilon_outside, kInteger, 0, 1),
    FIELD(partial_size, kInteger, 0, kMaxRow),
    FIELD(group_size, kInteger, 0, kMaxRow),
    FIELD(round_rstd, kInteger, 0, 1),
    FIELD(association, kInteger, 0, 2),
    FIELD(activation, kText, 0, 0, "silu sigmoid"),
    FIELD(gate_first, kInteger, 0, 1),
    FIELD(quantize, kText, 0, 0, "fp8 int8 fp8_per_row int8_per_row"),
};
#undef FIELD

bool has(Attributes const& attributes, Field const& field) noexcept {
    if (field.offset == offsetof(Attributes, quantize)) {
        return attributes.quantized;
    }
    bool const gate = field.offset == offsetof(Attributes, activation) ||
                      field.offset == offsetof(Attributes, gate_first);
    return !gate || attributes.kind == Kind::kGatedRMSNorm;
}

template <typename T>
T load(void const* data) noexcept {
    T value;
    std::memcpy(&value, data, sizeof value);
    return value;
}

// The number in a field of type `wanted` or the wider one of its sort; false when it is no such.
bool number(PluginField const& given, PluginFieldType wanted, double& value) noexcept {
    if (given.length != 1 || !given.data) {
        return false;
    }
    switch (given.type) {
        case PluginFieldType::kFLOAT32: value = load<float>(given.data); break;
        case PluginFieldType::kFLOAT64: value = load<double>(given.data); break;
        case PluginFieldType::kINT32: value = load<std::int32_t>(given.data); break;
        case PluginFieldType::kINT64: value = double(load<std::int64_t>(given.data)); break;
        default: return false;
    }
    bool const real =
        given.type == PluginFieldType::kFLOAT32 || given.type == PluginFieldType::kFLOAT64;
    return real == (wanted == kReal);
}

bool among(std::string_view word, std::string_view words) noexcept {
    while (!word.empty() && !words.empty()) {
        auto const end = words.find(' ');
        if (words.substr(0, end) == word) {
            return true;
        }
        words.remove_prefix(end == words.npos ? words.size() : end + 1);
    }
    return false;
}

bool readField(char const* who, PluginField const& given, Field const& field, char* to) noexcept {
    if (field.type == kText && given.type == kText && given.data && given.length > 0) {
        auto const* const text = static_cast<char const*>(given.data);
        auto const size = ::strnlen(text, std::size_t(given.length));
        if (!among({text, size}, field.words)) {
            return refuse("%s: %s must be one of: %s; found '%.*s'", who, field.name,
                          field.words.data(), int(size < 40 ? size : 40), text);
        }
        std::memcpy(to, text, size);
        to[size] = '\0';
        return true;
    }
    double value = 0;
    if (field.type == kText || !number(given, field.type, value)) {
        return refuse("%s: %s must be one %s; found field type %d with %d elements", who,
                      field.name,
                      field.type == kReal      ? "float"
                      : field.type == kInteger ? "integer"
                                               : "string",
                      int(given.type), given.length);
    }
    if (!(value >= field.low && value <= field.high)) {  // so that NaN fails
        return refuse("%s: %s must be from %.9g to %.9g; found %.9g", who, field.name, field.low,
                      field.high, value);
    }
    auto const real = float(value);
    auto const integer = field.type == kReal ? 0 : std::int32_t(value);
    static_assert(sizeof real == sizeof integer);
    std::memcpy(to, field.type == kReal ? static_cast<void const*>(&real) : &integer, sizeof real);
    return true;
}

// What is wrong with the attributes whatever the tensors are, or null: the kernels are asked about
// the smallest row that has room for them.
char const* contradiction(Attributes const& a) noexcept {
    if (a.stash_type != 1 && a.stash_type != 10 && a.stash_type != 16) {
        return "stash_type must be 1 (float32), or 10 (float16) or 16 (bfloat16) for X of that "
               "type; "
               "there are no kernels for 11 (float64)";
    }
    if ((a.partial_size || a.group_size) && a.axis != -1) {
        return "partial_size and group_size need axis -1";
    }
    Problem problem;
    problem.norm = a.norm();
    problem.n = std::max({1, a.partial_size, a.group_size});
    problem.x = a.stash_type == 1 ? Type::kF32 : a.stash_type == 10 ? Type::kF16 : Type::kBF16;
    problem.y = problem.x;
    return refusal(problem);
}

}  // namespace

Quantize Attributes::quantization() const noexcept {
    return !quantized                          ? Quantize::kNone
           : std::strstr(quantize, "_per_row") ? Quantize::kPerRow
                                               : Quantize::kStatic;
}

Norm Attributes::norm() const noexcept {
    Norm norm;
    norm.kind = kind;
    norm.epsilon = epsilon;
    norm.scale_offset = scale_offset;
    norm.epsilon_outside = epsilon_outside != 0;
    norm.scale_before_cast = scale_before_cast != 0;
    norm.round_rstd = round_rstd != 0;
    norm.stash_half = stash_type != 1;
    norm.gate_first = gate_first != 0;
    norm.association = association;
    norm.activation = activation[2] == 'g' ? Activation::kSigmoid : Activation::kSilu;
    norm.partial_size = partial_size;
    norm.group_size = group_size;
    return norm;
}

nvinfer1::PluginFieldCollection const* FieldList::of(Attributes const& attributes) noexcept {
    std::size_t count = 0;
    for (auto const& field : kFields) {
        if (has(attributes, field)) {
            auto const* const data = reinterpret_cast<char const*>(&attributes) + field.offset;
            auto const length = field.type == kText ? std::strlen(data) + 1 : 1;
            fields_[count++] = {field.name, data, field.type, std::int32_t(length)};
        }
    }
    collection_ = {std::int32_t(count), fields_.data()};
    return &collection_;
}

bool read(char const* who, nvinfer1::PluginFieldCollection const* fields,
          Attributes& attributes) noexcept {
    if (!fields || !fields->fields) {
        return refuse("%s: no fields were given", who);
    }
    for (auto const& field : kFields) {
        if (!has(attributes, field)) {
            continue;
        }
        auto const* given = fields->fields;
        auto const* const end = given + fields->nbFields;
        while (given < end && (!given->name || std::strcmp(given->name, field.name))) {
            ++given;
        }
        if (given >= end) {
            return refuse(
                "%s: the attribute %s is missing; `rmsnorm-export optimize --target "
                "portable` writes all of them",
                who, field.name);
        }
        if (!readField(who, *given, field, reinterpret_cast<char*>(&attributes) + field.offset)) {
            return false;
        }
    }
    char text[320];
    describe(attributes, text, sizeof text);
    auto const* const why = contradiction(attributes);
    return !why || refuse("%s: %s; found%s", who, why, text);
}

void describe(Attributes const& attributes, char* text, std::size_t size) noexcept {
    std::size_t used = 0;
    for (auto const& field : kFields) {
        if (!has(attributes, field) || used >= size) {
            continue;
        }
        auto const* const data = reinterpret_cast<char const*>(&attributes) + field.offset;
        char number[24];
        if (field.type == kReal) {
            std::snprintf(number, sizeof number, "%.9g", double(load<float>(data)));
        } else if (field.type == kInteger) {
            std::snprintf(number, sizeof number, "%d", load<std::int32_t>(data));
        }
        auto const* const value = field.type == kText ? data : number;
        used += std::size_t(std::snprintf(text + used, size - used, " %s=%s", field.name, value));
    }
}

}  // namespace rmsnorm_export
