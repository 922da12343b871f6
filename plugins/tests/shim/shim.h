// CUDA's device language for g++, as far as plugins/kernels uses it. A thread of a block is a fibre:
// it runs until it waits for others, at a barrier or a shuffle, and all of them run on one thread of
// the CPU. That shows arithmetic, indexing, bounds and missing barriers that the order of the fibres
// exposes; it shows no other race, and nothing about speed.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef __launch_bounds__
#undef __grid_constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__

// Those of the fibre that runs; the scheduler sets them.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace shim {

void sync_block();
std::uint32_t exchange(std::uint32_t value, int partner_mask);
unsigned char* shared_bytes();
unsigned cluster_rank();
void sync_cluster();
void open_box(void* box);
void expect_words(void* box, int words);
void* place_of(void* own, unsigned rank);  // in another block of the cluster
void word_came(void* box);
void wait_for_box(void* box, unsigned parity);

}  // namespace shim

inline void __syncthreads() { shim::sync_block(); }

template <typename V>
V __shfl_xor_sync(unsigned, V value, int mask) {
    static_assert(sizeof(V) == 4);
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    word = shim::exchange(word, mask);
    std::memcpy(&value, &word, 4);
    return value;
}

template <typename V>
V __ldcs(V const* from) {
    return *from;
}

template <typename V>
void __stwb(V* to, V value) {
    *to = value;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
// A GPU's errs by up to 2 ulp; this one always does.
inline float __fdividef(float a, float b) {
    return std::nextafter(std::nextafter(a / b, 0.0F), 0.0F);
}
inline float __frsqrt_rn(float a) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a)));
}
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

inline int __float2int_rn(float value) {
    if (std::isnan(value)) return 0;
    if (value >= 0x1p31F) return INT32_MAX;
    if (value <= -0x1p31F) return INT32_MIN;
    return static_cast<int>(std::nearbyint(value));
}

inline float __uint_as_float(unsigned word) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

inline unsigned __float_as_uint(float value) {
    unsigned word;
    std::memcpy(&word, &value, 4);
    return word;
}

namespace rmsnorm_export {

inline void compute_again(int&) {}
inline void compute_again(std::int64_t&) {}
inline void stay_packed(uint4&) {}
inline void loads_before() {}
// A GPU's err by up to 2 ulp; these always do.
inline float exp2_fast(float z) {
    return std::nextafter(std::nextafter(std::exp2(z), 0.0F), 0.0F);
}
inline float reciprocal_fast(float a) {
    return std::nextafter(std::nextafter(1.0F / a, 0.0F), 0.0F);
}
template <typename T>
unsigned greater_magnitude(unsigned a, unsigned b) {
    if (sizeof(T) == 4) return std::max(a & 0x7fffffffU, b & 0x7fffffffU);
    return std::max(a & 0x7fff0000U, b & 0x7fff0000U) | std::max(a & 0x7fffU, b & 0x7fffU);
}
inline unsigned saturated_bytes(int const (&whole)[4]) {
    unsigned packed = 0;
    for (int i = 3; i >= 0; --i) {
        packed = packed << 8 | (static_cast<unsigned>(std::clamp(whole[i], -128, 127)) & 0xff);
    }
    return packed;
}
template <typename V>
void store_if(bool there, V* to, V const& value) {
    if (there) *to = value;
}
template <typename V>
V load_if(bool there, V const* from) {
    return there ? *from : V{};
}
inline void after_predecessor() {}
inline void copy_later(uint4* to, uint4 const* from) { *to = *from; }
inline void copies_done() {}
inline void fetch_to_l2(void const*) {}

struct Mailbox {
    std::uint64_t state;
};
inline unsigned block_of_cluster() { return shim::cluster_rank(); }
inline void open(Mailbox* box) { shim::open_box(box); }
inline void mailboxes_open() {}
inline void mailboxes_are_open() { shim::sync_cluster(); }
inline void expect(Mailbox* box, int words) { shim::expect_words(box, words); }
inline void send(void* slot, Mailbox* box, unsigned word, unsigned block) {
    std::memcpy(shim::place_of(slot, block), &word, sizeof(word));
    shim::word_came(shim::place_of(box, block));
}
inline void wait_for_words(Mailbox* box, unsigned parity) { shim::wait_for_box(box, parity); }

inline uint4* shared_memory() { return reinterpret_cast<uint4*>(shim::shared_bytes()); }

}  // namespace rmsnorm_export
