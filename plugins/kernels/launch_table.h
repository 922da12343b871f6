// Which kernel a problem gets, with how many threads: a function of the bytes of a row, the inputs
// and the architecture. Never of the number of rows: what a row sums to depends on the number of
// threads that share it.
//
// Plain C++, so that it can be read and tested without CUDA.
#pragma once

#include <cstdint>

namespace rmsnorm_export {

enum class Path : std::int32_t { kHot, kLong, kRotary };

struct Choice {
    Path path;
    int vectors;  // 16-byte vectors of a thread: 2 or 4 (kHot)
    int lanes;    // threads of a segment, in a block
    int threads;  // of a block
    int cluster;  // blocks of a segment
    int staged;   // vectors of x that a block keeps in shared memory (kLong)
    int rows{1};  // that the threads of a segment take at once, at most (kRotary)
};

constexpr std::int64_t kKilobyte = 1024;
constexpr int kVectorBytes = 16;

// Up to here a row of row_long.cuh, with all inputs, has no more threads than it has vectors for, and
// shares its block with others.
constexpr std::int64_t kShortBytes = 32 * kKilobyte;

// Segments of up to a warp share a block of this size: small enough that 16 of them fill an SM.
constexpr int kShortBlock = 128;

// Threads of a long row, in each block; row_long.cuh says why.
constexpr int kLongBlock = 512;

// Blocks of a cluster that a whole device with clusters places; one that cannot is asked for less.
// More than eight a kernel has to be allowed.
constexpr int kMostCluster = 16;

// The slice at which a cluster stops growing, and the longest row that is not cut.
constexpr std::int64_t kSlice = 8 * kKilobyte;
constexpr std::int64_t kWholeBytes = 16 * kKilobyte;

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

// Threads of the largest block of row_hot.cuh, and vectors of each. Short rows take two, so that more
// threads share their loads, and a warp asks for whole lines.
constexpr int kHotThreads = 512;
constexpr std::int64_t kTwoVectorBytes = 4 * kKilobyte;
constexpr int vectors_for(std::int64_t segment_bytes) {
    return segment_bytes <= kTwoVectorBytes ? 2 : 4;
}

// The blocks of a cluster, up to `most`, whose slices are no longer than kSlice where that goes.
constexpr int cluster_for(std::int64_t segment_bytes, int most) {
    int cluster = 1;
    if (segment_bytes <= kWholeBytes) return cluster;
    while (cluster < most && segment_bytes > cluster * kSlice) cluster *= 2;
    return cluster;
}

// For the kernels of the usual norms (row_hot.cuh); no threads for rows that are too long for them.
// `most`: blocks that the device places in a cluster.
constexpr Choice choose_hot(std::int64_t segment_bytes, int most) {
    int const cluster = cluster_for(segment_bytes, most);
    std::int64_t const vectors = (segment_bytes / kVectorBytes + cluster - 1) / cluster;
    int const per_thread = vectors_for(segment_bytes);
    int const lanes = lanes_for(vectors, per_thread);
    int const threads = lanes <= 32 ? kShortBlock : lanes;
    if (threads > kHotThreads) return {Path::kHot, 0, 0, 0, 0, 0};
    return {Path::kHot, per_thread, lanes, threads, cluster, 0};
}

// Rows with the same angles that a team takes at once where there are so many for each SM: cos and
// sin are fetched for all of them, and with eight vectors of x 64 KB are under way on an SM. Of fewer
// a team takes one, so that no row waits for another; each sums to the same.
constexpr int kRotaryRows = 4;
constexpr std::int64_t kManyRows = 256;

// For the kernels of row_rotary.cuh; no threads for rows of more than two vectors a thread of a warp.
constexpr Choice choose_rotary(std::int64_t row_bytes, bool many) {
    if (row_bytes > 2 * 32 * kVectorBytes) return {Path::kRotary, 0, 0, 0, 0, 0};
    int const lanes = lanes_for(row_bytes / kVectorBytes, 2);
    return {Path::kRotary, 2, lanes, kShortBlock, 1, 0, many ? kRotaryRows : 1};
}

// For the kernels of every other norm (row_long.cuh). `segment_bytes`: of a row, or of a group, in T;
// a multiple of 16. `inputs`: 2 with a residual or a gate.
constexpr Choice choose(std::int64_t segment_bytes, int inputs, int sm, int most) {
    std::int64_t const vectors = segment_bytes / kVectorBytes;
    if (inputs * segment_bytes <= kShortBytes) {
        int const lanes = lanes_for(vectors, vectors_for(segment_bytes));
        int const threads = lanes <= 32 ? kShortBlock : lanes;
        return {Path::kLong, 0, lanes, threads, 1, static_cast<int>(vectors * (threads / lanes))};
    }
    int const cluster = cluster_for(segment_bytes, most);
    std::int64_t const slice = (vectors + cluster - 1) / cluster;
    std::int64_t const room = (stage_bytes(sm) - kKilobyte) / kVectorBytes;
    return {Path::kLong, 0,       kLongBlock,
            kLongBlock,  cluster, static_cast<int>(slice < room ? slice : room)};
}

}  // namespace rmsnorm_export
