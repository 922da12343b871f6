// From a problem to a launched kernel, for one T.
#pragma once

#include "launch_rotary.cuh"
#include "row_hot.cuh"
#include "row_long.cuh"

namespace rmsnorm_export {

// Above these a kernel has to ask for its shared memory, and for its cluster.
constexpr int kSharedByDefault = 48 * 1024;
constexpr int kPortableCluster = 8;

constexpr int shared_bytes_of(Choice const& choice) {
    return kReductionBytes + choice.staged * kVectorBytes;
}

// A launch, still without blocks. `early`: it may begin before its predecessor has ended.
struct Configuration {
    cudaLaunchAttribute attributes[2]{};
    cudaLaunchConfig_t config{};

    Configuration(Choice const& choice, bool early) {
        config.blockDim = dim3(static_cast<unsigned>(choice.threads));
        config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes_of(choice));
        config.attrs = attributes;
        if (choice.cluster > 1) {
            cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
            cluster.id = cudaLaunchAttributeClusterDimension;
            cluster.val.clusterDim = {static_cast<unsigned>(choice.cluster), 1, 1};
        }
        if (early) {
            cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
            overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            overlap.val.programmaticStreamSerializationAllowed = 1;
        }
    }
    Configuration(Configuration const&) = delete;
    Configuration& operator=(Configuration const&) = delete;
};

// Whether a launch may overlap its predecessor, in a graph as well: from driver 12.3 on.
inline bool may_overlap(int sm) {
    static bool const known = [] {
        int version = 0;
        return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
    }();
    return known && sm >= 90;
}

// Lets the kernel have its shared memory and its cluster, on the current device.
inline cudaError_t allow(Kernel kernel, Choice const& choice, Device const& device) {
    cudaError_t status = cudaSuccess;
    auto const set = [&](bool needed, cudaFuncAttribute attribute, int value) {
        if (!needed || status != cudaSuccess) return;
        status = cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), attribute, value);
    };
    // Else an SM may keep the division of a kernel before it, with room for one block.
    set(choice.staged > 0, cudaFuncAttributePreferredSharedMemoryCarveout,
        cudaSharedmemCarveoutMaxShared);
    // For all launches to come, those of other lengths among them.
    set(shared_bytes_of(choice) > kSharedByDefault, cudaFuncAttributeMaxDynamicSharedMemorySize,
        device.shared);
    set(choice.cluster > kPortableCluster, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return status;
}

// What a thread has found for a kernel on a device.
struct AtOnce {
    Kernel kernel{nullptr};
    int device{0};
    Choice choice{};
    std::int64_t most{0};
};
constexpr std::size_t kKnown = 64;
inline thread_local AtOnce known[kKnown];

// The blocks, or clusters, that the device runs at once; 0 when it has no room for a cluster. The
// runtime is asked once for each length of a row, as a rule: a launch takes microseconds.
inline cudaError_t at_once(Kernel kernel, Choice const& choice, Device const& device,
                           std::int64_t& most) {
    void const* const entry = reinterpret_cast<void const*>(kernel);
    std::size_t const place = reinterpret_cast<std::uintptr_t>(entry) / 16 +
                              static_cast<std::size_t>(choice.threads / 32 * 5 + choice.cluster);
    AtOnce& before = known[place % kKnown];
    if (before.kernel == kernel && before.device == device.id &&
        before.choice.threads == choice.threads && before.choice.cluster == choice.cluster &&
        before.choice.staged == choice.staged) {
        most = before.most;
        return cudaSuccess;
    }
    cudaError_t status = allow(kernel, choice, device);
    int found = 0;
    if (status == cudaSuccess && choice.cluster > 1) {
        Configuration launch{choice, false};
        launch.config.gridDim = dim3(static_cast<unsigned>(choice.cluster));
        status = cudaOccupancyMaxActiveClusters(&found, entry, &launch.config);
        if (status == cudaErrorInvalidClusterSize) {  // of a part of a GPU that can never place it
            status = cudaSuccess;
            found = 0;
        }
    } else if (status == cudaSuccess) {
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &found, entry, choice.threads, static_cast<std::size_t>(shared_bytes_of(choice)));
        found = (found > 0 ? found : 1) * device.processors;
    }
    most = found;
    if (status == cudaSuccess) before = {kernel, device.id, choice, most};
    return status;
}

