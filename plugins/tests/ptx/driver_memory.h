// Tensors of the test driver in the memory of the CPU, known to the interpreter;
// plugins/tests/gpu/driver_memory.h is the same for a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "machine.h"
#include "settings.h"

using ptx::launched;
using ptx::Launched;
using ptx::settings;

// Bytes between guards, `offset` bytes away from a 256-byte boundary.
class Tensor {
public:
    Tensor(std::size_t bytes, std::size_t offset) : bytes_(bytes), before_(kGuard + offset) {
        total_ = before_ + bytes + kGuard;
        all_ = static_cast<unsigned char*>(
            std::aligned_alloc(kGuard, (total_ + kGuard - 1) / kGuard * kGuard));
        std::memset(all_, kFill, total_);
    }
    ~Tensor() {
        ptx::tensors.erase(end());
        std::free(all_);
    }
    Tensor(Tensor const&) = delete;
    Tensor& operator=(Tensor const&) = delete;

    // For the job, and for the kernel.
    unsigned char* data() const { return bytes_ > 0 ? all_ + before_ : nullptr; }
    unsigned char* address() const { return data(); }
    std::size_t bytes() const { return bytes_; }

    void before_launch() const {
        if (bytes_ > 0) ptx::tensors[end()] = {end() - bytes_, std::vector<std::uint32_t>(bytes_)};
    }
    void after_launch() const {}

    bool guards_intact() const {
        for (std::size_t i = 0; i < total_; ++i) {
            bool const inside = i >= before_ && i < before_ + bytes_;
            if (!inside && all_[i] != kFill) return false;
        }
        return true;
    }

private:
    static constexpr std::size_t kGuard = 256;
    static constexpr unsigned char kFill = 0xa5;

    ptx::Address end() const { return reinterpret_cast<ptx::Address>(all_ + before_ + bytes_); }

    std::size_t bytes_;
    std::size_t before_;
    std::size_t total_{0};
    unsigned char* all_{nullptr};
};

inline void enter_context(int) {}  // the runtime knows the settings

inline cudaError_t finish() { return cudaSuccess; }
