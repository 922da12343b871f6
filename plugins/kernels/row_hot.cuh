// The usual norms: what row_long.cuh does for every norm, with the order of the roundings known while
// compiling. A row waits in the registers of a block, up to 32 KB of it, or of the blocks of a
// cluster. Every row is one way to memory: all of it is asked for at once, and the scale waits in
// registers from before the block's first row.
//
// Here a / rms is a * (1 / rms), as PyTorch computes it: rmsnorm.h allows that beside the division.
#pragma once

#include "quantise.cuh"
#include "reduce.cuh"

namespace rmsnorm_export {

// Where the product with the scale is rounded. For f32 nothing is rounded in between.
enum class Order : std::int32_t {
    kNarrow,      // T(T(v) * scale): LLaMA
    kWide,        // T(v * scale): torch.nn.RMSNorm
    kWideOffset,  // T(v * (offset + scale)): Gemma
    kOther,       // row_long.cuh
};

// What a kernel may do otherwise for the same numbers; `python -m bench.gpu tune` times all of them.
template <bool holds, bool streams, bool triggers, bool fetches>
struct Manner {
    static constexpr bool kHolds = holds;        // the scale waits in registers, not in L1
    static constexpr bool kStreams = streams;    // what is written leaves L2 first
    static constexpr bool kTriggers = triggers;  // the next launch may begin when this one has
    static constexpr bool kFetches = fetches;    // asks for the scale before the last one's end
};
using Usual = Manner<true, false, true, true>;

// So many blocks of 512 threads have to fit an SM: three have 40 registers a thread, two 64, one 128.
// A second input and the greatest magnitude take more of them, and f16 for a sum. Before sm_80 an SM
// has no room for three.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kMostBlocks = 2;
#else
constexpr int kMostBlocks = 3;
#endif
template <typename T, int V, Mode mode, Quantize quantize, typename M>
constexpr int hot_blocks() {
    bool const sum = mode == Mode::kSkip && V == 2 && !std::is_same_v<T, __half>;
    bool const few = quantize != Quantize::kPerRow && (mode == Mode::kPlain || sum);
    int const blocks = (V == 4 ? 1 : 2) + (few ? 1 : 0);
    return (blocks < kMostBlocks ? blocks : kMostBlocks) + (M::kHolds ? 0 : 1);
}
// Or one of so many threads, for the registers of six blocks of a short row with a gate.
template <int V, Mode mode>
constexpr int kHotBound = V == 4 && mode == Mode::kGated ? 768 : kHotThreads;

// T(a + b).
template <typename T>
__device__ uint4 plus(uint4 const& a, uint4 const& b) {
    if constexpr (kHalf<T>) {
        return of_pairs<T>(a, b, [](auto x, auto y) { return __hadd2_rn(x, y); });
    } else {
        return pack<T>(unpack<T>(a) + unpack<T>(b));
    }
}

// y, rounded to T.
template <typename T, Order order>
__device__ uint4 scaled(uint4 const& x, float rstd, uint4 const& gain, float offset) {
    auto const v = unpack<T>(x).each([&](float value, int) { return __fmul_rn(value, rstd); });
    if constexpr (kHalf<T> && order == Order::kNarrow) {
        return of_pairs<T>(pack<T>(v), gain, [](auto a, auto b) { return __hmul2_rn(a, b); });
    } else {
        auto scale = unpack<T>(gain);
        if constexpr (order == Order::kWideOffset) {
            scale = scale.each([&](float value, int) { return __fadd_rn(offset, value); });
        }
        return pack<T>(v * scale);
    }
}

// T(y * silu(gate)).
template <typename T>
__device__ uint4 gated(uint4 const& y, uint4 const& gate) {
    auto const z = unpack<T>(gate);
    return pack<T>(unpack<T>(y).each(
        [&](float value, int i) { return __fmul_rn(value, quick_silu(z.at[i])); }));
}

// The greatest magnitude of a row, with those of x; NaN is above all. Its sign says nothing.
//
// The first one is a word of the row and no 0: of the greater magnitude of 0 and a product nvcc 13.0
// and 13.5 make the product or 0 (HFMA2.RELU), which loses the magnitudes of negative ones.
template <typename T>
__device__ void widen(unsigned& greatest, uint4 const& x, bool first) {
    if (first) greatest = x.x;
    auto const words = bits<Packed<unsigned, 4>>(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) greatest = greater_magnitude<T>(greatest, words.at[i]);
}

// Its bits as a float, without the sign.
template <typename T>
__device__ unsigned peak_of(unsigned greatest) {
    return peak(unpack<T>(greatest), 0U);
}

// Adds the squares of a vector's elements to four sums, which make one together.
template <typename T>
__device__ void add_squares(float (&sums)[4], uint4 const& x) {
    auto const values = unpack<T>(x);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
        sums[i % 4] = __fmaf_rn(values.at[i], values.at[i], sums[i % 4]);
    }
}
__device__ inline float together(float const (&sums)[4]) {
    return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
}

