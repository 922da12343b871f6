// The intrinsics of AVX-512 that rows_avx512.cpp uses, lane by lane, so that any x86-64 processor with
// AVX2 computes what those kernels compute. Included before everything else (-include).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1

namespace emulated {

template <class Lane>
struct Lanes {
    Lane of[64 / sizeof(Lane)];
};
template <class Lane, class Vector>
Lanes<Lane> lanes(Vector v) {
    static_assert(sizeof v <= sizeof(Lanes<Lane>));
    Lanes<Lane> all{};
    std::memcpy(&all, &v, sizeof v);
    return all;
}
template <class Vector, class Lane>
Vector vector(const Lanes<Lane>& all) {
    Vector v;
    std::memcpy(&v, &all, sizeof v);
    return v;
}
// `made(i)` for each of the Vector's lanes.
template <class Vector, class Lane, class Make>
Vector make(Make made) {
    Lanes<Lane> all{};
    for (std::size_t i = 0; i < sizeof(Vector) / sizeof(Lane); ++i) all.of[i] = made(i);
    return vector<Vector>(all);
}
template <class Make>
__m512 floats(Make made) {
    return make<__m512, float>(made);
}
template <class Make>
__m512i words(Make made) {
    return make<__m512i, std::uint32_t>(made);
}

inline __m512 loadu_ps(const void* from) {
    __m512 v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline void storeu_ps(void* to, __m512 v) { std::memcpy(to, &v, sizeof v); }
inline __m512i set1_epi32(int value) {
    return words([=](std::size_t) { return static_cast<std::uint32_t>(value); });
}
template <class... Values>
__m512i set_epi32(Values... values) {  // the last first
    const std::uint32_t all[] = {static_cast<std::uint32_t>(values)...};
    return words([&](std::size_t i) { return all[15 - i]; });
}
inline __m512i add_epi32(__m512i a, __m512i b) {
    const auto x = lanes<std::uint32_t>(a), y = lanes<std::uint32_t>(b);
    return words([&](std::size_t i) { return x.of[i] + y.of[i]; });
}
inline __m512i mask_add_epi32(__m512i other, unsigned mask, __m512i a, __m512i b) {
    const auto sum = lanes<std::uint32_t>(add_epi32(a, b)), rest = lanes<std::uint32_t>(other);
    return words([&](std::size_t i) { return mask >> i & 1U ? sum.of[i] : rest.of[i]; });
}
inline __m512i slli_epi32(__m512i a, int by) {
    const auto x = lanes<std::uint32_t>(a);
    return words([&](std::size_t i) { return x.of[i] << by; });
}
inline __m512i srli_epi32(__m512i a, int by) {
    const auto x = lanes<std::uint32_t>(a);
    return words([&](std::size_t i) { return x.of[i] >> by; });
}
template <class Bit>
unsigned mask_of(__m512i a, Bit bit) {
    const auto x = lanes<std::uint32_t>(a);
    unsigned mask = 0;
    for (unsigned i = 0; i < 16; ++i) mask |= static_cast<unsigned>(bit(x.of[i], i)) << i;
    return mask;
}
inline unsigned movepi32_mask(__m512i a) {
    return mask_of(a, [](std::uint32_t x, unsigned) { return x >> 31; });
}
inline unsigned test_epi32_mask(__m512i a, __m512i b) {
    const auto y = lanes<std::uint32_t>(b);
    return mask_of(a, [&](std::uint32_t x, unsigned i) { return (x & y.of[i]) != 0; });
}
inline __m512 mask_blend_ps(unsigned mask, __m512 a, __m512 b) {
    const auto x = lanes<float>(a), y = lanes<float>(b);
    return floats([&](std::size_t i) { return mask >> i & 1U ? y.of[i] : x.of[i]; });
}
inline __m512i mask_mov_epi16(__m512i other, std::uint32_t mask, __m512i a) {
    const auto x = lanes<std::uint16_t>(a), rest = lanes<std::uint16_t>(other);
    return make<__m512i, std::uint16_t>(
        [&](std::size_t i) { return mask >> i & 1U ? x.of[i] : rest.of[i]; });
}
inline __m512 max_ps(__m512 a, __m512 b) {  // b where one is NaN
    const auto x = lanes<float>(a), y = lanes<float>(b);
    return floats([&](std::size_t i) { return x.of[i] > y.of[i] ? x.of[i] : y.of[i]; });
}
inline __m512 min_ps(__m512 a, __m512 b) {
    const auto x = lanes<float>(a), y = lanes<float>(b);
    return floats([&](std::size_t i) { return x.of[i] < y.of[i] ? x.of[i] : y.of[i]; });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    const auto x = lanes<float>(a), y = lanes<float>(b), z = lanes<float>(c);
    return floats([&](std::size_t i) { return __builtin_fmaf(x.of[i], y.of[i], z.of[i]); });
}
inline __m512d fmadd_pd(__m512d a, __m512d b, __m512d c) {
    const auto x = lanes<double>(a), y = lanes<double>(b), z = lanes<double>(c);
    return make<__m512d, double>(
        [&](std::size_t i) { return __builtin_fma(x.of[i], y.of[i], z.of[i]); });
}
inline __m512 permutexvar_ps(__m512i places, __m512 table) {
    const auto at = lanes<std::uint32_t>(places);
    const auto from = lanes<float>(table);
    return floats([&](std::size_t i) { return from.of[at.of[i] & 15U]; });
}
inline __m512 permutex2var_ps(__m512 a, __m512i places, __m512 b) {
    const auto at = lanes<std::uint32_t>(places);
    const auto x = lanes<float>(a), y = lanes<float>(b);
    return floats([&](std::size_t i) {
        return at.of[i] & 16U ? y.of[at.of[i] & 15U] : x.of[at.of[i] & 15U];
    });
}
// Within 2^-14, as the instruction is, and not nearer than it need be.
inline __m512 rcp14_ps(__m512 a) {
    const auto x = lanes<float>(a);
    return floats([&](std::size_t i) {
        const float exact = 1.0F / x.of[i];
        std::uint32_t bits = 0;
        std::memcpy(&bits, &exact, sizeof bits);
        if (exact - exact == 0) bits &= ~0x1ffU;
        float near = 0;
        std::memcpy(&near, &bits, sizeof near);
        return near;
    });
}
inline __m512 scalef_ps(__m512 a, __m512 b) {
    const auto x = lanes<float>(a), y = lanes<float>(b);
    return floats([&](std::size_t i) {
        const float whole = __builtin_floorf(y.of[i]);
        if (whole != whole) return whole;
        return __builtin_ldexpf(x.of[i], static_cast<int>(whole));
    });
}
inline __m512 cvtph_ps(__m256i halves) {
    const auto from = lanes<std::uint16_t>(halves);
    return floats([&](std::size_t i) { return _cvtsh_ss(from.of[i]); });
}
inline __m256i cvtps_ph(__m512 v) {
    const auto from = lanes<float>(v);
    return make<__m256i, std::uint16_t>(
        [&](std::size_t i) { return _cvtss_sh(from.of[i], _MM_FROUND_TO_NEAREST_INT); });
}
inline __m512d cvtps_pd(__m256 v) {
    const auto from = lanes<float>(v);
    return make<__m512d, double>([&](std::size_t i) { return static_cast<double>(from.of[i]); });
}
inline __m512i cvtepu16_epi32(__m256i shorts) {
    const auto from = lanes<std::uint16_t>(shorts);
    return words([&](std::size_t i) { return std::uint32_t{from.of[i]}; });
}
inline __m256i cvtepi32_epi16(__m512i v) {
    const auto from = lanes<std::uint32_t>(v);
    return make<__m256i, std::uint16_t>(
        [&](std::size_t i) { return static_cast<std::uint16_t>(from.of[i]); });
}

}  // namespace emulated

#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_stream_ps emulated::storeu_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set_epi32 emulated::set_epi32
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_mask_add_epi32 emulated::mask_add_epi32
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_srli_epi32 emulated::srli_epi32
#define _mm512_movepi32_mask emulated::movepi32_mask
#define _mm512_test_epi32_mask emulated::test_epi32_mask
#define _mm512_mask_blend_ps emulated::mask_blend_ps
#define _mm512_mask_mov_epi16 emulated::mask_mov_epi16
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fmadd_pd emulated::fmadd_pd
#define _mm512_permutexvar_ps emulated::permutexvar_ps
#define _mm512_permutex2var_ps emulated::permutex2var_ps
#define _mm512_rcp14_ps emulated::rcp14_ps
#define _mm512_scalef_ps emulated::scalef_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_ph(v, rounding) emulated::cvtps_ph(v)
#define _mm512_cvtps_pd emulated::cvtps_pd
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
