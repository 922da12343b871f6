// Rows of up to 32 KB, with all inputs: `lanes` threads hold a row in registers, packed in T, V
// vectors each. All loads of a row are issued before the first is used; nothing is read twice.
#pragma once

#include "reduce.cuh"
#include "segment.cuh"

namespace rmsnorm_export {

// Eight vectors of packed x and their f32 temporaries need over 64 registers: the block is half as
// large, so that an SM still holds as many rows.
template <int V>
constexpr int kMostThreads = V == 8 ? 256 : 512;

// So many of those blocks have to fit an SM; unasked, nvcc takes 215 registers a thread on sm_100.
// Codes, and the divisions of a half type by any divisor, leave no room for a third.
template <typename T, int V, bool kQuantised>
constexpr int kLeastBlocks = V < 8 ? 1 : kQuantised || kHalf<T> ? 2 : 3;

template <typename T, int V, Mode mode, bool kQuantised>
__global__ void __launch_bounds__(kMostThreads<V>, kLeastBlocks<T, V, kQuantised>)
    row_registers(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    Pointers const& pointers = task.pointers;
    int const lanes = task.choice.lanes;
    int const lane = static_cast<int>(threadIdx.x) % lanes;
    int const rows = static_cast<int>(blockDim.x) / lanes;
    bool const per_row = kQuantised && task.problem.quantize == Quantize::kPerRow;
    Team<> team{lanes, 1};
    after_predecessor();
    Divisor<T> const static_unit{kQuantised && !per_row ? *pointers.quant_scale : 1.0F};

    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    std::int64_t const step = static_cast<std::int64_t>(gridDim.x) * rows;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows; first < task.segments;
         first += step) {
        std::int64_t const number = first + static_cast<int>(threadIdx.x) / lanes;
        int const vectors = number < task.segments ? task.size / W : 0;
        Segment<T, float, W> const row{task, mode, number, vectors};

        uint4 x[V];
        uint4 other[V];
#pragma unroll
        for (int j = 0; j < V; ++j) row.load(x[j], other[j], lane + j * lanes);

        float sum = 0.0F;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            sum = __fadd_rn(sum, row.squares(x[j], other[j], lane + j * lanes));
        }
        Divisor<T> const rms{root_mean_square<float>(task, team.sum(sum))};

        unsigned greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            int const vector = lane + j * lanes;
            if (vector >= vectors) continue;
            stay_packed(x[j]);
            stay_packed(other[j]);
            auto const y = row.output(rms, x[j], other[j], vector);
            if (!kQuantised) {
                store<T>(y, pointers.y, row.start + vector * W);
            } else if (per_row) {
                x[j] = pack<T>(y);
                greatest = peak(unpack<T>(x[j]), greatest);
            } else {
                store_codes(rounded<T>(y), task, static_unit, row.start + vector * W);
            }
        }
        if (!per_row) continue;

        float const scale = scale_of_row(team.greatest(greatest), task.problem.y);
        if (lane == 0 && vectors > 0) static_cast<float*>(pointers.row_scale)[number] = scale;
        Divisor<T> const unit{scale};
#pragma unroll
        for (int j = 0; j < V; ++j) {
            int const vector = lane + j * lanes;
            if (vector < vectors) store_codes(unpack<T>(x[j]), task, unit, row.start + vector * W);
        }
    }
}

}  // namespace rmsnorm_export
