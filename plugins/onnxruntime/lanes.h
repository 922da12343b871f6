// Vectors of one instruction set: types, rounding, and the sigmoid. The file that includes this has
// defined, in an unnamed namespace: kLanes and the types of vectors.h; load, store,
// fused_multiply_add, smaller, larger and widen for them; kTogether, how many vectors the quick loops
// compute side by side; kApart, whether they end where f16 is rounded; kKeepsHalves, of
// Kernels; kPairs, and where it is set load_apart, upper_pair and number_pair; OWN_ENTRIES where it
// has entries of its own; FUSED, and where it is 0 narrow and times_power, else any, by_sign,
// reciprocal, within 2^-13, near_reciprocal, within 2^-kNearBits, kParts, of which powers of two are in
// a table, power, usual_power and lack_of_power. Nothing here may be shared with other files, the
// standard library's templates included: the linker would keep one copy, of any instruction set.

#define INLINE inline __attribute__((always_inline))
#define LAMBDA __attribute__((always_inline))
// For each of K vectors that are computed side by side.
#define EACH _Pragma("GCC unroll 8") for (int j = 0; j < K; ++j)

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

// Of what is no NaN, and of NaN whose lower half is 0.
Bits number_bits(Floats v) {
    const Bits bits = bits_as<Bits>(v), up = bits + 0x8000U;
#if defined(__AVX512F__)  // which takes the mask of a comparison as an operand
    return ((bits & 0x10000U) != 0) ? up : up - 1U;
#else
    return up + static_cast<Bits>((bits & 0x10000U) == 0);  // -1 where it is
#endif
}
Ints bfloat_bits(Floats v) {
    return bits_as<Ints>((v == v) ? number_bits(v) : (bits_as<Bits>(v) | 0x400000U));
}

Floats read(const float* from) { return load(from); }
Floats read(const Half* from) { return load_half(&from->bits); }
Floats read(const Bfloat* from) { return load_bfloat(&from->bits); }
template <bool streamed = false>
void write(float* to, Floats v) {
    store<streamed>(to, v);
}
template <bool streamed = false>
void write(Half* to, Floats v) {
    store_half<streamed>(&to->bits, v);
}
template <bool = false>
void write(Bfloat* to, Floats v) {
    store_upper(&to->bits, bfloat_bits(v));
}

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
        return bits_as<Floats>(number_bits(v) & 0xffff0000U);
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
    if constexpr (kTypeOf<T> == kFloat) return static_cast<double>(static_cast<float>(v));
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

// `step(i, count)` for every vector of n elements.
template <class C, class Step>
INLINE void each_vector(std::size_t n, Step step) {
    constexpr std::size_t width = kWidth<C>;
    for (std::size_t i = 0; i < n; i += width) step(i, n - i < width ? n - i : width);
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

template <int count>
struct Lot {
    static constexpr int kVectors = count;
};
template <bool set>
struct Flag {
    static constexpr bool kSet = set;
};

// `step(Lot<K>, i, count)` for n elements: many whole vectors side by side, then four, then one,
// which may be less than whole.
template <int together = kTogether, class Step>
INLINE void each_lot(std::size_t n, Step step) {
    std::size_t i = 0;
    for (; i + together * kLanes <= n; i += together * kLanes) {
        step(Lot<together>{}, i, kLanes);
    }
    if constexpr (together > 4) {
        for (; i + 4 * kLanes <= n; i += 4 * kLanes) step(Lot<4>{}, i, kLanes);
    }
    for (; i < n; i += kLanes) step(Lot<1>{}, i, n - i < kLanes ? n - i : kLanes);
}

// K vectors side by side. Where `pairs` is set, of each two the first has the even elements of 2 *
// kLanes, the second the odd ones: bf16 is taken apart and put together so without shuffles.
template <class T>
constexpr bool kPaired = kPairs && kTypeOf<T> == kBfloat;

template <bool pairs, class T, int K>
INLINE void get_lot(const T* from, std::size_t count, Floats (&v)[K]) {
    if constexpr (pairs && K % 2 == 0) {
        for (int j = 0; j < K; j += 2) {
            if constexpr (kTypeOf<T> == kBfloat) {
                const auto* words = reinterpret_cast<const float*>(from + j * kLanes);
                const Bits both = bits_as<Bits>(load(words));
                v[j] = bits_as<Floats>(both << 16);
                v[j + 1] = bits_as<Floats>(both & 0xffff0000U);
            } else {
                load_apart(from + j * kLanes, v[j], v[j + 1]);
            }
        }
    } else {
        EACH v[j] = get<float>(from + j * kLanes, count);
    }
}
// `number`: what is NaN has a lower half of 0. `streamed`: `to` is a multiple of a vector's bytes, and
// what is written passes the caches by.
template <bool pairs, bool number, bool streamed = false, class T, int K>
INLINE void put_lot(T* to, const Floats (&v)[K], std::size_t count) {
    if constexpr (kTypeOf<T> == kBfloat) {
        if constexpr (pairs && K % 2 == 0) {
            for (int j = 0; j < K; j += 2) {
                const Floats both = number ? number_pair(v[j], v[j + 1])
                                           : upper_pair(bfloat_bits(v[j]), bfloat_bits(v[j + 1]));
                store<streamed>(reinterpret_cast<float*>(to + j * kLanes), both);
            }
            return;
        }
        Ints bits[K];
        EACH bits[j] = number ? bits_as<Ints>(number_bits(v[j])) : bfloat_bits(v[j]);
        if (count == kLanes) {
            EACH store_upper(&to[j * kLanes].bits, bits[j]);
        } else {
            std::uint16_t all[kLanes];
            store_upper(all, bits[0]);
            __builtin_memcpy(to, all, count * sizeof(T));
        }
    } else if constexpr (streamed) {
        EACH write<true>(to + j * kLanes, v[j]);
    } else {
        EACH put<float>(to + j * kLanes, v[j], count);
    }
}
// The same of a lot that may be streamed, where `to` is at a line of the cache; the end of a row is not.
template <bool pairs, bool number, class T, int K>
INLINE void put_out(T* to, const Floats (&v)[K], std::size_t count, bool streamed) {
    if constexpr (K > 1) {
        if (streamed) return put_lot<pairs, number, true>(to, v, count);
    }
    put_lot<pairs, number>(to, v, count);
}
INLINE bool at_line(const void* place) {
    return reinterpret_cast<std::uintptr_t>(place) % kLine == 0;
}

// What a loop comes to in a while, where `fetched` (Rows) is set: the processor foresees neither the
// next rows nor what is written.
template <bool written, int K, class T>
INLINE void fetch(bool fetched, const T* from) {
    if constexpr (K > 1) {
        if (__builtin_expect(!fetched, 1)) return;  // out of the way of the others' loops
        const char* lines = reinterpret_cast<const char*>(from);
        for (std::size_t byte = 0; byte < K * kLanes * sizeof(T); byte += 64) {
            __builtin_prefetch(lines + byte, written, written ? 3 : 2);
        }
    }
}
// Elements between what is computed and what is fetched of the same row.
template <class T>
constexpr std::size_t kAhead = 2048 / sizeof(T);
// Elements that are finished together, step by step.
constexpr std::size_t kPiece = 512;
