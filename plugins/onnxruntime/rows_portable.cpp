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
constexpr bool kApart = false;
constexpr bool kPairs = false, kKeepsHalves = true;
#define FUSED 0
#include "vectors.h"

Floats load(const float* from) {
    Floats v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}
#if defined(__SSE2__)  // of which GCC makes scalar code
template <bool streamed = false>
void store(float* to, Floats v) {
    streamed ? _mm_stream_ps(to, (__m128)v) : _mm_storeu_ps(to, (__m128)v);
}
Ints load_upper(const std::uint16_t* from) {
    const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return (Ints)_mm_unpacklo_epi16(_mm_setzero_si128(), v);
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
// v * 2^k, where k ends the mantissa of `sum`.
Wide times_power(Wide v, Floats sum) {
    const __m128i k = _mm_slli_epi32((__m128i)sum, 20), zero = _mm_setzero_si128();
    return {(Doubles)_mm_add_epi32((__m128i)v.low, _mm_unpacklo_epi32(zero, k)),
            (Doubles)_mm_add_epi32((__m128i)v.high, _mm_unpackhi_epi32(zero, k))};
}
Floats narrow(Wide v) {
    return (Floats)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)v.low), _mm_cvtpd_ps((__m128d)v.high));
}
#else
using Shorts = std::uint16_t __attribute__((vector_size(8)));
using Two = float __attribute__((vector_size(8)));
template <bool = false>
void store(float* to, Floats v) {
    __builtin_memcpy(to, &v, sizeof v);
}
Ints load_upper(const std::uint16_t* from) {
    Shorts v;
    __builtin_memcpy(&v, from, sizeof v);
    return (Ints)(__builtin_convertvector(v, Bits) << 16);
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
Wide times_power(Wide v, Floats sum) {
    using Whole = std::uint64_t __attribute__((vector_size(16)));
    const auto k = [&](int i) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(((Ints)sum)[i])) << 52;
    };
    return {(Doubles)((Whole)v.low + Whole{k(0), k(1)}),
            (Doubles)((Whole)v.high + Whole{k(2), k(3)})};
}
Floats narrow(Wide v) {
    const Two parts[] = {__builtin_convertvector(v.low, Two), __builtin_convertvector(v.high, Two)};
    Floats all;
    __builtin_memcpy(&all, parts, sizeof all);
    return all;
}
#endif

// Of f16 in the upper halves: the exponent in its place in f32, and 2^112 for the difference of their
// biases, which makes subnormals right as well; infinity and NaN keep the largest exponent.
Floats half_to_float(Ints upper) {
    const Ints placed = (upper >> 3) & static_cast<int>(0x8fffe000U);
    const Ints most = ((placed & 0x7fffffff) > 0x0f7fffff) & 0x7f800000;
    return (Floats)((Ints)((Floats)placed * 0x1p112F) | most);
}
// As f16 rounds sizes up to 2^16, which is infinity there. The sum with 1.5 * 2^13 of its power of two,
// at least 2^-14, has as many bits behind the point as f16. NaN stays.
Floats half_size(Floats v) {
    const Floats size = smaller(Floats{} + 0x1p16F, (Floats)((Ints)v & 0x7fffffff));
    const Floats power = (Floats)((Ints)size & 0x7f800000);
    const Floats place = (Floats)((Bits)larger(power, Floats{} + 0x1p-14F) + 0x06c00000U);
    return (size + place) - place;
}
Ints float_to_half(Floats v) {  // with its sign above it
    const Ints h = ((Ints)(half_size(v) * 0x1p-112F) >> 13) & 0x7fff;
    return h | (((Ints)v >> 16) & ~0x7fff);
}
Floats round_half(Floats v) {
    const Floats size = half_size(v) * 0x1p112F * 0x1p-112F;  // infinity where it is 2^16
    return (Floats)((Ints)size | ((Ints)v & ~0x7fffffff));
}

Floats load_half(const std::uint16_t* from) { return half_to_float(load_upper(from)); }
Floats load_bfloat(const std::uint16_t* from) { return (Floats)load_upper(from); }
template <bool = false>
void store_half(std::uint16_t* to, Floats v) {
    store_shorts(to, float_to_half(v));
}
void store_upper(std::uint16_t* to, Ints v) { store_shorts(to, v >> 16); }
Floats fused_multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) { return a * b + c; }

#include "rows.h"

constexpr unsigned kTypesLookedUp = 1U << kHalf | 1U << kBfloat;
constexpr Kernels kTable{"portable", kKeepsHalves, run, operand, fill_activations, kTypesLookedUp,
                         turn, encode, largest};

}  // namespace

const Kernels* const kPortable = &kTable;

}  // namespace rmsnorm_export::onnxruntime
