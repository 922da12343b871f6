// The gate: sigmoid and silu, for one instruction set.
#pragma once

#include <math.h>

#include "vectors.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// 1 / (1 + e^-z), within 1.1 ulp where `fine`, else within 2^-21 of itself. e^-z = c * (1 + p), where
// c = 2^k; 1 + c, what it loses when it is rounded, and c * p are kept apart where `fine`, and the
// remainder of the inverse corrects it. `usual`: no |z| is above 69, and the same comes out without
// bounds.
template <bool fine, bool usual, int K>
INLINE void logistic(const Floats (&z)[K], Floats (&s)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    constexpr float kWhole = 0x1.8p23F + 127;  // a sum with it ends with the exponent's bits
    Floats u[K], last[K], k[K], p[K], c[K], rest[K], sum[K], a[K];
    EACH u[j] = z[j];
    // Beyond these s is 1 or 0.
    if (!usual) EACH u[j] = at_most(all(87.0F), at_least(all(-104.0F), z[j]));
    EACH last[j] = multiply_add(u[j], all(-0x1.715476p0F), all(kWhole));
    EACH k[j] = last[j] - kWhole;
    // Where there are two products, the first is exact.
    EACH u[j] = multiply_add(k[j], all(fine ? 0x1.62e4p-1F : 0x1.62e43p-1F), u[j]);
    if (fine) EACH u[j] = multiply_add(k[j], all(0x1.7f7d1cp-20F), u[j]);
    // e^-u - 1, within 2^-28 or 2^-23 of e^-u.
    constexpr float kEven[] = {fine ? 0.5F : 0x1.fffdf8p-2F, fine ? 0x1.555688p-5F : 0x1.572b98p-5F};
    constexpr float kOdd[] = {fine ? -0x1.5554a4p-3F : -0x1.5557b2p-3F,
                              fine ? -0x1.122f7ap-7F : -0x1.1061cep-7F};
    EACH a[j] = u[j] * u[j];
    EACH p[j] = multiply_add(u[j], all(kOdd[1]), all(kEven[1]));
    if (fine) EACH p[j] = multiply_add(a[j], all(0x1.6b6e4ap-10F), p[j]);
    EACH p[j] = multiply_add(a[j], p[j], multiply_add(u[j], all(kOdd[0]), all(kEven[0])));
    EACH p[j] = multiply_add(a[j], p[j], -u[j]);
    EACH c[j] = (Floats)((Bits)(usual ? last[j] : at_most(all(kWhole + 100), last[j])) << 23);
    EACH sum[j] = c[j] + 1.0F;
    EACH rest[j] = multiply_add(c[j], p[j], sum[j]);
    if constexpr (!fine && kNearBits < 14) {
        EACH s[j] = 1.0F / rest[j];
    } else {
        EACH s[j] = near_reciprocal(rest[j]);
        if (fine) EACH rest[j] = multiply_add(c[j], p[j], (c[j] - sum[j]) + 1.0F);
        EACH a[j] = multiply_add(fine ? -sum[j] : -rest[j], s[j], all(1.0F));
        if (fine) EACH a[j] = multiply_add(-rest[j], s[j], a[j]);
        if (kNearBits < 14) EACH a[j] = multiply_add(a[j], a[j], a[j]);
        EACH s[j] = multiply_add(a[j], s[j], s[j]);
    }
    // c is at most 2^100.
    if (!usual) EACH s[j] *= (Floats)((Bits)c[j] - ((Bits)last[j] << 23) + (127U << 23));
}
template <bool, bool, int K>
INLINE void logistic(const Doubles (&z)[K], Doubles (&s)[K]) {
    for (std::size_t i = 0; i < kWidth<double>; ++i) {
        EACH s[j][i] = 1.0 / (1.0 + exp(-z[j][i]));
    }
}

// Whether no gate is above 69; false of NaN. As integers, magnitudes order as they do.
template <class T>
bool all_usual(const T* gates, std::size_t n) {
    using Size = std::conditional_t<kHalfType<T>, std::uint16_t, std::uint32_t>;
    constexpr Size kMost = std::is_same_v<T, float>  ? 0x428a0000
                           : std::is_same_v<T, Half> ? 0x5450
                                                     : 0x428a;
    Size most = 0;
    if (sizeof(T) == 8) return true;
    for (std::size_t i = 0; i < n; ++i) {
        const Size size = load<Size>(gates + i) & static_cast<Size>(-1) >> 1;
        most = size > most ? size : most;
    }
    return most <= kMost;
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
