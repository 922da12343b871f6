// Reductions over the threads that share a segment. Every thread gets the result, and the order of
// the additions depends on the number of threads only, so a row sums the same wherever it is.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace rmsnorm_export {

struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
};

struct Greatest {
    __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

// Shared memory of one reduction: a slot per warp, and one per block of a cluster.
constexpr int kWarpSlots = 32;
constexpr int kClusterSlots = 8;
constexpr int kSlots = kWarpSlots + kClusterSlots;

// The two sets of slots that a kernel uses in turn. A thread that is one reduction ahead of another
// then writes to the other set; two ahead it cannot be, for the barrier between.
constexpr int kReductionBytes = 2 * kSlots * 4;

template <typename V>
__device__ V* slots(int turn) {
    return reinterpret_cast<V*>(shared_memory()) + (turn & 1) * kSlots;
}

// Over `lanes` neighbours: a power of two up to 32, or else the whole block of `lanes` threads, a
// multiple of 32.
template <typename V, typename Operation>
__device__ V reduce_lanes(V value, Operation combine, int lanes, int turn) {
    unsigned const everyone = 0xffffffffU;
    for (int distance = (lanes < 32 ? lanes : 32) / 2; distance > 0; distance /= 2) {
        value = combine(value, __shfl_xor_sync(everyone, value, distance));
    }
    if (lanes <= 32) return value;
    V* const of_warp = slots<V>(turn);
    int const lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = lane < lanes / 32 ? of_warp[lane] : V{0};
    for (int distance = 16; distance > 0; distance /= 2) {
        value = combine(value, __shfl_xor_sync(everyone, value, distance));
    }
    return value;
}

// Before the first reduction of a cluster: its blocks must all have started, else there is no
// shared memory to write to.
__device__ inline void start_cluster(int blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (blocks > 1) cooperative_groups::this_cluster().sync();
#endif
}

// Over the blocks of a cluster, after reduce_lanes. Nobody reads the memory of a peer, so a block
// may end while its peers still sum.
template <typename V, typename Operation>
__device__ V reduce_cluster(V value, Operation combine, int blocks, int turn) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        auto cluster = cooperative_groups::this_cluster();
        V* const of_block = slots<V>(turn) + kWarpSlots;
        if (static_cast<int>(threadIdx.x) < blocks) {
            *cluster.map_shared_rank(of_block + cluster.block_rank(), threadIdx.x) = value;
        }
        cluster.sync();
        value = of_block[0];
        for (int block = 1; block < blocks; ++block) value = combine(value, of_block[block]);
    }
#endif
    return value;
}

}  // namespace rmsnorm_export
