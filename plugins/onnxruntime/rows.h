// The kernels, for one instruction set, in the unnamed namespace of the file that includes this.
#include "lanes.h"
#include "gate.h"

// ---- the root mean square -----------------------------------------------------------------------

// The sum of squares that were rounded to S: in f64, in which 2^29 squares of f32 add up exactly
// but for the last bits; of f64 with the rounding errors added at the end (Neumaier).
struct SumOfFloats {
    Doubles low{}, high{};

    INLINE void add(Floats square) {
        const Wide w = widen(square);
        low += w.low;
        high += w.high;
    }
    INLINE double total() const {
        double sums[kLanes / 2];
        const Doubles all = low + high;
        __builtin_memcpy(sums, &all, sizeof sums);
        for (std::size_t apart = kLanes / 4; apart; apart /= 2) {
            for (std::size_t i = 0; i < apart; ++i) sums[i] += sums[i + apart];
        }
        return sums[0];
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
    double total() const {
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

// `from`: the row before it is rounded to S, or what is left of it afterwards, which is the same.
template <class P, bool gated, class From>
void finish(const Rows& rows, const From* from, std::size_t at, std::size_t in_row, double root) {
    using T = typename P::T;
    using S = typename P::S;
    using C = typename P::C;
    using V = Vec<C>;
    const Norm norm = *rows.norm;
    const C* factor = rows.factor ? static_cast<const C*>(rows.factor) + in_row : nullptr;
    const C* bias = rows.bias ? static_cast<const C*>(rows.bias) + in_row : nullptr;
    const T* gate = gated ? static_cast<const T*>(rows.second) + at : nullptr;
    T* y = static_cast<T*>(rows.y) + at;
    const C rms = static_cast<C>(root);
    const C reciprocal =
        norm.round_rstd ? static_cast<C>(round_scalar<T>(round_scalar<S>(1.0 / root))) : C{};
    const auto product = [&](V v) LAMBDA {
        return norm.scale_before_cast ? round_to<S>(v) : round_to<T>(v);
    };
    each_vector<C>(rows.segment, [&](std::size_t i, std::size_t count) LAMBDA {
        V row = get<C>(from + i, count);
        const V scale = factor ? get<C>(factor + i, count) : V{};
        if (norm.association == 2) row = round_to<T>(row * scale);
        V v;
        if (norm.round_rstd) {
            V r = V{} + reciprocal;
            if (norm.association == 1) r = round_to<T>(r * scale);
            v = round_to<T>((sizeof(From) == sizeof(T) ? row : round_to<T>(row)) * r);
        } else {
            v = product(round_to<S>(round_to<S>(row) / rms));
        }
        if (factor && norm.association == 0) v = product(v * scale);
        if (bias) v = product(v + get<C>(bias + i, count));
        if constexpr (gated) {
            const V z = get<C>(gate + i, count);
            v = round_to<S>(round_to<S>(v) * activation<S>(z, norm.sigmoid));
        }
        put<C>(y + i, v, count);
    });
}

// The sum of squares of a segment; `row(i, count)` makes the row of it, and keeps what it has to.
template <class P, class Row>
INLINE double sum_of_squares(const Rows& rows, Row row) {
    using S = typename P::S;
    constexpr std::size_t width = kWidth<typename P::C>;
    typename P::Sum sum;
    std::size_t i = 0;
    for (; i < rows.summed; i += width) {
        const auto v = row(i, rows.summed - i < width ? rows.summed - i : width);
        sum.add(round_to<S>(v * v));
    }
    // Behind a part that is summed: from its end, for vectors may overlap neither.
    for (i = rows.summed; i < rows.segment; i += width) {
        row(i, rows.segment - i < width ? rows.segment - i : width);
    }
    return sum.total();
}

// Any norm, by asking at every vector.
template <class P>
void run_segment(const Rows& rows, std::size_t index, void* scratch) {
    using T = typename P::T;
    using S = typename P::S;
    using C = typename P::C;
    const Norm& norm = *rows.norm;
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
        finish<P, false>(rows, total, at, in_row, root(sum));
    } else if (norm.gate_first) {
        C* buffer = static_cast<C*>(scratch);
        const double sum = sum_of_squares<P>(rows, [&](std::size_t i, std::size_t count) LAMBDA {
            const Vec<C> gate = activation<S>(get<C>(second + i, count), norm.sigmoid);
            const Vec<C> row = round_to<S>(round_to<S>(get<C>(x + i, count)) * gate);
            put<C>(buffer + i, row, count);
            return row;
        });
        finish<P, false>(rows, buffer, at, in_row, root(sum));
    } else {
        const double sum = sum_of_squares<P>(rows, [&](std::size_t i, std::size_t count) LAMBDA {
            return round_to<S>(get<C>(x + i, count));
        });
        if (norm.kind == Kind::kGatedRMSNorm) {
            finish<P, true>(rows, x, at, in_row, root(sum));
        } else {
            finish<P, false>(rows, x, at, in_row, root(sum));
        }
    }
}

#include "gates.h"
#include "rows_quick.h"

template <class P>
void run_pair(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    if constexpr (P::kUsual) {
        // The quotient stays finite: |row| <= rms * sqrt(segment) where all of it is summed.
        const bool quick = rows.summed == rows.segment && rows.norm->association == 0 &&
                           (rows.factor || !rows.bias);
        if (quick) return run_quick<P>(rows, begin, end, scratch);
    }
    for (std::size_t index = begin; index < end; ++index) run_segment<P>(rows, index, scratch);
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
    each_vector<W>(n, [&](std::size_t i, std::size_t count) {
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
    if (norm.product() == kBfloat && !norm.wide()) {
        const float* const lanes = static_cast<const float*>(out);
        Bfloat* const to = reinterpret_cast<Bfloat*>(static_cast<float*>(out) + n);
        each_vector<float>(n, [&](std::size_t i, std::size_t count) {
            put<float>(to + i, get<float>(lanes + i, count), count);
        });
    }
}

// ---- the rotary embedding -----------------------------------------------------------------------

// `count` elements, `stride` apart.
template <class C, class T>
INLINE Vec<C> get_apart(const T* from, std::size_t stride, std::size_t count) {
    if (stride == 1) return get<C>(from, count);
    T all[kWidth<C>] = {};
    for (std::size_t i = 0; i < count; ++i) all[i] = from[i * stride];
    return load_as<C>(all);
}
template <class C, class T>
INLINE void put_apart(T* to, std::size_t stride, Vec<C> v, std::size_t count) {
    if (stride == 1) return put<C>(to, v, count);
    T all[kWidth<C>];
    store_as(all, v);
    for (std::size_t i = 0; i < count; ++i) to[i * stride] = all[i];
}

template <class T, class Table>
void turn_row(const Turn& how, void* row, const void* cosines, const void* sines) {
    using C = typename Choose<kTypeOf<T> == kDouble, double, float>::type;
    using V = Vec<C>;
    T* const y = static_cast<T*>(row);
    const auto* const cos = static_cast<const Table*>(cosines);
    const auto* const sin = static_cast<const Table*>(sines);
    // The elements of a pair, and of its tables: where the second is, and from pair to pair.
    const std::size_t apart = how.interleaved ? 1 : how.dim / 2, step = how.interleaved ? 2 : 1;
    const std::size_t other = how.half ? 0 : apart, stride = how.half ? 1 : step;
    const auto sum = [](V a, V b) LAMBDA {
        return round_to<Table>(round_to<Table>(a) + round_to<Table>(b));
    };
    each_vector<C>(how.dim / 2, [&](std::size_t i, std::size_t count) LAMBDA {
        T* const at = y + i * step;
        const auto entry = [&](const Table* table, std::size_t which) LAMBDA {
            return get_apart<C>(table + i * stride + which, stride, count);
        };
        const V first = get_apart<C>(at, step, count), second = get_apart<C>(at + apart, step, count);
        const V one = sum(first * entry(cos, 0), -second * entry(sin, 0));
        const V two = sum(second * entry(cos, other), first * entry(sin, other));
        put_apart<C>(at, step, one, count);
        put_apart<C>(at + apart, step, two, count);
    });
}

void turn(const Turn& how, void* y, const void* cos, const void* sin) {
    using Row = void (*)(const Turn&, void*, const void*, const void*);
    constexpr Row kSame[] = {turn_row<float, float>, turn_row<Half, Half>, turn_row<Bfloat, Bfloat>,
                             turn_row<double, double>};
    constexpr Row kWide[] = {kSame[0], turn_row<Half, float>, turn_row<Bfloat, float>, kSame[3]};
    (how.table == how.x ? kSame : kWide)[how.x](how, y, cos, sin);
}

// ---- codes --------------------------------------------------------------------------------------

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

// In f32, to which f64 is rounded.
template <class T>
INLINE Floats get_float(const T* from, std::size_t count) {
    if constexpr (sizeof(T) == 8) {
        float lanes[kLanes] = {};
        for (std::size_t i = 0; i < count; ++i) lanes[i] = static_cast<float>(from[i]);
        return load(lanes);
    } else {
        return get<float>(from, count);
    }
}

// FP8 E4M3 of what is finite and beyond it is the largest; of NaN it is NaN.
INLINE Ints fp8_codes(Floats v) {
    const Ints bits = bits_as<Ints>(v), size = bits & 0x7fffffff;
    const Ints small = (size < 0x43e00000) ? size : Ints{} + 0x43e00000;  // 448
    const Ints normal = ((small + 0x7ffff + ((small >> 20) & 1)) >> 20) - (120 << 3);
    // An ulp of 2^14 is 2^-9, the step of subnormal codes.
    const Ints subnormal = bits_as<Ints>(bits_as<Floats>(size) + 0x1p14F) - 0x46800000;
    Ints code = (size < 0x3c800000) ? subnormal : normal;
    code = (size > 0x7f800000) ? Ints{} + 0x7f : code;
    return code | ((bits >> 24) & 0x80);
}
INLINE Ints int8_codes(Floats v) {
    v = (v > -128.0F) ? v : Floats{} - 128.0F;
    v = (v < 127.0F) ? v : Floats{} + 127.0F;
    return bits_as<Ints>(v + 12582912.0F);  // 1.5 * 2^23: the sum ends with the integer
}

template <class T>
void encode_as(Codes codes, const void* y, std::size_t n, float step, std::uint8_t* to) {
    const T* from = static_cast<const T*>(y);
    each_vector<float>(n, [&](std::size_t i, std::size_t count) LAMBDA {
        const Floats v = get_float(from + i, count) / step;
        const Ints code = codes == Codes::kFp8 ? fp8_codes(v) : int8_codes(v);
        const Bytes bytes = __builtin_convertvector(code & 0xff, Bytes);
        __builtin_memcpy(to + i, &bytes, count);
    });
}
void encode(Type type, Codes codes, const void* y, std::size_t n, float step, std::uint8_t* to) {
    constexpr decltype(&encode_as<float>) kAll[] = {encode_as<float>, encode_as<Half>,
                                                    encode_as<Bfloat>, encode_as<double>};
    kAll[type](codes, y, n, step, to);
}

template <class T>
float largest_of(const void* y, std::size_t n) {
    const T* from = static_cast<const T*>(y);
    Ints most = {};  // as integers, magnitudes order as they do, and NaN is above infinity
    each_vector<float>(n, [&](std::size_t i, std::size_t count) LAMBDA {
        const Ints size = bits_as<Ints>(get_float(from + i, count)) & 0x7fffffff;
        most = (size > most) ? size : most;
    });
    std::int32_t top = 0;
    for (std::size_t i = 0; i < kLanes; ++i) top = most[i] > top ? most[i] : top;
    return bits_as<float>(top);
}
float largest(Type type, const void* y, std::size_t n) {
    constexpr decltype(&largest_of<float>) kAll[] = {largest_of<float>, largest_of<Half>,
                                                     largest_of<Bfloat>, largest_of<double>};
    return kAll[type](y, n);
}
