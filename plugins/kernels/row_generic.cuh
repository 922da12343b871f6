// Any problem at any alignment: a block per row, an element at a time, the row read again for every
// pass. For what the fast kernels leave out: rows that are no whole number of vectors, a stash type
// of half precision, one scale for the codes of several groups.
#pragma once

#include "quantise.cuh"
#include "reduce.cuh"

namespace rmsnorm_export {

template <typename T, typename S>
struct GenericRow {
    Task const& task;
    std::int64_t start;  // offset of the row
    int turn;

    // The value that is normalised, at `index` of the row.
    __device__ float value(std::int64_t index) const {
        Problem const& problem = task.problem;
        Pointers const& pointers = task.pointers;
        float x[1];
        load<T>(x, pointers.x, start + index);
        if (problem.norm.kind == Kind::kRMSNorm) return x[0];
        if (problem.norm.kind == Kind::kGatedRMSNorm && !problem.norm.gate_first) return x[0];
        float other[1];
        load<T>(other, pointers.other, start + index);
        if (problem.norm.kind == Kind::kSkipRMSNorm) {
            return rounded<T>(__fadd_rn(x[0], other[0]));
        }
        activate<T, S>(x, task, other);
        return x[0];
    }

    // Of the group that starts at `first`.
    __device__ Statistics<T, S> statistics(std::int64_t first) {
        float sum = 0.0F;
        for (int i = threadIdx.x; i < task.limit; i += blockDim.x) {
            float const element[1] = {value(first + i)};
            sum += squares<S>(element, 1);
        }
        return {task, reduce_lanes(sum, Add{}, blockDim.x, turn++)};
    }

    // y at `index` of the row, rounded to T.
    __device__ float output(std::int64_t index, Statistics<T, S> const& of_group) const {
        Norm const& norm = task.problem.norm;
        float y[1] = {value(index)};
        float gain[1];
        load_gain<T>(gain, task, index);
        normalise<T, S>(y, task, of_group, gain, index);
        if (norm.kind == Kind::kGatedRMSNorm && !norm.gate_first) {
            float gate[1];
            load<T>(gate, task.pointers.other, start + index);
            round_to<S>(y);
            activate<T, S>(y, task, gate);
        }
        return rounded<T>(y[0]);
    }

    // Calls visit(index, y) for every element of the row.
    template <typename Visit>
    __device__ void each(Visit visit) {
        for (int group = 0; group < task.groups; ++group) {
            std::int64_t const first = static_cast<std::int64_t>(group) * task.size;
            Statistics<T, S> const of_group = statistics(first);
            for (int i = threadIdx.x; i < task.size; i += blockDim.x) {
                visit(first + i, output(first + i, of_group));
            }
        }
    }
};

template <typename T, typename S>
__global__ void __launch_bounds__(512, 1) row_generic(__grid_constant__ Task const task) {
    Problem const& problem = task.problem;
    Pointers const& pointers = task.pointers;
    std::int64_t const rows = task.segments / task.groups;
    int turn = 0;
    for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        GenericRow<T, S> generic{task, row * problem.n, turn};
        float scale = 1.0F;
        if (problem.quantize == Quantize::kStatic) scale = *pointers.quant_scale;
        if (problem.quantize == Quantize::kPerRow) {
            unsigned greatest = 0;
            generic.each([&](std::int64_t, float y) {
                float const values[1] = {y};
                greatest = Greatest{}(greatest, peak(values));
            });
            greatest = reduce_lanes(greatest, Greatest{}, blockDim.x, generic.turn++);
            scale = scale_of_row(greatest, problem.y);
            if (threadIdx.x == 0) pointers.row_scale[row] = scale;
        }
        Divisor<T> const divisor{scale};
        generic.each([&](std::int64_t index, float y) {
            float values[1] = {y};
            if (problem.quantize == Quantize::kNone) {
                store<T>(values, pointers.y, generic.start + index);
            } else {
                store_codes(values, task, divisor, generic.start + index);
            }
            if (pointers.sum != nullptr) {
                values[0] = generic.value(index);
                store<T>(values, pointers.sum, generic.start + index);
            }
        });
        turn = generic.turn;
    }
}

}  // namespace rmsnorm_export
