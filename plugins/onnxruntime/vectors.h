// Vectors of one instruction set: kLanes floats fill a register, or half as many doubles.
// GCC and Clang make the instructions of the operators; what they do not know is named in BY_ISA. Of
// functions that a file shares with others, those of the standard library included, the linker keeps one
// copy, of any instruction set: here all are its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "norm.h"

#define INLINE inline __attribute__((always_inline))
#define LAMBDA __attribute__((always_inline))
// For each of K vectors that are computed side by side.
#define EACH _Pragma("GCC unroll 8") for (int j = 0; j < K; ++j)

#if defined(__AVX512F__)
#define BY_ISA(avx512, avx2, neon) (avx512)
#elif defined(__AVX2__)
#define BY_ISA(avx512, avx2, neon) (avx2)
#else
#define BY_ISA(avx512, avx2, neon) (neon)
#endif

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = BY_ISA(16, 8, 4);
constexpr int kNearBits = BY_ISA(14, 11, 24);  // of near_reciprocal

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Native = decltype(BY_ISA(__m512{}, __m256{}, float32x4_t{}));  // of Floats, for intrinsics
using Doubles = double __attribute__((vector_size(4 * kLanes)));
using WideDoubles = double __attribute__((vector_size(8 * kLanes)));
using HalfFloats = float __attribute__((vector_size(2 * kLanes)));
using HalfInts = std::int32_t __attribute__((vector_size(2 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Bits = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Longs = std::uint64_t __attribute__((vector_size(8 * kLanes)));
using Words = std::int16_t __attribute__((vector_size(4 * kLanes)));
using UnsignedWords = std::uint16_t __attribute__((vector_size(4 * kLanes)));
using Shorts = std::uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

// f16, bf16, and bf16 that is read and written by the pair (get_lot), whose NaNs end with 16 zeros as
// floats.
enum class Half : std::uint16_t {};
enum class Bfloat : std::uint16_t {};
enum class Pairs : std::uint16_t {};
template <class T>
constexpr bool kHalfType = sizeof(T) == 2;

// Numbers of the types T and S are computed as C, float or double, a Vec of them at a time.
template <class T, class S>
using Lane = std::conditional_t<sizeof(T) == 8 || sizeof(S) == 8, double, float>;
template <class C>
using Vec = std::conditional_t<sizeof(C) == 8, Doubles, Floats>;
template <class C>
constexpr std::size_t kWidth = sizeof(Vec<C>) / sizeof(C);

// The types that models have get loops of their own; the code of others is kept small.
template <class T, class S>
constexpr bool kUsualTypes = sizeof(T) < 8 && std::is_same_v<S, float>;

template <class Do>
void with(Type type, Do run) {
    if (type == kFloat) return run(float{});
    if (type == kHalf) return run(Half{});
    if (type == kBfloat) return run(Bfloat{});
    run(double{});
}

template <class V>
INLINE V load(const void* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
template <class V>
INLINE void store(void* to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}
// Past the caches; the place is a multiple of the vector's bytes.
template <class V>
INLINE void stream(void* to, V v) {
    if constexpr (sizeof v == sizeof(Floats)) {
        BY_ISA(_mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v),
               _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v), store(to, v));
    } else {
        BY_ISA(_mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v),
               _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v), store(to, v));
    }
}

// a * b + c, rounded once.
INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
    return (Floats)BY_ISA(_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c),
                          _mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c),
                          vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b));
}
// Not below, and not above, a bound; NaN stays.
INLINE Floats at_least(Floats least, Floats v) {
    return (Floats)BY_ISA(_mm512_max_ps, _mm256_max_ps, vmaxq_f32)((Native)least, (Native)v);
}
INLINE Floats at_most(Floats most, Floats v) {
    return (Floats)BY_ISA(_mm512_min_ps, _mm256_min_ps, vminq_f32)((Native)most, (Native)v);
}
// 1 / v within 2^-kNearBits.
INLINE Floats near_reciprocal(Floats v) {
    return (Floats)BY_ISA(_mm512_rcp14_ps((__m512)v), _mm256_rcp_ps((__m256)v), 1.0F / v);
}
// GCC 12 takes __builtin_convertvector of these apart.
INLINE Doubles widen(HalfFloats v) {
    return (Doubles)BY_ISA(_mm512_cvtps_pd((__m256)v), _mm256_cvtps_pd((__m128)v),
                           vcvt_f64_f32((float32x2_t)v));
}
INLINE HalfFloats narrow(Doubles v) {
    return (HalfFloats)BY_ISA(_mm512_cvtpd_ps((__m512d)v), _mm256_cvtpd_ps((__m256d)v),
                              vcvt_f32_f64((float64x2_t)v));
}
INLINE Floats square_root(Floats v) {
    for (std::size_t i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
}
INLINE Doubles square_root(Doubles v) {
    for (std::size_t i = 0; i < kLanes / 2; ++i) v[i] = __builtin_sqrt(v[i]);
    return v;
}

// ---- types: to lanes, from lanes, and rounding that stays in the lanes -------------------------

INLINE Floats from_half(Shorts v) {
    return (Floats)BY_ISA(_mm512_cvtph_ps((__m256i)v), _mm256_cvtph_ps((__m128i)v),
                          vcvt_f32_f16((float16x4_t)v));
}
INLINE Shorts to_half(Floats v) {
    auto bits = BY_ISA(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT),
                       _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT),
                       vcvt_f16_f32((float32x4_t)v));
