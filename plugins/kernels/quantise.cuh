// FP8 E4M3 and INT8 codes of values that are rounded to T already.
#pragma once

#include <cuda_fp8.h>

#include "numerics.cuh"

namespace rmsnorm_export {

// |values| as integers: they order as the floats do, and NaN is above infinity. So the greatest of
// a row with a NaN is NaN, which fmaxf would drop.
template <int W>
__device__ unsigned peak(float const (&values)[W]) {
    unsigned greatest = 0;
#pragma unroll
    for (int i = 0; i < W; ++i) {
        unsigned const magnitude = __float_as_uint(values[i]) & 0x7fffffffU;
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

// Two codes, the first in the low byte. NaN is NaN in FP8 and 0 in INT8.
__device__ inline unsigned codes_of(float low, float high, Type type) {
    if (type == Type::kINT8) {
        int const first = __float2int_rn(low);
        int const second = __float2int_rn(high);
        int const clamped_first = first < -128 ? -128 : (first > 127 ? 127 : first);
        int const clamped_second = second < -128 ? -128 : (second > 127 ? 127 : second);
        return (clamped_first & 0xff) | (clamped_second & 0xff) << 8;
    }
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Divides W values by the scale and stores their codes at y[index].
template <typename T, int W>
__device__ void store_codes(float (&values)[W], Task const& task, Divisor<T> const& scale,
                            std::int64_t index) {
    scale.divide(values);
    unsigned char* const to = static_cast<unsigned char*>(task.pointers.y) + index;
    Type const type = task.problem.y;
    if constexpr (W == 1) {
        *to = static_cast<unsigned char>(codes_of(values[0], 0.0F, type));
    } else {
        unsigned words[W / 4];
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            words[i / 4] = codes_of(values[i], values[i + 1], type) |
                           codes_of(values[i + 2], values[i + 3], type) << 16;
        }
        if constexpr (W == 8) {
            *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
        } else {
            *reinterpret_cast<unsigned*>(to) = words[0];
        }
    }
}

}  // namespace rmsnorm_export
