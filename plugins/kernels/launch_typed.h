// The three launchers, one per type of x and translation unit, so that they build at the same time.
#pragma once

#include "task.h"

namespace rmsnorm_export {

// The device that is current.
struct Device {
    int sm{0};
    int processors{0};
};

cudaError_t launch_f32(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream);
cudaError_t launch_f16(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream);
cudaError_t launch_bf16(Task const& task, Device const& device, Tactic tactic, cudaStream_t stream);

}  // namespace rmsnorm_export
