// The operator's arithmetic, one rounding per step that rmsnorm.h declares. Everything is computed
// in f32; a step in a half type is the f32 operation followed by one rounding, which is exact:
// 24 >= 2 * 11 + 2 bits (Figueroa 1995).
//
// T is the type of x, S the type of the statistics (f32, or T), W the elements at once.
#pragma once

#include <cmath>

#include "activation.cuh"

namespace rmsnorm_export {

// Division of many values by one: IEEE division in f32; of a half type the product with the
// reciprocal, but for divisors that no sane row has, whose reciprocals f32 lacks.
template <typename T>
struct Divisor {
    float value;
    float reciprocal;

    // Not in the list of initialisers: nvcc shows that to the host's compiler.
    __device__ explicit Divisor(float by) : value(by) { reciprocal = __fdiv_rn(1.0F, by); }

    template <int W>
    __device__ Floats<W> divide(Floats<W> const& values) const {
        bool const multiply = kHalf<T> && value >= 0x1p-60F && value <= 0x1p60F;
        return values.each([&](float dividend, int) {
            return multiply ? __fmul_rn(dividend, reciprocal) : __fdiv_rn(dividend, value);
        });
    }
};

// The sum of squares of the first `count` values, in f32: it overflows for values whose mean square
// is within a factor of n of the largest f32.
template <typename S, int W>
__device__ float sum_of_squares(Floats<W> const& values, std::int32_t count) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < W; ++i) {
        float const value = values.at[i];
        if (i >= count) continue;
        sum = kHalf<S> ? __fadd_rn(sum, rounded<S>(__fmul_rn(value, value)))
                       : __fmaf_rn(value, value, sum);
    }
    return sum;
}

// The root mean square, from the sum over `task.limit` elements.
template <typename S>
__device__ float root_mean_square(Task const& task, float sum) {
    Norm const& norm = task.problem.norm;
    float const mean = rounded<S>(__fdiv_rn(sum, static_cast<float>(task.limit)));
    float const epsilon = rounded<S>(norm.epsilon);
    // Nothing is branched for: a zero adds nothing, and no root is below it. NaN stays.
    bool const outside = norm.epsilon_outside;
    bool const clamped = norm.epsilon_clamp;
    float const radicand = rounded<S>(__fadd_rn(mean, outside || clamped ? 0.0F : epsilon));
    float const root = rounded<S>(__fsqrt_rn(radicand));
    float const least = clamped ? epsilon : 0.0F;
    return rounded<S>(__fadd_rn(root < least ? least : root, outside ? epsilon : 0.0F));
}

// W elements of scale or bias, in the type of the product.
template <typename T, int W>
__device__ Floats<W> load_parameter(Norm const& norm, void const* tensor, Type type,
                                    std::int64_t index) {
    if (!kHalf<T> || type != Type::kF32) return load<T, W>(tensor, index);
    Floats<W> const values = load<float, W>(tensor, index);
    return norm.scale_before_cast ? values : rounded<T>(values);
}

// scale_offset + scale, in the type of the product; nothing to load when there is no scale.
template <typename T, int W>
__device__ Floats<W> load_gain(Task const& task, std::int64_t index) {
    Problem const& problem = task.problem;
    Norm const& norm = problem.norm;
    if (!problem.has_scale) return {};
    auto const scale = load_parameter<T, W>(norm, task.pointers.scale, problem.scale, index);
    if (norm.scale_offset == 0.0F) return scale;
    bool const wide = norm.scale_before_cast;
    float const offset = wide ? norm.scale_offset : rounded<T>(norm.scale_offset);
    auto const gain = scale.each([&](float value, int) { return __fadd_rn(offset, value); });
    return wide ? gain : rounded<T>(gain);
}

// The norm of W elements of a segment, not yet rounded to T when scale_before_cast. `index` is that
// of the first in the row, for the bias.
template <typename T, typename S, int W>
__device__ Floats<W> normalise(Floats<W> values, Task const& task, Divisor<T> const& rms,
                               Floats<W> const& gain, std::int64_t index) {
    Problem const& problem = task.problem;
    Norm const& norm = problem.norm;
    bool const narrow_product = !norm.scale_before_cast;
    // Products of two rounded to T only; an association other than 0 implies S = T.
    int const association = kHalf<S> && problem.has_scale ? norm.association : 0;
    if (association == 2) values = rounded<T>(values * gain);
    if (norm.round_rstd) {
        float const rstd = rounded<T>(rounded<S>(rms.reciprocal));
        values = rounded<T>(values).each([&](float value, int i) {
            float const factor = association == 1 ? rounded<T>(__fmul_rn(rstd, gain.at[i])) : rstd;
            return __fmul_rn(value, factor);
        });
    } else {
        values = rounded<S>(rms.divide(values));
    }
    if (narrow_product) values = rounded<T>(values);
    if (problem.has_scale && association == 0) {
        values = values * gain;
        if (narrow_product) values = rounded<T>(values);
    }
    if (problem.has_bias) {
        values = values + load_parameter<T, W>(norm, task.pointers.bias, problem.bias, index);
        if (narrow_product) values = rounded<T>(values);
    }
    return values;
}

}  // namespace rmsnorm_export
