// The operator's arithmetic, one rounding per step that rmsnorm.h declares. Everything is computed
// in f32; a step in a half type is the f32 operation followed by one rounding, which is exact:
// 24 >= 2 * 11 + 2 bits (Figueroa 1995). Products and sums are intrinsics because the compiler
// would contract a plain a * b + c into one step.
//
// T is the type of x, S the type of the statistics (f32, or T), W the elements at once.
#pragma once

#include <cmath>

#include "activation.cuh"

namespace rmsnorm_export {

// Division of many values by one. f32 is IEEE division. A half type takes the reciprocal and one
// correction step (Markstein 1990): an error of half an ulp of f32 and a hair, at a third of the
// price. The correction would make NaN of an infinite quotient, and it underflows for divisors
// that no sane row has; without it the error is at most 1.5 ulp of f32.
template <typename T>
struct Divisor {
    float value;
    float reciprocal;
    bool correct;

    __device__ explicit Divisor(float divisor) {
        value = divisor;
        reciprocal = __fdiv_rn(1.0F, divisor);
        correct = divisor >= 0x1p-60F && divisor <= 0x1p60F;
    }

    template <int W>
    __device__ void divide(float (&values)[W]) const {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            if constexpr (!kHalf<T>) {
                values[i] = __fdiv_rn(values[i], value);
            } else {
                float const dividend = values[i];
                values[i] = __fmul_rn(dividend, reciprocal);
                if (correct && fabsf(values[i]) < INFINITY) {
                    // q * b - a, not a - q * b: the sign of a zero survives.
                    float const excess = __fmaf_rn(values[i], value, -dividend);
                    values[i] = __fmaf_rn(-excess, reciprocal, values[i]);
                }
            }
        }
    }
};

// The sum of squares of the first `count` of W values, in f32: it overflows for values whose mean
// square is within a factor of n of the largest f32.
template <typename S, int W>
__device__ float squares(float const (&values)[W], std::int32_t count) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < W; ++i) {
        if constexpr (kHalf<S>) {
            if (i < count) sum = __fadd_rn(sum, rounded<S>(__fmul_rn(values[i], values[i])));
        } else {
            if (i < count) sum = __fmaf_rn(values[i], values[i], sum);
        }
    }
    return sum;
}

// The root mean square, from the sum over `task.limit` elements.
template <typename S>
__device__ float root_mean_square(Task const& task, float sum) {
    Norm const& norm = task.problem.norm;
    float const mean = rounded<S>(__fdiv_rn(sum, static_cast<float>(task.limit)));
    float const epsilon = rounded<S>(norm.epsilon);
    if (norm.epsilon_outside) {
        return rounded<S>(__fadd_rn(rounded<S>(__fsqrt_rn(mean)), epsilon));
    }
    return rounded<S>(__fsqrt_rn(rounded<S>(__fadd_rn(mean, epsilon))));
}

template <int W>
__device__ void multiply(float (&values)[W], float const (&factors)[W]) {
#pragma unroll
    for (int i = 0; i < W; ++i) values[i] = __fmul_rn(values[i], factors[i]);
}

template <int W>
__device__ void add(float (&values)[W], float const (&terms)[W]) {
#pragma unroll
    for (int i = 0; i < W; ++i) values[i] = __fadd_rn(values[i], terms[i]);
}

// W elements of scale or bias, in the type of the product.
template <typename T, int W>
__device__ void load_parameter(float (&values)[W], Task const& task, void const* tensor, Type type,
                               std::int64_t index) {
    if (kHalf<T> && type == Type::kF32) {
        load<float>(values, tensor, index);
        if (!task.problem.norm.scale_before_cast) round_to<T>(values);
    } else {
        load<T>(values, tensor, index);
    }
}

// scale_offset + scale, in the type of the product; nothing to load when there is no scale.
template <typename T, int W>
__device__ void load_gain(float (&gain)[W], Task const& task, std::int64_t index) {
    Problem const& problem = task.problem;
    if (!problem.has_scale) return;
    load_parameter<T>(gain, task, task.pointers.scale, problem.scale, index);
    if (problem.norm.scale_offset == 0.0F) return;
    bool const wide = problem.norm.scale_before_cast;
    float const offset =
        wide ? problem.norm.scale_offset : rounded<T>(problem.norm.scale_offset);
#pragma unroll
    for (int i = 0; i < W; ++i) gain[i] = __fadd_rn(offset, gain[i]);
    if (!wide) round_to<T>(gain);
}

// Everything that is the same for all elements of a segment once its squares are summed.
template <typename T, typename S>
struct Statistics {
    Divisor<T> rms;
    float rstd;  // 1 / rms, rounded to T

    __device__ Statistics(Task const& task, float sum)
        : rms(root_mean_square<S>(task, sum)),
          rstd(rounded<T>(rounded<S>(rms.reciprocal))) {}
};

// The norm of W elements of a segment, not yet rounded to T when scale_before_cast. `index` is that
// of the first in the row, for the bias.
template <typename T, typename S, int W>
__device__ void normalise(float (&values)[W], Task const& task, Statistics<T, S> const& statistics,
                          float const (&gain)[W], std::int64_t index) {
    Problem const& problem = task.problem;
    Norm const& norm = problem.norm;
    // Products of two rounded to T only; an association other than 0 implies S = T.
    bool scaled = !problem.has_scale;
    if constexpr (kHalf<S>) {
        if (norm.association == 2 && !scaled) {
            multiply(values, gain);
            round_to<T>(values);
            scaled = true;
        }
    }
    if (norm.round_rstd) {
        round_to<T>(values);
        float factors[W];
#pragma unroll
        for (int i = 0; i < W; ++i) factors[i] = statistics.rstd;
        if constexpr (kHalf<S>) {
            if (norm.association == 1 && !scaled) {
                multiply(factors, gain);
                round_to<T>(factors);
                scaled = true;
            }
        }
        multiply(values, factors);
    } else {
        statistics.rms.divide(values);
        round_to<S>(values);
    }
    bool const narrow_product = !norm.scale_before_cast;
    if (narrow_product) round_to<T>(values);
    if (!scaled) {
        multiply(values, gain);
        if (narrow_product) round_to<T>(values);
    }
    if (problem.has_bias) {
        float bias[W];
        load_parameter<T>(bias, task, task.pointers.bias, problem.bias, index);
        add(values, bias);
        if (narrow_product) round_to<T>(values);
    }
}

}  // namespace rmsnorm_export