template <typename T, bool kQuantised>
Kernel long_kernel(Mode mode) {
    constexpr int W = kWidth<T>;
    constexpr Kernel of_mode[] = {row_long<T, float, W, Mode::kPlain, kQuantised>,
                                  row_long<T, float, W, Mode::kSkip, kQuantised>,
                                  row_long<T, float, W, Mode::kGated, kQuantised>,
                                  row_long<T, float, W, Mode::kGateFirst, kQuantised>};
    return of_mode[static_cast<int>(mode)];
}

// The order of the roundings, when a kernel was compiled for it.
template <typename T>
Order order_of(Task const& task) {
    Problem const& problem = task.problem;
    // All attributes are named: what is added to them does not compile until it is said here whether
    // these kernels compute it.
    auto const& [kind, epsilon, wide, scale_offset, outside, partial, group, rstd, association, clamp,
                 activation, gate_first, rotary_dim, interleaved, stash_half] = problem.norm;
    bool const usual = problem.has_scale && problem.scale == problem.x && !problem.has_bias &&
                       task.limit == task.size && task.groups == 1 && !outside && !clamp && !rstd;
    bool const offset = scale_offset != 0.0F;
    if (!usual || (kHalf<T> && offset && !wide)) return Order::kOther;
    if (offset) return Order::kWideOffset;
    return wide ? Order::kWide : Order::kNarrow;
}

template <typename T, Mode mode, Order order, Quantize quantize>
Kernel hot_kernel_of(Choice const& choice) {
    return choice.vectors == 4 ? row_hot<T, 4, mode, order, quantize>
                               : row_hot<T, 2, mode, order, quantize>;
}

template <typename T, Mode mode, Order order>
Kernel hot_kernel_of(Choice const& choice, Quantize quantize) {
    switch (quantize) {
        case Quantize::kStatic: return hot_kernel_of<T, mode, order, Quantize::kStatic>(choice);
        case Quantize::kPerRow: return hot_kernel_of<T, mode, order, Quantize::kPerRow>(choice);
        default: return hot_kernel_of<T, mode, order, Quantize::kNone>(choice);
    }
}

// Null where none was compiled: gates by a sigmoid, with codes or in another order.
template <typename T, Order order>
Kernel hot_kernel(Task const& task) {
    Choice const& choice = task.choice;
    Quantize const quantize = task.problem.quantize;
    if (task.mode == Mode::kPlain) return hot_kernel_of<T, Mode::kPlain, order>(choice, quantize);
    if (task.mode == Mode::kSkip) return hot_kernel_of<T, Mode::kSkip, order>(choice, quantize);
    bool const silu = task.problem.norm.activation == Activation::kSilu;
    bool const fits = task.mode == Mode::kGated && silu && quantize == Quantize::kNone;
    if constexpr (kHalf<T> && order == Order::kNarrow) {
        if (fits) return hot_kernel_of<T, Mode::kGated, order, Quantize::kNone>(choice);
    }
    return nullptr;
}

template <typename T>
Kernel hot_kernel(Task const& task) {
    switch (order_of<T>(task)) {
        case Order::kNarrow: return hot_kernel<T, Order::kNarrow>(task);
        case Order::kWideOffset: return hot_kernel<T, Order::kWideOffset>(task);
        case Order::kWide:
            if constexpr (kHalf<T>) return hot_kernel<T, Order::kWide>(task);
            return nullptr;
        default: return nullptr;
    }
}

// Whether every vector of every row is whole and aligned, and the fast kernels know the problem.
template <typename T>
bool vectorises(Task const& task) {
    constexpr int W = kWidth<T>;
    Pointers const& p = task.pointers;
    bool const quantised = task.problem.quantize != Quantize::kNone;
    auto const at = [](void const* tensor) { return reinterpret_cast<std::uintptr_t>(tensor); };
    return !task.problem.norm.stash_half && task.together == 1 && task.size % W == 0 &&
           task.problem.inner == 1 &&
           (at(p.x) | at(p.other) | at(p.scale) | at(p.bias) | at(p.sum)) % 16 == 0 &&
           at(p.y) % (quantised ? W : 16) == 0;
}

