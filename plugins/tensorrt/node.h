// A node of a network: its attributes, its tensors, and the checks that lead from TensorRT's
// descriptions of them to a Problem of the kernels.
#pragma once

#include "../kernels/attributes.h"
#include "../kernels/rmsnorm.h"
#include "host.h"

#include <algorithm>
#include <cstring>

namespace rmsnorm_export {

using namespace nvinfer1;

// The tensors of a node, inputs and then outputs, in order; an operator has some of them. Other is
// the residual or the gate. Scale and bias may be left out at the end, or be null tensors.
enum Role : std::int32_t {
    kX, kOther, kCos, kSin, kScale, kBias, kQuantScale, kY, kSum, kRowScale, kRoles
};

// Such as "float16 of shape 2x-1x64"; the shape is left out where there is none.
struct Text {
    explicit Text(PluginTensorDesc const& tensor) noexcept {
        constexpr char const* kNames[] = {"float32", "float16", "int8",     "int32", "bool",
                                          "uint8",   "fp8",     "bfloat16", "int64"};
        auto const type = static_cast<std::size_t>(tensor.type);
        auto const* const name = type < std::size(kNames) ? kNames[type] : "another type";
        auto used = std::snprintf(text, sizeof text, "%s", name);
        for (std::int32_t i = 0; i < tensor.dims.nbDims; ++i) {
            auto const* const format = i == 0 ? " of shape %ld" : "x%ld";
            used += std::snprintf(text + used, sizeof text - used, format, tensor.dims.d[i]);
        }
    }
    char text[Dims::MAX_DIMS * 21 + 32];
};

inline Type kernelType(DataType type) noexcept {
    bool const half = type == DataType::kHALF;
    return half ? Type::kF16 : type == DataType::kBF16 ? Type::kBF16 : Type::kF32;
}

// Whether `dims`, aligned at the right and with 1 for what is missing, is `x` with its first
// `ones` dimensions 1, as far as the sizes are known.
inline bool matches(Dims const& dims, Dims const& x, std::int32_t ones) noexcept {
    bool same = dims.nbDims >= 0 && (dims.nbDims <= x.nbDims || ones == x.nbDims);
    for (std::int32_t i = 1; i <= std::max(dims.nbDims, x.nbDims); ++i) {
        auto const size = i <= dims.nbDims ? dims.d[dims.nbDims - i] : 1;
        auto const wanted = i <= x.nbDims - ones ? x.d[x.nbDims - i] : 1;
        same = same && (size < 0 || wanted < 0 || size == wanted);
    }
    return same;
}

// Whether a scale has the `count` normalised sizes of rows that do not end with the last axis: those
// sizes, where 1s in front and behind may be missing or more. Of sizes that are not known, maybe.
inline bool spans(Dims const& dims, std::int64_t const* sizes, std::int32_t count) noexcept {
    auto const* first = dims.d;
    auto const* last = dims.d + std::max(dims.nbDims, 0);
    auto const* const end = sizes + count;
    if (std::any_of(first, last, [](auto size) { return size < 0; }) ||
        std::any_of(sizes, end, [](auto size) { return size < 0; })) {
        return true;
    }
    auto const strip = [](auto const*& from, auto const*& to) {
        while (from != to && *from == 1) ++from;
        while (from != to && to[-1] == 1) --to;
    };
    auto const* wanted_end = end;
    strip(first, last);
    strip(sizes, wanted_end);
    return std::equal(first, last, sizes, wanted_end);
}

// Names and meaning of the attributes are those of NormSpec in rmsnorm_export/op/spec.py; those
// that the kernels know are in the base. The quantised operators have one more, quantize: fp8 or
// int8 (static), fp8_per_row or int8_per_row.
struct Node : Norm {
    static constexpr std::size_t kMost = 32;  // fields

    // Of an operator, whose name must outlive it.
    explicit Node(char const* op) noexcept : name{op} {
        bool const skip = std::strstr(op, "Skip");
        bool const gated = std::strstr(op, "Gated");
        bool const turned = std::strstr(op, "Rotary");
        kind = skip     ? Kind::kSkipRMSNorm
               : gated  ? Kind::kGatedRMSNorm
               : turned ? Kind::kRotaryRMSNorm
                        : Kind::kRMSNorm;
    }

    // Takes the value of every field that is given, or refuses with the name of the layer.
    bool read(char const* layer, PluginFieldCollection const* given) noexcept;

