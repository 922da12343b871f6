// The calls of the CUDA runtime that a launch makes, for a device whose kernels are interpreted: of
// the PTX that nvcc has put into the object files, that of the architecture. Compiled without
// sanitizers.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

#include "launch_table.h"
#include "machine.h"
#include "settings.h"

namespace ptx {

namespace {

constexpr int kProcessors = 1;
constexpr int kSharedByDefault = 48 * 1024;

// The PTX of a translation unit for an architecture; its kernels are read when they are launched.
struct Image {
    int sm;
    std::string_view text;
    std::map<std::string, Program> programs{};

    Program const* program(std::string const& name) {
        auto const known = programs.find(name);
        if (known != programs.end()) return &known->second;
        std::size_t const begin = text.find(".entry " + name + "(");
        if (begin == text.npos) return nullptr;
        std::size_t const end = std::min(text.find(".entry ", begin + 1), text.size());
        std::size_t const last = text.rfind("\n}", end);
        auto const entry = text.substr(begin + 7, last + 2 - begin - 7);
        return &programs.emplace(name, read_program(entry)).first->second;
    }
};

using Unit = std::vector<Image>;

struct Entry {
    Unit* unit;
    char const* name;
};

// Constructors of other files register their kernels before this file's variables would be there.
std::map<void const*, Entry>& entries() {
    static std::map<void const*, Entry> all;
    return all;
}

std::map<std::tuple<int, void const*, int>, int> attributes;  // of a function in a context
std::set<std::string> complaints;
std::string complaint;
std::mutex one_at_a_time;

int attribute_of(void const* function, cudaFuncAttribute attribute) {
    auto const at = attributes.find({settings.context, function, attribute});
    return at == attributes.end() ? 0 : at->second;
}

// A wrapper holds the address of a header of 16 bytes and then images: u16 kind (1: PTX), u16
// version, u32 bytes of their own header, u64 bytes of what follows it.
Unit* read_images(void const* wrapper) {
    auto const word = [](char const* at) {
        std::uint64_t value;
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    auto* const unit = new Unit;
    auto const* at = reinterpret_cast<char const*>(word(static_cast<char const*>(wrapper) + 8));
    char const* const end = at + 16 + word(at + 8);
    for (at += 16; at < end;) {
        std::uint64_t const header = word(at) >> 32, bytes = word(at + 8);
        if ((word(at) & 0xffff) == 1) {
            std::string_view const text(at + header, bytes);
            unit->push_back({std::atoi(&text[text.find(".target sm_") + 11]), text});
        }
        at += header + bytes;
    }
    return unit;
}

// Beside the stand-in for CUDA (tests/tools/cuda) a launch is one of its events.
void tell(char const* kernel, cudaStream_t stream) {
    static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    static void* const listens = library ? dlsym(library, "stand_in_launched") : nullptr;
    if (listens) reinterpret_cast<void (*)(char const*, void*)>(listens)(kernel, stream);
}

cudaError_t launch(cudaLaunchConfig_t const& config, void const* function, void** arguments) {
    unsigned cluster = 1;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        cudaLaunchAttribute const& attribute = config.attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension)
            cluster = attribute.val.clusterDim.x;
    }
    bool const many =
        cluster > 8 && !attribute_of(function, cudaFuncAttributeNonPortableClusterSizeAllowed);
    if (many) return cudaErrorInvalidClusterSize;
    int const asked = attribute_of(function, cudaFuncAttributeMaxDynamicSharedMemorySize);
    int const room = std::max(asked, kSharedByDefault);
    if (static_cast<int>(config.dynamicSmemBytes) > room) return cudaErrorInvalidValue;
    int const preferred = attribute_of(function, cudaFuncAttributePreferredSharedMemoryCarveout);
    // In another context nobody knows that it is missing: no launch fails for it.
    bool const known = settings.context == 0 && preferred != cudaSharedmemCarveoutMaxShared;
    if (config.dynamicSmemBytes > 4096 && known) {
        complaints.insert("an SM may have too little shared memory for its blocks");
    }
    if (config.gridDim.x == 0 || config.gridDim.x % cluster != 0)
        return cudaErrorInvalidConfiguration;
    auto const entry = entries().find(function);
    Image* image = nullptr;
    if (entry == entries().end()) return cudaErrorInvalidDeviceFunction;
    for (Image& one : *entry->second.unit) {
        bool const newer = image == nullptr || one.sm > image->sm;
        if (one.sm <= settings.compiled_for && newer) image = &one;
    }
    Program const* const program = image != nullptr ? image->program(entry->second.name) : nullptr;
    if (program == nullptr) return cudaErrorNoKernelImageForDevice;
    Launch const launch{program,          static_cast<unsigned char const*>(arguments[0]),
                        config.gridDim.x, config.blockDim.x,
                        cluster,          static_cast<unsigned>(config.dynamicSmemBytes),
                        image->sm >= 90,  settings.schedule};
    launched.blocks = config.gridDim.x;
    launched.threads = config.blockDim.x;
    launched.cluster = cluster;
    launched.kernel = program->name.c_str();
    tell(launched.kernel, config.stream);
    launched.instructions = run(launch, complaints);
    return complaints.empty() ? cudaSuccess : cudaErrorIllegalAddress;
}

}  // namespace

}  // namespace ptx

