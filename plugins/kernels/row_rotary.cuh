// The norm of each head and the rotary embedding behind it, for rows of up to a kilobyte. A thread
// has two vectors of a row, so chosen that it holds both elements of every pair that it turns. The
// threads of a row take several rows with the same angles at once, for which they fetch cos and sin
// once: in a model all heads of a token share them.
#pragma once

#include "row_hot.cuh"
#include "segment.cuh"

namespace rmsnorm_export {

// W entries of a table, for the elements of a vector of T: packed where they are multiplied packed.
template <typename T, typename C>
using Angles = std::conditional_t<kHalf<C>, uint4, Floats<kWidth<T>>>;

// `doubled`: each entry is for two neighbours.
template <typename T, typename C>
__device__ Angles<T, C> load_angles(void const* table, std::int64_t index, bool doubled) {
    constexpr int W = kWidth<T>;
    if (doubled) {
        auto const from = reinterpret_cast<Packed<C, W / 2> const*>(
            static_cast<C const*>(table) + index);
        Packed<C, W / 2> const entries = *from;
        Packed<C, W> all;
#pragma unroll
        for (int i = 0; i < W; ++i) all.at[i] = entries.at[i / 2];
        return bits<Angles<T, C>>(all);
    }
    if constexpr (kHalf<C>) {
        return *raw<C, W>(table, index);
    } else {
        return load<C, W>(table, index);
    }
}

// Those of sin with the sign of what they multiply: of every element, or of the even ones.
template <typename T, typename C>
__device__ Angles<T, C> negated(Angles<T, C> const& sin, bool even_only) {
    if constexpr (kHalf<C>) {
        unsigned const signs = even_only ? 0x00008000U : 0x80008000U;
        return {sin.x ^ signs, sin.y ^ signs, sin.z ^ signs, sin.w ^ signs};
    } else {
        return sin.each([&](float value, int i) { return even_only && i % 2 != 0 ? value : -value; });
    }
}

// The elements of a vector, neighbours exchanged.
template <typename T>
__device__ uint4 exchanged(uint4 const& y) {
    auto const from = bits<Packed<T, kWidth<T>>>(y);
    auto to = from;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) to.at[i] = from.at[i ^ 1];
    return bits<uint4>(to);
}

// T(C(C(y * cos) + C(partner * sin))).
template <typename T, typename C>
__device__ uint4 turned(uint4 const& y, uint4 const& partner, Angles<T, C> const& cos,
                        Angles<T, C> const& sin) {
    if constexpr (kHalf<C>) {
        auto const product = [](auto a, auto b) { return __hmul2_rn(a, b); };
        return plus<T>(of_pairs<T>(y, cos, product), of_pairs<T>(partner, sin, product));
    } else {
        return pack<T>(unpack<T>(y) * cos + unpack<T>(partner) * sin);
    }
}

// So many of those blocks have to fit an SM: 80 KB of x are under way then. A product with the scale
// in f32 takes more registers, and angles in f32 twice theirs; bf16 before sm_80 is all f32.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kPackedProducts = false;
#else
constexpr bool kPackedProducts = true;
#endif
template <typename C, Order order>
constexpr int kRotaryBlocks = !kPackedProducts ? 1 : !kHalf<C> ? 3 : order == Order::kNarrow ? 5 : 4;

