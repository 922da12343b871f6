// Tensors of the test driver in the memory of a GPU; plugins/tests/ptx/driver_memory.h is the same
// for the interpreter.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <vector>

#include "../ptx/guarded.h"
#include "../ptx/settings.h"

// The architecture is that of the GPU, and warps run as they do: what a job says of it is not used.
using ptx::launched;
using ptx::Launched;
using ptx::settings;

// The linker leads the kernels' calls here (--wrap), which note what was asked and answered.
inline cudaError_t note(cudaError_t status, int const& at_once) {
    ++launched.queries;
    launched.at_once = static_cast<unsigned>(at_once);
    return status;
}

extern "C" {

cudaError_t __real_cudaLaunchKernelExC(cudaLaunchConfig_t const*, void const*, void**);
cudaError_t __real_cudaOccupancyMaxActiveClusters(int*, void const*, cudaLaunchConfig_t const*);
cudaError_t __real_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, void const*, int,
                                                                 std::size_t);

cudaError_t __wrap_cudaOccupancyMaxActiveClusters(int* clusters, void const* kernel,
                                                  cudaLaunchConfig_t const* config) {
    return note(__real_cudaOccupancyMaxActiveClusters(clusters, kernel, config), *clusters);
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const* kernel,
                                                                 int threads, std::size_t shared) {
    auto const ask = __real_cudaOccupancyMaxActiveBlocksPerMultiprocessor;
    return note(ask(blocks, kernel, threads, shared), *blocks);
}

cudaError_t __wrap_cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* kernel,
                                       void** arguments) {
    launched.blocks = config->gridDim.x;
    launched.threads = config->blockDim.x;
    launched.cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        cudaLaunchAttribute const& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension) {
            launched.cluster = attribute.val.clusterDim.x;
        }
    }
#if CUDART_VERSION >= 12030
    cudaFuncGetName(&launched.kernel, kernel);
#endif
    return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

}  // extern "C"

inline void need(cudaError_t status, char const* what) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        std::exit(3);
    }
}

// That of the runtime is 0; others are made when they are asked for.
inline void enter_context(int which) {
    static std::vector<void*> contexts;
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr || which < 0) return;
    auto const function = [&](char const* name) { return dlsym(library, name); };
    if (contexts.empty()) {
        need(cudaFree(nullptr), "the first context");
        contexts.emplace_back();
        reinterpret_cast<int (*)(void**)>(function("cuCtxGetCurrent"))(&contexts[0]);
    }
    for (auto const at = static_cast<std::size_t>(which); contexts.size() <= at;) {
        contexts.emplace_back();
        auto const create =
            reinterpret_cast<int (*)(void**, unsigned, int)>(function("cuCtxCreate_v2"));
        if (create(&contexts.back(), 0, 0) != 0) need(cudaErrorUnknown, "another context");
    }
    reinterpret_cast<int (*)(void*)>(function("cuCtxSetCurrent"))(
        contexts[static_cast<std::size_t>(which)]);
}

// On the GPU, with a copy on the host: written before a launch, read back after it.
class Tensor : public Guarded {
public:
    Tensor(std::size_t bytes, std::size_t offset) : Guarded(bytes, offset) {
        need(cudaMalloc(&device_, total_), "cudaMalloc");
    }
    ~Tensor() { cudaFree(device_); }

    unsigned char* address() const { return bytes_ > 0 ? device_ + before_ : nullptr; }
    void before_launch() const {
        need(cudaMemcpy(device_, all_, total_, cudaMemcpyHostToDevice), "copy in");
    }
    void after_launch() const {
        need(cudaMemcpy(all_, device_, total_, cudaMemcpyDeviceToHost), "copy out");
    }

private:
    unsigned char* device_{nullptr};
};

inline cudaError_t finish() { return cudaDeviceSynchronize(); }
