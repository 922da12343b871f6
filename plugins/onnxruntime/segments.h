// The norm of segments, for one instruction set: their roots, and what is made of them.
#pragma once

#include "gate.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// Segments whose roots are found before the first of them is finished.
constexpr std::size_t kMost = 32;

// ---- the root mean square -----------------------------------------------------------------------

// The sum of squares in f64, in which 2^29 of f32 add up exactly but for the last bits; of f64 with
// what each sum loses when it is rounded (Knuth). Those of half types are added in f32 before that,
// the vectors of a lot, which loses less than the mean does by becoming f32.
template <class T, class C>
struct Sum {
    Doubles low{}, high{};  // of f64: the sum, and what it lost

    template <class V>
    INLINE static void add_all(V& sum, V& lost, V v) {
        const V next = sum + v, part = next - sum;
        lost += (sum - (next - part)) + (v - part);
        sum = next;
    }
    INLINE void add_one(Floats v) {
        HalfFloats halves[2];
        store(halves, v);
#if defined(__AVX2__)
        asm("" : "+m"(halves));  // from memory both are widened without a shuffle
#endif
        low += widen(halves[0]);
        high += widen(halves[1]);
    }
    template <int K>
    INLINE void add(Floats (&v)[K]) {
        if constexpr (kHalfType<T>) {
            _Pragma("GCC unroll 8") for (int half = K / 2; half; half /= 2) {
                _Pragma("GCC unroll 8") for (int j = 0; j < half; ++j) v[j] += v[j + half];
            }
            add_one(v[0]);
        } else {
            EACH add_one(v[j]);
        }
    }
    INLINE void add(Doubles (&v)[1]) { add_all(low, high, v[0]); }
    INLINE double value() const {
        double lanes[kLanes / 2];
        if constexpr (sizeof(C) == 8) {
            double all = 0, rest = 0;
            for (std::size_t i = 0; i < kLanes / 2; ++i) {
                add_all(all, rest, low[i]);
                rest += high[i];
            }
            return rest == rest ? all + rest : all;  // of infinities nothing is lost
        }
        store(lanes, low + high);
        for (std::size_t apart = kLanes / 4; apart; apart /= 2) {
            for (std::size_t i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
        }
        return lanes[0];
    }
};

// Of `summed` elements of n; `row(lot, i, count, v)` makes the elements of each lot, and keeps what it
// has to.
template <int together, class T, class S, class Row>
INLINE double sum_of_squares(std::size_t summed, std::size_t n, Row row) {
    using C = Lane<T, S>;
    Sum<T, C> sum;
    each_lot<C, together>(summed, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        constexpr int K = decltype(lot)::value;
        Vec<C> v[K];
        row(lot, i, count, v);
        EACH v[j] = round_to<S>(v[j] * v[j]);
        sum.add(v);
    });
    each_lot<C, 1>(n - summed, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        Vec<C> v[1];
        row(lot, summed + i, count, v);
    });
    return sum.value();
}

// Of several segments, side by side: rms and 1 / rms, that in two parts or, with round_rstd, rounded.
template <class T, class S>
struct Roots {
    using C = Lane<T, S>;
    C rms[kMost]{}, inverse[kMost], low[kMost];

    INLINE Roots(const Rows& rows, const double* sums, std::size_t count) {
        const Norm& norm = *rows.norm;
        const auto summed = static_cast<double>(rows.summed);
        const auto rounded = round_to<S>(static_cast<double>(norm.epsilon));
        const auto epsilon = Vec<C>{} + static_cast<C>(rounded);
        for (std::size_t i = 0; i < count; i += kWidth<C>) {
            if constexpr (std::is_same_v<S, C>) {
                for (auto k = i; k < i + kWidth<C>; ++k) rms[k] = static_cast<C>(sums[k] / summed);
            } else {
                for (std::size_t k = i; k < i + kWidth<C>; k += kWidth<double>) {
                    write(rms + k, round_to<S>(load<Doubles>(sums + k) / summed));
                }
            }
            Vec<C> root = load<Vec<C>>(rms + i);
            if (!norm.epsilon_outside && !norm.epsilon_clamp) root = round_to<S>(root + epsilon);
            root = round_to<S>(square_root(root));
            if (norm.epsilon_outside) root = round_to<S>(root + epsilon);
            if (norm.epsilon_clamp) root = (root < epsilon) ? epsilon : root;  // NaN stays
            store(rms + i, root);
            Vec<C> r = round_to<S>(1 / root);
            if (norm.round_rstd) {
                r = round_to<T>(r);
            } else if constexpr (sizeof(C) == 4) {
                const Floats below = r * (1 - 0x1p-24F), one = Floats{} + 1.0F;
                // -0 stays what it is only where the second part is not negative.
                if (kHalfType<T>) r = (multiply_add(-r, root, one) < 0) ? below : r;
                store(low + i, multiply_add(-r, root, one) * r);
            }
            store(inverse + i, r);
        }
    }
};

// ---- segments -----------------------------------------------------------------------------------

