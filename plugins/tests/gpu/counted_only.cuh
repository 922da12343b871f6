// In front of a unit of the kernels (nvcc -include): none but the kernels that scripts/sass counts,
// a quarter of them, which are built in a third of the time. The launches are the unit's own.
#pragma once

#include "launch_typed.cuh"

namespace rmsnorm_export {

// For an order other than LLaMA's, the norm alone; codes of f32 without a second input.
#define NOT_OF_ORDER(T, mode, order, quantize)                                                    \
    template <>                                                                                   \
    inline Kernel hot_kernel_of<T, Mode::mode, Order::order, Quantize::quantize>(Choice const&) { \
        return nullptr;                                                                           \
    }
#define ONLY_THE_NORM(T, order)             \
    NOT_OF_ORDER(T, kSkip, order, kNone)    \
    NOT_OF_ORDER(T, kPlain, order, kStatic) \
    NOT_OF_ORDER(T, kSkip, order, kStatic)  \
    NOT_OF_ORDER(T, kPlain, order, kPerRow) \
    NOT_OF_ORDER(T, kSkip, order, kPerRow)  \
    NOT_OF_ORDER(T, kPlain, order, kBlocks) \
    NOT_OF_ORDER(T, kSkip, order, kBlocks)
#define COUNTED_ONLY(T)                                 \
    template <>                                         \
    inline Kernel fast_kernel<T, false>(Task const&) {  \
        return nullptr;                                 \
    }                                                   \
    template <>                                         \
    inline Kernel fast_kernel<T, true>(Task const&) {   \
        return nullptr;                                 \
    }                                                   \
    template <>                                         \
    inline Kernel rotary_kernel_of<T, T>(Order, bool) { \
        return row_rotary<T, T, false, Order::kNarrow>; \
    }                                                   \
    ONLY_THE_NORM(T, kWideOffset)

COUNTED_ONLY(float)
COUNTED_ONLY(__half)
COUNTED_ONLY(__nv_bfloat16)
NOT_OF_ORDER(float, kSkip, kNarrow, kStatic)
NOT_OF_ORDER(float, kSkip, kNarrow, kPerRow)
NOT_OF_ORDER(float, kSkip, kNarrow, kBlocks)
ONLY_THE_NORM(__half, kWide)
ONLY_THE_NORM(__nv_bfloat16, kWide)
#define ROTARY_OF_F32(T)                                    \
    template <>                                             \
    inline Kernel rotary_kernel_of<T, float>(Order, bool) { \
        return row_rotary<T, float, false, Order::kNarrow>; \
    }
ROTARY_OF_F32(__half)
ROTARY_OF_F32(__nv_bfloat16)

}  // namespace rmsnorm_export
