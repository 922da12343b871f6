// From a Choice to a launched kernel, for one T.
#pragma once

#include "launch_table.h"
#include "launch_typed.h"
#include "row_generic.cuh"
#include "row_long.cuh"
#include "row_registers.cuh"

namespace rmsnorm_export {

using Kernel = void (*)(Task);

struct Grid {
    std::int64_t blocks;
    int threads;
    int shared_bytes;
    int cluster;
};

// Above this a kernel has to ask for its shared memory.
constexpr int kSharedByDefault = 48 * 1024;

inline cudaError_t enqueue(Kernel kernel, Grid const& grid, Task const& task, cudaStream_t stream) {
    void const* const entry = reinterpret_cast<void const*>(kernel);
    if (grid.shared_bytes > kSharedByDefault) {
        // Every time: the attribute is of the function on the current device.
        cudaError_t const status = cudaFuncSetAttribute(
            entry, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes);
        if (status != cudaSuccess) return status;
    }
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = grid.cluster > 1 ? 1 : 0;
    void* arguments[] = {const_cast<Task*>(&task)};
    return cudaLaunchKernelExC(&config, entry, arguments);
}

template <typename T, Mode mode, bool kQuantised>
Kernel registers_kernel(int vectors) {
    if constexpr (!kTakesOther<mode>) {
        if (vectors == 8) return row_registers<T, 8, mode, kQuantised>;
    }
    return vectors == 4 ? row_registers<T, 4, mode, kQuantised>
                        : row_registers<T, 2, mode, kQuantised>;
}

template <typename T, bool kQuantised>
Kernel fast_kernel(Mode mode, Choice const& choice) {
    bool const registers = choice.path == Path::kRegisters;
    switch (mode) {
        case Mode::kPlain:
            return registers ? registers_kernel<T, Mode::kPlain, kQuantised>(choice.vectors)
                             : row_long<T, Mode::kPlain, kQuantised>;
        case Mode::kSkip:
            return registers ? registers_kernel<T, Mode::kSkip, kQuantised>(choice.vectors)
                             : row_long<T, Mode::kSkip, kQuantised>;
        case Mode::kGated:
            return registers ? registers_kernel<T, Mode::kGated, kQuantised>(choice.vectors)
                             : row_long<T, Mode::kGated, kQuantised>;
        default:
            return registers ? registers_kernel<T, Mode::kGateFirst, kQuantised>(choice.vectors)
                             : row_long<T, Mode::kGateFirst, kQuantised>;
    }
}

inline bool aligned(void const* pointer, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Whether every vector of every row is whole and aligned, and the fast kernels know the problem.
template <typename T>
bool vectorises(Task const& task) {
    constexpr int W = kWidth<T>;
    Problem const& problem = task.problem;
    Pointers const& p = task.pointers;
    if (problem.norm.stash_half) return false;
    if (problem.quantize == Quantize::kPerRow && task.groups > 1) return false;
    bool const quantised = problem.quantize != Quantize::kNone;
    return task.size % W == 0 && aligned(p.x, 16) && aligned(p.other, 16) &&
           aligned(p.scale, 16) && aligned(p.bias, 16) && aligned(p.sum, 16) &&
           aligned(p.y, quantised ? W : 16);
}

inline Mode mode_of(Norm const& norm) {
    if (norm.kind == Kind::kSkipRMSNorm) return Mode::kSkip;
    if (norm.kind == Kind::kGatedRMSNorm) {
        return norm.gate_first ? Mode::kGateFirst : Mode::kGated;
    }
    return Mode::kPlain;
}

constexpr std::int64_t kMostBlocks = 0x7fffffff;

// A block per row, of at most one element per thread up to 512.
template <typename T>
cudaError_t launch_generic(Task const& task, cudaStream_t stream) {
    std::int64_t const rows = task.segments / task.groups;
    int const threads = task.size < kLongBlock ? round_up(task.size, 32) : kLongBlock;
    Grid const grid{rows < kMostBlocks ? rows : kMostBlocks, threads, kReductionBytes, 1};
    Kernel kernel = row_generic<T, float>;
    if constexpr (kHalf<T>) {
        if (task.problem.norm.stash_half) kernel = row_generic<T, T>;
    }
    return enqueue(kernel, grid, task, stream);
}

template <typename T>
cudaError_t launch_typed(Task task, Device const& device, Tactic tactic, cudaStream_t stream) {
    if (!vectorises<T>(task)) return launch_generic<T>(task, stream);
    Mode const mode = mode_of(task.problem.norm);
    Choice const choice = choose(task.size * std::int64_t{sizeof(T)}, mode == Mode::kPlain ? 1 : 2,
                                 device.sm, tactic == Tactic::kLowLatency);
    task.lanes = choice.lanes;
    task.cluster = choice.cluster;
    task.staged = choice.staged;
    Kernel const kernel = task.problem.quantize == Quantize::kNone
                              ? fast_kernel<T, false>(mode, choice)
                              : fast_kernel<T, true>(mode, choice);
    std::int64_t const together = choice.threads / choice.lanes;
    std::int64_t blocks = (task.segments + together - 1) / together;
    std::int64_t most = kMostBlocks / choice.cluster;
    if (choice.path == Path::kRegisters && choice.lanes < choice.threads) {
        // Short rows: as many blocks as can run at once, each for many rows. Starting a block costs
        // about as much as its few kilobytes do.
        most = std::int64_t{device.processors} * (2048 / choice.threads);
    }
    blocks = (blocks < most ? blocks : most) * choice.cluster;
    Grid const grid{blocks, choice.threads, kReductionBytes + choice.staged * kVectorBytes,
                    choice.cluster};
    return enqueue(kernel, grid, task, stream);
}

}  // namespace rmsnorm_export
