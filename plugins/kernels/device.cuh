// The instructions that CUDA's C++ has no word for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

namespace rmsnorm_export {

// Keeps the compiler from holding on to what was computed from a value, which takes registers: it
// is computed again from here on.
__device__ inline void compute_again(int& value) { asm volatile("" : "+r"(value)); }
__device__ inline void compute_again(std::int64_t& value) { asm volatile("" : "+l"(value)); }

// Keeps the compiler from holding on to the unpacked elements of a vector, where they would take
// twice the registers.
__device__ inline void stay_packed(uint4& vector) {
    asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
}

// 2 to the power of z, and 1 / a, to 2 ulp; denormal results are 0.
__device__ inline float exp2_fast(float z) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(z));
    return result;
}
__device__ inline float reciprocal_fast(float a) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}

// The greater magnitudes of the values in two words, a pair of a half type or a float; NaN is above
// all. Their signs say nothing.
template <typename T>
__device__ unsigned greater_magnitude(unsigned a, unsigned b) {
    unsigned greater;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    if constexpr (std::is_same_v<T, __half>) {
        asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
    } else {
        asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
    }
#else
    // As whole numbers they are in the same order.
    greater = std::is_same_v<T, float> ? max(a & 0x7fffffffU, b & 0x7fffffffU)
                                       : __vmaxu2(a & 0x7fff7fffU, b & 0x7fff7fffU);
#endif
    return greater;
}

// The low bytes of four integers, saturated to 8 bits, the first in the low byte.
__device__ inline unsigned saturated_bytes(int const (&whole)[4]) {
    unsigned packed;
    asm("{\n.reg .b32 high;\n"
        "cvt.pack.sat.s8.s32.b32 high, %4, %3, 0;\n"
        "cvt.pack.sat.s8.s32.b32 %0, %2, %1, high;\n}"
        : "=r"(packed)
        : "r"(whole[0]), "r"(whole[1]), "r"(whole[2]), "r"(whole[3]));
    return packed;
}

// 16 bytes, or zeros; no branch, so that many are asked for at once.
__device__ inline uint4 load_if(bool there, uint4 const* from) {
    uint4 vector{};
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %4, 0;\n"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
        : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w)
        : "r"(static_cast<int>(there)), "l"(from));
    return vector;
}

// Words of 4, 8 or 16 bytes; no branch either. Of 16 bytes, `streams`: they leave L2 first.
template <bool streams = false, typename V>
__device__ void store_if(bool there, V* to, V const& value) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
    unsigned words[sizeof(V) / 4];
    memcpy(words, &value, sizeof(V));
    int const p = there;
    if constexpr (sizeof(V) == 4) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.u32 [%1], %2;\n}" ::
                         "r"(p), "l"(to), "r"(words[0]) : "memory");
    } else if constexpr (sizeof(V) == 8) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v2.u32 [%1], {%2, %3};\n}" ::
                         "r"(p), "l"(to), "r"(words[0]), "r"(words[1]) : "memory");
    } else if constexpr (streams) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n"
                     "@p st.global.cs.v4.u32 [%1], {%2, %3, %4, %5};\n}" ::
                         "r"(p), "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n"
                     "@p st.global.v4.u32 [%1], {%2, %3, %4, %5};\n}" ::
                         "r"(p), "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
    }
}

// Of a kernel that may begin before the one in front of it in the stream has ended (programmatic
// dependent launch): waits for that, and `triggers` lets the next one begin before this one's end.
// Else it does nothing.
__device__ inline void after_predecessor([[maybe_unused]] bool triggers = true) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (triggers) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Brings the line of an address into L2; what another kernel writes there later is seen all the
// same.
__device__ inline void fetch_to_l2(void const* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// A word from every block of a cluster to every other, without the fence of all memory that a
// barrier of the cluster has: bytes that arrive are counted in the shared memory of their receiver.
struct Mailbox {
    unsigned long long state;
};

__device__ inline unsigned shared_address(void const* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
__device__ inline unsigned block_of_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Of one thread, before all threads of the block say so, and wait for those of the others.
__device__ inline void open(Mailbox* box) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(box)) : "memory");
}
__device__ inline void mailboxes_open() {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::
                     : "memory");
}
__device__ inline void mailboxes_are_open() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// By one thread a round: so many words are going to come.
__device__ inline void expect(Mailbox* box, int words) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(box)),
                 "r"(4 * words)
                 : "memory");
}

// Writes to the slot and the mailbox that lie there in the memory of another block.
__device__ inline void send(void* slot, Mailbox* box, unsigned word, unsigned block) {
    asm volatile(
        "{\n.reg .b32 slot, box;\n"
        "mapa.shared::cluster.u32 slot, %0, %3;\n"
        "mapa.shared::cluster.u32 box, %1, %3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [slot], %2, [box];\n}" ::"r"(
            shared_address(slot)),
        "r"(shared_address(box)), "r"(word), "r"(block)
        : "memory");
}

// `parity` alternates from round to round, from 0 on.
__device__ inline void wait_for_words(Mailbox* box, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(done)
            : "r"(shared_address(box)), "r"(parity)
            : "memory");
    } while (done == 0);
}

// Of a power of two.
__device__ inline int log2_of(int power) { return 31 - __clz(power); }

// The block's shared memory. All of it is dynamic: the kernels divide it themselves.
__device__ inline uint4* shared_memory() {
    extern __shared__ uint4 shared_bytes[];
    return shared_bytes;
}

}  // namespace rmsnorm_export
