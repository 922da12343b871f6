// The kernels, for one instruction set, in the unnamed namespace of the file that includes this.
#include "lanes.h"

// ---- the root mean square -----------------------------------------------------------------------

// The sum of squares that were rounded to S: in f64, in which 2^29 squares of f32 add up exactly
// but for the last bits; of f64 with the rounding errors added at the end (Neumaier).
struct SumOfFloats {
    Doubles even{}, odd{};

    INLINE void add(Floats square) {
        const Wide w = widen(square);
        even += w.low;
        odd += w.high;
    }
    double total(const SumOfFloats& other) const {
        const Doubles all = (even + odd) + (other.even + other.odd);
        double sum = 0;
        for (std::size_t i = 0; i < kLanes / 2; ++i) sum += all[i];
        return sum;
    }
};
struct SumOfDoubles {
    Doubles sum{}, lost{};

    void add(Doubles square) {
        const Doubles next = sum + square;
        // Both are >= 0: no absolute values are compared.
        const Doubles large = (sum > square) ? sum : square, small = (sum > square) ? square : sum;
        const Doubles error = (large - next) + small;
        lost += (error == error) ? error : Doubles{};  // infinite sums have none
        sum = next;
    }
    double total(const SumOfDoubles&) const {
        double high = 0, low = 0;
        for (std::size_t i = 0; i < kLanes / 2; ++i) {
            const double value = sum[i], next = high + value;
            const double error = high > value ? (high - next) + value : (value - next) + high;
            low += lost[i] + (error == error ? error : 0.0);
            high = next;
        }
        return high + low;
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

// row / rms, correctly rounded (quotients below 2^-100: within an ulp). With FMA this is quicker
// than to divide: from a quotient within an ulp, and 1 / rms rounded to nearest, one step with the
// exact remainder leads to the nearest (Markstein 1990). Rows whose rms could make a step overflow
// or underflow are divided.
struct Divisor {
    float rms, inverse, inverse_low;
    bool quick;

    explicit Divisor(double root) {
        rms = static_cast<float>(root);
        const double exact = 1.0 / root;
        inverse = static_cast<float>(exact);
        inverse_low = static_cast<float>(exact - static_cast<double>(inverse));
        quick = FUSED && rms > 0x1p-60F && rms < 0x1p60F;
    }
    INLINE Floats quotient(Floats row) const {
        const Floats r = Floats{} + inverse;
        const Floats near = fused_multiply_add(row, r, row * inverse_low);
        const Floats remainder = fused_multiply_add(-near, Floats{} + rms, row);
        const Floats exact = fused_multiply_add(remainder, r, near);
        // The step makes +0 of -0.
        return bits_as<Floats>(bits_as<Ints>(exact) | (bits_as<Ints>(row) & Ints(kSign)));
    }
    static constexpr Ints kSign = Ints{} + static_cast<std::int32_t>(0x80000000);
};

// ---- one segment --------------------------------------------------------------------------------

template <class T_, class S_>
struct Pair {
    using T = T_;
    using S = S_;
    using C = typename Choose<kTypeOf<T> == kDouble || kTypeOf<S> == kDouble, double, float>::type;
    using Sum = typename Choose<sizeof(C) == 4, SumOfFloats, SumOfDoubles>::type;
    // T is not f64, S is f32: what models have. These get loops for each order of rounding.
    static constexpr bool kUsual = kTypeOf<S> == kFloat && kTypeOf<T> != kDouble;
};

// What the loop that writes Y computes: any norm by asking at every vector, or one known order with
// a quick quotient.
enum Order { kAny, kCastFirst, kScaleFirst, kRoundRstd };

// `from`: the row before it is rounded to S, or what is left of it afterwards, which is the same.
template <class P, Order order, bool gated, class From>
void finish(const Rows& rows, const From* from, std::size_t at, std::size_t in_row, double root) {
    using T = typename P::T;
    using S = typename P::S;
    using C = typename P::C;
    using V = Vec<C>;
    const Norm norm = *rows.norm;
    const bool round_rstd = order == kAny ? norm.round_rstd : order == kRoundRstd;
    const bool scale_first = order == kAny ? norm.scale_before_cast : order == kScaleFirst;
    const auto association = order == kAny ? norm.association : 0;
    const C* factor = rows.factor ? static_cast<const C*>(rows.factor) + in_row : nullptr;
    const C* bias = rows.bias ? static_cast<const C*>(rows.bias) + in_row : nullptr;
    const T* gate = gated ? static_cast<const T*>(rows.second) + at : nullptr;
    T* y = static_cast<T*>(rows.y) + at;
    const C rms = static_cast<C>(root);
    const C reciprocal =
        round_rstd ? static_cast<C>(round_scalar<T>(round_scalar<S>(1.0 / root))) : C{};
    const Divisor divisor(root);
    const auto product = [&](V v) LAMBDA { return scale_first ? round_to<S>(v) : round_to<T>(v); };
    each_vector<C, order != kAny>(0, rows.segment, [&](std::size_t i, std::size_t count) LAMBDA {
        V row = get<C>(from + i, count);
        const V scale = factor ? get<C>(factor + i, count) : V{};
        if (association == 2) row = round_to<T>(row * scale);
        V v;
        if (round_rstd) {
            V r = V{} + reciprocal;
            if (association == 1) r = round_to<T>(r * scale);
            v = round_to<T>((sizeof(From) == sizeof(T) ? row : round_to<T>(row)) * r);
        } else if constexpr (order != kAny) {
            v = divisor.quotient(row);
            if (order == kCastFirst) v = round_number<T>(v);  // NaN would have made rms one
        } else {
            v = product(round_to<S>(round_to<S>(row) / rms));
        }
        // What is stored is rounded to T by that: in the known orders nothing more is to be done.
        if (factor && association == 0) {
            v = v * scale;
            if (order == kAny || bias || gated) v = product(v);
        }
        if (bias) {
            v = v + get<C>(bias + i, count);
            if (order == kAny || gated) v = product(v);
        }
        if constexpr (gated) {
            const V z = get<C>(gate + i, count);
            v = round_to<S>(round_to<S>(v) * (P::kUsual ? activation<S>(z, norm.sigmoid)
                                                        : activation_apart<S>(z, norm.sigmoid)));
        }
        put<C>(y + i, v, count);
    });
}

template <class P, class From>
void finish(const Rows& rows, const From* from, std::size_t at, std::size_t in_row, double root) {
    const Norm& norm = *rows.norm;
    const bool gated = norm.kind == Kind::kGatedRMSNorm && !norm.gate_first;
    if constexpr (P::kUsual) {
        constexpr bool half = kTypeOf<typename P::T> != kFloat;
        if (norm.round_rstd && half) {
            return gated ? finish<P, kRoundRstd, true>(rows, from, at, in_row, root)
                         : finish<P, kRoundRstd, false>(rows, from, at, in_row, root);
        }
        // The quotient stays finite: |row| <= rms * sqrt(segment) where all of it is summed.
        if (rows.summed == rows.segment && Divisor(root).quick) {
            if (norm.scale_before_cast && half) {
                return gated ? finish<P, kScaleFirst, true>(rows, from, at, in_row, root)
                             : finish<P, kScaleFirst, false>(rows, from, at, in_row, root);
            }
            return gated ? finish<P, kCastFirst, true>(rows, from, at, in_row, root)
                         : finish<P, kCastFirst, false>(rows, from, at, in_row, root);
        }
    }
    return gated ? finish<P, kAny, true>(rows, from, at, in_row, root)
                 : finish<P, kAny, false>(rows, from, at, in_row, root);
}

// The sum of squares of a segment; `row(i, count)` makes the row of it, and keeps what it has to.
template <class P, class Row>
INLINE double sum_of_squares(const Rows& rows, Row row) {
    using S = typename P::S;
    using C = typename P::C;
    constexpr std::size_t width = kWidth<C>;
    typename P::Sum sum, sum2;  // two, so that one need not wait for the other
    const auto add = [&](auto& to, std::size_t i, std::size_t count) LAMBDA {
        const Vec<C> v = row(i, count);
        to.add(round_to<S>(v * v));
    };
    std::size_t i = 0;
    if constexpr (P::kUsual) {
        for (; i + 2 * width <= rows.summed; i += 2 * width) {
            add(sum, i, width);
            add(sum2, i + width, width);
        }
    }
    for (; i < rows.summed; i += width) {
        add(sum, i, rows.summed - i < width ? rows.summed - i : width);
    }
    // Behind a part that is summed: from its end, for vectors may overlap neither.
    for (i = rows.summed; i < rows.segment; i += width) {
        row(i, rows.segment - i < width ? rows.segment - i : width);
    }
    return sum.total(sum2);
}

template <class P>
void run_pair(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    using T = typename P::T;
    using S = typename P::S;
    using C = typename P::C;
    const Norm& norm = *rows.norm;
    for (std::size_t index = begin; index < end; ++index) {
        const std::size_t at = index * rows.segment;
        const std::size_t in_row = (index % rows.per_row) * rows.segment;
        const T* x = static_cast<const T*>(rows.x) + at;
        const T* second = static_cast<const T*>(rows.second) + (rows.second ? at : 0);
        const auto root = [&](double sum) { return root_mean_square<S>(norm, sum, rows.summed); };
        if (norm.kind == Kind::kSkipRMSNorm) {
            T* total = rows.sum ? static_cast<T*>(rows.sum) + at : static_cast<T*>(scratch);
            const double sum = sum_of_squares<P>(rows, [&](std::size_t i, std::size_t count) LAMBDA {
                const Vec<C> t = round_to<T>(get<C>(x + i, count) + get<C>(second + i, count));
                put<C>(total + i, t, count);
                return round_to<S>(t);
            });
            finish<P>(rows, total, at, in_row, root(sum));
        } else if (norm.kind == Kind::kGatedRMSNorm && norm.gate_first) {
            C* buffer = static_cast<C*>(scratch);
            const double sum = sum_of_squares<P>(rows, [&](std::size_t i, std::size_t count) LAMBDA {
                const Vec<C> z = get<C>(second + i, count);
                const Vec<C> gate = P::kUsual ? activation<S>(z, norm.sigmoid)
                                              : activation_apart<S>(z, norm.sigmoid);
                const Vec<C> row = round_to<S>(round_to<S>(get<C>(x + i, count)) * gate);
                put<C>(buffer + i, row, count);
                return row;
            });
            finish<P>(rows, buffer, at, in_row, root(sum));
        } else {
            const double sum = sum_of_squares<P>(rows, [&](std::size_t i, std::size_t count) LAMBDA {
                return round_to<S>(get<C>(x + i, count));
            });
            finish<P>(rows, x, at, in_row, root(sum));
        }
    }
}

// ---- tables -------------------------------------------------------------------------------------

using Run = void (*)(const Rows&, std::size_t, std::size_t, void*);

#define ROW(T) \
    { run_pair<Pair<T, float>>, run_pair<Pair<T, Half>>, run_pair<Pair<T, Bfloat>>, \
      run_pair<Pair<T, double>> }
constexpr Run kRuns[kTypes][kTypes] = {ROW(float), ROW(Half), ROW(Bfloat), ROW(double)};
#undef ROW

void run(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    kRuns[rows.norm->x][rows.norm->stash](rows, begin, end, scratch);
}

// offset + value, in lanes of W, rounded to P once for each of the three steps, kept as C.
template <class W, class C, class From, class P>
void fill(const void* values, std::size_t n, float offset, void* out) {
    const Vec<W> shift = round_to<P>(Vec<W>{} + static_cast<W>(offset));
    const From* from = static_cast<const From*>(values);
    C* to = static_cast<C*>(out);
    each_vector<W, false>(0, n, [&](std::size_t i, std::size_t count) {
        Vec<W> v = round_to<P>(get<W>(from + i, count));
        if (offset != 0) v = round_to<P>(shift + v);
        put<W>(to + i, v, count);
    });
}
template <class From, class P>
void fill(const Norm& norm, const void* values, std::size_t n, float offset, void* out) {
    if constexpr (sizeof(From) == 8 || sizeof(P) == 8) {
        if (norm.wide()) {
            fill<double, double, From, P>(values, n, offset, out);
        } else {
            fill<double, float, From, P>(values, n, offset, out);
        }
    } else if (norm.wide()) {
        fill<double, double, From, P>(values, n, offset, out);
    } else {
        fill<float, float, From, P>(values, n, offset, out);
    }
}

using Fill = void (*)(const Norm&, const void*, std::size_t, float, void*);

#define ROW(T) { fill<T, float>, fill<T, Half>, fill<T, Bfloat>, fill<T, double> }
constexpr Fill kFills[kTypes][kTypes] = {ROW(float), ROW(Half), ROW(Bfloat), ROW(double)};
#undef ROW

void operand(const Norm& norm, Type from, const void* values, std::size_t n, float offset,
             void* out) {
    kFills[from][norm.product()](norm, values, n, offset, out);
}
