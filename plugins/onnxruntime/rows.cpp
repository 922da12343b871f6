// The kernels, compiled once for each instruction set (CMakeLists.txt), which RMSNORM_ISA names.
#include "segments.h"

namespace rmsnorm_export::onnxruntime {
namespace {

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
#if defined(__AVX2__)
    if (rows.streamed) _mm_sfence();  // others see what was streamed only after this
#endif
}

void operand(Type product, Type type, const void* values, std::size_t n, float offset, void* to) {
    with(type, [&](auto from) {
        with(product, [&](auto element) {
            using From = decltype(from);
            using P = decltype(element);
            using C = Lane<From, P>;
            const auto shift = Vec<C>{} + static_cast<C>(round_to<P>(static_cast<double>(offset)));
            each_lot<C, 1>(n, [&](auto, std::size_t i, std::size_t count) LAMBDA {
                Vec<C> v = round_to<P>(get<C>(static_cast<const From*>(values) + i, count));
                if (offset != 0) v = round_to<P>(shift + v);
                put(static_cast<P*>(to) + i, v, count);
            });
        });
    });
}

// ---- the rotary embedding -----------------------------------------------------------------------

// `count` elements, `stride` apart.
template <std::size_t stride, class C, class T>
INLINE Vec<C> get_apart(const T* from, std::size_t count) {
    if constexpr (stride == 1) return get<C>(from, count);
    T all[kLanes] = {};
    for (std::size_t i = 0; i < count; ++i) all[i] = from[i * stride];
    return read<C>(all);
}
template <std::size_t stride, class T, class V>
INLINE void put_apart(T* to, V v, std::size_t count) {
    if constexpr (stride == 1) return put(to, v, count);
    T all[kLanes];
    write(all, v);
    for (std::size_t i = 0; i < count; ++i) to[i * stride] = all[i];
}

// The elements of a pair are `apart`, those of its tables `other`, from pair to pair `step` and `stride`.
template <std::size_t step, std::size_t stride, class T, class Table>
void turn_row(T* y, const Table* cos, const Table* sin, std::size_t pairs, std::size_t apart,
              std::size_t other) {
    using C = Lane<T, T>;
    const auto sum = [](Vec<C> a, Vec<C> b) LAMBDA {
        return round_to<Table>(round_to<Table>(a) + round_to<Table>(b));
    };
    each_lot<C, 1>(pairs, [&](auto, std::size_t i, std::size_t count) LAMBDA {
        T* const at = y + i * step;
        const auto entry = [&](const Table* table) LAMBDA {
            return get_apart<stride, C>(table + i * stride, count);
        };
        const Vec<C> first = get_apart<step, C>(at, count);
        const Vec<C> second = get_apart<step, C>(at + apart, count);
        const Vec<C> one = sum(first * entry(cos), -second * entry(sin));
        const Vec<C> two = sum(second * entry(cos + other), first * entry(sin + other));
        put_apart<step>(at, one, count);
        put_apart<step>(at + apart, two, count);
    });
}

void turn(const Turn& how, void* y, const void* cosines, const void* sines) {
    with(how.x, [&](auto x) {
        using T = decltype(x);
        const auto by = [&](auto table) {
            using Table = decltype(table);
            const std::size_t pairs = how.dim / 2, apart = how.interleaved ? 1 : pairs;
            const auto run = [&](auto row) {
                row(static_cast<T*>(y), static_cast<const Table*>(cosines),
                    static_cast<const Table*>(sines), pairs, apart, how.half ? 0 : apart);
            };
            if (!how.interleaved) return run(turn_row<1, 1, T, Table>);
            how.half ? run(turn_row<2, 1, T, Table>) : run(turn_row<2, 2, T, Table>);
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
        each_lot<float, 1>(n, [&](auto, std::size_t i, std::size_t count) LAMBDA {
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
        each_lot<float, 1>(n, [&](auto, std::size_t i, std::size_t count) LAMBDA {
            const Ints size = (Ints)get<float>(from + i, count) & 0x7fffffff;
            most = (size > most) ? size : most;
        });
        std::int32_t sizes[kLanes];
        store(sizes, most);
        for (const std::int32_t size : sizes) sizes[0] = size > sizes[0] ? size : sizes[0];
        result = load<float>(sizes);
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
