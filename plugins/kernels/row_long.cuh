// Every norm: `lanes` threads of a block for a row, or a whole block, or from sm_90 on a cluster whose
// blocks take a slice each and add their sums over distributed shared memory. A row, or its slice,
// waits in shared memory for its root mean square; what does not fit is read again, from L2 as a
// rule.
//
// With W = 1 and Mode::kAny any problem at any alignment, an element at a time: rows that are no
// whole number of vectors, or whose elements lie apart, a stash type of half precision, one scale for
// the codes of groups.
#pragma once

#include "quantise.cuh"
#include "reduce.cuh"
#include "segment.cuh"

namespace rmsnorm_export {

// Vectors of each input that a thread has under way at once: 512 * 4 * 16 bytes are the 32 KB that
// an SM needs in flight, from one block.
template <Mode mode>
constexpr int kUnderWay = mode == Mode::kPlain ? 4 : 2;

// Where an element of a row with a rotary embedding finds its partner and its angle.
struct Turn {
    bool needed{false};
    int partner{0};
    bool minus{false};   // the partner counts negative
    std::int64_t entry{0};

    __device__ Turn(Problem const& problem, std::int64_t row, int element) {
        int const count = static_cast<int>(problem.norm.rotary_dim);
        needed = problem.norm.kind == Kind::kRotaryRMSNorm && element < count;
        if (!needed) return;
        bool const pairs = problem.norm.rotary_interleaved;
        minus = pairs ? element % 2 == 0 : element < count / 2;
        partner = pairs ? element ^ 1 : minus ? element + count / 2 : element - count / 2;
        int const own = problem.table_width == count ? element
                        : pairs                      ? element / 2
                                                     : element % (count / 2);
        std::int64_t const last = row % problem.runs[1];
        std::int64_t const before = row / problem.runs[1];
        std::int64_t const of_table = before / problem.runs[0] * problem.strides[0] +
                                      before % problem.runs[0] * problem.strides[1] +
                                      last * problem.strides[2];
        entry = of_table * problem.table_width + own;
    }

    template <typename T>
    __device__ float turned(Task const& task, float y, float other) const {
        bool const wide = kHalf<T> && task.problem.table == Type::kF32;
        auto const at = [&](void const* table) {
            return wide ? load<float, 1>(table, entry).at[0] : load<T, 1>(table, entry).at[0];
        };
        auto const round = [&](float value) { return wide ? value : rounded<T>(value); };
        float const direct = round(__fmul_rn(y, at(task.pointers.cos)));
        float const across = round(__fmul_rn(minus ? -other : other, at(task.pointers.sin)));
        return round(__fadd_rn(direct, across));
    }
};

// Two blocks fit an SM, unless any problem, or codes and gates of a half type, take more registers.
template <typename T, Mode mode, bool kQuantised>
constexpr int kLeastLongBlocks =
    mode == Mode::kAny || (kHalf<T> && (kQuantised || mode >= Mode::kGated)) ? 1 : 2;

template <typename T, typename S, int W, Mode kMode, bool kQuantised>
__global__ void __launch_bounds__(kLongBlock, kLeastLongBlocks<T, kMode, kQuantised>)
    row_long(__grid_constant__ Task const task) {
    using Row = Segment<T, S, W>;
    using R = Raw<T, W>;
    Pointers const& pointers = task.pointers;
    Mode const mode = kMode == Mode::kAny ? task.mode : kMode;
    bool const gated = mode == Mode::kGated || mode == Mode::kGateFirst;
    Quantize const quantize = kQuantised ? task.problem.quantize : Quantize::kNone;
    bool const per_row = quantize == Quantize::kPerRow;
    int const lanes = task.choice.lanes;
    Place const place{lanes};
    int const blocks = task.choice.cluster;
    int const vectors = task.size / W;
    int const cut = log2_of(blocks);
    int const slice = (vectors + blocks - 1) >> cut;
    int const begin = (static_cast<int>(blockIdx.x) & (blocks - 1)) * slice;
    int const end = begin + slice < vectors ? begin + slice : vectors;
    int const own = begin + place.lane;
    int const room = task.choice.staged / place.teams;
    R* const stage =
        reinterpret_cast<R*>(shared_memory() + kReductionBytes / 16) + place.team * room - begin;
    int const staged = begin + room;
    Team<> team{lanes, blocks};
    after_predecessor();

    auto const divisor_of = [&](Row const& row) {
        constexpr int kAtOnce = kUnderWay<kMode>;
        float sum = 0.0F;
        for (int base = own; base < row.end; base += kAtOnce * lanes) {
            R x[kAtOnce];
            R other[kAtOnce];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) row.load(x[j], other[j], base + j * lanes);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                int const vector = base + j * lanes;
                sum = __fadd_rn(sum, row.squares(x[j], other[j], vector));
                if (vector < row.end && vector < staged) stage[vector] = x[j];
            }
        }
        return Divisor<T>{root_mean_square<S>(task, team.sum(sum))};
    };

    // A thread comes back to the vectors that it loaded, so the stage needs no barrier.
    auto const output = [&](Row const& row, Divisor<T> const& rms, int vector) {
        std::int64_t const index = row.at(vector);
        R const x = vector < staged ? stage[vector] : row.again(vector);
        R other{};
        if (gated) other = __ldcs(raw<T, W>(pointers.other, index));
        return row.output(rms, x, other, vector);
    };

    // y, after the rotary embedding where there is one: nothing is staged then.
    auto const result = [&](Row const& row, Divisor<T> const& rms, int vector) {
        auto y = output(row, rms, vector);
        if constexpr (W == 1) {
            Turn const turn{task.problem, row.number, vector};
            if (turn.needed) {
                float const before = rounded<T>(y.at[0]);
                float const other = rounded<T>(output(row, rms, turn.partner).at[0]);
                y.at[0] = turn.template turned<T>(task, before, other);
            }
        }
        return y;
    };

    // The bound is that of the block, not of the thread: every thread of a warp must shuffle.
    std::int64_t const step = static_cast<std::int64_t>(gridDim.x >> cut) * place.teams;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x >> cut) * place.teams;
         first * task.together < task.segments; first += step) {
        std::int64_t const item = first + place.team;
        int const behind = item * task.together < task.segments ? end : begin;
        float scale = quantize == Quantize::kStatic ? *pointers.quant_scale : 1.0F;
        unsigned greatest = 0;
        Divisor<T> rms{1.0F};
        // A scale of the row takes a pass of its own, before the one that writes.
        for (int pass = per_row ? 0 : 1; pass < 2; ++pass) {
            bool const writes = pass == 1;
            Divisor<T> const unit{scale};
            for (int i = 0; i < task.together; ++i) {
                Row const row{task, mode, item * task.together + i, behind};
                // The root mean square of a row is known in its second pass, those of groups not.
                if (!writes || !per_row || task.together > 1) rms = divisor_of(row);
                for (int vector = own; vector < behind; vector += lanes) {
                    auto const y = result(row, rms, vector);
                    if (!writes) {
                        greatest = peak(rounded<T>(y), greatest);
                    } else if (quantize == Quantize::kNone) {
                        store<T>(y, pointers.y, row.at(vector));
                    } else {
                        store_codes(rounded<T>(y), task, unit, row.at(vector));
                    }
                }
            }
            if (!writes) {
                scale = scale_of_row(team.greatest(greatest), task.problem.y);
                if (own == 0 && behind > 0) static_cast<float*>(pointers.row_scale)[item] = scale;
            }
        }
    }
}

}  // namespace rmsnorm_export