template <typename T, typename C, bool kInterleaved, Order order>
__global__ void __launch_bounds__(kShortBlock, kRotaryBlocks<C, order>)
    row_rotary(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    // The kernel of every other order has no room for more.
    constexpr int U = order == Order::kOther ? 1 : kRotaryRows;
    Norm const& norm = task.problem.norm;
    Pointers const& pointers = task.pointers;
    Walk const& walk = task.walk;
    int const lanes = task.choice.lanes;
    int const lane = static_cast<int>(threadIdx.x) % lanes;
    int const teams = static_cast<int>(blockDim.x) / lanes;
    int const pairs = task.size / W / 2;  // of vectors
    int const vectors = static_cast<int>(norm.rotary_dim) / W;  // that are turned
    // Of the halves the vectors p and p + half have the pairs, and behind them nothing is turned.
    int const half = kInterleaved ? pairs : vectors / 2;
    int const at[2] = {lane < half ? lane : lane + half, lane < half ? lane + half : lane + pairs};
    bool const turns[2] = {at[0] < vectors, kInterleaved ? at[1] < vectors : at[0] < vectors};
    bool const half_table = task.problem.table_width < norm.rotary_dim;
    bool const doubled = kInterleaved && half_table;

    after_predecessor();
    uint4 gain[2]{};
    if (order != Order::kOther && lane < pairs) {
#pragma unroll
        for (int j = 0; j < 2; ++j) gain[j] = *raw<T, W>(pointers.scale, at[j] * W);
    }

    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    std::int64_t const stride = static_cast<std::int64_t>(gridDim.x) * teams;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * teams; first < task.segments;
         first += stride) {
        std::int64_t const number = first + static_cast<int>(threadIdx.x) / lanes;
        bool const there = number < task.segments && lane < pairs;
        auto const item = static_cast<std::uint32_t>(number);
        std::uint32_t const a = item / walk.divisors[0] / walk.divisors[1];
        std::uint32_t const b = item / walk.divisors[0] % walk.divisors[1];
        std::uint32_t const c = item % walk.divisors[0];
        int const taken = static_cast<int>(walk.shared_last ? c : b) * task.choice.rows;
        int const left = walk.share - taken;
        int const rows = !there ? 0 : left < task.choice.rows ? left : task.choice.rows;
        std::int64_t const start = a * walk.x[2] + b * walk.x[1] + c * walk.x[0];
        std::int64_t const entry = a * walk.table[2] + b * walk.table[1] + c * walk.table[0];

        uint4 x[U][2];
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                x[u][j] = load_if(u < rows, raw<T, W>(pointers.x, start + u * walk.step + at[j] * W));
            }
        }
        Angles<T, C> cos[2]{};
        Angles<T, C> sin[2]{};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (!there || !turns[j]) continue;
            int const vector = !kInterleaved && half_table ? at[0] : at[j];
            std::int64_t const index = entry + vector * (doubled ? W / 2 : W);
            cos[j] = load_angles<T, C>(pointers.cos, index, doubled);
            sin[j] = load_angles<T, C>(pointers.sin, index, doubled);
            if (kInterleaved || j == 0) sin[j] = negated<T, C>(sin[j], kInterleaved);
        }

        float sums[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            float parts[4]{};
#pragma unroll
            for (int j = 0; j < 2; ++j) add_squares<T>(parts, x[u][j]);
            sums[u] = together(parts);
        }
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                sums[u] = __fadd_rn(sums[u], __shfl_xor_sync(0xffffffffU, sums[u], distance));
            }
        }

#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (u >= rows) continue;
            uint4 y[2];
            if constexpr (order == Order::kOther) {
                Divisor<T> const rms{root_mean_square<float>(task, sums[u])};
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    int const index = at[j] * W;
                    y[j] = pack<T>(normalise<T, float>(unpack<T>(x[u][j]), task, rms,
                                                       load_gain<T, W>(task, index), index));
                }
            } else {
                float const rstd = __frsqrt_rn(__fmaf_rn(sums[u], task.inverse, norm.epsilon));
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    stay_packed(x[u][j]);
                    y[j] = scaled<T, order>(x[u][j], rstd, gain[j], norm.scale_offset);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                uint4 result = y[j];
                if (turns[j]) {
                    uint4 const partner = kInterleaved ? exchanged<T>(y[j]) : y[1 - j];
                    result = turned<T, C>(y[j], partner, cos[j], sin[j]);
                }
                __stwb(raw<T, W>(pointers.y, start + u * walk.step + at[j] * W), result);
            }
        }
    }
}

}  // namespace rmsnorm_export
