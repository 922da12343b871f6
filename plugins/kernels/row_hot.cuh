// The usual norms: what row_long.cuh does for every norm, with the order of the roundings known while
// compiling. A row waits in the registers of a block, up to 64 KB of it, or
// of the blocks of a cluster. Every row is one way to memory: all of x is asked for at once, and
// the scale waits in the block from before its first row.
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

// So many blocks of 512 threads have to fit an SM: two in 64 registers, or four of 256 threads,
// with 128 KB under way when a thread has eight vectors. More registers are for a second input in
// them, for eight vectors before sm_90, for f16 with a second input or a scale of the row, and for
// codes of a sum.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kRoomForEight = false;
#else
constexpr bool kRoomForEight = true;
#endif
template <typename T, int V, Mode mode, Quantize quantize>
constexpr int hot_blocks() {
    bool const f16 = std::is_same_v<T, __half>;
    bool const greatest = quantize == Quantize::kPerRow;
    if (V == 4) return mode == Mode::kPlain && !(f16 && greatest) ? 2 : 1;
    bool const many = (f16 && (greatest || mode == Mode::kSkip)) ||
                      (quantize != Quantize::kNone && mode == Mode::kSkip);
    return kRoomForEight && !many ? 2 : 1;
}
// Or one of so many threads, for the registers of six blocks of a short row with a gate.
template <int V, Mode mode>
constexpr int kHotBound = V == 4 && mode == Mode::kGated ? 768 : kHotThreads;

