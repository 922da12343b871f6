// FP8 E4M3 and INT8 codes of values that are rounded to T already.
#pragma once

#include <cuda_fp8.h>

#include "numerics.cuh"

namespace rmsnorm_export {

// |values| as integers: they order as the floats do, and NaN is above infinity. So the greatest of
// a row with a NaN is NaN, which fmaxf would drop.
template <int W>
__device__ unsigned peak(Floats<W> const& values, unsigned greatest) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
        unsigned const magnitude = __float_as_uint(values.at[i]) & 0x7fffffffU;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

// The scale of a row from its greatest magnitude. 1 also when the quotient underflows to 0.
__device__ inline float scale_of_row(unsigned greatest, Type codes) {
    float const largest_code = codes == Type::kINT8 ? 127.0F : 448.0F;
    float const scale = __fdiv_rn(__uint_as_float(greatest), largest_code);
    return scale == 0.0F ? 1.0F : scale;
}

// Four codes, the first in the low byte. NaN is NaN in FP8 and 0 in INT8.
template <Type codes>
__device__ unsigned codes_of(float const (&values)[4]) {
    if constexpr (codes == Type::kINT8) {
        int whole[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) whole[i] = __float2int_rn(values[i]);
        return saturated_bytes(whole);
    } else {
        return __nv_fp8x4_e4m3(make_float4(values[0], values[1], values[2], values[3])).__x;
    }
}

template <Type codes, int W>
__device__ Packed<unsigned, W / 4> codes_of(Floats<W> const& values) {
    Packed<unsigned, W / 4> words;
#pragma unroll
    for (int i = 0; i < W; i += 4) {
        words.at[i / 4] = codes_of<codes>(
            {values.at[i], values.at[i + 1], values.at[i + 2], values.at[i + 3]});
    }
    return words;
}

// Products with 1 / scale. A scale whose reciprocal f32 does not have, or has too few bits of, is
// taken 2^64 times nearer to 1, and so are the values: that is exact, or their code is the last one,
// or 0. All values of f16 have such a code then, but zeros.
//
// Values of f32 can lie anywhere beside the middle of two codes, so they get the quotient itself, by
// a correction step (Markstein 1990): of what is no code but 0, it underflows nowhere.
template <typename T>
struct CodeUnit {
    static constexpr bool kShifts = !std::is_same_v<T, __half>;
    static constexpr bool kExact = !kHalf<T>;
    float shift;
    float reciprocal;
    float divisor;

    __device__ explicit CodeUnit(float scale) {
        float const magnitude = fabsf(scale);
        shift = magnitude < (kExact ? 0x1p-60F : 0x1p-126F) ? 0x1p64F
                : magnitude > (kExact ? 0x1p60F : 0x1p125F) ? 0x1p-64F
                                                            : 1.0F;
        divisor = kShifts ? __fmul_rn(scale, shift) : scale;
        reciprocal = __fdiv_rn(1.0F, divisor);
        bool const beyond = !kShifts && scale != 0.0F && fabsf(reciprocal) == INFINITY;
        if (beyond) reciprocal = copysignf(0x1p127F, scale);
        // The quotients are 0 or NaN, as they are.
        if (magnitude == INFINITY) divisor = 0.0F;
    }

    __device__ bool shifts() const { return kShifts && shift != 1.0F; }

    template <int V>
    __device__ void bring_near(uint4 (&vectors)[V]) const {
        if constexpr (kShifts) {
            if (!shifts()) return;
            auto const nearer = [&](float value, int) { return __fmul_rn(value, shift); };
#pragma unroll
            for (int j = 0; j < V; ++j) vectors[j] = pack<T>(unpack<T>(vectors[j]).each(nearer));
        }
    }

    // Of a vector of T that was brought near.
    template <Type codes>
    __device__ auto codes_of_vector(uint4 const& vector) const {
        return codes_of<codes>(unpack<T>(vector).each([&](float value, int) {
            float const quotient = __fmul_rn(value, reciprocal);
            if (!kExact) return quotient;
            float const excess = __fmaf_rn(quotient, divisor, -value);
            float const corrected = __fmaf_rn(-excess, reciprocal, quotient);
            return fabsf(quotient) < INFINITY ? corrected : quotient;
        }));
    }
};

template <Type codes, int W>
__device__ void store_codes(Floats<W> const& values, void* to) {
    if constexpr (W == 1) {
        *static_cast<unsigned char*>(to) =
            static_cast<unsigned char>(codes_of<codes>({values.at[0], 0.0F, 0.0F, 0.0F}));
    } else {
        *static_cast<Packed<unsigned, W / 4>*>(to) = codes_of<codes>(values);
    }
}

// Divides W values by the scale and stores their codes at y[index].
template <typename T, int W>
__device__ void store_codes(Floats<W> const& values, Task const& task, Divisor<T> const& scale,
                            std::int64_t index) {
    Floats<W> const scaled = scale.divide(values);
    void* const to = static_cast<unsigned char*>(task.pointers.y) + index;
    if (task.problem.y == Type::kINT8) {
        store_codes<Type::kINT8>(scaled, to);
    } else {
        store_codes<Type::kFP8E4M3>(scaled, to);
    }
}

}  // namespace rmsnorm_export
