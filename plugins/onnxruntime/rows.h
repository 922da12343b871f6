// The kernels, for one instruction set. The file that includes this has defined, in an unnamed
// namespace: kLanes; Floats, Ints, Doubles and Wide (kLanes floats or ints, kLanes / 2 doubles, two
// Doubles); load, store, fused_multiply_add, any_below and widen for them; FUSED, and where it
// is 1 reciprocal, within 2 ulp, else narrow. Nothing here may be shared
// with other files, the standard library's templates included: the linker would keep one copy, of
// any instruction set.

#define INLINE inline __attribute__((always_inline))
#define LAMBDA __attribute__((always_inline))

struct Half {
    std::uint16_t bits;
};
struct Bfloat {
    std::uint16_t bits;
};

template <class T>
constexpr Type kTypeOf = kFloat;
template <>
constexpr Type kTypeOf<Half> = kHalf;
template <>
constexpr Type kTypeOf<Bfloat> = kBfloat;
template <>
constexpr Type kTypeOf<double> = kDouble;

template <bool condition, class A, class B>
struct Choose {
    using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
    using type = B;
};

// The vector of lanes of type C, float or double.
template <class C>
using Vec = typename Choose<sizeof(C) == 4, Floats, Doubles>::type;
template <class C>
constexpr std::size_t kWidth = sizeof(Vec<C>) / sizeof(C);

using Longs = std::int64_t __attribute__((vector_size(sizeof(Doubles))));
using HalfFloats = float __attribute__((vector_size(sizeof(Doubles) / 2)));
using HalfInts = std::int32_t __attribute__((vector_size(sizeof(Doubles) / 2)));

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// ---- types: to lanes, from lanes, and rounding that stays in the lanes -------------------------

Ints bfloat_bits(Floats v) {
    const Ints bits = bits_as<Ints>(v);
    const Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (v == v) ? rounded : (bits | 0x400000);
}

Floats read(const float* from) { return load(from); }
Floats read(const Half* from) { return load_half(&from->bits); }
Floats read(const Bfloat* from) { return load_bfloat(&from->bits); }
void write(float* to, Floats v) { store(to, v); }
void write(Half* to, Floats v) { store_half(&to->bits, v); }
void write(Bfloat* to, Floats v) { store_upper(&to->bits, bfloat_bits(v)); }

// f64 to f32 so that a second rounding, to a type of fewer bits, gives what one would have given:
// towards zero, the last bit set where that was inexact (round to odd).
HalfFloats to_odd(Doubles v) {
    const HalfFloats near = __builtin_convertvector(v, HalfFloats);
    const Doubles back = __builtin_convertvector(near, Doubles);
    const Doubles size = (v < 0) ? -v : v;
    const Doubles size_back = (back < 0) ? -back : back;
    HalfInts bits = bits_as<HalfInts>(near);
    bits += __builtin_convertvector(size_back > size, HalfInts);
    bits |= __builtin_convertvector(back != v, HalfInts) & 1;
    return bits_as<HalfFloats>(bits);
}

// Half as many lanes, by way of a whole vector of floats of which half is used.
template <class T>
Doubles read_wide(const T* from) {
    T whole[kLanes] = {};
    for (std::size_t i = 0; i < kLanes / 2; ++i) whole[i] = from[i];
    return widen(read(whole)).low;
}
template <class T>
void write_wide(T* to, HalfFloats v) {
    float lanes[kLanes] = {};
    T whole[kLanes];
    __builtin_memcpy(lanes, &v, sizeof v);
    write(whole, load(lanes));
    for (std::size_t i = 0; i < kLanes / 2; ++i) to[i] = whole[i];
}

template <class C, class T>
Vec<C> load_as(const T* from) {
    if constexpr (sizeof(C) == 4) {
        return read(from);
    } else if constexpr (sizeof(T) == 8) {
        Doubles v;
        __builtin_memcpy(&v, from, sizeof v);
        return v;
    } else {
        return read_wide(from);
    }
}

template <class T>
void store_as(T* to, Floats v) {
    write(to, v);
}
template <class T>
void store_as(T* to, Doubles v) {
    if constexpr (sizeof(T) == 8) {
        __builtin_memcpy(to, &v, sizeof v);
    } else if constexpr (sizeof(T) == 4) {
        write_wide(to, __builtin_convertvector(v, HalfFloats));
    } else {
        write_wide(to, to_odd(v));
    }
}

