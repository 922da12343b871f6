// The norm of segments, for one instruction set: their roots, and what is made of them.
#pragma once

#include "gate.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// ---- the root mean square -----------------------------------------------------------------------

template <int K, class V>
INLINE V added_up(const V* v) {
    if constexpr (K == 1) {
        return v[0];
    } else {
        return added_up<K / 2>(v) + added_up<K / 2>(v + K / 2);
    }
}

// The sum of squares that were rounded to S, in f64, in which 2^29 of f32 add up exactly but for the last
// bits. Those of half types are added in f32 before that, the vectors of a lot (unless `exact`), which
// loses less than the mean does by becoming f32. Of f64 the rounding errors (Knuth's TwoSum) are added at
// the end; infinite sums have none.
template <class T, class C>
struct Sum {
    const bool exact;
    HalfDoubles sum{}, lost{};

    INLINE void add_one(Doubles v, bool careful = false) {
        HalfDoubles halves[2];  // of one register each: the whole would be kept in memory
        __builtin_memcpy(halves, &v, sizeof v);
        if (!careful) {
            sum += halves[0] + halves[1];
            return;
        }
        for (const HalfDoubles& half : halves) {
            const HalfDoubles next = sum + half, added = next - sum;
            lost += (sum - (next - added)) + (half - added);
            sum = next;
        }
    }
    template <int K, class V>
    INLINE void add(const V (&v)[K]) {
        if constexpr (sizeof(V) == sizeof(Doubles)) {
            EACH add_one(v[j], true);
        } else if (kHalfType<T> && !exact) {
            add_one(__builtin_convertvector(added_up<K>(v), Doubles));
        } else {
            Doubles wide[K];
            EACH wide[j] = __builtin_convertvector(v[j], Doubles);
            add_one(added_up<K>(wide));
        }
    }
    INLINE double value() const {
        double lanes[kLanes / 2];
        if (sizeof(C) == 8) {
            double high = 0, low = 0;
            for (std::size_t i = 0; i < kLanes / 2; ++i) {
                const double next = high + sum[i], added = next - high;
                low += lost[i] + ((high - (next - added)) + (sum[i] - added));
                high = next;
            }
            return low == low ? high + low : high;
        }
        store(lanes, sum);
        for (std::size_t apart = kLanes / 4; apart; apart /= 2) {
            for (std::size_t i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
        }
        return lanes[0];
    }
};

INLINE Doubles square_root(Doubles v) {
    double lanes[kLanes];
    store(lanes, v);
    for (double& lane : lanes) lane = __builtin_sqrt(lane);
    return load<Doubles>(lanes);
}

// Of several segments, from the sums of their squares.
template <class S>
INLINE Doubles root_mean_square(const Norm& norm, Doubles sum, std::size_t count) {
    const Doubles epsilon = round_to<S>(Doubles{} + static_cast<double>(norm.epsilon));
    const Doubles mean = round_to<S>(sum / static_cast<double>(count));
    if (norm.epsilon_outside || norm.epsilon_clamp) {
        const Doubles root = round_to<S>(square_root(mean));
        if (norm.epsilon_clamp) return (root < epsilon) ? epsilon : root;  // NaN stays
        return round_to<S>(root + epsilon);
    }
    return round_to<S>(square_root(round_to<S>(mean + epsilon)));
}

// row / rms. Where no step overflows or underflows, and with FMA, correctly rounded without a division
// (Markstein 1990): 1 / rms in two parts gives a quotient within an ulp, and one step with the exact
// remainder leads to the nearest (quotients below 2^-100: within an ulp). Half types need no such step:
// the first quotient is within 2^-46.
template <class T, class C>
struct Divisor {
    C rms, inverse{}, low{};
    bool good;

