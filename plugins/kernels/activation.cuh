// Sigmoid and silu of the gate.
#pragma once

#include "task.h"
#include "types.cuh"

namespace rmsnorm_export {

// exp(-|z|) cannot overflow, and exp(z) / (1 + exp(z)) below 0 keeps the tail of small values.
//
// For half types the fast functions do: they err by far less than an ulp of T. In f32 nothing would
// hide that, so the sigmoid is computed in f64 and rounded once: some forty f64 instructions beside
// 12 bytes of memory traffic, for which sm_80, 90 and 100 have room and the others have not (by
// their peak rates; not measured).
template <typename T, typename S>
__device__ float activated(Activation activation, float z) {
    float sigmoid;
    if constexpr (kHalf<T>) {
        float const decay = expf(-fabsf(z));
        sigmoid = rounded<S>(__fdividef(z < 0.0F ? decay : 1.0F, __fadd_rn(1.0F, decay)));
    } else {
        one_after_another(z);
        double const decay = exp(-fabs(static_cast<double>(z)));
        sigmoid = static_cast<float>((z < 0.0F ? decay : 1.0) / (1.0 + decay));
        one_after_another(sigmoid);
    }
    return activation == Activation::kSigmoid ? sigmoid : rounded<S>(__fmul_rn(z, sigmoid));
}

// values * act(gate), in S.
template <typename T, typename S, int W>
__device__ void activate(float (&values)[W], Task const& task, float const (&gate)[W]) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
        float const factor = activated<T, S>(task.problem.norm.activation, gate[i]);
        values[i] = __fmul_rn(values[i], factor);
    }
    round_to<S>(values);
}

}  // namespace rmsnorm_export
