// The kernels for any processor: vectors of 16 bytes, which the compiler makes SSE2 of, say.
#include <math.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "norm.h"

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = 4;
constexpr int kTogether = 4;
constexpr bool kPairs = false;
#define FUSED 0
#include "vectors.h"

Floats load(const float* from) {
    Floats v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof v); }
#if defined(__SSE2__)  // of which GCC makes scalar code
Ints load_shorts(const std::uint16_t* from) {
    const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return (Ints)_mm_unpacklo_epi16(v, _mm_setzero_si128());
}
void store_shorts(std::uint16_t* to, Ints v) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32((__m128i)v, (__m128i)v));
}
Wide widen(Floats v) {
    return {(Doubles)_mm_cvtps_pd((__m128)v),
            (Doubles)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v))};
}
// Either is b where one is NaN.
Floats smaller(Floats a, Floats b) { return (Floats)_mm_min_ps((__m128)a, (__m128)b); }
Floats larger(Floats a, Floats b) { return (Floats)_mm_max_ps((__m128)a, (__m128)b); }
Floats narrow(Wide v) {
    return (Floats)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)v.low), _mm_cvtpd_ps((__m128d)v.high));
}
#else
using Shorts = std::uint16_t __attribute__((vector_size(8)));
using Two = float __attribute__((vector_size(8)));
Ints load_shorts(const std::uint16_t* from) {
    Shorts v;
    __builtin_memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Ints);
}
void store_shorts(std::uint16_t* to, Ints v) {
    const Shorts cut = __builtin_convertvector(v, Shorts);
    __builtin_memcpy(to, &cut, sizeof cut);
}
Wide widen(Floats v) {
    Two parts[2];
    __builtin_memcpy(parts, &v, sizeof v);
    return {__builtin_convertvector(parts[0], Doubles), __builtin_convertvector(parts[1], Doubles)};
}
Floats smaller(Floats a, Floats b) { return (a < b) ? a : b; }
Floats larger(Floats a, Floats b) { return (a > b) ? a : b; }
Floats narrow(Wide v) {
    const Two parts[] = {__builtin_convertvector(v.low, Two), __builtin_convertvector(v.high, Two)};
    Floats all;
    __builtin_memcpy(&all, parts, sizeof all);
    return all;
}
#endif

// The exponent of f16 in its place in f32, and 2^112 for the difference of their biases, which
// makes subnormals right as well; infinity and NaN keep the largest exponent.
Floats half_to_float(Ints h) {
    const Ints size = h & 0x7fff;
    const Ints scaled = (Ints)((Floats)(size << 13) * 0x1p112F);
    return (Floats)(scaled | ((size > 0x7bff) & 0x7f800000) | ((h & 0x8000) << 16));
}
// As f16 rounds sizes up to 2^16, which is infinity there. The sum with 1.5 * 2^13 of its power of two,
// at least 2^-14, has as many bits behind the point as f16.
Floats half_size(Floats size) {
    const Floats power = (Floats)((Ints)size & 0x7f800000);
    const Floats place = (Floats)((Ints)larger(power, Floats{} + 0x1p-14F) + 0x06c00000);
    return (size + place) - place;
}
Ints float_to_half(Floats v) {  // with its sign above it
    const Floats size = smaller((Floats)((Ints)v & 0x7fffffff), Floats{} + 0x1p16F);
    const Ints h = (Ints)(half_size(size) * 0x1p-112F) >> 13;
    return h | ((v != v) & 0x200) | (((Ints)v >> 16) & ~0x7fff);
}
Floats round_half(Floats v) {
    const Floats size = half_size(smaller(Floats{} + 0x1p16F, (Floats)((Ints)v & 0x7fffffff)));
    const Ints infinite = (size > 65504.0F) & 0x7f800000;
    return (Floats)((Ints)size | infinite | ((Ints)v & ~0x7fffffff));
}

Floats load_half(const std::uint16_t* from) { return half_to_float(load_shorts(from)); }
Floats load_bfloat(const std::uint16_t* from) { return (Floats)(load_shorts(from) << 16); }
void store_half(std::uint16_t* to, Floats v) { store_shorts(to, float_to_half(v)); }
void store_upper(std::uint16_t* to, Ints v) { store_shorts(to, v >> 16); }
Floats fused_multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) { return a * b + c; }
void times_power(Floats& a, Floats& b, Floats k) {  // in two steps: 2^k may be subnormal
    using Bits = std::uint32_t __attribute__((vector_size(16)));
    const Ints whole = (Ints)((Bits)(k + 12582912.0F) - 0x4b400000U), half = whole >> 1;
    const Floats first = (Floats)(((Bits)half + 127U) << 23);
    const Floats second = (Floats)(((Bits)whole - (Bits)half + 127U) << 23);
    a = a * first * second;
    b = b * first * second;
}

#include "rows.h"

constexpr Kernels kTable{"portable", run, operand, turn, encode, largest};

}  // namespace

const Kernels* const kPortable = &kTable;

}  // namespace rmsnorm_export::onnxruntime