    // `whole`: |row| is at most rms * sqrt(segment), so that no quotient overflows.
    INLINE Divisor(double root, double exact, bool whole)
        : rms(static_cast<C>(root)),
          good(kFused && sizeof(C) == 4 && whole && root > 0x1p-60 && root < 0x1p60) {
        if (!good) return;
        inverse = static_cast<C>(exact);
        // -0 stays what it is only where the second part is not negative.
        if (kHalfType<T> && static_cast<double>(inverse) > exact) inverse *= 1 - 0x1p-24F;
        low = static_cast<C>(exact - static_cast<double>(inverse));
    }
    INLINE Floats quotient(Floats row) const {
        if (!good) return row / rms;
        const Floats r = Floats{} + inverse, near = multiply_add(row, r, row * low);
        if constexpr (kHalfType<T>) return near;
        // The remainder with this sign, as with the other the step would make +0 of -0.
        return multiply_add(-multiply_add(near, Floats{} + rms, -row), r, near);
    }
    INLINE Doubles quotient(Doubles row) const { return row / rms; }
};

// ---- segments -----------------------------------------------------------------------------------

// `row` is the segment before it is rounded to S, or what is left of it afterwards, which is the same;
// `gate` its activations. Each step is rounded when the next needs it, the last by being written.
template <class T, class S, class From>
INLINE void finish(const Rows& rows, const From* row, const T* gates, std::size_t at,
                   std::size_t in_row, std::size_t ahead, double root, double inverse) {
    using C = Lane<T, S>;
    const Norm& norm = *rows.norm;
    const C* const factor = rows.factor ? static_cast<const C*>(rows.factor) + in_row : nullptr;
    const C* const bias = rows.bias ? static_cast<const C*>(rows.bias) + in_row : nullptr;
    const T* const x = static_cast<const T*>(rows.x) + at;
    T* const y = static_cast<T*>(rows.y) + at;
    const Divisor<T, C> divisor(root, inverse, rows.summed == rows.segment);
    const C reciprocal =
        norm.round_rstd ? static_cast<C>(round_scalar<T>(round_scalar<S>(inverse))) : C{};
    constexpr std::size_t kPiece = 512;
    alignas(64) C activations[kPiece];
    const std::size_t n = rows.segment;
    const std::int64_t association = norm.association;
    const bool scale_before_cast = norm.scale_before_cast, round_rstd = norm.round_rstd;
    const bool streamed = rows.streamed && at_line(y);
    const auto step = [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        constexpr int K = decltype(lot)::kVectors;
        Vec<C> v[K], w[K];
        const auto product = [&]() LAMBDA {
            if (scale_before_cast) {
                EACH v[j] = round_to<S>(v[j]);
            } else {
                EACH v[j] = round_to<T>(v[j]);
            }
        };
        fetch<K>(rows.streamed, x + i, ahead);
        get_lot<C>(row + i, count, v);
        if (factor) get_lot<C>(factor + i, count, w);
        if (association == 2) EACH v[j] = round_to<T>(v[j] * w[j]);
        if (round_rstd) {
            EACH {
                Vec<C> r = Vec<C>{} + reciprocal;
                if (association == 1) r = round_to<T>(r * w[j]);
                v[j] = round_to<T>(v[j]) * r;
            }
        } else {
            EACH v[j] = round_to<S>(divisor.quotient(round_to<S>(v[j])));
        }
        if (factor && association == 0) {
            product();
            EACH v[j] = v[j] * w[j];
        }
        if (bias) {
            product();
            get_lot<C>(bias + i, count, w);
            EACH v[j] = v[j] + w[j];
        }
        if (gates) {
            product();
            get_lot<C>(activations + i % kPiece, count, w);
            EACH v[j] = round_to<S>(v[j]) * w[j];
        }
        if (gates || scale_before_cast) EACH v[j] = round_to<S>(v[j]);
        put_lot(y + i, v, count, streamed);
    };
    // The activations of a piece at a time, which stay near.
    const std::size_t piece = gates ? kPiece : n;
    for (std::size_t begun = 0; begun < n; begun += piece) {
        const std::size_t size = n - begun < piece ? n - begun : piece;
        if (gates) activate<T, S>(rows, gates + begun, 1, size, ahead, activations);
        each_lot<kTogether<T, S>>(size, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            step(lot, begun + i, count);
        });
    }
}

