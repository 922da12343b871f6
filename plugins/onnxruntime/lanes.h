// Vectors of one instruction set: types, rounding, and the sigmoid. The file that includes this has
// defined, in an unnamed namespace: kLanes; Floats, Ints, Doubles and Wide (kLanes floats or ints,
// kLanes / 2 doubles, two Doubles); load, store, fused_multiply_add, any_below and widen for them;
// FUSED, and where it is 1 reciprocal, within 2 ulp, else narrow. Nothing here may be shared with
// other files, the standard library's templates included: the linker would keep one copy, of any
// instruction set.

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

// For sums that may wrap around.
using Bits = std::uint32_t __attribute__((vector_size(sizeof(Floats))));
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
    const Bits bits = bits_as<Bits>(v);
    const Bits rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    return bits_as<Ints>((v == v) ? rounded : (bits | 0x400000U));
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
        const Bits bits = bits_as<Bits>(v);
        return bits_as<Floats>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
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
    const Floats power = bits_as<Floats>((bits_as<Bits>(shifted) << 23) + bits_as<Bits>(one));
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
