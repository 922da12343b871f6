// Tensors of the test driver in the memory of the CPU, known to the interpreter;
// plugins/tests/gpu/driver_memory.h is the same for a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "guarded.h"
#include "machine.h"
#include "settings.h"

using ptx::launched;
using ptx::Launched;
using ptx::settings;

class Tensor : public Guarded {
public:
    using Guarded::Guarded;
    ~Tensor() { ptx::tensors.erase(end()); }

    unsigned char* address() const { return data(); }  // for the kernel
    void before_launch() const {
        if (bytes_ > 0) ptx::tensors[end()] = {end() - bytes_, std::vector<std::uint32_t>(bytes_)};
    }
    void after_launch() const {}

private:
    ptx::Address end() const { return reinterpret_cast<ptx::Address>(all_ + before_ + bytes_); }
};

inline void enter_context(int) {}  // the runtime knows the settings

inline cudaError_t finish() { return cudaSuccess; }
