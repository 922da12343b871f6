// The kernels with AVX-512 (F, BW, DQ, VL).
#include "norm.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>
#include <math.h>

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = 16;
constexpr int kTogether = 8;
constexpr bool kApart = false;
constexpr bool kPairs = true, kKeepsHalves = false;
constexpr int kParts = 16, kNearBits = 14;
#define FUSED 1
#include "vectors.h"

Floats load(const float* from) { return (Floats)_mm512_loadu_ps(from); }
template <bool streamed = false>
void store(float* to, Floats v) {
    streamed ? _mm512_stream_ps(to, (__m512)v) : _mm512_storeu_ps(to, (__m512)v);
}
Floats load_half(const std::uint16_t* from) {
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
Floats load_bfloat(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}
template <bool streamed = false>
void store_half(std::uint16_t* to, Floats v) {
    const __m256i bits = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    auto* const place = reinterpret_cast<__m256i*>(to);
    streamed ? _mm256_stream_si256(place, bits) : _mm256_storeu_si256(place, bits);
}
void store_upper(std::uint16_t* to, Ints v) {
    const __m256i bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}
Floats round_half(Floats v) {
    return (Floats)_mm512_cvtph_ps(
        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
Floats fused_multiply_add(Floats a, Floats b, Floats c) {
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) {
    return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
Floats reciprocal(Floats v) { return (Floats)_mm512_rcp14_ps((__m512)v); }
Floats near_reciprocal(Floats v) { return reciprocal(v); }
void load_apart(const float* from, Floats& even, Floats& odd) {
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const __m512 first = _mm512_loadu_ps(from), second = _mm512_loadu_ps(from + kLanes);
    even = (Floats)_mm512_permutex2var_ps(first, evens, second);
    odd = (Floats)_mm512_permutex2var_ps(first, odds, second);
}
Floats upper_pair(Ints even, Ints odd) {
    return (Floats)_mm512_mask_mov_epi16(_mm512_srli_epi32((__m512i)even, 16), 0xaaaaaaaa, (__m512i)odd);
}
Floats number_pair(Floats even, Floats odd) {
    const auto up = [](Floats v) __attribute__((always_inline)) {
        const __m512i bits = (__m512i)v, half = _mm512_set1_epi32(0x8000);
        const __mmask16 odd_upper = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
        const __m512i less = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
        return (Ints)_mm512_mask_add_epi32(less, odd_upper, bits, half);
    };
    return upper_pair(up(even), up(odd));
}
Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
Floats by_sign(Floats sign, Floats negative, Floats other) {
    return (Floats)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)sign), (__m512)other,
                                        (__m512)negative);
}
bool any(Ints v) { return _mm512_movepi32_mask((__m512i)v) != 0; }
// The entry of a table that the last four bits of `sum` are the place of.
__m512 look_up(const float (&table)[kLanes], Floats sum) {
    return _mm512_permutexvar_ps((__m512i)sum, _mm512_loadu_ps(table));
}
// By what part of itself the power below is too small.
Floats lack_of_power(Floats sum) {
    constexpr float kTable[] = {
        0.0F,             0x1.8d96d4p-25F,  -0x1.9c0c22p-27F, 0x1.964904p-25F,
        0x1.125002p-25F,  0x1.370be4p-25F,  -0x1.0a3550p-25F, -0x1.00d8acp-27F,
        0x1.26055cp-26F,  -0x1.05cb44p-25F, 0x1.67a1cap-28F,  0x1.a3b5e4p-28F,
        -0x1.f9c304p-27F, -0x1.6961b4p-28F, -0x1.a5217cp-28F, 0x1.61428ep-28F};
    return (Floats)look_up(kTable, sum);
}
// 2^k, where k is a multiple of 1 / 16 that ends the mantissa of `sum`.
Floats power(Floats sum, Floats k) {
    constexpr float kTable[] = {1.0F,          0x1.0b5586p0F, 0x1.172b84p0F, 0x1.2387a6p0F,
                                0x1.306fep0F,  0x1.3dea64p0F, 0x1.4bfdaep0F, 0x1.5ab07ep0F,
                                0x1.6a09e6p0F, 0x1.7a1148p0F, 0x1.8ace54p0F, 0x1.9c4918p0F,
                                0x1.ae89fap0F, 0x1.c199bep0F, 0x1.d5818ep0F, 0x1.ea4afap0F};
    return (Floats)_mm512_scalef_ps(look_up(kTable, sum), (__m512)k);
}
Floats usual_power(Floats sum, Floats k) { return power(sum, k); }
// From memory both halves are widened without a shuffle.
Wide widen(Floats v) {
    float lanes[kLanes];
    store(lanes, v);
    asm("" : "+m"(lanes));
    return {(Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(lanes)),
            (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(lanes + 8))};
}

#include "rows.h"

constexpr Kernels kTable{"avx512", kKeepsHalves, run, operand, fill_activations, 0, turn, encode, largest};

}  // namespace

const Kernels* const kAvx512 = &kTable;

}  // namespace rmsnorm_export::onnxruntime

#else

namespace rmsnorm_export::onnxruntime {
const Kernels* const kAvx512 = nullptr;
}

#endif
