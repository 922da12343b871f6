#include "launch_typed.cuh"

namespace rmsnorm_export {

cudaError_t launch_f32(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream) {
    return launch_typed<float>(task, device, tactic, stream);
}

}  // namespace rmsnorm_export