    // In the order of the schema, with the values of `read`. They point into this object and are
    // written anew each time, because those of a copy still point into the original.
    PluginFieldCollection const* attributes() noexcept;

    // Those and the library, for an engine.
    PluginFieldCollection const* serialized() noexcept;

    std::int32_t outputs() const noexcept {
        return 1 + (kind == Kind::kSkipRMSNorm) + (problem.quantize == Quantize::kPerRow);
    }

    // Refuses counts that no node of these attributes has.
    bool counts(std::int32_t inputs, std::int32_t given) const noexcept {
        constexpr char const* kFirst[] = {"X", "X, residual", "X, gate", "X, cos, sin"};  // by Kind
        bool const fixed = problem.quantize == Quantize::kStatic;
        auto const least = beforeWeights() + fixed;
        return (inputs >= least && inputs <= least + 2 && given == outputs()) ||
               refuse(
                   "%s: needs %d to %d inputs (%s, then scale and bias, which may be left out%s) "
                   "and %d outputs; found %d and %d",
                   name, least, least + 2, kFirst[std::int32_t(kind)],
                   fixed ? ", then the scale of the quantised output" : "", outputs(), inputs,
                   given);
    }

    bool quantized() const noexcept { return problem.quantize != Quantize::kNone; }
    bool rotary() const noexcept { return kind == Kind::kRotaryRMSNorm; }
    static bool isWeight(Role role) noexcept { return role == kScale || role == kBias; }
    static bool isTable(Role role) noexcept { return role == kCos || role == kSin; }

    std::int32_t beforeWeights() const noexcept {
        return kind == Kind::kRMSNorm ? 1 : rotary() ? 3 : 2;
    }

    // Of the tensor at a position, which counts inputs and then outputs, as TensorRT does.
    Role role(std::int32_t position, std::int32_t inputs) const noexcept {
        auto const first = beforeWeights();
        if (position < first) {
            return position == 0 ? kX : Role((rotary() ? kCos : kOther) + position - 1);
        }
        if (position >= inputs) {
            bool const no_sum = position > inputs && kind != Kind::kSkipRMSNorm;
            return Role(kY + position - inputs + no_sum);
        }
        bool const last = position == inputs - 1 && problem.quantize == Quantize::kStatic;
        return last ? kQuantScale : Role(kScale + position - first);
    }

    // The type of a tensor when X has type `x`; a weight or a table may also be float32.
    DataType typeOf(Role role, DataType x) const noexcept {
        bool const real = role == kQuantScale || role == kRowScale;
        auto const code = problem.y == Type::kINT8 ? DataType::kINT8 : DataType::kFP8;
        return real ? DataType::kFLOAT : role == kY && quantized() ? code : x;
    }

    bool accepts(Role role, DataType type, DataType x) const noexcept {
        if (role != kX) {
            bool const any_real = isWeight(role) || isTable(role);
            return type == typeOf(role, x) || (any_real && type == DataType::kFLOAT);
        }
        return (type == DataType::kFLOAT && stash_type == 1) ||
               (type == DataType::kHALF && stash_type != 16) ||
               (type == DataType::kBF16 && stash_type != 10);
    }

    // Refuses an X that has not all the dimensions that are normalised.
    bool ranked(std::int32_t rank) const noexcept {
        return rank + axis >= 0 ||
               refuse("%s: X must have at least %d dimensions for axis %d; found rank %d", name,
                      -axis, axis, rank);
    }

    bool refuseInput(Role role, PluginTensorDesc const& found,
                     PluginTensorDesc const& x) const noexcept {
        constexpr char const* kTables =
            "cos and sin may not be left out, and must have one shape and one type, float32 or that "
            "of X";
        constexpr char const* kWanted[] = {
            "X must be float32, float16 or bfloat16, and the half type that stash_type names",
            "residual and gate may not be left out, and must have the type and shape of X",
            kTables,
            kTables,
            "scale must be float32 or of the type of X, and have its normalised dimensions",
            "bias must be float32 or of the type of X, and have its normalised dimensions",
            "the scale of a quantised Y may not be left out, and must be one number, of float32"};
        return refuse("%s: %s; found %s, with X %s and stash_type %d", name, kWanted[role],
                      Text(found).text, Text(x).text, stash_type);
    }

