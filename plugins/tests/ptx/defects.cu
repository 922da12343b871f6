// Kernels with one defect each, to see that the interpreter complains of it: a line for each, its
// name and the complaint.
#include <cuda_runtime.h>

#include <cstdio>

#include "driver_memory.h"

extern __shared__ int words[];

__device__ void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__global__ void nothing(int* y) {
    wait();
    words[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = words[63 - threadIdx.x];
}
__global__ void no_barrier(int* y) {
    wait();
    words[threadIdx.x] = static_cast<int>(threadIdx.x);
    y[threadIdx.x] = words[63 - threadIdx.x];
}
__global__ void too_early(int* y) {
    y[threadIdx.x] = 1;
    wait();
}
__global__ void beyond(int* y) {
    wait();
    y[threadIdx.x + 1] = 1;
}
__global__ void misaligned(int* y) {
    wait();
    if (threadIdx.x == 0) *reinterpret_cast<int2*>(y + 1) = {1, 2};
}
__global__ void two_writers(int* y) {
    wait();
    y[threadIdx.x / 2] = static_cast<int>(threadIdx.x);
}
__global__ void beyond_shared(int* y) {
    wait();
    y[threadIdx.x] = words[threadIdx.x + 4096];
}
__global__ void half_a_warp(int* y) {
    wait();
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffffffU, 1, 1);
}
__global__ void half_a_block(int* y) {
    wait();
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 1;
}

int main() {
    Tensor y(64 * sizeof(int), 0);
    int* at = reinterpret_cast<int*>(y.address());
    void* arguments[] = {&at};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(64);
    config.dynamicSmemBytes = 256;
    y.before_launch();
    auto const launch = [&](char const* name, void (*kernel)(int*)) {
        auto const status =
            cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(kernel), arguments);
        std::printf("%s: %s\n", name, status == cudaSuccess ? "" : cudaGetErrorString(status));
    };
    launch("nothing", nothing);
    launch("no barrier", no_barrier);
    launch("too early", too_early);
    launch("beyond", beyond);
    launch("misaligned", misaligned);
    launch("two writers", two_writers);
    launch("beyond shared", beyond_shared);
    launch("half a warp", half_a_warp);
    launch("half a block", half_a_block);
}
