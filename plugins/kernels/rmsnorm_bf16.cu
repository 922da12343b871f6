#include "launch_typed.cuh"

namespace rmsnorm_export {

cudaError_t launch_bf16(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream) {
    return launch_typed<__nv_bfloat16>(task, device, tactic, stream);
}

}  // namespace rmsnorm_export
