// One 16-byte vector of a row through the operator's steps; what the two fast kernels share. They
// differ in where a row waits between its sum and its output.
#pragma once

#include "quantise.cuh"

namespace rmsnorm_export {

template <Mode mode>
constexpr bool kTakesOther = mode != Mode::kPlain;

// x and the residual are read once: they should not push the weights out of the caches.
template <typename T>
__device__ uint4 load_once(void const* tensor, std::int64_t index) {
    return __ldcs(reinterpret_cast<uint4 const*>(static_cast<T const*>(tensor) + index));
}

// T(x + residual), packed.
template <typename T>
__device__ uint4 sum_of(uint4 x, uint4 residual) {
    constexpr int W = kWidth<T>;
    float values[W];
    float terms[W];
    unpack<T>(values, x);
    unpack<T>(terms, residual);
    add(values, terms);
    return pack<T>(values);
}

// The values that are normalised. `x` is the sum already for kSkip.
template <typename T, Mode mode>
__device__ void row_values(float (&values)[kWidth<T>], Task const& task, uint4 x, uint4 other) {
    unpack<T>(values, x);
    if constexpr (mode == Mode::kGateFirst) {
        float gate[kWidth<T>];
        unpack<T>(gate, other);
        activate<T, float>(values, task, gate);
    }
}

// y, not yet rounded to T.
template <typename T, Mode mode>
__device__ void outputs(float (&values)[kWidth<T>], Task const& task,
                        Statistics<T, float> const& statistics, uint4 x, uint4 other,
                        float const (&gain)[kWidth<T>], std::int64_t index) {
    row_values<T, mode>(values, task, x, other);
    normalise<T, float>(values, task, statistics, gain, index);
    if constexpr (mode == Mode::kGated) {
        float gate[kWidth<T>];
        unpack<T>(gate, other);
        activate<T, float>(values, task, gate);
    }
}

// Where the row of `segment` finds its first scale.
__device__ inline std::int64_t first_parameter(Task const& task, std::int64_t segment) {
    return task.groups == 1 ? 0 : segment % task.groups * task.size;
}

}  // namespace rmsnorm_export