    // Fills problem and rows, or refuses. Where sizes are not known yet (-1) only what is known is
    // checked, and n or rows are -1. `addresses` are those of the inputs, or null.
    bool resolve(PluginTensorDesc const* in, std::int32_t inputs, std::int32_t given_outputs,
                 void const* const* addresses) noexcept {
        if (!counts(inputs, given_outputs) || !ranked(in[0].dims.nbDims)) {
            return false;
        }
        auto const& x = in[0].dims;
        auto const leading = x.nbDims + axis;
        problem.x = problem.scale = problem.bias = kernelType(in[0].type);
        problem.y = quantized() ? problem.y : problem.x;
        problem.has_scale = problem.has_bias = false;
        rows = problem.n = problem.inner = 1;
        auto const behind = x.nbDims + last_axis + 1;
        for (std::int32_t i = 0; i < x.nbDims; ++i) {
            auto& product = i < leading ? rows : i < behind ? problem.n : problem.inner;
            if (x.d[i] < 0 || product < 0) {
                product = -1;
            } else if (__builtin_mul_overflow(product, x.d[i], &product)) {
                return refuse("%s: X has more elements than can be counted; found %s", name,
                              Text(in[0]).text);
            }
        }
        if (rotary() && !tables(in)) {
            return false;
        }
        for (std::int32_t i = 0; i < inputs; ++i) {
            auto const role = this->role(i, inputs);
            if (isTable(role)) {
                continue;
            }
            if (isWeight(role) && (in[i].dims.nbDims < 0 || (addresses && !addresses[i]))) {
                continue;
            }
            auto const ones = role == kQuantScale ? x.nbDims : isWeight(role) ? leading : 0;
            bool const fits = isWeight(role) && last_axis != -1
                                  ? spans(in[i].dims, x.d + leading, behind - leading)
                                  : matches(in[i].dims, x, ones);
            if (!accepts(role, in[i].type, in[0].type) || !fits) {
                return refuseInput(role, in[i], in[0]);
            }
            if (isWeight(role)) {
                (role == kScale ? problem.has_scale : problem.has_bias) = true;
                (role == kScale ? problem.scale : problem.bias) = kernelType(in[i].type);
            }
        }
        if (problem.inner < 0 || rows < 0) {
            rows = -1;
        } else if (__builtin_mul_overflow(rows, problem.inner, &rows)) {
            return refuse("%s: X has more rows than can be counted; found %s", name,
                          Text(in[0]).text);
        }
        problem.inner = std::max<std::int64_t>(problem.inner, 1);
        auto const* const why = problem.n < 0 ? nullptr : refusal(problem);
        return !why || refuse("%s: %s; found X, %s", name, why, Text(in[0]).text);
    }

    // Refuses cos and sin that differ or do not broadcast, or tells the problem of them.
    bool tables(PluginTensorDesc const* in) noexcept {
        auto const& x = in[kX].dims;
        auto const& cos = in[1].dims;
        for (std::int32_t i = 1; i <= 2; ++i) {
            bool const fits = in[i].dims.nbDims == cos.nbDims && matches(in[i].dims, cos, 0) &&
                              cos.nbDims > 0 && in[i].type == in[1].type;
            if (!fits || !accepts(Role(kCos + i - 1), in[i].type, in[0].type)) {
                return refuseInput(Role(kCos + i - 1), in[i], in[0]);
            }
        }
        problem.table = kernelType(in[1].type);
        auto const width = cos.d[cos.nbDims - 1];
        problem.table_width = width >= 0 ? width : rotary_dim != 0 ? rotary_dim : problem.n;
        auto const known = [](Dims const& dims) {
            return std::all_of(dims.d, dims.d + dims.nbDims, [](auto size) { return size >= 0; });
        };
        auto const* const why =
            known(x) && known(cos)
                ? broadcast_tables(problem, x.d, x.nbDims - 1, cos.d, cos.nbDims - 1)
                : nullptr;
        return !why || refuse("%s: %s; found cos %s, with X %s", name, why, Text(in[1]).text,
                              Text(in[0]).text);
    }

    char const* name;
    char id[512]{};  // such as "RMSNorm epsilon=1e-05 axis=-1 kernels=1a2b3c4d"
    std::int32_t axis{-1};
    std::int32_t last_axis{-1};
    std::int32_t stash_type{1};  // ONNX element type: 1 float32, 10 float16, 16 bfloat16
    Problem problem;             // `read` and then `resolve` fill it
    std::int64_t rows{0};

  private:
    struct Value {
        float real;
        std::int32_t integer;  // of a word: its place in the table
    };
    Value values_[kMost]{};
    PluginField fields_[kMost + 1];
    PluginFieldCollection collection_{};
};

}  // namespace rmsnorm_export