#if defined(__F16C__)
    asm("" : "+x"(bits));  // Zen converts to memory half as fast as to a register and from there
#endif
    return (Shorts)bits;
}
INLINE Floats from_bfloat(Shorts v) { return (Floats)(__builtin_convertvector(v, Bits) << 16); }
// The lower halves of `low` and the upper ones of `high`.
INLINE Bits halves(Bits low, Bits high) {
    return (Bits)BY_ISA(_mm512_mask_mov_epi16((__m512i)low, 0xaaaaaaaa, (__m512i)high),
                        _mm256_blend_epi16((__m256i)low, (__m256i)high, 0xaa),
                        (low & 0xffffU) | (high & 0xffff0000U));
}
// Rounded to bf16, in the upper halves; of a NaN that ends with other bits than zeros it may be none.
INLINE Bits pair_bits(Floats v) { return (Bits)v + 0x7fffU + ((Bits)v >> 16 & 1U); }
INLINE Bits bfloat_bits(Floats v) { return (v == v) ? pair_bits(v) : (Bits)v | 0x400000U; }
// Both as one, rounded likewise: up where the lower half is above 0x8000, or is it and the upper is odd.
INLINE Bits pair(Floats even, Floats odd) {
    const UnsignedWords upper = (UnsignedWords)halves((Bits)even >> 16, (Bits)odd);
    const Words lower = (Words)(halves((Bits)even, (Bits)odd << 16) ^ 0x80008000U);
    const Words up = lower > -(Words)(upper & 1);
    return (Bits)BY_ISA(up ? upper + 1 : upper, upper - (UnsignedWords)up,
                        upper - (UnsignedWords)up);
}

template <class T>
INLINE Floats round_to(Floats v) {
    if constexpr (std::is_same_v<T, Half>) return from_half(to_half(v));
    if constexpr (std::is_same_v<T, Bfloat>) return (Floats)(bfloat_bits(v) & 0xffff0000U);
    if constexpr (std::is_same_v<T, Pairs>) return (Floats)(pair_bits(v) & 0xffff0000U);
    return v;
}
// To f32 so that a second rounding, to a type of fewer bits, gives what one would have given: towards
// zero, the last bit set where that was inexact (round to odd). As many zeros follow.
// In vectors: of loops over doubles that become floats in between, GCC 12 made wrong code twice.
INLINE Floats to_odd(Doubles v) {
    HalfFloats lanes[2] = {narrow(v)};
    const Doubles back = widen(lanes[0]);
    const auto bits = [](auto mask) LAMBDA { return __builtin_convertvector(mask, HalfInts); };
    const HalfInts beyond = bits((v > 0) ? back > v : back < v), inexact = bits(back != v);
    lanes[0] = (HalfFloats)(((HalfInts)lanes[0] + beyond) | (inexact & 1));
    return load<Floats>(lanes);
}
template <class T>
INLINE Doubles round_to(Doubles v) {
    if constexpr (sizeof(T) == 8) return v;
    if constexpr (sizeof(T) == 4) return widen(narrow(v));
    const Floats rounded = round_to<T>(to_odd(v));
    return widen(load<HalfFloats>(&rounded));
}
template <class T>
INLINE double round_to(double v) {
    return round_to<T>(Doubles{} + v)[0];
}

