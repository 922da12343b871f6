// The part of CUDA's language that plain C++ lacks. Without nvcc the kernels run on a CPU: shim.h
// (plugins/tests/shim) then has the same names, with fibres for the threads of a block.
#pragma once

#ifdef __CUDACC__

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace rmsnorm_export {

// Keeps the compiler from computing many long expressions side by side, in more registers than
// there are: what comes before, in the order of the source, is computed before.
__device__ inline void one_after_another(float& value) { asm volatile("" : "+f"(value)); }

// Keeps the compiler from holding on to the unpacked elements of a vector, where they would take
// twice the registers.
__device__ inline void stay_packed(uint4& vector) {
    asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
}

// The block's shared memory. All of it is dynamic: the kernels divide it themselves.
__device__ inline uint4* shared_memory() {
    extern __shared__ uint4 shared_bytes[];
    return shared_bytes;
}

}  // namespace rmsnorm_export

#else
#include "shim.h"
#endif
