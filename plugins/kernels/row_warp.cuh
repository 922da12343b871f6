// Codes with a scale of the row, for rows of 4 to 32 KB in the usual orders of
// roundings: a warp has a row of its own in shared memory, so that nobody waits at a barrier for the
// sum, nor for the greatest magnitude. The next row is asked for as this one's codes leave.
#pragma once

#include "row_hot.cuh"

namespace rmsnorm_export {

template <typename T, Mode mode, Order order>
__global__ void __launch_bounds__(kWarpRowThreads, 2)
    row_warp(__grid_constant__ Task const task) {
    constexpr int W = kWidth<T>;
    constexpr int kAtOnce = 4;  // vectors of a thread; the last few of a row come one by one
    constexpr bool skip = mode == Mode::kSkip;
    Pointers const& pointers = task.pointers;
    int const vectors = task.size / W;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const warps = static_cast<int>(blockDim.x) / 32;
    // A thread comes back to its own vectors of x; the scale is everybody's.
    uint4* const all = shared_memory() + kReductionBytes / kVectorBytes;
    uint4 const* const gains = all + lane;
    uint4* const stage = all + vectors * (1 + warp * (skip ? 2 : 1)) + lane;
    uint4* const other_stage = stage + vectors;
    Team<true> team{32, 1};
    after_predecessor();
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
        copy_later(all + i, raw<T, W>(pointers.scale, i * W));
    }

    // handle(count, i, there) of every `count` vectors that lie 32 apart, from the i-th on.
    auto const for_each = [&](auto const& handle) {
        int i = 0;
        for (; i + 32 * kAtOnce <= vectors; i += 32 * kAtOnce) {
            handle(std::integral_constant<int, kAtOnce>{}, i, true);
        }
        for (; i < vectors; i += 32) {
            handle(std::integral_constant<int, 1>{}, i, i + lane < vectors);
        }
    };
    auto const load = [](uint4 const* from, bool there) { return there ? *from : uint4{}; };
    auto const fetch = [&](auto several, int i, bool there, std::int64_t start) {
#pragma unroll
        for (int j = i; j < i + 32 * decltype(several)::value; j += 32) {
            if (!there) break;
            copy_later(stage + j, raw<T, W>(pointers.x, start) + j);
            if (skip) copy_later(other_stage + j, raw<T, W>(pointers.other, start) + j);
        }
    };

    std::int64_t const step = static_cast<std::int64_t>(gridDim.x) * warps;
    std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * warps + warp;
    auto const start_of = [&](std::int64_t of) { return of * task.size + lane * W; };
    if (number < task.segments) {
        for_each([&](auto several, int i, bool there) {
            fetch(several, i, there, start_of(number));
        });
    }
    copies_done();
    __syncthreads();
    for (; number < task.segments; number += step) {
        std::int64_t const start = start_of(number);
        std::int64_t const next = number + step;
        copies_done();
        float sums[4]{};
        for_each([&](auto several, int i, bool there) {
            constexpr int count = decltype(several)::value;
            uint4 x[count];
#pragma unroll
            for (int j = 0; j < count; ++j) {
                x[j] = load(stage + i + 32 * j, there);
                if (!skip) continue;
                x[j] = plus<T>(x[j], load(other_stage + i + 32 * j, there));
                if (there) stage[i + 32 * j] = x[j];
                bool const wanted = there && pointers.sum != nullptr;
                store_if(wanted, raw<T, W>(pointers.sum, start) + i + 32 * j, x[j]);
            }
#pragma unroll
            for (int j = 0; j < count; ++j) add_squares<T>(sums, x[j]);
        });
        float const sum = team.sum(together(sums));
        float const rstd = __frsqrt_rn(__fmaf_rn(sum, task.inverse, task.problem.norm.epsilon));

        auto const normalised = [&](int j, bool there) {
            uint4 const x = load(stage + j, there);
            uint4 const gain = load(gains + j, there);
            return scaled<T, order>(x, rstd, gain, task.problem.norm.scale_offset);
        };
        unsigned char* const y = static_cast<unsigned char*>(pointers.y) + start;
        unsigned greatest = 0;
        for_each([&](auto several, int i, bool there) {
#pragma unroll
            for (int j = i; j < i + 32 * decltype(several)::value; j += 32) {
                uint4 const values = normalised(j, there);
                widen<T>(greatest, values);
                if (there) stage[j] = values;
            }
        });
        greatest = team.greatest(peak_of<T>(greatest));
        float const scale = scale_of_row(greatest, task.problem.y);
        if (lane == 0) static_cast<float*>(pointers.row_scale)[number] = scale;

        CodeUnit<T> const unit{scale};
        if (unit.shifts()) {
            for (int j = 0; j + lane < vectors; j += 32) {
                uint4 values[1]{stage[j]};
                unit.bring_near(values);
                stage[j] = values[0];
            }
        }
        auto const leave = [&](auto type) {
            for_each([&](auto several, int i, bool there) {
                constexpr int count = decltype(several)::value;
                using Codes =
                    decltype(unit.template codes_of_vector<decltype(type)::value>(uint4{}));
                Codes codes[count];
#pragma unroll
                for (int j = 0; j < count; ++j) {
                    uint4 const values = load(stage + i + 32 * j, there);
                    codes[j] = unit.template codes_of_vector<decltype(type)::value>(values);
                }
#pragma unroll
                for (int j = 0; j < count; ++j) {
                    store_if(there, reinterpret_cast<Codes*>(y) + i + 32 * j, codes[j]);
                }
                if (next < task.segments) fetch(several, i, there, start_of(next));
            });
        };
        if (task.problem.y == Type::kINT8) {
            leave(std::integral_constant<Type, Type::kINT8>{});
        } else {
            leave(std::integral_constant<Type, Type::kFP8E4M3>{});
        }
    }
}

}  // namespace rmsnorm_export
