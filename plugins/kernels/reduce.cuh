// Reductions over the threads that share a segment. Every thread gets the result, and the order of
// the additions depends on the number of threads only, so a row sums the same wherever it is.
#pragma once

#include <cstdint>

#include "types.cuh"

namespace rmsnorm_export {

// Shared memory of one reduction: a slot per warp, and one per block of a cluster.
constexpr int kWarpSlots = 32;
constexpr int kClusterSlots = 8;
constexpr int kSlots = kWarpSlots + kClusterSlots;

// The two sets of slots that a kernel uses in turn. A thread that is one reduction ahead of another
// then writes to the other set; two ahead it cannot be, for the barrier between.
constexpr int kReductionBytes = 2 * kSlots * 4;

// `lanes` neighbours: a power of two up to 32, or else the whole block of `lanes` threads, a
// multiple of 32. With `blocks` > 1, those of each block of a cluster.
struct Team {
    int lanes;
    int blocks;
    int turn{0};

    __device__ Team(int lanes, int blocks) : lanes(lanes), blocks(blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        // All blocks must have started, else there is no shared memory to write to.
        if (blocks > 1) cooperative_groups::this_cluster().sync();
#endif
    }

    __device__ float sum(float value) {
        return reduce(value, [](float a, float b) { return a + b; });
    }
    __device__ unsigned greatest(unsigned value) {
        return reduce(value, [](unsigned a, unsigned b) { return a > b ? a : b; });
    }

private:
    template <typename V, typename Operation>
    __device__ V reduce(V value, Operation combine) {
        V* const of_warp = reinterpret_cast<V*>(shared_memory()) + turn * kSlots;
        turn ^= 1;
        value = over_warp(value, combine, lanes < 32 ? lanes : 32);
        if (lanes > 32) {
            int const lane = static_cast<int>(threadIdx.x) % 32;
            if (lane == 0) of_warp[threadIdx.x / 32] = value;
            __syncthreads();
            int const warps = lanes / 32;
            if (warps <= 4) {
                // One load, and no more shuffles.
                Packed<V, 4> const of = *reinterpret_cast<Packed<V, 4> const*>(of_warp);
                value = combine(of.at[0], of.at[1]);
                if (warps > 2) value = combine(value, of.at[2]);
                if (warps > 3) value = combine(value, of.at[3]);
            } else {
                value = over_warp(lane < warps ? of_warp[lane] : V{0}, combine, 32);
            }
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        // Nobody reads the memory of a peer, so a block may end while its peers still sum.
        if (blocks > 1) {
            auto cluster = cooperative_groups::this_cluster();
            V* const of_block = of_warp + kWarpSlots;
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

    template <typename V, typename Operation>
    __device__ static V over_warp(V value, Operation combine, int width) {
        for (int distance = width / 2; distance > 0; distance /= 2) {
            value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
        }
        return value;
    }
};

}  // namespace rmsnorm_export
