// The kernels, compiled once for each instruction set (CMakeLists.txt), which RMSNORM_ISA names.
#include "segments.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// All of a row is summed, or its parts would be read in different lots.
bool paired(const Norm& norm) {
    return norm.x == kBfloat && norm.stash == kFloat && !norm.partial_size;
}

void run(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    if (paired(*rows.norm)) {
        run_segments<Pairs, float>(rows, begin, end, scratch);
    } else {
        with(rows.norm->x, [&](auto x) {
            with(rows.norm->stash, [&](auto stash) {
                run_segments<decltype(x), decltype(stash)>(rows, begin, end, scratch);
            });
        });
    }
#if defined(__SSE2__)
    if (rows.streamed) _mm_sfence();  // others see what was streamed only after this
#endif
}

template <class From, class P, class C>
void fill(const void* values, std::size_t n, float offset, void* lanes) {
    using W = Lane<From, P>;
    const From* const from = static_cast<const From*>(values);
    const Vec<W> shift = round_to<P>(Vec<W>{} + static_cast<W>(offset));
    each_vector(n, [&](std::size_t i, std::size_t count) LAMBDA {
        Vec<W> v = round_to<P>(get<W>(from + i, count));
        if (offset != 0) v = round_to<P>(shift + v);
        v = (v == v) ? v : Vec<W>{} + __builtin_nanf("");  // as pairs have to have it
        put(static_cast<C*>(lanes) + i, v, count);
    });
}

// A lot of lanes as get_lot has those of pairs.
template <int K>
INLINE void take_apart(float* lanes) {
    for (int j = 0; j + 1 < K; j += 2, lanes += 2 * kLanes) {
        const Longs both = load<Longs>(lanes);
        store(lanes, __builtin_convertvector(both & 0xffffffffU, Bits));
        store(lanes + kLanes, __builtin_convertvector(both >> 32, Bits));
    }
}

void operand(const Norm& norm, Type type, const void* values, std::size_t n, float offset,
             void* lanes) {
    with(type, [&](auto from) {
        with(norm.product(), [&](auto product) {
            using From = decltype(from);
            using P = decltype(product);
            const bool wide = norm.lane() == kDouble;
            (wide ? fill<From, P, double> : fill<From, P, float>)(values, n, offset, lanes);
        });
    });
    if (!paired(norm)) return;
    const std::size_t segment = norm.group_size ? static_cast<std::size_t>(norm.group_size) : n;
    for (float* at = static_cast<float*>(lanes); n; at += segment, n -= segment) {
        each_lot<kTogether<Pairs, float>>(segment, [&](auto lot, std::size_t i, std::size_t) {
            take_apart<decltype(lot)::kVectors>(at + i);
        });
    }
}

// ---- the rotary embedding -----------------------------------------------------------------------

// `count` elements, `stride` apart.
template <class C, class T>
INLINE Vec<C> get_apart(const T* from, std::size_t stride, std::size_t count) {
    if (stride == 1) return get<C>(from, count);
    T all[kLanes] = {};
    for (std::size_t i = 0; i < count; ++i) all[i] = from[i * stride];
    return read<C>(all);
}
template <class T, class V>
INLINE void put_apart(T* to, std::size_t stride, V v, std::size_t count) {
    if (stride == 1) return put(to, v, count);
    T all[kLanes];
    write(all, v);
    for (std::size_t i = 0; i < count; ++i) to[i * stride] = all[i];
}