// Segments [begin, end); short ones many at a time, pass by pass, so that the processor need not wait
// for the root of each.
template <class T, class S>
void run_segments(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    using C = Lane<T, S>;
    constexpr std::size_t kMost = 32;
    const Norm& norm = *rows.norm;
    const std::size_t n = rows.segment;
    const bool skip = norm.kind == Kind::kSkipRMSNorm, first = norm.gate_first;
    const bool kept = skip || first, gated = norm.kind == Kind::kGatedRMSNorm && !first;
    std::size_t most = n < kScratch ? kScratch / n : 1;
    most = most < kMost ? most : kMost;
    C* const buffer = static_cast<C*>(scratch);
    double roots[kMost] = {}, inverses[kMost];
    bool exact = false;  // a few squares of bf16 may overflow f32 where their sum in f64 does not
    for (std::size_t count; begin < end; begin += count) {
        count = end - begin < most ? end - begin : most;
        const std::size_t at = begin * n;
        bool finite = true;
        const T* const x = static_cast<const T*>(rows.x) + at;
        const T* const second = rows.second ? static_cast<const T*>(rows.second) + at : nullptr;
        T* const totals = rows.sum ? static_cast<T*>(rows.sum) + at : nullptr;
        const bool streamed = rows.streamed && totals && at_line(totals) && at_line(totals + n);
        if (first) activate<T, S>(rows, second, count, n, count * n, buffer);
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t own = k * n;
            const auto row = [&](auto lot, std::size_t i, std::size_t some, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Vec<C> w[K];
                get_lot<C>(x + own + i, some, v);
                if (skip) {
                    fetch<K>(rows.streamed, second + own + i, count * n);
                    get_lot<C>(second + own + i, some, w);
                    EACH v[j] = round_to<T>(v[j] + w[j]);
                    if (totals) put_lot(totals + own + i, v, some, streamed);
                    put_lot(buffer + own + i, v, some, false);
                }
                EACH v[j] = round_to<S>(v[j]);
                if (first) {
                    get_lot<C>(buffer + own + i, some, w);
                    EACH v[j] = round_to<S>(v[j] * w[j]);
                    put_lot(buffer + own + i, v, some, false);
                }
            };
            Sum<T, C> sum{exact};
            const auto add = [&](auto lot, std::size_t i, std::size_t some) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Vec<C> v[K];
                row(lot, i, some, v);
                EACH v[j] = round_to<S>(v[j] * v[j]);
                sum.add(v);
            };
            each_lot<kTogether<T, S>>(rows.summed, add);
            each_lot<1>(n - rows.summed, [&](auto lot, std::size_t i, std::size_t some) LAMBDA {
                Vec<C> v[1];
                row(lot, rows.summed + i, some, v);
            });
            roots[k] = sum.value();
            finite = finite && roots[k] < __builtin_inf();
        }
        if (kHalfType<T> && !finite && !exact) {
            count = 0;
            exact = true;
            continue;
        }
        exact = false;
        for (std::size_t k = 0; k < count; k += kLanes) {
            const Doubles root = root_mean_square<S>(norm, load<Doubles>(roots + k), rows.summed);
            store(roots + k, root);
            store(inverses + k, 1.0 / root);
        }
        std::size_t in_row = begin % rows.per_row * n;
        for (std::size_t k = 0; k < count; ++k, in_row += n) {
            if (in_row == rows.per_row * n) in_row = 0;
            const std::size_t own = k * n;
            const T* const gate = gated ? second + own : nullptr;
            const auto make = [&](auto* from) LAMBDA {
                finish<T, S>(rows, from + own, gate, at + own, in_row, count * n, roots[k],
                             inverses[k]);
            };
            kept ? make(buffer) : make(x);
        }
    }
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
