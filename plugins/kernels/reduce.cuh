// Reductions over the threads that share a segment. Every thread gets the result, and the order of
// the additions depends on the number of threads only, so a row sums the same wherever it is.
#pragma once

#include <cstdint>

#include "types.cuh"

namespace rmsnorm_export {

// Shared memory of one reduction: a slot per warp, and one per block of a cluster.
constexpr int kWarpSlots = 32;
constexpr int kSlots = kWarpSlots + kMostCluster;

// The two sets of slots that a kernel uses in turn, and their mailboxes. A thread that is one
// reduction ahead of another then writes to the other set; two ahead it cannot be, for the barrier
// between: its block has the sums of all others, which they sent behind a barrier of theirs.
constexpr int kReductionBytes = 2 * (kSlots * 4 + static_cast<int>(sizeof(Mailbox)));

// Whose slots every thread reads, which is sooner done than shuffles.
constexpr int kFewWarps = 8;

// `lanes` neighbours: a power of two up to 32, or else the whole block of `lanes` threads, a
// multiple of 32. With `blocks` > 1, a power of two, those of each block of a cluster, more than a
// warp of each.
// `kQuick` takes more registers, in which every thread reads all slots instead of shuffling.
template <bool kQuick = false>
struct Team {
    int lanes;
    int blocks;
    int turn{0};  // 0 before the first reduction, then 1, 2, 3, 4 and again

    __device__ Team(int lanes, int blocks) : lanes(lanes), blocks(blocks) {
        // The slots of warps that are not there.
        int const slot = static_cast<int>(threadIdx.x);
        if (kQuick && lanes > 32 && slot >= lanes / 32 && slot < kFewWarps) {
            reinterpret_cast<unsigned*>(shared_memory())[slot] = 0;
            reinterpret_cast<unsigned*>(shared_memory())[kSlots + slot] = 0;
        }
#if __CUDA_ARCH__ >= 900
        if (blocks > 1) {
            if (threadIdx.x == 0) {
                open(mailbox(0));
                open(mailbox(1));
            }
            mailboxes_open();
        }
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
        int const set = turn & 1;
        V* const of_warp = reinterpret_cast<V*>(shared_memory()) + set * kSlots;
        int const lane = static_cast<int>(threadIdx.x) % 32;
        value = over_warp(value, combine, lanes < 32 ? lanes : 32);
        if (lanes > 32) {
            if (lane == 0) of_warp[threadIdx.x / 32] = value;
            __syncthreads();
            int const warps = lanes / 32;
            if (warps <= 4) {
                // One load, and no more shuffles.
                Packed<V, 4> const of = *reinterpret_cast<Packed<V, 4> const*>(of_warp);
                value = combine(of.at[0], of.at[1]);
                if (warps > 2) value = combine(value, of.at[2]);
                if (warps > 3) value = combine(value, of.at[3]);
            } else if (kQuick && warps <= kFewWarps) {
                value = over_slots<kFewWarps>(of_warp, combine);
            } else {
                value = over_warp(lane < warps ? of_warp[lane] : V{0}, combine, 32);
            }
        }
#if __CUDA_ARCH__ >= 900
        // Nobody reads the memory of a peer, and each waits for what is sent to it, so a block may
        // end while its peers still sum.
        if (blocks > 1) {
            if (turn == 0) mailboxes_are_open();
            V* const of_block = of_warp + kWarpSlots;
            Mailbox* const box = mailbox(set);
            if (threadIdx.x == 0) expect(box, blocks);
            if (static_cast<int>(threadIdx.x) < blocks) {
                send(of_block + block_of_cluster(), box, bits<unsigned>(value), threadIdx.x);
            }
            wait_for_words(box, static_cast<unsigned>(turn >> 1) & 1);
            value = kQuick && blocks == kMostCluster
                        ? over_slots<kMostCluster>(of_block, combine)
                        : over_warp(of_block[lane & (blocks - 1)], combine, blocks);
        }
#endif
        turn = (turn & 3) + 1;
        return value;
    }

    __device__ static Mailbox* mailbox(int set) {
        return reinterpret_cast<Mailbox*>(reinterpret_cast<unsigned*>(shared_memory()) + 2 * kSlots) +
               set;
    }

    // As over_warp combines them, by every thread on its own.
    template <int count, typename V, typename Operation>
    __device__ static V over_slots(V const* slots, Operation combine) {
        auto const of = four_of_slots<count, 4>(slots, combine);
        return combine(combine(of.at[0], of.at[2]), combine(of.at[1], of.at[3]));
    }
    template <int count, int distance, typename V, typename Operation>
    __device__ static Packed<V, 4> four_of_slots(V const* slots, Operation combine) {
        if constexpr (distance == count) {
            return *reinterpret_cast<Packed<V, 4> const*>(slots);
        } else {
            auto of = four_of_slots<count, 2 * distance>(slots, combine);
            auto const others = four_of_slots<count, 2 * distance>(slots + distance, combine);
#pragma unroll
            for (int i = 0; i < 4; ++i) of.at[i] = combine(of.at[i], others.at[i]);
            return of;
        }
    }

    template <typename V, typename Operation>
    __device__ static V over_warp(V value, Operation combine, int width) {
        if (kQuick && width == 32) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
            }
            return value;
        }
        for (int distance = width / 2; distance > 0; distance /= 2) {
            value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
        }
        return value;
    }
};

}  // namespace rmsnorm_export
