// One norm: what is computed (Norm), on what (Rows), and the kernels of each instruction set.
//
// The operator is the one that rmsnorm_export/op/spec.py defines, its field names unchanged, and
// its rounding steps are those of op/reference.py. T is the type of X, S the stash type, P the type
// of the product with the scale: S with scale_before_cast, else T.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../kernels/norm.h"

namespace rmsnorm_export::onnxruntime {

enum Type : std::int32_t { kFloat, kHalf, kBfloat, kDouble };
constexpr std::size_t kBytes[] = {4, 2, 2, 8};
constexpr std::int32_t kElementTypes[] = {1, 10, 16, 11};  // of ONNX
constexpr const char* kTypeNames[] = {"f32", "f16", "bf16", "f64"};

constexpr const char* kKinds[] = {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "RotaryRMSNorm"};

// Attributes, and what else is known before the tensors are.
struct Norm : rmsnorm_export::Norm {
    Quantize quantize{Quantize::kNone};  // codes in place of the norm: their step is an input, or a row's
    bool int8{false};                    // codes are int8, else FP8 E4M3
    Type x{kFloat};                      // T
    Type stash{kFloat};                  // S
    std::int64_t stash_type{1};          // of ONNX
    std::int64_t axis{-1};
    std::int64_t last_axis{-1};

    bool coded() const { return quantize != Quantize::kNone; }
    bool step_per_row() const { return quantize == Quantize::kPerRow; }
    bool step_given() const { return quantize == Quantize::kStatic; }
    // Outputs between the norm and the scales of its codes; and all.
    std::size_t sums() const { return kind == Kind::kSkipRMSNorm; }
    std::size_t outputs() const { return 1 + sums() + step_per_row(); }
    // Inputs of the type of X: X, then residual or gate; and those before the scale: tables, too.
    std::size_t like_x() const {
        return kind == Kind::kSkipRMSNorm || kind == Kind::kGatedRMSNorm ? 2 : 1;
    }
    std::size_t required() const { return kind == Kind::kRotaryRMSNorm ? 3 : like_x(); }
    std::size_t inputs() const { return required() + 2 + step_given(); }
    // Lanes are f64 where T or S is, else f32, in which every half type and its sums, products,
    // quotients and roots round as they should: 24 >= 2 * 11 + 2 bits.
    Type lane() const { return x == kDouble || stash == kDouble ? kDouble : kFloat; }
};

// The tensors of one call. A segment is a row, or one group of it.
struct Rows {
    const Norm* norm{nullptr};
    const void* x{nullptr};
    const void* second{nullptr};  // residual or gate
    void* y{nullptr};
    void* sum{nullptr};           // may be null
    const void* factor{nullptr};  // scale_offset + scale, and bias: a row of P each; null where
    const void* bias{nullptr};    // there is none
    std::size_t segment{0};       // elements of a segment
    std::size_t summed{0};        // of those, the first that the mean is taken from
    std::size_t per_row{1};       // segments of a row
    bool fetched{false};          // tensors are fetched ahead
    bool streamed{false};         // outputs pass the caches by
};

// Elements that the kernels do at once where segments are shorter.
constexpr std::size_t kScratch = 4096;

struct Kernels {
    // Segments [begin, end). scratch: lanes for the elements of a segment or kScratch, the more.
    void (*run)(const Rows&, std::size_t begin, std::size_t end, void* scratch);
    // offset + n values of type `from`, each rounded to P.
    void (*operand)(Type product, Type from, const void* values, std::size_t n, float offset,
                    void* to);
    // The rotary embedding of the first `dim` elements of a row, in place, by tables with an entry for
    // each or, `half`, for each pair.
    void (*turn)(const Norm&, Type table, std::size_t dim, bool half, void* y, const void* cos,
                 const void* sin);
    // Codes of y / step, to nearest even; int8 of NaN is -128, as ONNX Runtime has it on x86. Returns
    // the step: where it is null the row's, with which int8 are 0 where it is not finite.
    float (*encode)(Type, bool int8, const void* y, std::size_t n, const float* step,
                    std::uint8_t* codes);
};

// The fastest kernels that this processor runs, or those of AVX2 where RMSNORM_EXPORT_ISA is avx2.
// Throws Refusal where it runs none.
const Kernels& kernels();

}  // namespace rmsnorm_export::onnxruntime