// The scale and the second input stay in registers where there is room for them, else in shared
// memory: each thread keeps its own part, so that it waits for nobody's.
template <int V>
constexpr bool kStaged = V == 8;

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
template <typename T>
__device__ void widen(unsigned& greatest, uint4 const& x) {
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
template <Type codes, typename T, int V, typename There, typename Behind>
__device__ void store_vectors(CodeUnit<T> const& unit, uint4 const (&x)[V], void* y, int lanes,
                              There const& there, Behind const& behind) {
    using Codes = decltype(unit.template codes_of_vector<codes>(x[0]));
#pragma unroll
    for (int j = 0; j < V; ++j) {
        if (j == 6 && behind(j)) break;
        auto const of = unit.template codes_of_vector<codes>(x[j]);
        store_if(there(j), static_cast<Codes*>(y) + j * lanes, of);
    }
}

template <typename T, int V, Mode mode, Order order, Quantize quantize>
__global__ void __launch_bounds__(kHotBound<V, mode>, hot_blocks<T, V, mode, quantize>())
    row_hot(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    Pointers const& pointers = task.pointers;
    int const lanes = task.choice.lanes;
    int const lane = static_cast<int>(threadIdx.x) % lanes;  // the thread's first vector
    int const rows = static_cast<int>(blockDim.x) / lanes;
    // Eight vectors may be those of a slice.
    int const blocks = V == 8 ? task.choice.cluster : 1;
    int const slice = (task.size / W + blocks - 1) / blocks;
    int const begin = blocks > 1 ? static_cast<int>(blockIdx.x) % blocks * slice : 0;
    int const whole = task.size / W - begin < slice ? task.size / W - begin : slice;
    // Whether all threads' vectors from the j-th on lie behind the row, which as a rule has more than
    // half of them. A branch also keeps the compiler from computing more of them side by side than
    // there are registers for.
    auto const behind = [&](int j) {
        return (j % 2 == 0 || j > 4) && j * lanes >= whole;
    };
    Team<true> team{lanes, blocks};

    uint4* const stage =
        shared_memory() + kReductionBytes / kVectorBytes + threadIdx.x * kStagePitch;
    uint4* const other_stage = stage + blockDim.x * kStagePitch;
    for (int j = 0; j < V; ++j) {
        int const vector = lane + j * lanes;
        if (vector < whole) fetch_to_l2(raw<T, W>(pointers.scale, (begin + vector) * W));
        // What is added to the zeros behind a row.
        if (kStaged<V> && mode == Mode::kSkip) other_stage[j] = uint4{};
    }
    after_predecessor();

    uint4 gain[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
        int const vector = lane + j * lanes;
        uint4 const* const from = raw<T, W>(pointers.scale, (begin + vector) * W);
        if constexpr (kStaged<V>) {
            if (vector < whole) copy_later(stage + j, from);
        } else {
            gain[j] = uint4{};
            if (vector < whole) gain[j] = *from;
        }
    }
    CodeUnit<T> unit{quantize == Quantize::kStatic ? *pointers.quant_scale : 1.0F};

    uint4 x[V]{};
    uint4 other[V];
    // A row's vectors from this thread's first one on: the j-th is there when j * lanes is less.
    auto const left_of = [&](std::int64_t number) {
        return (number < task.segments ? whole : 0) - lane;
    };
    auto const start_of = [&](std::int64_t number) {
        return number * task.size + (begin + lane) * W;
    };
    // First what takes no registers.
    auto const load_staged = [&](std::int64_t start, int left) {
        if constexpr (kStaged<V> && mode != Mode::kPlain) {
#pragma unroll
            for (int j = 0; j < V; ++j) {
                uint4 const* const from = raw<T, W>(pointers.other, start + j * lanes * W);
                if (j * lanes < left) copy_later(other_stage + j, from);
            }
            loads_before();
        }
    };
    auto const load = [&](int j, std::int64_t start, int left) {
        bool const there = j * lanes < left;
        x[j] = load_if(there, raw<T, W>(pointers.x, start + j * lanes * W));
        if (kStaged<V> || mode == Mode::kPlain) return;
        other[j] = load_if(there, raw<T, W>(pointers.other, start + j * lanes * W));
    };
    bool const wanted = pointers.sum != nullptr;
    // This thread's part of the sum of squares. For kSkip x becomes the sum with the residual.
    auto const squares = [&](std::int64_t start, int left) {
        if constexpr (kStaged<V> && mode == Mode::kSkip) {
            loads_before();
            copies_done();
        }
        float sums[4]{};
#pragma unroll
        for (int j = 0; j < V; ++j) {
            if (mode != Mode::kSkip && j > 4 && behind(j)) break;
            if (mode == Mode::kSkip) {
                if (kStaged<V>) other[j] = other_stage[j];
                x[j] = plus<T>(x[j], other[j]);
                bool const there = wanted && j * lanes < left;
                store_if(there, raw<T, W>(pointers.sum, start + j * lanes * W), x[j]);
            }
            add_squares<T>(sums, x[j]);
        }
        return together(sums);
    };

    std::int64_t const step = static_cast<std::int64_t>(gridDim.x) / blocks * rows;
    std::int64_t first = static_cast<std::int64_t>(blockIdx.x) / blocks * rows;
    int const own = static_cast<int>(threadIdx.x) / lanes;
    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    for (; first < task.segments; first += step) {
        std::int64_t number = first + own;
        std::int64_t const start = start_of(number);
        load_staged(start, left_of(number));
#pragma unroll
        for (int j = 0; j < V; ++j) load(j, start, left_of(number));
        float const sum = team.sum(squares(start, left_of(number)));
        float const rstd = __frsqrt_rn(__fmaf_rn(sum, task.inverse, task.problem.norm.epsilon));
        if (kStaged<V> && mode != Mode::kSkip) copies_done();

        int left = left_of(number);
        compute_again(left);
        auto const there = [&](int j) { return j * lanes < left; };
        uint4* const to = raw<T, W>(pointers.y, start);
        unsigned greatest = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            if (behind(j)) break;
            if (kStaged<V>) gain[j] = stage[j];
            stay_packed(x[j]);
            stay_packed(gain[j]);
            x[j] = scaled<T, order>(x[j], rstd, gain[j], task.problem.norm.scale_offset);
            if (mode == Mode::kGated) {
                if (kStaged<V>) other[j] = other_stage[j];
                stay_packed(other[j]);
                x[j] = gated<T>(x[j], other[j]);
            }
            if (quantize == Quantize::kPerRow) {
                if (there(j)) widen<T>(greatest, x[j]);
            } else if (quantize == Quantize::kNone) {
                store_if(there(j), to + j * lanes, x[j]);
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
        void* const codes = static_cast<unsigned char*>(pointers.y) + start_of(number);
        if (task.problem.y == Type::kINT8) {
            store_vectors<Type::kINT8>(unit, x, codes, lanes, there, behind);
        } else {
            store_vectors<Type::kFP8E4M3>(unit, x, codes, lanes, there, behind);
        }
    }
}

}  // namespace rmsnorm_export
