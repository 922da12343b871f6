// RMSNorm on a GPU: what is to be computed (Norm, Problem), on what (Pointers), and the launch.
//
// No framework and no TensorRT in here: raw pointers, sizes and a stream. The operator is the one
// that rmsnorm_export/op/spec.py defines; its field names are used unchanged. The axes that are
// normalised have been flattened by the caller, and so have those before and behind them: a tensor
// is [rows / inner, n, inner], contiguous. With inner = 1, the usual, a row lies in one piece.
//
// For a row a of n elements of type T, with S = f32 (or T, when stash_half):
//
//     m   = mean(a_i ^ 2)           over the first partial_size elements, or each group
//     rms = sqrt(m + epsilon)       or sqrt(m) + epsilon             (epsilon_outside)
//                                   or max(sqrt(m), epsilon)         (epsilon_clamp)
//     v   = a / rms                 or T(a) * T(1 / rms)             (round_rstd)
//     y   = T(v) * T(scale_offset + scale) + bias                    in T, each step rounded to T
//     y   = T(v * (scale_offset + scale) + bias)                     in S (scale_before_cast)
//
// With S = f32 a / rms may be a * (1 / rms), within 2 ulp of f32: the kernels of the usual norms
// (row_hot.cuh) multiply, and so do all for half types. So may y / *quant_scale and y / row_scale.
//
// Skip:   sum = T(x + residual), y = norm(sum); both are written, the sum where it has a pointer.
// Gated:  y = T(S(norm) * act(gate)), or, gate_first, norm(S(x) * act(gate)), that product not
//         rounded to T; act = silu or sigmoid in S, the sigmoid to 2^-20 of itself; in the kernels of
//         the usual norms silu to 2^-17.
// Quantised: with y as above, rounded to T,
//         static:  q = saturate(round_to_even(y / *quant_scale))
//         per row: row_scale = max|y| / (448 for FP8 E4M3, 127 for INT8), 1 when the row is 0;
//                  q = saturate(round_to_even(y / row_scale)).
// Rotary:  y, rounded to T, is turned. In the type C of cos and sin, each step rounded to C, then T:
//         y_i * cos_i + rot_i * sin_i    for the first rotary_dim elements; the others pass
//         rot_i = -y_(i + rotary_dim / 2), and y_(i - rotary_dim / 2) in the second half; or, with
//         rotary_interleaved, -y_(i + 1) for even i, and y_(i - 1) for odd i.
//         With tables of rotary_dim / 2 entries the two elements of a pair have the same.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "norm.h"

namespace rmsnorm_export {

enum class Type : std::int32_t { kF32, kF16, kBF16, kFP8E4M3, kINT8 };

// One instance of it: everything that is known before the number of rows is.
struct Problem {
    Norm norm;
    std::int64_t n{0};             // elements of a row, 1 to kMaxRow
    std::int64_t inner{1};         // from one of them to the next: those of the axes behind
    Type x{Type::kF32};            // T: of x, residual, gate and sum; f32, f16 or bf16
    Type scale{Type::kF32};        // T or f32
    Type bias{Type::kF32};         // T or f32
    Type y{Type::kF32};            // T, or with quantize FP8 or INT8
    bool has_scale{true};
    bool has_bias{false};
    Quantize quantize{Quantize::kNone};
    Type table{Type::kF32};        // C: of cos and sin, T or f32
    std::int64_t table_width{0};   // entries of a row of theirs: rotary_dim, or half of it
    // Row (a * runs[0] + b) * runs[1] + c of x takes row a * strides[0] + b * strides[1] +
    // c * strides[2] of the tables; `broadcast_tables` fills this.
    std::int64_t runs[2]{1, 1};
    std::int64_t strides[3]{1, 0, 0};
};

// Device pointers. Any alignment that the element type allows; x, residual and gate may be equal to
// no output. Null where the problem has no such tensor.
struct Pointers {
    void const* x{nullptr};
    void const* other{nullptr};        // residual or gate, like x
    void const* scale{nullptr};        // [n]
    void const* bias{nullptr};         // [n]
    float const* quant_scale{nullptr}; // one f32 on the device (static)
    void* y{nullptr};                  // in the shape of x
    void* sum{nullptr};                // like x (Skip); null: not written
    void* row_scale{nullptr};          // f32 [rows] (per row)
    void const* cos{nullptr};          // [rows of the tables, table_width] (Rotary)
    void const* sin{nullptr};
};

// Null when the problem can be launched, else one sentence that says what is wrong with it and what
// would be right. The string has static storage. Never throws.
char const* refusal(Problem const& problem) noexcept;

// Fills `runs` and `strides` for cos and sin whose axes before the last, `of_table`, are broadcast
// against those of x, `of_x`, aligned at the right. Null, or one sentence as `refusal` has it.
char const* broadcast_tables(Problem& problem, std::int64_t const* of_x, std::int32_t x_axes,
                             std::int64_t const* of_table, std::int32_t table_axes) noexcept;

// Enqueues the norm of `rows` rows on `stream` of the current device; 0 rows is no launch. Never
// allocates, synchronises or throws, so it may be captured in a graph. How a row is summed follows
// from n, the types and the device only: it has the same numbers in every batch.
//
// Returns cudaErrorInvalidValue for a problem with a refusal, or rows that are no whole number of
// its runs, else what the launch reported.
cudaError_t launch(Problem const& problem, Pointers const& pointers, std::int64_t rows,
                   cudaStream_t stream) noexcept;

}  // namespace rmsnorm_export
