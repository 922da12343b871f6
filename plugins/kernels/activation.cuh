// values * act(gate), act a sigmoid or silu.
#pragma once

#include "task.h"
#include "types.cuh"

namespace rmsnorm_export {

// 1 / (1 + exp(-z)) as a quotient that neither overflows nor loses the tail of a negative z.
//
// For half types the functions of f32 do: the product with x errs by less than 2^-20 of itself,
// which only shows where it is rounded to T and multiplied again.
__device__ inline float fast_sigmoid(float z) {
    float const decay = expf(-fabsf(z));
    return __fdividef(z < 0.0F ? decay : 1.0F, __fadd_rn(1.0F, decay));
}

// z / (1 + exp(-z)) to 2^-17 of itself, without a branch. exp(-z) is taken 2^64 times too small, so
// that neither it overflows nor its reciprocal underflows before silu does.
__device__ inline float quick_silu(float z) {
    float const decay = exp2_fast(__fmaf_rn(z, -1.44269504F, -64.0F));
    float const sum = __fadd_rn(decay, 0x1p-64F);
    return __fmul_rn(z, __fmul_rn(reciprocal_fast(sum), 0x1p-64F));
}

// In f64 and rounded once. For f32 always: some forty f64 instructions beside 12 bytes of memory
// traffic, for which sm_80, 90 and 100 have room and the others have not (by their peak rates; not
// measured).
template <typename S>
__device__ float exact_sigmoid(float z) {
    one_after_another(z);
    double const decay = exp(-fabs(static_cast<double>(z)));
    double const quotient = (z < 0.0F ? decay : 1.0) / (1.0 + decay);
    float sigmoid = static_cast<float>(static_cast<S>(quotient));
    one_after_another(sigmoid);
    return sigmoid;
}

// For a few elements in a thousand: out of line, for the registers and the size of their kernels.
template <typename S>
__device__ __noinline__ float rarely_exact_sigmoid(float z) {
    return exact_sigmoid<S>(z);
}

// Whether an error of 2^-20 of the value and `more` can change what it is rounded to.
template <typename T>
__device__ bool doubtful(float value, float more) {
    float const error = __fmaf_rn(fabsf(value), 0x1p-20F, more);
    return rounded<T>(__fadd_rn(value, -error)) != rounded<T>(__fadd_rn(value, error));
}

// The product in S. `exactly`: as it is after rounding to T, too.
template <typename T, typename S, int W>
__device__ Floats<W> activate(Floats<W> const& values, Floats<W> const& gate, Norm const& norm,
                              bool exactly) {
    return values.each([&](float value, int i) {
        float const z = gate.at[i];
        auto const product = [&](float sigmoid) {
            bool const silu = norm.activation == Activation::kSilu;
            float const factor = silu ? rounded<S>(__fmul_rn(z, sigmoid)) : sigmoid;
            return rounded<S>(__fmul_rn(value, factor));
        };
        if constexpr (!kHalf<T>) return product(exact_sigmoid<S>(z));
        float const sigmoid = fast_sigmoid(z);
        float const fast = product(rounded<S>(sigmoid));
        // Denormal values of f32 err by a few of its least, 2^-149: the sigmoid, which silu
        // multiplies by up to 104, and the product itself.
        float const more = __fmaf_rn(fabsf(value), 0x1p-139F, 0x1p-149F);
        bool const doubt =
            kHalf<S> ? doubtful<S>(sigmoid, 0x1p-146F) : exactly && doubtful<T>(fast, more);
        return doubt ? product(rarely_exact_sigmoid<S>(z)) : fast;
    });
}

}  // namespace rmsnorm_export
