// The kernels for aarch64, where every processor has NEON with FMA and conversions of f16.
#include "norm.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <math.h>

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr std::size_t kLanes = 4;
constexpr int kTogether = 4;
constexpr bool kApart = false;
constexpr bool kPairs = false, kKeepsHalves = false;
constexpr int kParts = 4, kNearBits = 11;
#define FUSED 1
#include "vectors.h"

Floats load(const float* from) { return (Floats)vld1q_f32(from); }
template <bool = false>
void store(float* to, Floats v) { vst1q_f32(to, (float32x4_t)v); }
Floats load_half(const std::uint16_t* from) {
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
Floats load_bfloat(const std::uint16_t* from) { return (Floats)vshll_n_u16(vld1_u16(from), 16); }
template <bool = false>
void store_half(std::uint16_t* to, Floats v) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}
void store_upper(std::uint16_t* to, Ints v) { vst1_u16(to, vshrn_n_u32((uint32x4_t)v, 16)); }
Floats round_half(Floats v) { return (Floats)vcvt_f32_f16(vcvt_f16_f32((float32x4_t)v)); }
Floats fused_multiply_add(Floats a, Floats b, Floats c) {
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
Doubles fused_multiply_add(Doubles a, Doubles b, Doubles c) {
    return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
Floats reciprocal(Floats v) {
    const float32x4_t near = vrecpeq_f32((float32x4_t)v);
    return (Floats)vmulq_f32(near, vrecpsq_f32((float32x4_t)v, near));
}
Floats near_reciprocal(Floats v) { return reciprocal(v); }
Floats larger(Floats a, Floats b) { return (a > b) ? a : b; }  // b where one is NaN
Floats smaller(Floats a, Floats b) { return (a < b) ? a : b; }  // b where one is NaN
Floats by_sign(Floats sign, Floats negative, Floats other) {
    return ((Ints)sign < 0) ? negative : other;
}
bool any(Ints v) { return vmaxvq_u32((uint32x4_t)v) != 0; }
// The entries of a table of four that the last two bits of `sum` are the places of.
Floats look_up(Floats table, Floats sum) {
    const Ints bytes = ((Ints)sum & 3) * 0x04040404 + 0x03020100;  // four to an entry
    return (Floats)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)bytes);
}
// By what part of itself the power below is too small.
Floats lack_of_power(Floats sum) { return look_up(Floats{RMSNORM_LACKS_OF_QUARTERS}, sum); }
// 2^k, where k is a multiple of 1 / 4 that ends the mantissa of `sum`.
Floats power(Floats sum, Floats k) {
    // In two steps: it may be subnormal.
    const Ints whole = (Ints)vcvtmq_s32_f32((float32x4_t)k), half = whole >> 1;
    return look_up(Floats{RMSNORM_QUARTERS}, sum) * (Floats)((half + 127) << 23) *
           (Floats)((whole - half + 127) << 23);
}
// The same where k is -126 and more: the whole part goes into the exponent.
Floats usual_power(Floats sum, Floats) {
    const uint32x4_t whole = vshlq_n_u32(vshrq_n_u32((uint32x4_t)sum, 2), 23);
    return (Floats)((Bits)look_up(Floats{RMSNORM_QUARTERS}, sum) + (Bits)whole);
}
Wide widen(Floats v) {
    return {(Doubles)vcvt_f64_f32(vget_low_f32((float32x4_t)v)),
            (Doubles)vcvt_high_f64_f32((float32x4_t)v)};
}

#include "rows.h"

constexpr Kernels kTable{"neon", kKeepsHalves, run, operand, fill_activations, 0, turn, encode, largest};

}  // namespace

const Kernels* const kNeon = &kTable;

}  // namespace rmsnorm_export::onnxruntime

#else

namespace rmsnorm_export::onnxruntime {
const Kernels* const kNeon = nullptr;
}

#endif