// Of segments [k, end) of those from `at` on: `row` before it is rounded to S, or what is left of it
// afterwards, which is the same. Each step is rounded when the next needs it, the last by being
// written. `usual`: without a division, where no step over- or underflows.
template <bool usual, class T, class S, class From>
void finish_some(const Rows& rows, const From* row, const Lane<T, S>* gates, std::size_t at,
                 std::size_t in_row, std::size_t ahead, const Roots<T, S>& roots, std::size_t k,
                 std::size_t end) {
    using C = Lane<T, S>;
    using V = Vec<C>;
    constexpr int together = kUsualTypes<T, S> ? kLanes < 16 ? kUnit : 2 * kUnit : 1;
    const Norm& norm = *rows.norm;
    const bool scale_first = norm.scale_before_cast, round_rstd = norm.round_rstd;
    const int association = !usual && rows.factor ? norm.association : 0;
    const void *const factor = rows.factor, *const bias = rows.bias;
    const std::size_t n = rows.segment;
    for (; k < end; ++k, in_row += n) {
        if (in_row == n * rows.per_row) in_row = 0;
        const std::size_t own = k * n;
        const T* const x = static_cast<const T*>(rows.x) + at + own;
        T* const y = static_cast<T*>(rows.y) + at + own;
        const bool streamed = rows.streamed && at_line(y);
        const C rms = roots.rms[k], inverse = roots.inverse[k], low = roots.low[k];
        const auto quotient = [&](V v) LAMBDA {
            if constexpr (!usual) {
                return v / rms;
            } else {
                // Correctly rounded without a division (Markstein 1990): 1 / rms in two parts gives
                // a quotient within an ulp, and one step with the exact remainder leads to the
                // nearest (quotients below 2^-100: within an ulp). Half types need no such step: the
                // first is within 2^-46.
                const Floats r = Floats{} + inverse, near = multiply_add(v, r, v * low);
                if constexpr (kHalfType<T>) return near;
                // The remainder with this sign, as with the other the step would make +0 of -0.
                return multiply_add(-multiply_add(near, Floats{} + rms, -v), r, near);
            }
        };
        each_lot<C, together>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::value;
            V v[K], w[K];
            const auto operand = [&](const void* values) LAMBDA {
                const T* const as_t = static_cast<const T*>(values) + in_row + i;
                const S* const as_s = static_cast<const S*>(values) + in_row + i;
                scale_first ? get_as<T, C>(as_s, count, w) : get_lot<C>(as_t, count, w);
            };
            const auto product = [&]() LAMBDA {
                if (scale_first) EACH v[j] = round_to<S>(v[j]);
                if (!scale_first) EACH v[j] = round_to<T>(v[j]);
            };
            fetch<K>(rows.fetched, x + i, ahead);
            get_lot<C>(row + own + i, count, v);
            if (association) operand(factor);
            if (association == 2) EACH v[j] = round_to<T>(v[j] * w[j]);
            if (round_rstd) {
                if (!std::is_same_v<From, T>) EACH v[j] = round_to<T>(v[j]);
                V r[K];
                EACH r[j] = V{} + inverse;
                if (association == 1) EACH r[j] = round_to<T>(r[j] * w[j]);
                EACH v[j] = v[j] * r[j];
            } else {
                EACH v[j] = round_to<S>(quotient(round_to<S>(v[j])));
            }
            if (factor && association == 0) {
                product();
                operand(factor);
                EACH v[j] = v[j] * w[j];
            }
            if (bias) {
                product();
                operand(bias);
                EACH v[j] = v[j] + w[j];
            }
            if (gates) {
                product();
                get_lot<C>(gates + own + i, count, w);
                EACH v[j] = round_to<S>(v[j]) * w[j];
            }
            if (gates || scale_first) EACH v[j] = round_to<S>(v[j]);
            put_lot(y + i, v, count, streamed);
        });
    }
}

template <class T, class S, class From>
void finish(const Rows& rows, const From* row, const Lane<T, S>* gates, std::size_t begin,
            std::size_t count, const Roots<T, S>& roots) {
    const Norm& norm = *rows.norm;
    constexpr bool usual_types = kUsualTypes<T, S>;
    const bool usual = usual_types && !norm.association && rows.summed == rows.segment;
    // |row| is at most rms * sqrt(n) where all of it is summed.
    const auto good = [&](std::size_t k) {
        return usual && (norm.round_rstd || (roots.rms[k] > 0x1p-60 && roots.rms[k] < 0x1p60));
    };
    const std::size_t n = rows.segment;
    for (std::size_t k = 0, end; k < count; k = end) {
        for (end = k + 1; end < count && good(end) == good(k);) ++end;
        const auto some = good(k) ? finish_some<usual_types, T, S, From>
                                  : finish_some<false, T, S, From>;
        some(rows, row, gates, begin * n, (begin + k) % rows.per_row * n, count * n, roots, k, end);
    }
}

