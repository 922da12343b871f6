// Rows of up to 32 KB, with all inputs: `lanes` threads hold a row in registers, packed in T, V vectors each. All
// loads of a row are issued before the first is used; nothing is read twice.
#pragma once

#include "reduce.cuh"
#include "vectors.cuh"

namespace rmsnorm_export {

// Eight vectors of packed x and their f32 temporaries need over 64 registers: the block is half as
// large, so that an SM still holds as many rows.
template <int V>
constexpr int kMostThreads = V == 8 ? 256 : 512;

// Two such blocks have to fit an SM; unasked, nvcc takes 215 registers a thread on sm_100.
template <int V>
constexpr int kLeastBlocks = V == 8 ? 2 : 1;

template <typename T, int V, Mode mode, bool kQuantised>
__global__ void __launch_bounds__(kMostThreads<V>, kLeastBlocks<V>)
    row_registers(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    Pointers const& pointers = task.pointers;
    int const lanes = task.lanes;
    int const lane = static_cast<int>(threadIdx.x) % lanes;
    int const together = static_cast<int>(blockDim.x) / lanes;
    int const own = static_cast<int>(threadIdx.x) / lanes;
    int const vectors = task.size / W;
    bool const per_row = kQuantised && task.problem.quantize == Quantize::kPerRow;
    Divisor<T> const static_scale{kQuantised && !per_row ? *pointers.quant_scale : 1.0F};

    int turn = 0;
    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    std::int64_t const step = static_cast<std::int64_t>(gridDim.x) * together;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * together;
         first < task.segments; first += step) {
        std::int64_t const segment = first + own;
        bool const present = segment < task.segments;
        std::int64_t const start = segment * task.size;
        std::int64_t const parameter = first_parameter(task, segment);

        uint4 x[V];
        uint4 other[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
            int const vector = lane + j * lanes;
            x[j] = other[j] = uint4{0, 0, 0, 0};
            if (present && vector < vectors) {
                x[j] = load_once<T>(pointers.x, start + vector * W);
                if constexpr (kTakesOther<mode>) {
                    other[j] = load_once<T>(pointers.other, start + vector * W);
                }
            }
        }

        float sum = 0.0F;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            int const vector = lane + j * lanes;
            if constexpr (mode == Mode::kSkip) {
                x[j] = sum_of<T>(x[j], other[j]);
                if (present && vector < vectors) {
                    T* const to = static_cast<T*>(pointers.sum) + start + vector * W;
                    *reinterpret_cast<uint4*>(to) = x[j];
                }
            }
            float values[W];
            row_values<T, mode>(values, task, x[j], other[j]);
            sum = __fadd_rn(sum, squares<float>(values, task.limit - vector * W));
        }
        Statistics<T, float> const statistics{task, reduce_lanes(sum, Add{}, lanes, turn++)};

        unsigned greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            int const vector = lane + j * lanes;
            if (!present || vector >= vectors) continue;
            std::int64_t const index = parameter + vector * W;
            float values[W];
            float gain[W];
            load_gain<T>(gain, task, index);
            outputs<T, mode>(values, task, statistics, x[j], other[j], gain, index);
            if constexpr (!kQuantised) {
                store<T>(values, pointers.y, start + vector * W);
            } else {
                round_to<T>(values);
                if (per_row) {
                    greatest = Greatest{}(greatest, peak(values));
                    x[j] = pack<T>(values);
                } else {
                    store_codes(values, task, static_scale, start + vector * W);
                }
            }
        }
        if constexpr (kQuantised) {
            if (!per_row) continue;
            greatest = reduce_lanes(greatest, Greatest{}, lanes, turn++);
            float const scale = scale_of_row(greatest, task.problem.y);
            if (present && lane == 0) pointers.row_scale[segment] = scale;
            Divisor<T> const divisor{scale};
#pragma unroll
            for (int j = 0; j < V; ++j) {
                int const vector = lane + j * lanes;
                if (!present || vector >= vectors) continue;
                float values[W];
                unpack<T>(values, x[j]);
                store_codes(values, task, divisor, start + vector * W);
            }
        }
    }
}

}  // namespace rmsnorm_export