template <class T, class Table>
void turn_row(const Turn& how, T* y, const Table* cos, const Table* sin) {
    using C = Lane<T, T>;
    // The elements of a pair, and of its tables: where the second is, and from pair to pair.
    const std::size_t apart = how.interleaved ? 1 : how.dim / 2, step = how.interleaved ? 2 : 1;
    const std::size_t other = how.half ? 0 : apart, stride = how.half ? 1 : step;
    const auto sum = [](Vec<C> a, Vec<C> b) LAMBDA {
        return round_to<Table>(round_to<Table>(a) + round_to<Table>(b));
    };
    each_vector(how.dim / 2, [&](std::size_t i, std::size_t count) LAMBDA {
        T* const at = y + i * step;
        const auto entry = [&](const Table* table, std::size_t which) LAMBDA {
            return get_apart<C>(table + i * stride + which, stride, count);
        };
        const Vec<C> first = get_apart<C>(at, step, count);
        const Vec<C> second = get_apart<C>(at + apart, step, count);
        const Vec<C> one = sum(first * entry(cos, 0), -second * entry(sin, 0));
        const Vec<C> two = sum(second * entry(cos, other), first * entry(sin, other));
        put_apart(at, step, one, count);
        put_apart(at + apart, step, two, count);
    });
}

void turn(const Turn& how, void* y, const void* cosines, const void* sines) {
    with(how.x, [&](auto x) {
        using T = decltype(x);
        const auto by = [&](auto table) {
            using Table = decltype(table);
            turn_row<T, Table>(how, static_cast<T*>(y), static_cast<const Table*>(cosines),
                               static_cast<const Table*>(sines));
        };
        how.table == how.x ? by(T{}) : by(float{});
    });
}

// ---- codes --------------------------------------------------------------------------------------

// FP8 E4M3 of what is finite and beyond it is the largest; of NaN it is NaN.
INLINE Ints fp8_codes(Floats v) {
    const Ints bits = (Ints)v, size = bits & 0x7fffffff;
    const Ints small = (size < 0x43e00000) ? size : Ints{} + 0x43e00000;  // 448
    const Ints normal = ((small + 0x7ffff + ((small >> 20) & 1)) >> 20) - (120 << 3);
    // An ulp of 2^14 is 2^-9, the step of subnormal codes.
    const Ints subnormal = (Ints)((Floats)size + 0x1p14F) - 0x46800000;
    Ints code = (size < 0x3c800000) ? subnormal : normal;
    code = (size > 0x7f800000) ? Ints{} + 0x7f : code;
    return code | ((bits >> 24) & 0x80);
}
INLINE Ints int8_codes(Floats v) {
    v = (v > -128.0F) ? v : Floats{} - 128.0F;
    v = (v < 127.0F) ? v : Floats{} + 127.0F;
    return (Ints)(v + 12582912.0F);  // 1.5 * 2^23: the sum ends with the integer
}

void encode(Type type, Codes codes, const void* y, std::size_t n, float step, std::uint8_t* to) {
    with(type, [&](auto element) {
        const auto* const from = static_cast<const decltype(element)*>(y);
        const float by = step;
        const bool fp8 = codes == Codes::kFp8;
        each_vector(n, [&](std::size_t i, std::size_t count) LAMBDA {
            const Floats v = get<float>(from + i, count) / by;
            const Ints code = fp8 ? fp8_codes(v) : int8_codes(v);
            const Bytes bytes = __builtin_convertvector(code & 0xff, Bytes);
            __builtin_memcpy(to + i, &bytes, count);
        });
    });
}

float largest(Type type, const void* y, std::size_t n) {
    float result = 0;
    with(type, [&](auto element) {
        const auto* const from = static_cast<const decltype(element)*>(y);
        Ints most = {};  // as integers, magnitudes order as they do, and NaN is above infinity
        each_vector(n, [&](std::size_t i, std::size_t count) LAMBDA {
            const Ints size = (Ints)get<float>(from + i, count) & 0x7fffffff;
            most = (size > most) ? size : most;
        });
        for (std::size_t i = 1; i < kLanes; ++i) most[0] = most[i] > most[0] ? most[i] : most[0];
        result = ((Floats)most)[0];
    });
    return result;
}

}  // namespace

#define KERNELS_OF(isa) kernels_##isa
#define NAMED(isa) KERNELS_OF(isa)
#define TEXT_OF(isa) #isa
#define TEXT(isa) TEXT_OF(isa)
extern const Kernels NAMED(RMSNORM_ISA);
const Kernels NAMED(RMSNORM_ISA){TEXT(RMSNORM_ISA), run, operand, turn, encode, largest};

}  // namespace rmsnorm_export::onnxruntime