using ptx::launched;
using ptx::settings;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
    return reinterpret_cast<void**>(ptx::read_images(wrapper));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** unit, char const* function, char*, char const* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
    ptx::entries()[function] = {reinterpret_cast<ptx::Unit*>(unit), name};
}
// Of launches by <<<>>>, which there are none of.
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(void const*, dim3, dim3, void**, std::size_t, cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, void const*) { return cudaErrorNotSupported; }
char __cudaInitModule(void**) { return 0; }

// What was found out about a device is kept, so other settings are another device.
cudaError_t cudaGetDevice(int* device) {
    *device = settings.sm + 1000 * (settings.compiled_for + 1000 * settings.most_cluster);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    ++launched.queries;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = settings.sm / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = settings.sm % 10; break;
        case cudaDevAttrMultiProcessorCount: *value = ptx::kProcessors; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(rmsnorm_export::most_shared(settings.sm));
            break;
        default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const*, int threads,
                                                          std::size_t shared) {
    ++launched.queries;
    // The system keeps a kilobyte of each block.
    auto const room = static_cast<std::size_t>(rmsnorm_export::most_shared(settings.sm)) + 1024;
    *blocks = std::min(2048 / threads, static_cast<int>(room / (shared + 1024)));
    launched.at_once = static_cast<unsigned>(*blocks);
    return cudaSuccess;
}

// Of a config whose grid is one cluster. What is larger than the portable size and has no room at
// all is an error on some GPUs.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void const* entry,
                                           cudaLaunchConfig_t const* config) {
    int const wanted = static_cast<int>(config->gridDim.x);
    cudaError_t const status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        clusters, entry, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes);
    if (wanted > 8 && wanted > settings.most_cluster) return cudaErrorInvalidClusterSize;
    *clusters = wanted <= settings.most_cluster ? *clusters * ptx::kProcessors / wanted : 0;
    launched.at_once = static_cast<unsigned>(*clusters);
    return status;
}

char const* cudaGetErrorString(cudaError_t status) {
    if (status != cudaErrorIllegalAddress) return "refused by the interpreter";
    ptx::complaint = *ptx::complaints.begin();
    ptx::complaints.clear();
    return ptx::complaint.c_str();
}

cudaError_t cudaFuncSetAttribute(void const* function, cudaFuncAttribute attribute, int value) {
    ++launched.queries;
    ptx::attributes[{settings.context, function, attribute}] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const*) {
    ++launched.queries;
    attributes->ptxVersion = settings.compiled_for;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* function,
                                void** arguments) {
    std::lock_guard const alone(ptx::one_at_a_time);
    try {
        return ptx::launch(*config, function, arguments);
    } catch (std::exception const& error) {
        ptx::complaints.insert(error.what());
        return cudaErrorIllegalAddress;
    }
}

}  // extern "C"