// Null for a problem whose rows are no whole aligned vectors.
template <typename T>
Kernel vector_kernel(Task& task, Device const& device, int most_blocks) {
    int const inputs = task.mode == Mode::kPlain ? 1 : 2;
    std::int64_t const bytes = task.size * std::int64_t{sizeof(T)};
    bool const rotary = task.problem.norm.kind == Kind::kRotaryRMSNorm;
    if (rotary) return rotary_kernel<T>(task, order_of<T>(task), device);
    if (!vectorises<T>(task)) return nullptr;
    task.choice = choose_hot(bytes, most_blocks);
    Kernel const hot = task.choice.threads > 0 ? hot_kernel<T>(task) : nullptr;
    if (hot != nullptr) return hot;
    task.choice = choose(bytes, inputs, device.sm, most_blocks);
    bool const quantised = task.problem.quantize != Quantize::kNone;
    return quantised ? long_kernel<T, true>(task.mode) : long_kernel<T, false>(task.mode);
}

// Rows that each team of a block takes one after the other, at most: starting a block costs about as
// much as a short row, and fetches the scale. Not all that there are: blocks that are handed out as
// SMs become free were faster on an H200 (bench/results/gpu_kernels.md).
inline std::int64_t rounds_for(Choice const& choice, std::int64_t blocks, std::int64_t at_once) {
    std::int64_t const most = choice.lanes <= 32 ? 8 : 4;
    std::int64_t const half = (blocks + 2 * at_once - 1) / (2 * at_once);
    return half < most ? half : most;
}

inline cudaError_t enqueue(Kernel kernel, Task& task, std::int64_t blocks, Device const& device,
                           cudaStream_t stream) {
    Configuration launch{task.choice, may_overlap(device.sm)};
    launch.config.gridDim = dim3(static_cast<unsigned>(blocks * task.choice.cluster));
    launch.config.stream = stream;
    void* arguments[] = {&task};
    return cudaLaunchKernelExC(&launch.config, reinterpret_cast<void const*>(kernel), arguments);
}

template <typename T>
cudaError_t launch_once(Task task, Device const& device, cudaStream_t stream) {
    Choice const& choice = task.choice;
    Kernel kernel = nullptr;
    std::int64_t most = 0;  // blocks, or clusters, that run at once
    // A part of a GPU has no room for large clusters.
    for (int cluster = most_cluster(device.sm); most == 0; cluster = choice.cluster / 2) {
        kernel = vector_kernel<T>(task, device, cluster);
        if (kernel == nullptr) break;
        cudaError_t const status = at_once(kernel, choice, device, most);
        if (status != cudaSuccess) return status;
    }
    if (kernel == nullptr) {
        int const threads = task.size < kLongBlock ? round_up(task.size, 32) : kLongBlock;
        task.choice = {Path::kLong, 0, threads, threads, 1, 0};
        kernel = task.problem.norm.stash_half ? row_long<T, T, 1, Mode::kAny, true>
                                              : row_long<T, float, 1, Mode::kAny, true>;
    }
    std::int64_t const of_block = std::int64_t{task.together} * (choice.threads / choice.lanes);
    std::int64_t blocks = (task.segments + of_block - 1) / of_block;
    if (choice.path == Path::kHot || choice.lanes < choice.threads) {
        std::int64_t const rounds = rounds_for(choice, blocks, most);
        blocks = (blocks + rounds - 1) / rounds;
    } else if (blocks > 0x7fffffff / choice.cluster) {
        blocks = 0x7fffffff / choice.cluster;
    }
    return enqueue(kernel, task, blocks, device, stream);
}

template <typename T>
cudaError_t launch_typed(Task task, Device const& device, cudaStream_t stream) {
    cudaError_t const status = launch_once<T>(task, device, stream);
    if (status == cudaSuccess) return status;
    // Another context of the device, or that after a reset, does not know what was allowed.
    for (AtOnce& one : known) one = {};
    return launch_once<T>(task, device, stream);
}

}  // namespace rmsnorm_export
