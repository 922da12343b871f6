// The gate: sigmoid and silu, for one instruction set.
#pragma once

#include <math.h>

#include "vectors.h"

namespace rmsnorm_export::onnxruntime {
namespace {

template <int K>
INLINE void logistic(const Doubles (&z)[K], Doubles (&s)[K]) {
    EACH for (std::size_t i = 0; i < kLanes; ++i) s[j][i] = 1.0 / (1.0 + exp(-z[j][i]));
}

// 1 / (1 + e^-z), within 1.1 ulp; `usual`: of |z| up to kUsual, for which the steps left out change
// nothing. e^-z = c * (1 + p), where c = 2^k; 1 + c, what it loses when it is rounded, and c * p are
// kept apart, and the remainder of the inverse corrects it.
constexpr float kUsual = 87.0F;

template <bool usual, int K>
INLINE void logistic(const Floats (&z)[K], Floats (&s)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    constexpr float kMost = 0x1.8p23F + 100;
    Floats u[K], last[K], bounded[K], k[K], p[K], c[K], rest[K], sum[K], a[K];
    EACH u[j] = z[j];
    if constexpr (!usual) {
        EACH u[j] = (u[j] < -104.0F) ? all(-104.0F) : u[j];  // beyond s is 0 or 1; NaN stays
        EACH u[j] = (u[j] > kUsual) ? all(kUsual) : u[j];
    }
    EACH last[j] = multiply_add(u[j], all(-0x1.715476p0F), all(0x1.8p23F));  // its last bits are k
    EACH k[j] = last[j] - 0x1.8p23F;
    EACH u[j] = multiply_add(k[j], all(0x1.62e4p-1F), u[j]);  // of which the product is exact
    EACH u[j] = multiply_add(k[j], all(0x1.7f7d1cp-20F), u[j]);
    // e^-u - 1, within 2^-28
    EACH p[j] = multiply_add(u[j], all(0x1.6b6e4ap-10F), all(-0x1.122f7ap-7F));
    EACH p[j] = multiply_add(u[j], p[j], all(0x1.555688p-5F));
    EACH p[j] = multiply_add(u[j], p[j], all(-0x1.5554a4p-3F));
    EACH p[j] = multiply_add(u[j], p[j], all(0.5F));
    EACH p[j] = multiply_add(u[j] * u[j], p[j], -u[j]);
    EACH bounded[j] = last[j];
    if constexpr (!usual) EACH bounded[j] = (last[j] > kMost) ? all(kMost) : last[j];
    EACH c[j] = (Floats)(((Bits)bounded[j] << 23) + (127U << 23));
    EACH sum[j] = c[j] + 1.0F;
    EACH rest[j] = c[j] * p[j];
    EACH s[j] = near_reciprocal(sum[j] + rest[j]);
    EACH rest[j] = ((c[j] - sum[j]) + 1.0F) + rest[j];
    if constexpr (kFused) {
        EACH a[j] = multiply_add(-sum[j], s[j], all(1.0F));
    } else {
        const auto wide = [](Floats v) LAMBDA { return __builtin_convertvector(v, Doubles); };
        EACH a[j] = __builtin_convertvector(1.0 - wide(sum[j]) * wide(s[j]), Floats);
    }
    EACH a[j] = multiply_add(-rest[j], s[j], a[j]);
    EACH s[j] = multiply_add(a[j], s[j], s[j]);
    if constexpr (!usual) {  // s is 2^(k - bounded) of what it seems
        EACH s[j] *= (Floats)((((Bits)bounded[j] - (Bits)last[j]) << 23) + (127U << 23));
    }
}

// The activations of gates, segments of n, as lanes; what is read in a while is `ahead` elements from
// them.
template <bool usual, class T, class S, class C>
bool all_usual(const Rows& rows, const T* gates, std::size_t segments, std::size_t n,
               std::size_t ahead, C* to) {
    const bool sigmoid = rows.norm->sigmoid, far = rows.streamed;
    Ints most{};
    for (; segments; --segments, gates += n, to += n) {
        constexpr int together = kTogether<T, S> > 1 ? 4 : 1;
        each_lot<together>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Vec<C> z[K], s[K];
            fetch<K>(far, gates + i, ahead);
            get_lot<C>(gates + i, count, z);
            EACH z[j] = round_to<S>(z[j]);
            if constexpr (sizeof(C) == 8) {
                logistic(z, s);
            } else {
                logistic<usual>(z, s);
                EACH {
                    const Ints size = (Ints)z[j] & 0x7fffffff;
                    most = (size > most) ? size : most;
                }
            }
            EACH s[j] = round_to<S>(s[j]);
            if (!sigmoid) EACH s[j] = round_to<S>(z[j] * s[j]);
            put_lot(to + i, s, count, false);
        });
    }
    std::int32_t top = 0;
    for (std::size_t i = 0; i < kLanes; ++i) top |= most[i] > 0x42ae0000;  // kUsual
    return !top;
}
template <class T, class S, class C>
INLINE void activate(const Rows& rows, const T* gates, std::size_t segments, std::size_t n,
                     std::size_t ahead, C* to) {
    if (!all_usual<true, T, S>(rows, gates, segments, n, ahead, to)) {
        all_usual<false, T, S>(rows, gates, segments, n, ahead, to);
    }
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
