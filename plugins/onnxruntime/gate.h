// The gate: sigmoid and silu, for one instruction set.
#pragma once

#include <math.h>

#include "vectors.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// 1 / (1 + e^-z), within 1.1 ulp. e^-z = c * (1 + p), where c = 2^k; 1 + c, what it loses when it is
// rounded (where `fine`), and c * p are kept apart, and the remainder of the inverse corrects it. `usual`:
// no |z| is above 69, and the same comes out without bounds.
template <bool fine, bool usual, int K>
INLINE void logistic(const Floats (&z)[K], Floats (&s)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    constexpr float kMost = 0x1.8p23F + 100;
    Floats u[K], last[K], bounded[K], k[K], p[K], c[K], rest[K], sum[K], a[K];
    EACH u[j] = z[j];
    if (!usual) EACH u[j] = at_most(all(87.0F), at_least(all(-104.0F), z[j]));  // beyond s is 1 or 0
    EACH last[j] = multiply_add(u[j], all(-0x1.715476p0F), all(0x1.8p23F));  // its last bits are k
    EACH k[j] = last[j] - 0x1.8p23F;
    EACH u[j] = multiply_add(k[j], all(0x1.62e4p-1F), u[j]);  // of which the product is exact
    EACH u[j] = multiply_add(k[j], all(0x1.7f7d1cp-20F), u[j]);
    // e^-u - 1, within 2^-28
    EACH a[j] = u[j] * u[j];
    EACH p[j] = multiply_add(u[j], all(-0x1.122f7ap-7F), all(0x1.555688p-5F));
    EACH p[j] = multiply_add(a[j], all(0x1.6b6e4ap-10F), p[j]);
    EACH p[j] = multiply_add(a[j], p[j], multiply_add(u[j], all(-0x1.5554a4p-3F), all(0.5F)));
    EACH p[j] = multiply_add(a[j], p[j], -u[j]);
    EACH bounded[j] = usual ? last[j] : at_most(all(kMost), last[j]);
    EACH c[j] = (Floats)(((Bits)bounded[j] << 23) + (127U << 23));
    EACH sum[j] = c[j] + 1.0F;
    EACH rest[j] = c[j] * p[j];
    EACH s[j] = near_reciprocal(sum[j] + rest[j]);
    if constexpr (fine) {
        EACH rest[j] = ((c[j] - sum[j]) + 1.0F) + rest[j];
        EACH a[j] = multiply_add(-sum[j], s[j], all(1.0F));
    } else {
        EACH a[j] = multiply_add(-c[j], s[j], all(1.0F)) - s[j];
    }
    EACH a[j] = multiply_add(-rest[j], s[j], a[j]);
    if constexpr (kNearBits < 14) EACH a[j] = multiply_add(a[j], a[j], a[j]);
    EACH s[j] = multiply_add(a[j], s[j], s[j]);
    // s is 2^(k - bounded) of what it seems.
    if (!usual) EACH s[j] *= (Floats)((Bits)c[j] - ((Bits)last[j] << 23));
}
template <bool fine, bool>
INLINE void logistic(const double (&z)[1], double (&s)[1]) {
    s[0] = 1.0 / (1.0 + exp(-z[0]));
}

// Whether no |z| is above 69; false of NaN.
template <int K>
INLINE bool usual(const Floats (&z)[K]) {
    Ints most{};  // as integers, magnitudes order as they do
    EACH {
        const Ints size = (Ints)z[j] & 0x7fffffff;
        most = (size > most) ? size : most;
    }
    return !any(most > 0x428a0000);  // 69
}
INLINE bool usual(const double (&)[1]) { return true; }

// The activations of a lot of gates.
template <class T, class S, class V, int K>
INLINE void activate(const Norm& norm, const T* gates, std::size_t count, V (&s)[K]) {
    V z[K];
    get_lot<Lane<T, S>>(gates, count, z);
    EACH z[j] = round_to<S>(z[j]);
    if (usual(z)) {
        logistic<!kHalfType<T>, true>(z, s);
    } else {
        logistic<!kHalfType<T>, false>(z, s);
    }
    EACH s[j] = round_to<S>(s[j]);
    if (norm.activation == Activation::kSilu) EACH s[j] = round_to<S>(z[j] * s[j]);
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
