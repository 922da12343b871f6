// The norm of segments, for one instruction set: their roots, and what is made of them.
#pragma once

#include "gate.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// ---- the root mean square -----------------------------------------------------------------------

template <std::size_t lanes>
struct Part {
    typedef double type __attribute__((vector_size(8 * lanes)));
};
template <std::size_t lanes>
INLINE double total(typename Part<lanes>::type v) {
    if constexpr (lanes == 2) {
        return v[0] + v[1];
    } else {
        typename Part<lanes / 2>::type parts[2];
        __builtin_memcpy(parts, &v, sizeof v);
        return total<lanes / 2>(parts[0] + parts[1]);
    }
}

// The sum of squares that were rounded to S. Those of f32 are added in f64, in which 2^29 of them add
// up exactly but for the last bits; of half types, four at a time, in f32 before that (unless `exact`),
// which loses less than the mean does by becoming f32. Of f64 the rounding errors (Knuth's TwoSum) are
// added at the end, which infinite sums have none of.
template <class T, class C>
struct Sum {
    const bool exact;
    Doubles sum{}, lost{};

    template <int K>
    INLINE void add(const Vec<C> (&v)[K]) {
        if constexpr (sizeof(C) == 8) {
            EACH {
                const Doubles next = sum + v[j], added = next - sum;
                lost += (sum - (next - added)) + (v[j] - added);
                sum = next;
            }
        } else if constexpr (K == 4) {
            if (kHalfType<T> && !exact) {
                sum += __builtin_convertvector((v[0] + v[1]) + (v[2] + v[3]), Doubles);
                return;
            }
            const auto two = [&](int j) LAMBDA {
                return __builtin_convertvector(v[j], Doubles) +
                       __builtin_convertvector(v[j + 1], Doubles);
            };
            sum += two(0) + two(2);
        } else {
            EACH sum += __builtin_convertvector(v[j], Doubles);
        }
    }
    INLINE double value() const {
        if constexpr (sizeof(C) == 4) return total<kLanes>(sum);
        double high = 0, low = 0;
        for (std::size_t i = 0; i < kLanes; ++i) {
            const double next = high + sum[i], added = next - high;
            low += lost[i] + ((high - (next - added)) + (sum[i] - added));
            high = next;
        }
        return low == low ? high + low : high;
    }
};

template <class S>
double root_mean_square(const Norm& norm, double sum, std::size_t count) {
    const double epsilon = round_scalar<S>(norm.epsilon);
    const double mean = round_scalar<S>(sum / static_cast<double>(count));
    if (norm.epsilon_outside || norm.epsilon_clamp) {
        const double root = round_scalar<S>(__builtin_sqrt(mean));
        if (norm.epsilon_clamp) return root < epsilon ? epsilon : root;  // NaN stays
        return round_scalar<S>(root + epsilon);
    }
    return round_scalar<S>(__builtin_sqrt(round_scalar<S>(mean + epsilon)));
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
    INLINE Divisor(double root, bool whole)
        : rms(static_cast<C>(root)),
          good(kFused && sizeof(C) == 4 && whole && root > 0x1p-60 && root < 0x1p60) {
        if (!good) return;
        const double exact = 1.0 / root;
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
template <class T, class S, class C, class From>
INLINE void finish(const Rows& rows, const From* row, const C* gate, std::size_t at,
                   std::size_t in_row, double root) {
    const Norm& norm = *rows.norm;
    const C* const factor = rows.factor ? static_cast<const C*>(rows.factor) + in_row : nullptr;
    const C* const bias = rows.bias ? static_cast<const C*>(rows.bias) + in_row : nullptr;
    T* const y = static_cast<T*>(rows.y) + at;
    const Divisor<T, C> divisor(root, rows.summed == rows.segment);
    const C reciprocal =
        norm.round_rstd ? static_cast<C>(round_scalar<T>(round_scalar<S>(1.0 / root))) : C{};
    const std::int64_t association = norm.association;
    const bool scale_before_cast = norm.scale_before_cast, round_rstd = norm.round_rstd;
    const bool streamed = rows.streamed && at_line(y);
    each_lot<kTogether<T, S>>(0, rows.segment, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        constexpr int K = decltype(lot)::kVectors;
        Vec<C> v[K], w[K];
        const auto product = [&]() LAMBDA {
            if (scale_before_cast) {
                EACH v[j] = round_to<S>(v[j]);
            } else {
                EACH v[j] = round_to<T>(v[j]);
            }
        };
        EACH v[j] = get<C>(row + i + j * kLanes, count);
        if (factor) EACH w[j] = get<C>(factor + i + j * kLanes, count);
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
            EACH v[j] = v[j] + get<C>(bias + i + j * kLanes, count);
        }
        if (gate) {
            product();
            EACH v[j] = round_to<S>(v[j]) * get<C>(gate + i + j * kLanes, count);
        }
        if (gate || scale_before_cast) EACH v[j] = round_to<S>(v[j]);
        EACH put(y + i + j * kLanes, v[j], count, streamed);
    });
}