// The codes of a row's vectors.
template <Type codes, typename T, int V, typename There>
__device__ void store_vectors(CodeUnit<T> const& unit, uint4 const (&x)[V], void* y, int lanes,
                              There const& there) {
    using Codes = decltype(unit.template codes_of_vector<codes>(x[0]));
#pragma unroll
    for (int j = 0; j < V; ++j) {
        auto const of = unit.template codes_of_vector<codes>(x[j]);
        store_if(there(j), static_cast<Codes*>(y) + j * lanes, of);
    }
}

template <typename T, int V, Mode mode, Order order, Quantize quantize, typename M = Usual>
__global__ void __launch_bounds__(kHotBound<V, mode>, hot_blocks<T, V, mode, quantize, M>())
    row_hot(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    Pointers const& pointers = task.pointers;
    int const lanes = task.choice.lanes;
    Place const place{lanes};
    int const lane = place.lane;  // the thread's first vector
    int const blocks = task.choice.cluster;
    int const cut = log2_of(blocks);
    int const slice = (task.size / W + blocks - 1) >> cut;
    int const begin = (static_cast<int>(blockIdx.x) & (blocks - 1)) * slice;
    int const whole = task.size / W - begin < slice ? task.size / W - begin : slice;
    Team<true> team{lanes, blocks};

    auto const scale_at = [&](int j) {
        return raw<T, W>(pointers.scale, (begin + lane + j * lanes) * W);
    };
    for (int j = 0; j < V; ++j) {
        if (M::kFetches && lane + j * lanes < whole) fetch_to_l2(scale_at(j));
    }
    after_predecessor(M::kTriggers);

    uint4 gain[V]{};
#pragma unroll
    for (int j = 0; j < V; ++j) {
        if (M::kHolds && lane + j * lanes < whole) gain[j] = *scale_at(j);
    }
    CodeUnit<T> unit{quantize == Quantize::kStatic ? *pointers.quant_scale : 1.0F};
    bool const wanted = pointers.sum != nullptr;

    std::int64_t const step = static_cast<std::int64_t>(gridDim.x >> cut) * place.teams;
    std::int64_t first = static_cast<std::int64_t>(blockIdx.x >> cut) * place.teams;
    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    for (; first < task.segments; first += step) {
        std::int64_t number = first + place.team;
        // The j-th of the thread's vectors is there when j * lanes is less.
        int left = (number < task.segments ? whole : 0) - lane;
        auto const there = [&](int j) { return j * lanes < left; };
        std::int64_t const start = number * task.size + (begin + lane) * W;
        auto const at = [&](auto* tensor, int j) { return raw<T, W>(tensor, start + j * lanes * W); };

        uint4 x[V];
        uint4 other[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
            x[j] = load_if(there(j), at(pointers.x, j));
            if (mode != Mode::kPlain) other[j] = load_if(there(j), at(pointers.other, j));
        }
        float sums[4]{};
#pragma unroll
        for (int j = 0; j < V; ++j) {
            if (mode == Mode::kSkip) {
                x[j] = plus<T>(x[j], other[j]);
                store_if<M::kStreams>(wanted && there(j), at(pointers.sum, j), x[j]);
            }
            add_squares<T>(sums, x[j]);
        }
        float const sum = team.sum(together(sums));
        float const rstd = __frsqrt_rn(__fmaf_rn(sum, task.inverse, task.problem.norm.epsilon));

        compute_again(left);
        unsigned greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            // The branch keeps the compiler from computing more side by side than there are registers
            // for.
            if (j == 2 && j * lanes >= whole) break;
            if (!M::kHolds) gain[j] = load_if(j * lanes < left, scale_at(j));
            stay_packed(x[j]);
            stay_packed(gain[j]);
            x[j] = scaled<T, order>(x[j], rstd, gain[j], task.problem.norm.scale_offset);
            if (mode == Mode::kGated) {
                stay_packed(other[j]);
                x[j] = gated<T>(x[j], other[j]);
            }
            if (quantize == Quantize::kPerRow) {
                if (there(j)) widen<T>(greatest, x[j], j == 0);
            } else if (quantize == Quantize::kNone) {
                store_if<M::kStreams>(there(j), at(pointers.y, j), x[j]);
            }
        }
        if (quantize == Quantize::kNone) continue;

        if (quantize == Quantize::kPerRow) {
            greatest = team.greatest(peak_of<T>(greatest));
            float const scale = scale_of_row(greatest, task.problem.y);
            if (begin + lane == 0 && left > 0) {
                static_cast<float*>(pointers.row_scale)[number] = scale;
            }
            unit = CodeUnit<T>{scale};
        }
        unit.bring_near(x);
        compute_again(left);
        compute_again(number);
        void* const codes =
            static_cast<unsigned char*>(pointers.y) + number * task.size + (begin + lane) * W;
        if (task.problem.y == Type::kINT8) {
            store_vectors<Type::kINT8>(unit, x, codes, lanes, there);
        } else {
            store_vectors<Type::kFP8E4M3>(unit, x, codes, lanes, there);
        }
    }
}

}  // namespace rmsnorm_export
