// Rows of more than 32 KB, with all inputs: a block of its own for each, or from sm_90 on a cluster whose blocks take
// a slice each and add their sums over distributed shared memory. A slice waits in shared memory for
// its root mean square; what does not fit is read again, from L2 as a rule.
#pragma once

#include "reduce.cuh"
#include "vectors.cuh"

namespace rmsnorm_export {

constexpr int kLongThreads = 512;

// Vectors of each input that a thread has under way at once: 512 * 4 * 16 bytes are the 32 KB that an
// SM needs in flight, from one block.
template <Mode mode>
constexpr int kUnderWay = kTakesOther<mode> ? 2 : 4;

template <typename T, Mode mode, bool kQuantised>
__global__ void __launch_bounds__(kLongThreads, 1) row_long(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    Pointers const& pointers = task.pointers;
    int const blocks = task.cluster;
    int const threads = static_cast<int>(blockDim.x);
    int const vectors = task.size / W;
    int const slice = (vectors + blocks - 1) / blocks;
    int const begin = static_cast<int>(blockIdx.x) % blocks * slice;
    int const end = begin + slice < vectors ? begin + slice : vectors;
    uint4* const stage = shared_memory() + kReductionBytes / 16;
    bool const per_row = kQuantised && task.problem.quantize == Quantize::kPerRow;
    start_cluster(blocks);

    int turn = 0;
    for (std::int64_t segment = blockIdx.x / blocks; segment < task.segments;
         segment += gridDim.x / blocks) {
        std::int64_t const start = segment * task.size;
        std::int64_t const parameter = first_parameter(task, segment);

        float sum = 0.0F;
        for (int base = begin + static_cast<int>(threadIdx.x); base < end;
             base += kUnderWay<mode> * threads) {
            uint4 x[kUnderWay<mode>];
            uint4 other[kUnderWay<mode>];
#pragma unroll
            for (int j = 0; j < kUnderWay<mode>; ++j) {
                int const vector = base + j * threads;
                x[j] = other[j] = uint4{0, 0, 0, 0};
                if (vector < end) {
                    x[j] = load_once<T>(pointers.x, start + vector * W);
                    if constexpr (kTakesOther<mode>) {
                        other[j] = load_once<T>(pointers.other, start + vector * W);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < kUnderWay<mode>; ++j) {
                int const vector = base + j * threads;
                if constexpr (mode == Mode::kSkip) x[j] = sum_of<T>(x[j], other[j]);
                if (vector < end) {
                    if constexpr (mode == Mode::kSkip) {
                        T* const to = static_cast<T*>(pointers.sum) + start + vector * W;
                        *reinterpret_cast<uint4*>(to) = x[j];
                    }
                    if (vector - begin < task.staged) stage[vector - begin] = x[j];
                }
                float values[W];
                row_values<T, mode>(values, task, x[j], other[j]);
                sum = __fadd_rn(sum, squares<float>(values, task.limit - vector * W));
            }
        }
        sum = reduce_lanes(sum, Add{}, threads, turn);
        Statistics<T, float> const statistics{task, reduce_cluster(sum, Add{}, blocks, turn++)};

        // A thread comes back to the vectors that it loaded, so the stage needs no barrier.
        auto const row_outputs = [&](float(&values)[W], int vector) {
            void const* const source = mode == Mode::kSkip ? pointers.sum : pointers.x;
            uint4 const x = vector - begin < task.staged
                                ? stage[vector - begin]
                                : *reinterpret_cast<uint4 const*>(static_cast<T const*>(source) +
                                                                  start + vector * W);
            uint4 other{0, 0, 0, 0};
            if constexpr (mode == Mode::kGated || mode == Mode::kGateFirst) {
                other = load_once<T>(pointers.other, start + vector * W);
            }
            float gain[W];
            load_gain<T>(gain, task, parameter + vector * W);
            outputs<T, mode>(values, task, statistics, x, other, gain, parameter + vector * W);
        };
        float scale = 1.0F;
        if constexpr (kQuantised) {
            if (per_row) {
                unsigned greatest = 0;
                for (int vector = begin + static_cast<int>(threadIdx.x); vector < end;
                     vector += threads) {
                    float values[W];
                    row_outputs(values, vector);
                    round_to<T>(values);
                    greatest = Greatest{}(greatest, peak(values));
                }
                greatest = reduce_lanes(greatest, Greatest{}, threads, turn);
                greatest = reduce_cluster(greatest, Greatest{}, blocks, turn++);
                scale = scale_of_row(greatest, task.problem.y);
                if (begin == 0 && threadIdx.x == 0) pointers.row_scale[segment] = scale;
            } else {
                scale = *pointers.quant_scale;
            }
        }
        Divisor<T> const divisor{scale};
        for (int vector = begin + static_cast<int>(threadIdx.x); vector < end;
             vector += threads) {
            float values[W];
            row_outputs(values, vector);
            if constexpr (kQuantised) {
                round_to<T>(values);
                store_codes(values, task, divisor, start + vector * W);
            } else {
                store<T>(values, pointers.y, start + vector * W);
            }
        }
    }
}

}  // namespace rmsnorm_export