// The activations of `count` gates or, with gate_first, X times them. `usual`: of logistic().
template <bool usual, class T, class S>
void gate(const Rows& rows, std::size_t at, std::size_t count, Lane<T, S>* to) {
    using C = Lane<T, S>;
    const Norm& norm = *rows.norm;
    const T* const x = static_cast<const T*>(rows.x) + at;
    const T* const gates = static_cast<const T*>(rows.second) + at;
    const bool silu = norm.activation == Activation::kSilu, first = norm.gate_first;
    // Of pairs, the lots of each row are those that it is read in.
    const std::size_t joined = rows.segment % (kUnit * kLanes) ? rows.segment : count;
    for (std::size_t begun = 0; begun < count; begun += joined) {
        each_lot<C, kUsualTypes<T, S> ? kUnit : 1>(
            joined, [&](auto lot, std::size_t i, std::size_t some) LAMBDA {
                constexpr int K = decltype(lot)::value;
                const std::size_t place = begun + i;
                Vec<C> v[K], z[K], s[K];
                fetch<K>(rows.fetched, gates + place, count);
                get_lot<C>(gates + place, some, z);
                EACH z[j] = round_to<S>(z[j]);
                logistic<!kHalfType<T>, usual>(z, s);
                EACH s[j] = round_to<S>(s[j]);
                if (silu) EACH s[j] = round_to<S>(z[j] * s[j]);
                if (first) {
                    fetch<K>(rows.fetched, x + place, count);
                    get_lot<C>(x + place, some, v);
                    EACH s[j] = round_to<S>(round_to<S>(v[j]) * s[j]);
                }
                put_lot(to + place, s, some);
            });
    }
}

// Segments [begin, end); short ones many at a time, pass by pass, so that the processor need not wait
// for the root of each.
template <class T, class S>
void run_segments(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    using C = Lane<T, S>;
    constexpr int together = !kUsualTypes<T, S>               ? 1
                             : kHalfType<T> == (kLanes == 16) ? kUnit
                                                              : 2 * kUnit;
    const Norm& norm = *rows.norm;
    const std::size_t n = rows.segment;
    const bool skip = norm.sums(), gated = norm.kind == Kind::kGatedRMSNorm, first = norm.gate_first;
    std::size_t most = n < kScratch ? kScratch / n : 1;
    most = most < kMost ? most : kMost;
    for (std::size_t count; begin < end; begin += count) {
        count = end - begin < most ? end - begin : most;
        const std::size_t at = begin * n, ahead = count * n;
        const T* const x = static_cast<const T*>(rows.x) + at;
        const T* const second = rows.second ? static_cast<const T*>(rows.second) + at : nullptr;
        T* const totals = rows.sum ? static_cast<T*>(rows.sum) + at : nullptr;
        const bool streamed = rows.streamed && totals && at_line(totals) && at_line(totals + n);
        T* const kept = totals && !streamed ? totals : static_cast<T*>(scratch);  // the sums
        C* const lanes = static_cast<C*>(scratch);  // activations or, with gate_first, X times them
        if (gated) {
            const auto make = all_usual(second, ahead) ? gate<true, T, S> : gate<false, T, S>;
            make(rows, at, ahead, lanes);
        }
        double sums[kMost]{};
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t own = k * n;
            const auto add = [&](auto row) LAMBDA {
                sums[k] = sum_of_squares<together, T, S>(rows.summed, n, row);
                // A few squares of bf16 may overflow f32 where their sum in f64 does not.
                if (kHalfType<T> && !(sums[k] < __builtin_inf())) {
                    sums[k] = sum_of_squares<1, T, S>(rows.summed, n, row);
                }
            };
            if (first) {
                add([&](auto, std::size_t i, std::size_t some, auto& v) LAMBDA {
                    get_lot<C>(lanes + own + i, some, v);
                });
            } else if (skip) {
                add([&](auto lot, std::size_t i, std::size_t some, auto& v) LAMBDA {
                    constexpr int K = decltype(lot)::value;
                    Vec<C> w[K];
                    fetch<K>(rows.fetched, second + own + i, ahead);
                    get_lot<C>(x + own + i, some, v);
                    get_lot<C>(second + own + i, some, w);
                    EACH v[j] = v[j] + w[j];
                    if (streamed) put_lot(totals + own + i, v, some, true);
                    put_lot(kept + own + i, v, some);
                    EACH v[j] = round_to<S>(round_to<T>(v[j]));
                });
            } else {
                add([&](auto lot, std::size_t i, std::size_t some, auto& v) LAMBDA {
                    constexpr int K = decltype(lot)::value;
                    get_lot<C>(x + own + i, some, v);
                    EACH v[j] = round_to<S>(v[j]);
                });
            }
        }
        const Roots<T, S> roots(rows, sums, count);
        const C* const gates = gated ? lanes : nullptr;
        first ? finish<T, S, C>(rows, lanes, nullptr, begin, count, roots)
              : finish<T, S, T>(rows, skip ? kept : x, gates, begin, count, roots);
    }
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