template <class T, class S, class C, class From>
double exact_sum(const From* row, std::size_t n) {
    Sum<T, C> sum{true};
    each_lot<1>(0, n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        constexpr int K = decltype(lot)::kVectors;
        Vec<C> v[K];
        EACH v[j] = round_to<S>(get<C>(row + i + j * kLanes, count));
        EACH v[j] = round_to<S>(v[j] * v[j]);
        sum.add(v);
    });
    return sum.value();
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
    const bool kept = skip || first, gated = norm.kind == Kind::kGatedRMSNorm;
    std::size_t most = n < kScratch ? kScratch / n : 1;
    most = most < kMost ? most : kMost;
    C* const buffer = static_cast<C*>(scratch);
    C* const gates = first ? buffer : buffer + most * n;
    double roots[kMost];
    for (std::size_t count; begin < end; begin += count) {
        count = end - begin < most ? end - begin : most;
        const std::size_t at = begin * n;
        const T* const x = static_cast<const T*>(rows.x) + at;
        const T* const second = rows.second ? static_cast<const T*>(rows.second) + at : nullptr;
        T* const totals = rows.sum ? static_cast<T*>(rows.sum) + at : nullptr;
        const bool streamed = rows.streamed && totals && at_line(totals) && at_line(totals + n);
        if (gated && !activate<true, T, S>(norm.sigmoid, second, count * n, gates)) {
            activate<false, T, S>(norm.sigmoid, second, count * n, gates);
        }
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t own = k * n;
            const auto row = [&](auto lot, std::size_t i, std::size_t some, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                const auto place = [&](int j) LAMBDA { return own + i + j * kLanes; };
                EACH v[j] = get<C>(x + place(j), some);
                if (skip) {
                    EACH v[j] = round_to<T>(v[j] + get<C>(second + place(j), some));
                    if (totals) EACH put(totals + place(j), v[j], some, streamed);
                    EACH put(buffer + place(j), v[j], some);
                }
                EACH v[j] = round_to<S>(v[j]);
                if (first) {
                    EACH v[j] = round_to<S>(v[j] * get<C>(buffer + place(j), some));
                    EACH put(buffer + place(j), v[j], some);
                }
            };
            Sum<T, C> sum{false};
            each_lot<kTogether<T, S>>(0, rows.summed, [&](auto lot, std::size_t i, std::size_t some) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Vec<C> v[K];
                row(lot, i, some, v);
                EACH v[j] = round_to<S>(v[j] * v[j]);
                sum.add(v);
            });
            each_lot<1>(rows.summed, n, [&](auto lot, std::size_t i, std::size_t some) LAMBDA {
                Vec<C> v[decltype(lot)::kVectors];
                row(lot, i, some, v);
            });
            roots[k] = sum.value();
            // Four squares of bf16 may overflow f32 where their sum in f64 does not.
            if (kHalfType<T> && sizeof(C) == 4 && !(roots[k] < __builtin_inf())) {
                roots[k] = kept ? exact_sum<T, S, C>(buffer + own, rows.summed)
                                : exact_sum<T, S, C>(x + own, rows.summed);
            }
        }
        for (std::size_t k = 0; k < count; ++k) {
            roots[k] = root_mean_square<S>(norm, roots[k], rows.summed);
        }
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t own = k * n, in_row = (begin + k) % rows.per_row * n;
            const C* const gate = gated && !first ? gates + own : nullptr;
            if (kept) {
                finish<T, S, C>(rows, buffer + own, gate, at + own, in_row, roots[k]);
            } else {
                finish<T, S, C>(rows, x + own, gate, at + own, in_row, roots[k]);
            }
        }
    }
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime
