// A CUDA runtime that launches nothing and keeps what it was asked to launch: scripts/sass links the
// kernels with it, so that grids and parameters are those of the project's own host code.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "task.h"

namespace {

struct Kernel {
    std::string name;
    int registers{0};
};

std::map<void const*, Kernel>& kernels() {
    static auto* const found = new std::map<void const*, Kernel>;
    return *found;
}

constexpr int kArchitecture = 90, kProcessors = 132;
constexpr int kThreads = 2048, kBlocks = 32, kRegisters = 65536, kShared = 228 * 1024;

}  // namespace

// What a launch was; scripts/sass/launches.py has the same.
struct Launch {
    char const* kernel;
    unsigned blocks, threads, cluster, shared_bytes, early;
    unsigned char parameters[1024];
};
static Launch last{};

extern "C" {

Launch const* recorder_last() { return &last; }

// Where scripts/sass finds the rows of a launch in its parameters: bytes of a Task, and of fields.
int recorder_task_bytes() { return sizeof(rmsnorm_export::Task); }
int recorder_segments_offset() { return offsetof(rmsnorm_export::Task, segments); }
int recorder_lanes_offset() { return offsetof(rmsnorm_export::Task, choice.lanes); }
int recorder_rows_offset() { return offsetof(rmsnorm_export::Task, choice.rows); }

// How many registers a kernel takes, for the occupancy.
void recorder_registers(char const* name, int registers) {
    for (auto& [entry, kernel] : kernels()) {
        if (kernel.name == name) kernel.registers = registers;
    }
}

void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, char const* entry, char*, char const* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
    kernels()[entry].name = name;
}
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t cudaLaunchKernel(void const*, dim3, dim3, void**, std::size_t, cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, void const*) { return cudaErrorNotSupported; }

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = kArchitecture / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = kArchitecture % 10; break;
        case cudaDevAttrMultiProcessorCount: *value = kProcessors; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kShared - 1024; break;
        default: return cudaErrorNotSupported;
    }
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const*) {
    attributes->ptxVersion = kArchitecture;
    return cudaSuccess;
}
char const* cudaGetErrorString(cudaError_t) { return "recorded"; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const* entry,
                                                          int threads, std::size_t shared) {
    int const warps = threads / 32;
    int most = kThreads / threads < kBlocks ? kThreads / threads : kBlocks;
    int const of_warp = (kernels()[entry].registers * 32 + 255) / 256 * 256;
    if (of_warp > 0 && kRegisters / (of_warp * warps) < most) most = kRegisters / (of_warp * warps);
    int const by_shared = kShared / (static_cast<int>(shared) + 1024);
    *blocks = by_shared < most ? by_shared : most;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void const* entry,
                                           cudaLaunchConfig_t const* config) {
    cudaError_t const status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        clusters, entry, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes);
    *clusters = *clusters * kProcessors / static_cast<int>(config->gridDim.x);
    return status;
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* entry,
                                void** arguments) {
    last = {};
    last.kernel = kernels()[entry].name.c_str();
    last.blocks = config->gridDim.x;
    last.threads = config->blockDim.x;
    last.cluster = 1;
    last.shared_bytes = static_cast<unsigned>(config->dynamicSmemBytes);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        cudaLaunchAttribute const& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension) {
            last.cluster = attribute.val.clusterDim.x;
        }
        if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) last.early = 1;
    }
    static_assert(sizeof(rmsnorm_export::Task) <= sizeof(last.parameters));
    std::memcpy(last.parameters, arguments[0], sizeof(rmsnorm_export::Task));
    return cudaSuccess;
}

}  // extern "C"
