// Vectors of one instruction set, of kLanes elements each: of floats they fill a register, of doubles
// two. GCC and Clang make the instructions of the operators; only conversions of f16, fused sums and
// stores that pass the caches by are named here. Of functions that a file shares with others, those of the
// standard library included, the linker keeps one copy, of any instruction set: here all are its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "norm.h"

#define INLINE inline __attribute__((always_inline))
#define LAMBDA __attribute__((always_inline))
// For each of K vectors that are computed side by side.
#define EACH _Pragma("GCC unroll 8") for (int j = 0; j < K; ++j)

namespace rmsnorm_export::onnxruntime {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Doubles = double __attribute__((vector_size(8 * kLanes)));
using HalfDoubles = double __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Bits = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Longs = std::uint64_t __attribute__((vector_size(8 * kLanes)));
using Shorts = std::uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

struct Half {
    std::uint16_t bits;
};
struct Bfloat {
    std::uint16_t bits;
};
// bf16 that is read and written by the pair (get_lot), and whose NaNs end with 16 zeros as floats.
struct Pairs {
    std::uint16_t bits;
};
template <class T>
constexpr bool kHalfType = sizeof(T) == 2;

// The vector of lanes of type C, float or double; and the type of lanes for numbers of both types.
template <class C>
using Vec = std::conditional_t<sizeof(C) == 8, Doubles, Floats>;
template <class T, class S>
using Lane = std::conditional_t<sizeof(T) == 8 || sizeof(S) == 8, double, float>;

template <class Do>
void with(Type type, Do run) {
    switch (type) {
        case kFloat: return run(float{});
        case kHalf: return run(Half{});
        case kBfloat: return run(Bfloat{});
        case kDouble: return run(double{});
    }
}

template <class V>
INLINE V load(const void* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
// `streamed`: past the caches, where the place is a multiple of the vector's bytes.
template <class V>
INLINE void store(void* to, V v, bool streamed = false) {
#if defined(__AVX512F__)
    if constexpr (sizeof v == 64) {
        if (streamed) return _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v);
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof v == 32) {
        if (streamed) return _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v);
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof v == 16) {
        if (streamed) return _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v);
    }
#endif
    __builtin_memcpy(to, &v, sizeof v);
}

// a * b + c, rounded once where the instruction set can.
INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// 1 / v, at least within 2^-14.
INLINE Floats near_reciprocal(Floats v) {
#if defined(__AVX512F__)
    return (Floats)_mm512_rcp14_ps((__m512)v);
#else
    return 1.0F / v;
#endif
}

// ---- types: to lanes, from lanes, and rounding that stays in the lanes -------------------------

INLINE Floats from_half(Shorts v) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps((__m256i)v);
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps((__m128i)v);
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16((float16x4_t)v);
#else
    // The exponent in its place in f32, and 2^112 for the difference of their biases, which makes
    // subnormals right as well; infinity and NaN keep the largest exponent.
    const Ints upper = (Ints)(__builtin_convertvector(v, Bits) << 16);
    const Ints placed = (upper >> 3) & static_cast<int>(0x8fffe000U);
    const Ints most = ((placed & 0x7fffffff) > 0x0f7fffff) & 0x7f800000;
    return (Floats)((Ints)((Floats)placed * 0x1p112F) | most);
#endif
}
INLINE Shorts to_half(Floats v) {
#if defined(__AVX512F__)
    return (Shorts)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (Shorts)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (Shorts)vcvt_f16_f32((float32x4_t)v);
#else
    // Sizes up to 2^16, which is infinity in f16, as f16 rounds them: the sum with 1.5 * 2^13 of its
    // power of two, at least 2^-14, has as many bits behind the point as f16. NaN stays.
    const Floats whole = (Floats)((Ints)v & 0x7fffffff);
    const Floats size = (whole > 0x1p16F) ? Floats{} + 0x1p16F : whole;
    const Floats power = (Floats)((Ints)size & 0x7f800000);
    const Floats least = (power > 0x1p-14F) ? power : Floats{} + 0x1p-14F;
    const Floats place = (Floats)((Bits)least + 0x06c00000U);
    const Ints rounded = ((Ints)(((size + place) - place) * 0x1p-112F) >> 13) & 0x7fff;
    return __builtin_convertvector(rounded | (((Ints)v >> 16) & 0x8000), Shorts);
#endif
}
INLINE Floats from_bfloat(Shorts v) { return (Floats)(__builtin_convertvector(v, Bits) << 16); }
// Rounded to bf16, in the upper halves; of a NaN that ends with other bits than zeros it may be none.
INLINE Bits pair_bits(Floats v) {
    const Bits bits = (Bits)v, up = bits + 0x8000U;
    return ((bits & 0x10000U) != 0) ? up : up - 1U;
}
INLINE Bits bfloat_bits(Floats v) { return (v == v) ? pair_bits(v) : (Bits)v | 0x400000U; }

// f64 to f32 so that a second rounding, to a type of fewer bits, gives what one would have given:
// towards zero, the last bit set where that was inexact (round to odd).
INLINE Floats to_odd(Doubles v) {
    const Floats near = __builtin_convertvector(v, Floats);
    const Doubles back = __builtin_convertvector(near, Doubles);
    const Doubles size = (v < 0) ? -v : v, size_back = (back < 0) ? -back : back;
    const Ints bits = (Ints)near + __builtin_convertvector(size_back > size, Ints);
    return (Floats)(bits | (__builtin_convertvector(back != v, Ints) & 1));
}