// Elements of type T as lanes.
template <class C, class T>
INLINE Vec<C> read(const T* from) {
    if constexpr (sizeof(T) == sizeof(C)) {
        return load<Vec<C>>(from);
    } else if constexpr (sizeof(T) == 8) {
        return __builtin_convertvector(load<WideDoubles>(from), Floats);
    } else if constexpr (std::is_same_v<T, float>) {
        return widen(load<HalfFloats>(from));
    } else if constexpr (sizeof(C) == 8) {
        T all[kLanes] = {};
        __builtin_memcpy(all, from, sizeof all / 2);
        const Floats lanes = read<float>(all);
        return widen(load<HalfFloats>(&lanes));
    } else if constexpr (std::is_same_v<T, Half>) {
        return from_half(load<Shorts>(from));
    } else {
        return from_bfloat(load<Shorts>(from));
    }
}
template <class T, class V>
INLINE void write(T* to, V v, bool streamed = false) {
    const auto put = [&](auto value) LAMBDA { streamed ? stream(to, value) : store(to, value); };
    if constexpr (sizeof(T) == sizeof(v[0])) {
        put(v);
    } else if constexpr (std::is_same_v<T, float>) {
        put(narrow(v));
    } else if constexpr (std::is_same_v<V, Doubles>) {
        T all[kLanes];
        write(all, to_odd(v));
        __builtin_memcpy(to, all, sizeof all / 2);
    } else if constexpr (std::is_same_v<T, Half>) {
        put(to_half(v));
    } else {
        put(__builtin_convertvector(bfloat_bits(v) >> 16, Shorts));
    }
}

// `count` of a vector's elements, `stride` apart; those that are not read are 0.
template <class C, std::size_t stride = 1, class T>
INLINE Vec<C> get(const T* from, std::size_t count) {
    if (stride == 1 && count == kWidth<C>) return read<C>(from);
    T all[kLanes] = {};
    for (std::size_t i = 0; i < count; ++i) all[i] = from[i * stride];
    return read<C>(all);
}
template <std::size_t stride = 1, class T, class V>
INLINE void put(T* to, V v, std::size_t count, bool streamed = false) {
    if (stride == 1 && count == sizeof v / sizeof v[0]) return write(to, v, streamed);
    T all[kLanes];
    write(all, v);
    for (std::size_t i = 0; i < count; ++i) to[i * stride] = all[i];
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
        EACH v[j] = get<C>(from + j * kWidth<C>, count);
    }
}
// Numbers of type S in the order of memory, as get_lot has those of T.
template <class T, class C, class S, int K>
INLINE void get_as(const S* from, std::size_t count, Vec<C> (&v)[K]) {
    if constexpr (std::is_same_v<T, Pairs> && K > 1) {
        for (int j = 0; j < K; j += 2) {
            const Longs both = load<Longs>(from + j * kLanes);
            v[j] = (Floats)__builtin_convertvector(both & 0xffffffffU, Bits);
            v[j + 1] = (Floats)__builtin_convertvector(both >> 32, Bits);
        }
    } else {
        get_lot<C>(from, count, v);
    }
}
template <class T, class V, int K>
INLINE void put_lot(T* to, const V (&v)[K], std::size_t count, bool streamed = false) {
    if constexpr (std::is_same_v<T, Pairs> && K > 1) {
        for (int j = 0; j < K; j += 2) {
            const Bits both = pair(v[j], v[j + 1]);
            streamed ? stream(to + j * kLanes, both) : store(to + j * kLanes, both);
        }
    } else {
        EACH put(to + j * (sizeof(V) / sizeof v[j][0]), v[j], count, streamed);
    }
}

template <int count>
using Lot = std::integral_constant<int, count>;
// `step(Lot<K>, i, count)` for n elements of C: `together` vectors side by side, then kUnit, then one,
// which may be less than whole.
constexpr int kUnit = 4;
template <class C, int together, class Step>
INLINE void each_lot(std::size_t n, Step step) {
    constexpr std::size_t width = kWidth<C>;
    std::size_t i = 0;
    const auto lots = [&](auto lot) LAMBDA {
        constexpr std::size_t size = decltype(lot)::value * width;
        for (; i + size <= n; i += size) step(lot, i, width);
    };
    if constexpr (together > kUnit) lots(Lot<together>{});
    if constexpr (together > 1) lots(Lot<kUnit>{});
    for (; i < n; i += width) step(Lot<1>{}, i, n - i < width ? n - i : width);
}

// Whether a place begins a line of the cache.
INLINE bool at_line(const void* place) { return reinterpret_cast<std::uintptr_t>(place) % 64 == 0; }
// What is read in a while, where `far`: the processor does not foresee the next rows.
template <int K, class T>
INLINE void fetch(bool far, const T* from, std::size_t ahead) {
    for (std::size_t i = 0; K > 1 && far && i < K * kLanes; i += 64 / sizeof(T)) {
        __builtin_prefetch(from + ahead + i, 0, 2);
    }
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
