// The kernels with AVX2, FMA, F16C and BMI.
#include "norm.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__BMI__)

#include <immintrin.h>
#include <math.h>

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = 8;
constexpr int kTogether = 4;
constexpr bool kApart = true;
constexpr bool kPairs = true, kKeepsHalves = false;
constexpr int kParts = 4, kNearBits = 11;
#define FUSED 1
#define OWN_ENTRIES 1
#include "vectors.h"

Floats load(const float* from) { return (Floats)_mm256_loadu_ps(from); }
template <bool streamed = false>
void store(float* to, Floats v) {
    streamed ? _mm256_stream_ps(to, (__m256)v) : _mm256_storeu_ps(to, (__m256)v);
}
Floats load_half(const std::uint16_t* from) {
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
Floats load_bfloat(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
}
template <bool streamed = false>
void store_half(std::uint16_t* to, Floats v) {
    __m128i bits = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    asm("" : "+x"(bits));  // Zen converts to memory half as fast as to a register and from there
    auto* const place = reinterpret_cast<__m128i*>(to);
    streamed ? _mm_stream_si128(place, bits) : _mm_storeu_si128(place, bits);
}
void store_upper(std::uint16_t* to, Ints v) {
    const __m256i upper = _mm256_srli_epi32((__m256i)v, 16);
    const __m128i bits =
        _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
}
Floats round_half(Floats v) {
    return (Floats)_mm256_cvtph_ps(
        _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
Floats fused_multiply_add(Floats a, Floats b, Floats c) {
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) {
    return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
Floats near_reciprocal(Floats v) { return (Floats)_mm256_rcp_ps((__m256)v); }
Floats reciprocal(Floats v) {
    const Floats near = near_reciprocal(v);
    return fused_multiply_add(fused_multiply_add(-v, near, Floats{} + 1.0F), near, near);
}
void load_apart(const float* from, Floats& even, Floats& odd) {
    const auto halves = [&](int first) __attribute__((always_inline)) {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + first)),
                                    _mm_loadu_ps(from + first + 8), 1);
    };
    const __m256 low = halves(0), high = halves(4);
    even = (Floats)_mm256_shuffle_ps(low, high, 0x88);
    odd = (Floats)_mm256_shuffle_ps(low, high, 0xdd);
}
Floats upper_pair(Ints even, Ints odd) {
    return (Floats)_mm256_blend_epi16(_mm256_srli_epi32((__m256i)even, 16), (__m256i)odd, 0xaa);
}
// Upper halves go up by one where the lower one is above 0x8000, or is it and they are odd.
Floats number_pair(Floats even, Floats odd) {
    const __m256i upper = (__m256i)upper_pair((Ints)even, (Ints)odd);
    const __m256i lower =
        _mm256_blend_epi16((__m256i)even, _mm256_slli_epi32((__m256i)odd, 16), 0xaa);
    const __m256i odd_ones = _mm256_and_si256(upper, _mm256_set1_epi16(1));
    const __m256i excess =
        _mm256_adds_epi16(_mm256_xor_si256(lower, _mm256_set1_epi16(-0x8000)), odd_ones);
    return (Floats)_mm256_sub_epi16(upper, _mm256_cmpgt_epi16(excess, _mm256_setzero_si256()));
}
Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
Floats by_sign(Floats sign, Floats negative, Floats other) {
    return (Floats)_mm256_blendv_ps((__m256)other, (__m256)negative, (__m256)sign);
}
bool any(Ints v) { return _mm256_movemask_ps((__m256)v) != 0; }
// The entry of a table that the last two bits of `sum` are the place of; both halves have it, as one
// shuffle in each is quicker than one across.
Floats look_up(const Floats& table, Floats sum) {
    return (Floats)_mm256_permutevar_ps((__m256)table, (__m256i)sum);
}
// By what part of itself the power below is too small.
Floats lack_of_power(Floats sum) {
    constexpr Floats kTable = {RMSNORM_LACKS_OF_QUARTERS, RMSNORM_LACKS_OF_QUARTERS};
    return look_up(kTable, sum);
}
// 2^k, where k is a multiple of 1 / 4 that ends the mantissa of `sum`.
constexpr Floats kQuarters = {RMSNORM_QUARTERS, RMSNORM_QUARTERS};
Floats power(Floats sum, Floats k) {
    const Floats part = look_up(kQuarters, sum);
    // In two steps: it may be subnormal.
    const __m256i whole = _mm256_cvtps_epi32(_mm256_floor_ps((__m256)k));
    const __m256i half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return part * (Floats)first * (Floats)second;
}
// The same where k is -126 and more: all of it is added to the exponent, less the quarters, which the
// table has.
Floats usual_power(Floats sum, Floats) {
    constexpr Ints kQuartersOfExponent = {0, 1 << 21, 2 << 21, 3 << 21, 0, 1 << 21, 2 << 21, 3 << 21};
    const Floats table = (Floats)((Ints)kQuarters - kQuartersOfExponent);
    return (Floats)((Bits)look_up(table, sum) + (Bits)_mm256_slli_epi32((__m256i)sum, 21));
}
// The upper half by way of memory, from where floats are widened without a shuffle.
Wide widen(Floats v) {
    alignas(16) float upper[kLanes / 2];
    _mm_store_ps(upper, _mm256_extractf128_ps((__m256)v, 1));
    asm("" : "+m"(upper));
    return {(Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)),
            (Doubles)_mm256_cvtps_pd(_mm_load_ps(upper))};
}

// The entries of 16 places. Put together in vectors, as the processor can store fewer floats than load.
template <bool pairs>
inline __attribute__((always_inline)) void entries(const float* table, const std::uint16_t* places,
                                                   float* to) {
    const auto word = [&](int i) __attribute__((always_inline)) {
        std::uint64_t four;
        __builtin_memcpy(&four, places + 4 * i, sizeof four);
        return four;
    };
    const auto four = [&](std::uint64_t first, std::uint64_t second) __attribute__((always_inline)) {
        __m128 v = _mm_load_ss(table + (first & 0xffff));
        v = _mm_insert_ps(v, _mm_load_ss(table + _bextr_u64(first, pairs ? 32 : 16, 16)), 0x10);
        v = _mm_insert_ps(v, _mm_load_ss(table + _bextr_u64(second, pairs ? 0 : 32, 16)), 0x20);
        return _mm_insert_ps(v, _mm_load_ss(table + _bextr_u64(second, pairs ? 32 : 48, 16)), 0x30);
    };
    for (int i = 0; i < 2; ++i) {
        __m128 low, high;
        if constexpr (pairs) {
            low = four(word(0) >> 16 * i, word(1) >> 16 * i);
            high = four(word(2) >> 16 * i, word(3) >> 16 * i);
        } else {
            low = four(word(2 * i), word(2 * i));
            high = four(word(2 * i + 1), word(2 * i + 1));
        }
        const __m256 both = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
        store(to + i * kLanes, (Floats)both);
    }
}

#include "rows.h"

constexpr unsigned kTypesLookedUp = 1U << kBfloat;
constexpr Kernels kTable{"avx2", kKeepsHalves, run, operand, fill_activations, kTypesLookedUp,
                         turn, encode, largest};

}  // namespace

const Kernels* const kAvx2 = &kTable;

}  // namespace rmsnorm_export::onnxruntime

#else

namespace rmsnorm_export::onnxruntime {
const Kernels* const kAvx2 = nullptr;
}

#endif
