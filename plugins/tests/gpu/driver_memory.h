// Tensors of the test driver in the memory of a GPU; plugins/tests/shim/driver_memory.h is the same
// for a CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// The architecture is that of the GPU: what a job says of it is not used.
struct Settings {
    int sm;
    int compiled_for;
    int most_cluster;
    bool backwards;
};
inline Settings settings{};

// How a kernel was launched is not known here.
struct Launched {
    unsigned blocks, threads, cluster, queries;
};
inline Launched launched{};

inline void need(cudaError_t status, char const* what) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        std::exit(3);
    }
}

// Bytes on the GPU between guards, `offset` bytes away from a 256-byte boundary, with a copy on the
// host: written before a launch, read back after it.
class Tensor {
public:
    Tensor(std::size_t bytes, std::size_t offset)
        : bytes_(bytes), before_(kGuard + offset), host_(before_ + bytes + kGuard, kFill) {
        need(cudaMalloc(&device_, host_.size()), "cudaMalloc");
    }
    ~Tensor() { cudaFree(device_); }
    Tensor(Tensor const&) = delete;
    Tensor& operator=(Tensor const&) = delete;

    // Of the copy, and of the tensor that the kernel gets.
    unsigned char* data() { return bytes_ > 0 ? host_.data() + before_ : nullptr; }
    unsigned char* address() const { return bytes_ > 0 ? device_ + before_ : nullptr; }
    std::size_t bytes() const { return bytes_; }

    void before_launch() {
        need(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), "copy in");
    }
    void after_launch() {
        need(cudaMemcpy(host_.data(), device_, host_.size(), cudaMemcpyDeviceToHost), "copy out");
    }
    bool guards_intact() const {
        for (std::size_t i = 0; i < host_.size(); ++i) {
            bool const inside = i >= before_ && i < before_ + bytes_;
            if (!inside && host_[i] != kFill) return false;
        }
        return true;
    }

private:
    static constexpr std::size_t kGuard = 256;
    static constexpr unsigned char kFill = 0xa5;

    std::size_t bytes_;
    std::size_t before_;
    std::vector<unsigned char> host_;
    unsigned char* device_{nullptr};
};

inline cudaError_t finish() { return cudaDeviceSynchronize(); }
