// librmsnorm_tune.so, for `python -m bench.gpu tune`: the library for PyTorch, whose norms of bf16 are
// launched in the way that was chosen last.
#include "launch_typed.cuh"

namespace rmsnorm_export {

namespace {

struct Way {
    int vectors;  // of a thread
    int lanes;    // threads of a row, in a block
    int threads;  // of a block
    int cluster;  // blocks of a row
    int rounds;   // rows that each team of a block takes in turn
    int manner;   // bits, in the order of the parameters of Manner
};
thread_local Way way{};

template <int V, Mode mode, int... of>
Kernel in_manner(std::integer_sequence<int, of...>) {
    constexpr Kernel all[] = {
        row_hot<__nv_bfloat16, V, mode, Order::kNarrow, Quantize::kNone,
                Manner<(of & 1) != 0, (of & 2) != 0, (of & 4) != 0, (of & 8) != 0>>...};
    return all[way.manner];
}

template <Mode mode>
Kernel with_vectors() {
    std::make_integer_sequence<int, 16> const manners{};
    if (way.vectors == 1) return in_manner<1, mode>(manners);
    return way.vectors == 2 ? in_manner<2, mode>(manners) : in_manner<4, mode>(manners);
}

}  // namespace

template <>
cudaError_t launch_typed<__half>(Task, Device const&, cudaStream_t) {
    return cudaErrorNotSupported;
}
template <>
cudaError_t launch_typed<float>(Task, Device const&, cudaStream_t) {
    return cudaErrorNotSupported;
}
template <>
cudaError_t launch_typed<__nv_bfloat16>(Task task, Device const& device, cudaStream_t stream) {
    if (order_of<__nv_bfloat16>(task) != Order::kNarrow || !vectorises<__nv_bfloat16>(task)) {
        return cudaErrorNotSupported;
    }
    bool const skip = task.mode == Mode::kSkip;
    Kernel const kernel = skip ? with_vectors<Mode::kSkip>() : with_vectors<Mode::kPlain>();
    task.choice = {Path::kHot, way.vectors, way.lanes, way.threads, way.cluster, 0};
    std::int64_t most = 0;
    cudaError_t const status = at_once(kernel, task.choice, device, most);
    if (status != cudaSuccess) return status;
    if (most == 0) return cudaErrorInvalidClusterSize;
    std::int64_t const of_block = way.threads / way.lanes * std::int64_t{way.rounds};
    return enqueue(kernel, task, (task.segments + of_block - 1) / of_block, device, stream);
}

}  // namespace rmsnorm_export

extern "C" __attribute__((visibility("default"))) void rmsnorm_tune(int const* numbers) {
    std::memcpy(&rmsnorm_export::way, numbers, sizeof rmsnorm_export::way);
}
