#include "launch_typed.cuh"

namespace rmsnorm_export {

cudaError_t launch_f16(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream) {
    return launch_typed<__half>(task, device, tactic, stream);
}

}  // namespace rmsnorm_export
