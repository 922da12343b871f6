// From a problem to a launched kernel, for one T.
#pragma once

#include "row_long.cuh"
#include "row_registers.cuh"

namespace rmsnorm_export {

using Kernel = void (*)(Task);

// Above this a kernel has to ask for its shared memory.
constexpr int kSharedByDefault = 48 * 1024;

inline cudaError_t enqueue(Kernel kernel, Task const& task, std::int64_t blocks,
                           cudaStream_t stream) {
    void const* const entry = reinterpret_cast<void const*>(kernel);
    int const shared_bytes = kReductionBytes + task.choice.staged * kVectorBytes;
    if (shared_bytes > kSharedByDefault) {
        // Every time: the attribute is of the function on the current device.
        cudaError_t const status = cudaFuncSetAttribute(
            entry, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (status != cudaSuccess) return status;
    }
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(task.choice.cluster), 1, 1};
    cudaLaunchConfig_t config{dim3(static_cast<unsigned>(blocks)),
                              dim3(static_cast<unsigned>(task.choice.threads)),
                              static_cast<std::size_t>(shared_bytes),
                              stream,
                              &cluster,
                              task.choice.cluster > 1 ? 1U : 0U};
    void* arguments[] = {const_cast<Task*>(&task)};
    return cudaLaunchKernelExC(&config, entry, arguments);
}

template <typename T, Mode mode, bool kQuantised>
Kernel kernel_of_mode(Choice const& choice) {
    if (choice.path == Path::kLong) return row_long<T, float, kWidth<T>, mode, kQuantised>;
    constexpr int kMost = mode == Mode::kPlain ? 8 : 4;  // two inputs never have more
    if (choice.vectors == 8) return row_registers<T, kMost, mode, kQuantised>;
    return choice.vectors == 4 ? row_registers<T, 4, mode, kQuantised>
                               : row_registers<T, 2, mode, kQuantised>;
}

template <typename T, bool kQuantised>
Kernel fast_kernel(Task const& task) {
    constexpr Kernel (*of_mode[])(Choice const&) = {
        kernel_of_mode<T, Mode::kPlain, kQuantised>,
        kernel_of_mode<T, Mode::kSkip, kQuantised>,
        kernel_of_mode<T, Mode::kGated, kQuantised>,
        kernel_of_mode<T, Mode::kGateFirst, kQuantised>};
    return of_mode[static_cast<int>(task.mode)](task.choice);
}

// Whether every vector of every row is whole and aligned, and the fast kernels know the problem.
template <typename T>
bool vectorises(Task const& task) {
    constexpr int W = kWidth<T>;
    Pointers const& p = task.pointers;
    bool const quantised = task.problem.quantize != Quantize::kNone;
    auto const at = [](void const* tensor) { return reinterpret_cast<std::uintptr_t>(tensor); };
    return !task.problem.norm.stash_half && task.together == 1 && task.size % W == 0 &&
           (at(p.x) | at(p.other) | at(p.scale) | at(p.bias) | at(p.sum)) % 16 == 0 &&
           at(p.y) % (quantised ? W : 16) == 0;
}

template <typename T>
cudaError_t launch_typed(Task task, Device const& device, Tactic tactic, cudaStream_t stream) {
    Choice& choice = task.choice;
    Kernel kernel = nullptr;
    if (vectorises<T>(task)) {
        int const inputs = task.mode == Mode::kPlain ? 1 : 2;
        choice = choose(task.size * std::int64_t{sizeof(T)}, inputs, device.sm,
                        tactic == Tactic::kLowLatency);
        bool const quantised = task.problem.quantize != Quantize::kNone;
        kernel = quantised ? fast_kernel<T, true>(task) : fast_kernel<T, false>(task);
    } else {
        int const threads = task.size < kLongBlock ? round_up(task.size, 32) : kLongBlock;
        choice = {Path::kLong, 0, threads, threads, 1, 0};
        kernel = task.problem.norm.stash_half ? row_long<T, T, 1, Mode::kAny, true>
                                              : row_long<T, float, 1, Mode::kAny, true>;
    }
    std::int64_t const of_block = std::int64_t{task.together} * (choice.threads / choice.lanes);
    std::int64_t blocks = (task.segments + of_block - 1) / of_block;
    std::int64_t most = 0x7fffffff / choice.cluster;
    if (choice.lanes < choice.threads) {
        // Short rows: as many blocks as can run at once, each for many rows. Starting a block costs
        // about as much as its few kilobytes do.
        most = std::int64_t{device.processors} * (2048 / choice.threads);
    }
    blocks = (blocks < most ? blocks : most) * choice.cluster;
    return enqueue(kernel, task, blocks, stream);
}

}  // namespace rmsnorm_export
