// Tensors of the test driver in the memory of the CPU; plugins/tests/gpu/driver_memory.h is the same
// for a GPU.
#pragma once

#include <cstdlib>
#include <cstring>

#include "fibres.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

using shim::launched;
using shim::Launched;
using shim::settings;

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
        after_launch();
        std::free(all_);
    }
    Tensor(Tensor const&) = delete;
    Tensor& operator=(Tensor const&) = delete;

    // For the job, and for the kernel.
    unsigned char* data() const { return bytes_ > 0 ? all_ + before_ : nullptr; }
    unsigned char* address() const { return data(); }
    std::size_t bytes() const { return bytes_; }

    // From here on AddressSanitizer forbids the guards.
    void before_launch() const {
        ASAN_POISON_MEMORY_REGION(all_, before_);
        ASAN_POISON_MEMORY_REGION(all_ + before_ + bytes_, kGuard);
    }
    void after_launch() const { ASAN_UNPOISON_MEMORY_REGION(all_, total_); }

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

    std::size_t bytes_;
    std::size_t before_;
    std::size_t total_;
    unsigned char* all_;
};

inline cudaError_t finish() { return cudaSuccess; }
