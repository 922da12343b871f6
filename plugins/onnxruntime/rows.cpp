// The kernels, compiled once for each instruction set (CMakeLists.txt), as RMSNORM_KERNELS.
#include "segments.h"

namespace rmsnorm_export::onnxruntime {
namespace {

void run(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    const Norm& norm = *rows.norm;
    if (norm.x == kBfloat && norm.stash == kFloat && !norm.partial_size) {
        run_segments<Pairs, float>(rows, begin, end, scratch);
    } else {
        with(norm.x, [&](auto x) {
            with(norm.stash, [&](auto stash) {
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
            return get<C, stride>(table + i * stride, count);
        };
        const Vec<C> first = get<C, step>(at, count);
        const Vec<C> second = get<C, step>(at + apart, count);
        const Vec<C> one = sum(first * entry(cos), -second * entry(sin));
        const Vec<C> two = sum(second * entry(cos + other), first * entry(sin + other));
        put<step>(at, one, count);
        put<step>(at + apart, two, count);
    });
}

void turn(const Norm& norm, Type table, std::size_t dim, bool half, void* y, const void* cosines,
          const void* sines) {
    with(norm.x, [&](auto x) {
        using T = decltype(x);
        const auto by = [&](auto entry) {
            using Table = decltype(entry);
            const std::size_t apart = norm.rotary_interleaved ? 1 : dim / 2;
            const auto turn = !norm.rotary_interleaved ? turn_row<1, 1, T, Table>
                              : half                   ? turn_row<2, 1, T, Table>
                                                       : turn_row<2, 2, T, Table>;
            turn(static_cast<T*>(y), static_cast<const Table*>(cosines),
                 static_cast<const Table*>(sines), dim / 2, apart, half ? 0 : apart);
        };
        table == norm.x ? by(T{}) : by(float{});
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

// The largest magnitude of n elements; NaN where one is.
template <class T>
float largest(const T* from, std::size_t n) {
    Ints most = {};  // as integers, magnitudes order as they do, and NaN is above infinity
    each_lot<float, 1>(n, [&](auto, std::size_t i, std::size_t count) LAMBDA {
        const Ints size = (Ints)get<float>(from + i, count) & 0x7fffffff;
        most = (size > most) ? size : most;
    });
    std::int32_t sizes[kLanes];
    store(sizes, most);
    for (const std::int32_t size : sizes) sizes[0] = size > sizes[0] ? size : sizes[0];
    return load<float>(sizes);
}

float encode(Type type, bool int8, const void* y, std::size_t n, const float* given,
             std::uint8_t* to) {
    float step = 0;
    with(type, [&](auto element) {
        const auto* const from = static_cast<const decltype(element)*>(y);
        step = given ? *given : largest(from, n) / (int8 ? 127.0F : 448.0F);
        if (!given && step == 0) step = 1;
        const bool none = !given && int8 && !(step < __builtin_inff());
        each_lot<float, 1>(n, [&, step](auto, std::size_t i, std::size_t count) LAMBDA {
            const Floats v = none ? Floats{} : get<float>(from + i, count) / step;
            const Ints code = int8 ? int8_codes(v) : fp8_codes(v);
            const Bytes bytes = __builtin_convertvector(code & 0xff, Bytes);
            __builtin_memcpy(to + i, &bytes, count);
        });
    });
    return step;
}

}  // namespace

extern const Kernels RMSNORM_KERNELS;
const Kernels RMSNORM_KERNELS{run, operand, turn, encode};

}  // namespace rmsnorm_export::onnxruntime
