// Implementation of signature.h.
#include "signature.h"

#include "log.h"

#include <cstdio>

namespace rmsnorm_export {
namespace {

using nvinfer1::Dims;

char const* name(DataType type) noexcept {
    constexpr char const* kNames[] = {"float32", "float16", "int8",     "int32", "bool",
                                      "uint8",   "fp8",     "bfloat16", "int64"};
    auto const index = static_cast<std::size_t>(type);
    return index < std::size(kNames) ? kNames[index] : "another type";
}

Type kernelType(DataType type) noexcept {
    return type == DataType::kHALF   ? Type::kF16
           : type == DataType::kBF16 ? Type::kBF16
                                     : Type::kF32;
}

// "2x-1x64"
struct Shape {
    explicit Shape(Dims const& dims) noexcept {
        std::size_t used = 0;
        for (std::int32_t i = 0; i < dims.nbDims; ++i) {
            used += std::size_t(std::snprintf(text + used, sizeof text - used, i ? "x%lld" : "%lld",
                                              static_cast<long long>(dims.d[i])));
        }
    }
    char text[Dims::MAX_DIMS * 21 + 1]{};
};

// Product of the sizes from `first` to `last`, -1 when one is not known; false when it overflows.
bool volume(Dims const& dims, std::int32_t first, std::int32_t last,
            std::int64_t& product) noexcept {
    product = 1;
    bool fits = true;
    bool known = true;
    for (auto i = first; i < last; ++i) {
        known = known && dims.d[i] >= 0;
        fits = fits && (!known || !__builtin_mul_overflow(product, dims.d[i], &product));
    }
    product = known ? product : -1;
    return fits;
}

// Whether `dims`, aligned at the right and with 1 for what is missing, is `x` with its first
// `leading` dimensions 1, as far as the sizes are known.
bool matches(Dims const& dims, Dims const& x, std::int32_t leading) noexcept {
    bool same = dims.nbDims <= x.nbDims;
    for (std::int32_t i = 0; same && i < x.nbDims; ++i) {
        auto const j = i - (x.nbDims - dims.nbDims);
        auto const size = j < 0 ? 1 : dims.d[j];
        auto const wanted = i < leading ? 1 : x.d[i];
        same = size < 0 || wanted < 0 || size == wanted;
    }
    return same;
}

bool checkShape(char const* who, Signature const& signature, std::int32_t position,
                Dims const& dims, Dims const& x, std::int32_t leading) noexcept {
    if (position == signature.quant_scale) {
        std::int64_t size = 1;
        return (volume(dims, 0, dims.nbDims, size) && (size == 1 || size == -1)) ||
               refuse("%s: the scale of the quantised output must be one number; found shape %s",
                      who, Shape(dims).text);
    }
    bool const weight = signature.optional(position);
    return matches(dims, x, weight ? leading : 0) ||
           refuse("%s: input %d must have %s of X, %s; found shape %s", who, position,
                  weight ? "the normalised dimensions" : "the shape", Shape(x).text,
                  Shape(dims).text);
}

}  // namespace

bool Signature::assign(char const* who, Attributes const& attributes, std::int32_t input_count,
                       std::int32_t output_count) noexcept {
    auto const quantize = attributes.quantization();
    bool const fixed = quantize == Quantize::kStatic;
    bool const skip = attributes.kind == Kind::kSkipRMSNorm;
    bool const per_row = quantize == Quantize::kPerRow;
    std::int32_t const first = attributes.kind == Kind::kRMSNorm ? 1 : 2;
    auto const weights = input_count - first - fixed;
    auto const outputs = 1 + skip + per_row;
    if (weights < 0 || weights > 2 || outputs != output_count) {
        return refuse(
            "%s: needs %d to %d inputs (X%s, then scale and bias, which may be left out%s) "
            "and %d outputs; found %d and %d",
            who, first + fixed, first + fixed + 2,
            first == 1 ? ""
            : skip     ? ", residual"
                       : ", gate",
            fixed ? ", then the scale of the quantised output" : "", outputs, input_count,
            output_count);
    }
    stash_type = attributes.stash_type;
    inputs = input_count;
    other = first == 2 ? 1 : -1;
    scale = weights > 0 ? first : -1;
    bias = weights > 1 ? first + 1 : -1;
    quant_scale = fixed ? inputs - 1 : -1;
    sum = skip ? inputs + 1 : -1;
    row_scale = per_row ? inputs + outputs - 1 : -1;
    quantized = attributes.quantized;
    code = attributes.quantize[0] == 'i' ? DataType::kINT8 : DataType::kFP8;
    return true;
}

bool Signature::accepts(std::int32_t position, DataType type, DataType x) const noexcept {
    if (position == 0) {
        return (type == DataType::kFLOAT && stash_type == 1) ||
               (type == DataType::kHALF && stash_type != 16) ||
               (type == DataType::kBF16 && stash_type != 10);
    }
    if (position == quant_scale || position == row_scale) {
        return type == DataType::kFLOAT;
    }
    return (optional(position) && type == DataType::kFLOAT) ||
           type == (position == inputs && quantized ? code : x);
}

bool checkType(char const* who, Signature const& signature, std::int32_t position, DataType type,
               DataType x) noexcept {
    if (signature.accepts(position, type, x)) {
        return true;
    }
    if (position == 0) {
        return refuse(
            "%s: X must be float32, float16 or bfloat16, and the half type that stash_type "
            "names; found %s with stash_type %d",
            who, name(type), signature.stash_type);
    }
    return refuse("%s: input %d must be of type %s; found %s with X of %s", who, position,
                  signature.optional(position)        ? "float32 or that of X"
                  : position == signature.quant_scale ? "float32"
                                                      : "X",
                  name(type), name(x));
}

bool resolve(char const* who, Attributes const& attributes, Signature const& signature,
             Tensors const& tensors, Problem& problem, std::int64_t& rows) noexcept {
    for (std::int32_t i = 0; i < signature.inputs; ++i) {
        if (!tensors[std::size_t(i)] && !signature.optional(i)) {
            return refuse("%s: input %d has no rank; only scale and bias may be left out", who, i);
        }
    }
    auto const& x = *tensors[0];
    auto const leading = x.dims.nbDims + attributes.axis;
    if (leading < 0) {
        return refuse("%s: X must have at least %d dimensions for axis %d; found shape %s", who,
                      -attributes.axis, attributes.axis, Shape(x.dims).text);
    }
    if (!volume(x.dims, 0, leading, rows) || !volume(x.dims, leading, x.dims.nbDims, problem.n)) {
        return refuse("%s: X has more elements than can be counted; found shape %s", who,
                      Shape(x.dims).text);
    }
    for (std::int32_t i = 0; i < signature.inputs; ++i) {
        auto const* const tensor = tensors[std::size_t(i)];
        if (tensor && (!checkType(who, signature, i, tensor->type, x.type) ||
                       !checkShape(who, signature, i, tensor->dims, x.dims, leading))) {
            return false;
        }
    }
    auto const* const scale = signature.scale < 0 ? nullptr : tensors[std::size_t(signature.scale)];
    auto const* const bias = signature.bias < 0 ? nullptr : tensors[std::size_t(signature.bias)];
    problem.norm = attributes.norm();
    problem.quantize = attributes.quantization();
    problem.x = kernelType(x.type);
    problem.y = !signature.quantized                ? problem.x
                : signature.code == DataType::kINT8 ? Type::kINT8
                                                    : Type::kFP8E4M3;
    problem.has_scale = scale != nullptr;
    problem.has_bias = bias != nullptr;
    problem.scale = scale ? kernelType(scale->type) : problem.x;
    problem.bias = bias ? kernelType(bias->type) : problem.x;
    auto const* const why = problem.n < 0 ? nullptr : refusal(problem);
    return !why || refuse("%s: %s; found X of shape %s", who, why, Shape(x.dims).text);
}

}  // namespace rmsnorm_export
