// Elements in memory (f32, f16, bf16) and in registers (always f32): load, store, round.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "device.cuh"

namespace rmsnorm_export {

// Elements of T in a 16-byte vector.
template <typename T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

template <typename T>
constexpr bool kHalf = !std::is_same_v<T, float>;

// W elements in registers. Products and sums are intrinsics because the compiler would contract a
// plain a * b + c into one step.
template <int W>
struct Floats {
    float at[W];

    // change(element, index) of every element.
    template <typename Change>
    __device__ Floats each(Change change) const {
        Floats result;
#pragma unroll
        for (int i = 0; i < W; ++i) result.at[i] = change(at[i], i);
        return result;
    }
    __device__ Floats operator*(Floats const& other) const {
        return each([&](float value, int i) { return __fmul_rn(value, other.at[i]); });
    }
    __device__ Floats operator+(Floats const& other) const {
        return each([&](float value, int i) { return __fadd_rn(value, other.at[i]); });
    }
};

// W elements as they are read and written, and wait between: a 16-byte vector, or one element.
template <typename T, int W>
using Raw = std::conditional_t<W == 1, T, uint4>;

template <typename T, int W>
struct alignas(W * sizeof(T)) Packed {
    T at[W];
};

template <typename To, typename From>
__device__ To bits(From const& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(static_cast<void*>(&to), &from, sizeof(to));
    return to;
}

template <typename T, typename R>
__device__ auto unpack(R const& raw) {
    constexpr int W = static_cast<int>(sizeof(R) / sizeof(T));
    auto const packed = bits<Packed<T, W>>(raw);
    Floats<W> values;
#pragma unroll
    for (int i = 0; i < W; ++i) {
        if constexpr (std::is_same_v<T, __nv_bfloat16> && W > 1) {
            // An instruction for each; the conversion of the second in a word would take two.
            unsigned const pair = bits<Packed<unsigned, W / 2>>(packed).at[i / 2];
            values.at[i] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000U);
        } else {
            values.at[i] = static_cast<float>(packed.at[i]);
        }
    }
    return values;
}

// The hardware converts a pair at the price of one.
template <typename T>
__device__ auto narrow_pair(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        return __floats2half2_rn(low, high);
    } else {
        return __floats2bfloat162_rn(low, high);
    }
}

template <typename T>
using Pair = decltype(narrow_pair<T>(0.0F, 0.0F));

// operation(a, b) of every two elements, in T, rounded once.
template <typename T, typename Operation>
__device__ uint4 of_pairs(uint4 const& a, uint4 const& b, Operation operation) {
    auto result = bits<Packed<Pair<T>, 4>>(a);
    auto const other = bits<Packed<Pair<T>, 4>>(b);
#pragma unroll
    for (int i = 0; i < 4; ++i) result.at[i] = operation(result.at[i], other.at[i]);
    return bits<uint4>(result);
}

template <typename T, int W>
__device__ Raw<T, W> pack(Floats<W> const& values) {
    Packed<T, W> packed;
    constexpr int kStep = kHalf<T> && W > 1 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < W; i += kStep) {
        if constexpr (kStep == 1) {
            packed.at[i] = static_cast<T>(values.at[i]);
        } else {
            auto const pair = narrow_pair<T>(values.at[i], values.at[i + 1]);
            packed.at[i] = pair.x;
            packed.at[i + 1] = pair.y;
        }
    }
    return bits<Raw<T, W>>(packed);
}

// One declared rounding step.
template <typename T, int W>
__device__ Floats<W> rounded(Floats<W> const& values) {
    if constexpr (kHalf<T>) {
        return unpack<T>(pack<T>(values));
    } else {
        return values;
    }
}

template <typename T>
__device__ float rounded(float value) {
    return static_cast<float>(static_cast<T>(value));
}

// Where W elements of a tensor of T lie, from `index` on.
template <typename T, int W>
__device__ Raw<T, W> const* raw(void const* tensor, std::int64_t index) {
    return reinterpret_cast<Raw<T, W> const*>(static_cast<T const*>(tensor) + index);
}

template <typename T, int W>
__device__ Floats<W> load(void const* tensor, std::int64_t index) {
    Packed<Raw<T, W>, W == 1 ? 1 : W / kWidth<T>> vectors;
#pragma unroll
    for (int i = 0; i * kWidth<T> < W; ++i) vectors.at[i] = raw<T, W>(tensor, index)[i];
    return unpack<T>(vectors);
}

template <typename T, int W>
__device__ Raw<T, W>* raw(void* tensor, std::int64_t index) {
    return reinterpret_cast<Raw<T, W>*>(static_cast<T*>(tensor) + index);
}

// In one access: of a plain store in a loop nvcc makes four.
template <typename T, int W>
__device__ void store(Floats<W> const& values, void* tensor, std::int64_t index) {
    __stwb(raw<T, W>(tensor, index), pack<T>(values));
}

}  // namespace rmsnorm_export
