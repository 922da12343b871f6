// Which kernel a problem gets, with how many threads: a function of the bytes of a row, the inputs,
// the architecture and the tactic. Never of the number of rows: what a row sums to depends on the
// number of threads that share it.
//
// Plain C++, so that it can be read and tested without CUDA.
#pragma once

#include <cstdint>

namespace rmsnorm_export {

enum class Path : std::int32_t { kHot, kWarp, kRegisters, kLong, kRotary };

struct Choice {
    Path path;
    int vectors;  // 16-byte vectors of a thread: 4 or 8 (kHot), 2, 4 or 8 (kRegisters)
    int lanes;    // threads of a segment, in a block
    int threads;  // of a block
    int cluster;  // blocks of a segment
    int staged;   // vectors that a block keeps in shared memory: of x (kLong), of the scale and the
                  // second input (kHot), of all three (kWarp)
    int rows{1};  // that the threads of a segment take at once, at most (kRotary)
    bool wide{};  // whether two neighbouring vectors may be one access (kHot)
};

constexpr std::int64_t kKilobyte = 1024;
constexpr int kVectorBytes = 16;

// Up to here all inputs of a row stay in registers. More would leave one block on an SM, and nobody
// to load a row while another is being summed.
constexpr std::int64_t kRegisterBytes = 32 * kKilobyte;

// Segments of up to a warp share a block of this size: small enough that 16 of them fill an SM.
constexpr int kShortBlock = 128;

// Threads of a long row, in each block; row_long.cuh says why.
constexpr int kLongBlock = 512;

// Blocks of a cluster that a whole device with clusters places; one that cannot is asked for less.
// More than eight a kernel has to be allowed.
constexpr int kMostCluster = 16;

// The slice at which a cluster stops growing. For throughput, seven of them fit the shared memory
// of an SM; for latency, it is one load per thread.
constexpr std::int64_t kSlice = 32 * kKilobyte;
constexpr std::int64_t kLatencySlice = std::int64_t{kLongBlock} * kVectorBytes;

constexpr bool has_clusters(int sm) { return sm >= 90 && sm < 120; }
constexpr int most_cluster(int sm) { return has_clusters(sm) ? kMostCluster : 1; }

// Shared memory that a block may ask for.
constexpr std::int64_t most_shared(int sm) {
    if (has_clusters(sm)) return 227 * kKilobyte;
    if (sm == 80 || sm == 87) return 163 * kKilobyte;
    return (sm < 80 ? 64 : 99) * kKilobyte;
}

// Half the shared memory of an SM, less the kilobyte that the system keeps of each block: two
// blocks fit, so that one loads while the other sums. (CUDA C++ Programming Guide, compute
// capabilities.)
constexpr std::int64_t stage_bytes(int sm) {
    bool const large = has_clusters(sm);                  // 228 KB
    bool const medium = (sm == 80 || sm == 87);          // 164 KB
    return (large ? 112 : medium ? 80 : 48) * kKilobyte;  // 100 KB: 86, 89, 120
}

// Accesses of 32 bytes. (PTX ISA 8.8, ld and st)
constexpr bool has_wide_accesses(int sm) { return sm >= 100; }

constexpr int round_up(std::int64_t value, int multiple) {
    return static_cast<int>((value + multiple - 1) / multiple * multiple);
}

// Threads of a segment: within a warp a power of two, for the shuffles; beyond, whole warps.
constexpr int lanes_for(std::int64_t vectors, int per_thread) {
    std::int64_t const needed = (vectors + per_thread - 1) / per_thread;
    int power = 1;
    while (power < needed && power < 32) power *= 2;
    return needed <= 32 ? power : round_up(needed, 32);
}

// Vectors from one thread's part of shared memory to the next one's: eight, and one that is left
// free, so that neighbours read from different banks.
constexpr int kStagePitch = 9;

// Threads of the largest block of row_hot.cuh; with eight vectors each they hold so much of a row.
constexpr int kHotThreads = 512;
constexpr std::int64_t kHotSlice = std::int64_t{8} * kVectorBytes * kHotThreads;

// The blocks of a cluster, up to `most`, of slices that are no longer than `slice` where that goes.
constexpr int cluster_for(std::int64_t segment_bytes, std::int64_t slice, int most) {
    int cluster = 1;
    while (cluster < most && segment_bytes > cluster * slice) cluster *= 2;
    return cluster;
}

// For the kernels of the usual norms (row_hot.cuh); no threads for rows that are too long for them.
// `most`: blocks that the device places in a cluster.
constexpr Choice choose_hot(std::int64_t segment_bytes, int inputs, int sm, int most,
                            bool low_latency) {
    // Slices of 128 threads: eight blocks to an SM, some of which load while others sum.
    std::int64_t const slice = low_latency ? kLatencySlice : kHotSlice / 4;
    std::int64_t const longest = low_latency ? kHotSlice / 2 : slice;  // of a row that is not cut
    int const cluster = segment_bytes > longest ? cluster_for(segment_bytes, slice, most) : 1;
    std::int64_t const vectors = (segment_bytes / kVectorBytes + cluster - 1) / cluster;
    // Eight vectors share the sum and its barrier among twice as many elements as four. Short rows
    // take four so that a warp asks for whole sectors, and writes whole ones of codes; and for few
    // rows more threads have fewer loads each.
    bool const many = low_latency ? segment_bytes > kHotSlice / 2 : segment_bytes >= kKilobyte / 2;
    int const per_thread = many ? 8 : 4;
    int const lanes = lanes_for(vectors, per_thread);
    int const threads = lanes <= 32 ? kShortBlock : lanes;
    int const staged = per_thread == 8 ? inputs * kStagePitch * threads : 0;
    bool const fits = threads <= kHotThreads && kKilobyte + staged * kVectorBytes <= most_shared(sm);
    if (!fits) return {Path::kHot, 0, 0, 0, 0, 0};
    return {Path::kHot, per_thread, lanes, threads, cluster, staged};
}

// Threads of the largest block of row_warp.cuh, two of which fit an SM.
constexpr int kWarpRowThreads = 384;
constexpr std::int64_t kLeastWarpRow = 4 * kKilobyte;  // shorter rows a warp has in its registers
constexpr std::int64_t kMostWarpRow = 32 * kKilobyte;

// For the kernels of row_warp.cuh: a warp for each row, in half the shared memory of an SM, or in all
// of it, with the scale. No threads where an SM would have fewer than six, or eight of a block.
constexpr Choice choose_warp(std::int64_t row_bytes, int inputs, int sm) {
    bool const two = row_bytes <= kMostWarpRow / 2;
    std::int64_t const room = two ? stage_bytes(sm) : most_shared(sm) - kKilobyte;
    std::int64_t const warps = (room - row_bytes) / (inputs * row_bytes);
    bool const fits = row_bytes > kLeastWarpRow && row_bytes <= kMostWarpRow;
    if (sm < 80 || !fits || warps < (two ? 3 : 8)) return {Path::kWarp, 0, 0, 0, 0, 0};
    int const threads = warps < kWarpRowThreads / 32 ? static_cast<int>(32 * warps) : kWarpRowThreads;
    std::int64_t const vectors = row_bytes / kVectorBytes * (1 + inputs * (threads / 32));
    return {Path::kWarp, 0, 32, threads, 1, static_cast<int>(vectors)};
}

// Rows with the same angles that a team takes at once: cos and sin are fetched for all of them, and
// with eight vectors of x 64 KB are under way on an SM. For few rows, one: no row waits for another.
constexpr int kRotaryRows = 4;

// For the kernels of row_rotary.cuh; no threads for rows of more than two vectors a thread of a warp.
constexpr Choice choose_rotary(std::int64_t row_bytes, bool low_latency) {
    if (row_bytes > 2 * 32 * kVectorBytes) return {Path::kRotary, 0, 0, 0, 0, 0};
    int const lanes = lanes_for(row_bytes / kVectorBytes, 2);
    return {Path::kRotary, 2, lanes, kShortBlock, 1, 0, low_latency ? 1 : kRotaryRows};
}

// `segment_bytes`: of a row, or of a group, in T; a multiple of 16. `inputs`: 2 with a residual or
// a gate, whose vectors need registers of their own.
constexpr Choice choose(std::int64_t segment_bytes, int inputs, int sm, int most,
                        bool low_latency) {
    std::int64_t const vectors = segment_bytes / kVectorBytes;
    if (inputs * segment_bytes > kRegisterBytes) {
        int const cluster =
            cluster_for(segment_bytes, low_latency ? kLatencySlice : kSlice, most);
        std::int64_t const slice = (vectors + cluster - 1) / cluster;
        std::int64_t const room = (stage_bytes(sm) - kKilobyte) / kVectorBytes;
        return {Path::kLong, 0,       kLongBlock,
                kLongBlock,  cluster, static_cast<int>(slice < room ? slice : room)};
    }
    int per_thread = 0;
    if (low_latency) {
        // One load per thread and the shortest sum, as far as a block of 512 goes.
        per_thread = vectors <= 512 ? 1 : 4;
    } else if (segment_bytes <= kKilobyte) {
        per_thread = 2;  // few registers, many warps; 32 lanes at 1 KB
    } else if (segment_bytes <= 16 * kKilobyte) {
        per_thread = 4;  // 64 bytes in flight per thread and input; a warp a row at 2 KB
    } else {
        per_thread = 8;  // 256 threads at 32 KB, so two or three blocks to an SM
    }
    int const lanes = lanes_for(vectors, per_thread);
    int const threads = lanes <= 32 ? kShortBlock : lanes;
    return {Path::kRegisters, per_thread < 2 ? 2 : per_thread, lanes, threads, 1, 0};
}

}  // namespace rmsnorm_export
