// The kernels for any processor: vectors of 16 bytes, which the compiler makes SSE2 of, say.
#include <math.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "norm.h"

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = 4;
constexpr int kTogether = 1;
constexpr bool kPairs = false;
#define FUSED 0
#define GATES_APART 0
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
    const __m128i whole = (__m128i)((v << 16) >> 16);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(whole, whole));
}
Wide widen(Floats v) {
    return {(Doubles)_mm_cvtps_pd((__m128)v),
            (Doubles)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v))};
}
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
    return (Floats)(((size > 0x7bff) ? (scaled | 0x7f800000) : scaled) | ((h & 0x8000) << 16));
}
Ints float_to_half(Floats v) {
    const Ints bits = (Ints)v, size = bits & 0x7fffffff;
    const Ints normal = (size - (112 << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    const Ints subnormal = (Ints)((Floats)size + 0.5F) - 0x3f000000;  // an ulp of 0.5 is 2^-24
    Ints h = (size < 0x38800000) ? subnormal : normal;
    h = (size >= 0x47800000) ? Ints{} + 0x7c00 : h;
    h = (size > 0x7f800000) ? Ints{} + 0x7e00 : h;
    return h | ((bits >> 16) & 0x8000);
}

Floats load_half(const std::uint16_t* from) { return half_to_float(load_shorts(from)); }
Floats load_bfloat(const std::uint16_t* from) { return (Floats)(load_shorts(from) << 16); }
void store_half(std::uint16_t* to, Floats v) { store_shorts(to, float_to_half(v)); }
void store_upper(std::uint16_t* to, Ints v) { store_shorts(to, v >> 16); }
Floats round_half(Floats v) { return half_to_float(float_to_half(v)); }
Floats fused_multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) { return a * b + c; }
Floats smaller(Floats a, Floats b) { return (a < b) ? a : b; }  // b where one is NaN
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