template <class T>
INLINE Floats round_to(Floats v) {
    if constexpr (std::is_same_v<T, Half>) return from_half(to_half(v));
    if constexpr (std::is_same_v<T, Bfloat>) return (Floats)(bfloat_bits(v) & 0xffff0000U);
    if constexpr (std::is_same_v<T, Pairs>) return (Floats)(pair_bits(v) & 0xffff0000U);
    return v;
}
template <class T>
INLINE Doubles round_to(Doubles v) {
    if constexpr (sizeof(T) == 8) return v;
    const Floats narrow =
        kHalfType<T> ? round_to<T>(to_odd(v)) : __builtin_convertvector(v, Floats);
    return __builtin_convertvector(narrow, Doubles);
}
template <class T>
double round_scalar(double v) {
    if constexpr (std::is_same_v<T, float>) return static_cast<double>(static_cast<float>(v));
    return round_to<T>(Doubles{} + v)[0];
}

// Elements of type T as lanes of type C.
template <class C, class T>
INLINE Vec<C> read(const T* from) {
    if constexpr (sizeof(T) == 8) return __builtin_convertvector(load<Doubles>(from), Vec<C>);
    Floats v;
    if constexpr (std::is_same_v<T, float>) v = load<Floats>(from);
    if constexpr (std::is_same_v<T, Half>) v = from_half(load<Shorts>(from));
    if constexpr (std::is_same_v<T, Bfloat> || std::is_same_v<T, Pairs>) v = from_bfloat(load<Shorts>(from));
    return __builtin_convertvector(v, Vec<C>);
}
template <class T, class V>
INLINE void write(T* to, V v, bool streamed = false) {
    if constexpr (sizeof(T) == 8) {
        store(to, __builtin_convertvector(v, Doubles));
    } else if constexpr (sizeof v != sizeof(Floats)) {
        write(to, kHalfType<T> ? to_odd(v) : __builtin_convertvector(v, Floats), streamed);
    } else if constexpr (std::is_same_v<T, Half>) {
        store(to, to_half(v), streamed);
    } else if constexpr (std::is_same_v<T, Bfloat> || std::is_same_v<T, Pairs>) {
        store(to, __builtin_convertvector(bfloat_bits(v) >> 16, Shorts), streamed);
    } else {
        store(to, v, streamed);
    }
}

// `count` of a vector's elements; those that are not read are 0.
template <class C, class T>
INLINE Vec<C> get(const T* from, std::size_t count) {
    if (count == kLanes) return read<C>(from);
    T all[kLanes] = {};
    __builtin_memcpy(all, from, count * sizeof(T));
    return read<C>(all);
}
template <class T, class V>
INLINE void put(T* to, V v, std::size_t count, bool streamed = false) {
    if (count == kLanes) return write(to, v, streamed);
    T all[kLanes];
    write(all, v);
    __builtin_memcpy(to, all, count * sizeof(T));
}

// Whether a place begins a line of the cache.
INLINE bool at_line(const void* place) { return reinterpret_cast<std::uintptr_t>(place) % 64 == 0; }

// `step(i, count)` for every vector of n elements.
template <class Step>
INLINE void each_vector(std::size_t n, Step step) {
    for (std::size_t i = 0; i < n; i += kLanes) step(i, n - i < kLanes ? n - i : kLanes);
}
// K vectors of elements side by side. Of pairs each second vector has the odd ones of two: bf16 is taken
// apart and put together so without shuffles. Lanes that lie in memory are in that order, too.
template <class C, class T, int K>
INLINE void get_lot(const T* from, std::size_t count, Vec<C> (&v)[K]) {
    if constexpr (std::is_same_v<T, Pairs> && K > 1) {
        for (int j = 0; j < K; j += 2) {
            const Bits both = load<Bits>(from + j * kLanes);
            v[j] = (Floats)(both << 16);
            v[j + 1] = (Floats)(both & 0xffff0000U);
        }
    } else {
        EACH v[j] = get<C>(from + j * kLanes, count);
    }
}
template <class T, class V, int K>
INLINE void put_lot(T* to, const V (&v)[K], std::size_t count, bool streamed) {
    if constexpr (std::is_same_v<T, Pairs> && K > 1) {
        for (int j = 0; j < K; j += 2) {
            const Bits even = pair_bits(v[j]) >> 16, odd = pair_bits(v[j + 1]) & 0xffff0000U;
            store(to + j * kLanes, even | odd, streamed);
        }
    } else {
        EACH put(to + j * kLanes, v[j], count, streamed);
    }
}

// What is read in a while, where `far`: the processor does not foresee the next rows.
template <int K, class T>
INLINE void fetch(bool far, const T* from, std::size_t ahead) {
    for (std::size_t i = 0; K > 1 && far && i < K * kLanes; i += 64 / sizeof(T)) {
        __builtin_prefetch(from + ahead + i, 0, 2);
    }
}

template <int count>
struct Lot {
    static constexpr int kVectors = count;
};
// `step(Lot<K>, i, count)` for n elements: `together` vectors side by side, then four, then one, which
// may be less than whole.
template <int together, class Step>
INLINE void each_lot(std::size_t n, Step step) {
    std::size_t i = 0;
    if constexpr (together > 4) {
        for (; i + together * kLanes <= n; i += together * kLanes) step(Lot<together>{}, i, kLanes);
    }
    if constexpr (together > 1) {
        for (; i + 4 * kLanes <= n; i += 4 * kLanes) step(Lot<4>{}, i, kLanes);
    }
    for (; i < n; i += kLanes) step(Lot<1>{}, i, n - i < kLanes ? n - i : kLanes);
}
// Of the types that models have; the code of others is kept small.
template <class T, class S>
constexpr int kTogether = sizeof(T) == 8 || !std::is_same_v<S, float> ? 1
                          : kHalfType<T> && kLanes == 16            ? 8
                                                                    : 4;

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