template <class T>
Floats round_to(Floats v) {
    if constexpr (kTypeOf<T> == kHalf) {
        return round_half(v);
    } else if constexpr (kTypeOf<T> == kBfloat) {
        return bits_as<Floats>(bfloat_bits(v) & ~0xffff);
    } else {
        return v;
    }
}
// The same for what is not NaN.
template <class T>
Floats round_number(Floats v) {
    if constexpr (kTypeOf<T> == kBfloat) {
        const Ints bits = bits_as<Ints>(v);
        return bits_as<Floats>((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff);
    } else {
        return round_to<T>(v);
    }
}
template <class T>
Doubles round_to(Doubles v) {
    if constexpr (sizeof(T) == 8) {
        return v;
    } else if constexpr (sizeof(T) == 4) {
        return __builtin_convertvector(__builtin_convertvector(v, HalfFloats), Doubles);
    } else {
        float lanes[kLanes] = {};
        const HalfFloats odd = to_odd(v);
        __builtin_memcpy(lanes, &odd, sizeof odd);
        return widen(round_to<T>(load(lanes))).low;
    }
}

template <class T>
double round_scalar(double v) {
    Doubles lanes = {};
    lanes = lanes + v;
    return round_to<T>(lanes)[0];
}

// The first `count` of a vector's elements; the others are 0.
template <class C, class T>
Vec<C> load_some(const T* from, std::size_t count) {
    T all[kWidth<C>] = {};
    __builtin_memcpy(all, from, count * sizeof(T));
    return load_as<C>(all);
}
template <class C, class T>
void store_some(T* to, Vec<C> v, std::size_t count) {
    T all[kWidth<C>];
    store_as(all, v);
    __builtin_memcpy(to, all, count * sizeof(T));
}

// `step(i, count)` for every vector of n elements; where it is to be quick, count is a constant for
// those that are whole.
template <class C, bool quick, class Step>
INLINE void each_vector(std::size_t begin, std::size_t end, Step step) {
    constexpr std::size_t width = kWidth<C>;
    std::size_t i = begin;
    if constexpr (quick) {
        for (; i + width <= end; i += width) step(i, width);
    } else {
        for (; i < end; i += width) step(i, end - i < width ? end - i : width);
        return;
    }
    if (i < end) step(i, end - i);
}
template <class C, class T>
INLINE Vec<C> get(const T* from, std::size_t count) {
    return count == kWidth<C> ? load_as<C>(from) : load_some<C>(from, count);
}
template <class C, class T>
INLINE void put(T* to, Vec<C> v, std::size_t count) {
    if (count == kWidth<C>) {
        store_as(to, v);
    } else {
        store_some<C>(to, v, count);
    }
}

// ---- the gate -----------------------------------------------------------------------------------

Doubles logistic(Doubles z) {
    for (std::size_t i = 0; i < kLanes / 2; ++i) z[i] = 1.0 / (1.0 + exp(-z[i]));
    return z;
}

// That by way of f64, for what the quick way leaves out.
__attribute__((noinline)) Floats logistic_exactly(Floats z) {
    for (std::size_t i = 0; i < kLanes; ++i) {
        z[i] = static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(z[i]))));
    }
    return z;
}

// 1 / (1 + e^-z) within 1.1 ulp: e^-z as the sum of two floats, and the quotient corrected by what
// the sum 1 + e^-z lost and what the division left.
INLINE Floats logistic(Floats z) {
    const Floats one = Floats{} + 1.0F;
    if (any_below(z, -87.0F)) return logistic_exactly(z);  // e^87 is nearly the largest float
    const Floats a = (z > 87.0F) ? Floats{} + 87.0F : z;
    constexpr float kToInteger = 12582912.0F;  // 1.5 * 2^23: the sum has no fraction, k is its end
    const Floats shifted = fused_multiply_add(a, Floats{} - 0x1.715476p0F, Floats{} + kToInteger);
    const Floats k = shifted - kToInteger;
    constexpr float kHigh = 0x1.62e4p-1F, kLow = 0x1.7f7d1cp-20F;  // ln 2; k * kHigh is exact
    const Floats u = fused_multiply_add(
        k, Floats{} + kLow, fused_multiply_add(k, Floats{} + kHigh, a));  // e^-z = 2^k * e^-u
    // (e^-u - 1 + u) / u^2, interpolated at the zeros of a Chebyshev polynomial, within 2^-32; in
    // pairs, which need not wait for one another.
    const auto line = [&](float slope, float start) LAMBDA {
        return fused_multiply_add(u, Floats{} + slope, Floats{} + start);
    };
    const Floats square = u * u;
    const Floats high = fused_multiply_add(square, line(-0x1.a124f2p-13F, 0x1.6d4324p-10F),
                                           line(-0x1.1110e0p-7F, 0x1.5554eap-5F));
    const Floats p = fused_multiply_add(square, high, line(-0x1.555556p-3F, 0.5F));
    const Floats s = fused_multiply_add(p, square, -u);
    const Floats whole = one + s, rest = s - (whole - one);
    const Floats power = bits_as<Floats>((bits_as<Ints>(shifted) << 23) + bits_as<Ints>(one));
    const Floats e = whole * power, e_low = rest * power;
#if FUSED
    const Floats d = one + e;
    const Floats d_low = ((e > one) ? one - (d - e) : e - (d - one)) + e_low;
    const Floats inverse = reciprocal(d);
    const Floats left = fused_multiply_add(-d, inverse, one);
    return fused_multiply_add(fused_multiply_add(-d_low, inverse, left), inverse, inverse);
#else
    const Wide w = widen(e), w_low = widen(e_low);
    return narrow({1.0 / (1.0 + w.low + w_low.low), 1.0 / (1.0 + w.high + w_low.high)});
#endif
}

template <class S, class V>
INLINE V activation(V gate, bool sigmoid) {
    const V z = round_to<S>(gate);
    const V s = round_to<S>(logistic(z));
    return sigmoid ? s : round_to<S>(z * s);
}

template <class S, class V>
__attribute__((noinline)) V activation_apart(V gate, bool sigmoid) {
    return activation<S>(gate, sigmoid);
}

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
    if (norm.epsilon_outside) {
        return round_scalar<S>(round_scalar<S>(__builtin_sqrt(mean)) + epsilon);
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
