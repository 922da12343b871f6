// Elements in memory (f32, f16, bf16) and in registers (always f32): load, store, round, and the
// 16-byte vectors of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "device.cuh"
#include "rmsnorm.h"

namespace rmsnorm_export {

// Elements of T in a 16-byte vector.
template <typename T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

template <typename T>
constexpr bool kHalf = !std::is_same_v<T, float>;

template <typename To, typename From>
__device__ To bits(From const& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(static_cast<void*>(&to), &from, sizeof(to));
    return to;
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T narrow(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else if constexpr (std::is_same_v<T, __half>) {
        return __float2half_rn(value);
    } else {
        return __float2bfloat16_rn(value);
    }
}

// Two elements in a 32-bit word: the hardware converts pairs at the price of one.
template <typename T>
__device__ float2 widen_pair(unsigned word) {
    if constexpr (std::is_same_v<T, __half>) {
        return __half22float2(bits<__half2>(word));
    } else {
        return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000U)};
    }
}

template <typename T>
__device__ unsigned narrow_pair(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        return bits<unsigned>(__floats2half2_rn(low, high));
    } else {
        return bits<unsigned>(__floats2bfloat162_rn(low, high));
    }
}

template <typename T>
__device__ void unpack(float (&values)[kWidth<T>], uint4 vector) {
    unsigned const words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (kHalf<T>) {
            float2 const pair = widen_pair<T>(words[i]);
            values[2 * i] = pair.x;
            values[2 * i + 1] = pair.y;
        } else {
            values[i] = __uint_as_float(words[i]);
        }
    }
}

// Rounds to T.
template <typename T>
__device__ uint4 pack(float const (&values)[kWidth<T>]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (kHalf<T>) {
            words[i] = narrow_pair<T>(values[2 * i], values[2 * i + 1]);
        } else {
            words[i] = __float_as_uint(values[i]);
        }
    }
    return {words[0], words[1], words[2], words[3]};
}

// One declared rounding step.
template <typename T, int W>
__device__ void round_to(float (&values)[W]) {
    if constexpr (kHalf<T> && W % 2 == 0) {
#pragma unroll
        for (int i = 0; i < W; i += 2) {
            float2 const pair = widen_pair<T>(narrow_pair<T>(values[i], values[i + 1]));
            values[i] = pair.x;
            values[i + 1] = pair.y;
        }
    } else if constexpr (kHalf<T>) {
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = widen(narrow<T>(values[i]));
    }
}

template <typename T>
__device__ float rounded(float value) {
    return widen(narrow<T>(value));
}

// W elements from `index` on of a tensor of T: one element, or whole 16-byte vectors.
template <typename T, int W>
__device__ void load(float (&values)[W], void const* tensor, std::int64_t index) {
    T const* const from = static_cast<T const*>(tensor) + index;
    if constexpr (W == 1) {
        values[0] = widen(*from);
    } else {
        static_assert(W % kWidth<T> == 0);
#pragma unroll
        for (int i = 0; i < W; i += kWidth<T>) {
            float part[kWidth<T>];
            unpack<T>(part, *reinterpret_cast<uint4 const*>(from + i));
#pragma unroll
            for (int k = 0; k < kWidth<T>; ++k) values[i + k] = part[k];
        }
    }
}

template <typename T, int W>
__device__ void store(float const (&values)[W], void* tensor, std::int64_t index) {
    T* const to = static_cast<T*>(tensor) + index;
    if constexpr (W == 1) {
        *to = narrow<T>(values[0]);
    } else {
        *reinterpret_cast<uint4*>(to) = pack<T>(values);
    }
}

}  // namespace rmsnorm_export
