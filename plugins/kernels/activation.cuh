// values * act(gate), act a sigmoid or silu.
#pragma once

#include "task.h"
#include "types.cuh"

namespace rmsnorm_export {

// 1 / (1 + exp(-z)) as a quotient that neither overflows nor loses the tail of a negative z, to 2^-20
// of itself.
__device__ inline float sigmoid(float z) {
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

// The product in S.
template <typename S, int W>
__device__ Floats<W> activate(Floats<W> const& values, Floats<W> const& gate, Norm const& norm) {
    return values.each([&](float value, int i) {
        float factor = rounded<S>(sigmoid(gate.at[i]));
        if (norm.activation == Activation::kSilu) {
            factor = rounded<S>(__fmul_rn(gate.at[i], factor));
        }
        return rounded<S>(__fmul_rn(value, factor));
    });
}

}  // namespace rmsnorm_export
