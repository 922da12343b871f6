// MXFP8: FP8 E4M3 codes with a scale 2^E for each block of 32 elements, kept as E + 127 (E8M0).
#pragma once

#include "quantise.cuh"

namespace rmsnorm_export {

// What is added to the bits of the greatest magnitude before the mantissa is cut off. 448 is
// 1.75 * 2^8: above that a mantissa carries into the exponent, and the scale is rounded up.
__device__ inline unsigned carry_of(Quantize quantize) {
    return quantize == Quantize::kBlocks ? 0x1fffffU : 0U;
}

// The scale of a block from the bits of its greatest magnitude. A NaN or an infinity makes NaN of
// all its codes.
struct BlockScale {
    unsigned code;
    float reciprocal;

    __device__ BlockScale(unsigned greatest, unsigned carry) {
        bool const number = greatest < 0x7f800000U;
        unsigned const carried = greatest + carry;
        unsigned const top = carried > 8U << 23 ? carried : 8U << 23;
        code = number ? (top >> 23) - 8U : 255U;
        reciprocal = __uint_as_float(number ? (262U << 23) - (top & 0xff800000U) : 0x7fffffffU);
    }

    // Of a vector of T. bf16 has the exponents of f32, so that products with a power of two are exact
    // there, too, or their code is 0.
    template <typename T>
    __device__ auto codes(uint4 const& values) const {
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            auto const factor = narrow_pair<T>(reciprocal, reciprocal);
            auto const product =
                of_pairs<T>(values, values, [&](auto a, auto) { return __hmul2_rn(a, factor); });
            return codes_of<Type::kFP8E4M3>(unpack<T>(product));
        }
        return codes_of<Type::kFP8E4M3>(unpack<T>(values).each(
            [&](float value, int) { return __fmul_rn(value, reciprocal); }));
    }
};

// The greatest magnitude over the `lanes` neighbours that hold a block, of a whole warp.
template <int lanes>
__device__ unsigned peak_of_block(unsigned greatest) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        unsigned const other = __shfl_xor_sync(0xffffffffU, greatest, distance);
        greatest = other > greatest ? other : greatest;
    }
    return greatest;
}

// The same of words of a half type, both elements at once.
template <typename T, int lanes>
__device__ unsigned peak_of_pairs(unsigned greatest) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        unsigned const other = __shfl_xor_sync(0xffffffffU, greatest, distance);
        greatest = greater_magnitude<T>(greatest, other);
    }
    return peak(unpack<T>(greatest), 0U);
}

// One element a thread, of a warp that holds a block.
template <typename T>
__device__ void store_in_block(float y, Task const& task, std::int64_t index) {
    unsigned const magnitude = __float_as_uint(y) & 0x7fffffffU;
    BlockScale const scale{peak_of_block<kBlock>(magnitude), carry_of(task.problem.quantize)};
    static_cast<unsigned char*>(task.pointers.y)[index] =
        static_cast<unsigned char>(codes_of(__fmul_rn(y, scale.reciprocal), 0.0F, Type::kFP8E4M3));
    if (index % kBlock == 0) {
        static_cast<unsigned char*>(task.pointers.row_scale)[index / kBlock] =
            static_cast<unsigned char>(scale.code);
    }
}

}  // namespace rmsnorm_export
