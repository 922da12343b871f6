// One norm: what is computed (Norm), on what (Rows), and the kernels of each instruction set.
//
// The operator is the one that rmsnorm_export/op/spec.py defines, its field names unchanged, and
// its rounding steps are those of op/reference.py. T is the type of X, S the stash type, P the type
// of the product with the scale: S with scale_before_cast, else T.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rmsnorm_export::onnxruntime {

// Places in tables; `type_of` in operator.cpp makes them of ONNX's numbers.
enum Type : std::int32_t { kFloat = 0, kHalf = 1, kBfloat = 2, kDouble = 3 };
constexpr int kTypes = 4;

enum class Kind : std::int32_t { kRMSNorm, kSkipRMSNorm, kGatedRMSNorm, kRotaryRMSNorm };

// Codes of the norm in place of it, and what a step of them is: an input, of each row, or of each
// block of kBlock elements (a power of two; kFloor: as OCP MX 1.0 has it, 6.3).
enum class Codes : std::int32_t { kNone, kInt8, kFp8 };
enum class Steps : std::int32_t { kGiven, kRow, kBlock, kBlockFloor };
constexpr std::size_t kBlock = 32;

struct Norm {
    Kind kind{Kind::kRMSNorm};
    Type x{kFloat};      // T
    Type stash{kFloat};  // S
    float epsilon{1e-5F};
    float scale_offset{0.0F};
    bool epsilon_outside{false};
    bool epsilon_clamp{false};
    bool scale_before_cast{false};
    bool round_rstd{false};
    bool sigmoid{false};  // activation of the gate; else silu
    bool gate_first{false};
    std::int64_t axis{-1};
    std::int64_t last_axis{-1};
    std::int64_t partial_size{0};
    std::int64_t group_size{0};
    std::int64_t association{0};
    std::int64_t rotary_dim{0};  // 0: all of the row
    bool rotary_interleaved{false};
    Codes codes{Codes::kNone};
    Steps steps{Steps::kGiven};

    Type product() const { return scale_before_cast ? stash : x; }
    // Lanes are f64 where T or S is, else f32, in which every half type and its sums, products,
    // quotients and roots round as they should: 24 >= 2 * 11 + 2 bits.
    bool wide() const { return x == kDouble || stash == kDouble; }
};

// The tensors of one call. A segment is a row, or one group of it.
struct Rows {
    const Norm* norm{nullptr};
    const void* x{nullptr};
    const void* second{nullptr};  // residual or gate
    void* y{nullptr};
    void* sum{nullptr};            // may be null
    const void* factor{nullptr};   // scale_offset + scale, and bias: a row each, as Kernels::operand
    const void* bias{nullptr};     // makes it; null where there is none
    std::size_t segment{0};        // elements of a segment
    std::size_t summed{0};         // of those, the first that the mean is taken from
    std::size_t per_row{1};        // segments of a row
    std::size_t segments{0};       // of the call
    bool streamed{false};          // y passes the caches by
    bool fetched{false};           // the tensors are not in the caches: their lines are fetched ahead
    const float* activations{nullptr};  // as Kernels makes them; may be null
};

// The rotary embedding of one row of n elements of type T, in place: of `dim` of them, by tables of
// type C with an entry for each or, `half`, for each pair.
struct Turn {
    Type x{kFloat};
    Type table{kFloat};
    std::size_t dim{0};
    bool half{false};
    bool interleaved{false};
};

// Bytes of a line of the cache.
constexpr std::size_t kLine = 64;

// Elements that the kernels do at once where segments are shorter.
constexpr std::size_t kScratch = 6144;

// 2^(0 / 4) to 2^(3 / 4), and by what part of themselves these are too small.
#define RMSNORM_QUARTERS 1.0F, 0x1.306fep0F, 0x1.6a09e6p0F, 0x1.ae89fap0F
#define RMSNORM_LACKS_OF_QUARTERS 0.0F, 0x1.125002p-25F, 0x1.26055cp-26F, -0x1.f9c304p-27F

struct Kernels {
    const char* name;
    bool keeps_halves;  // rows of f16 as f32, in the scratch, for it takes many steps to convert them
    // Segments [begin, end). scratch: elements of a segment or kScratch, the more, of f64 where lanes
    // are, else f32, for kinds that need it.
    void (*run)(const Rows&, std::size_t begin, std::size_t end, void* scratch);
    // offset + n values of type `from`, rounded to P, as f32, or f64 (Norm::wide); behind them, where
    // that is their type, as bf16. Room for n elements of these types each.
    void (*operand)(const Norm&, Type from, const void* values, std::size_t n, float offset,
                    void* out);
    // The activations of all 2^16 numbers of a half type, by their bits, where the stash type is f32.
    void (*activations)(const Norm&, float* to);
    unsigned looked_up;  // a bit for each Type whose activations are sooner looked up than computed
    void (*turn)(const Turn&, void* y, const void* cos, const void* sin);
    // Codes of y / step, to nearest even; int8 of NaN is -128, as ONNX Runtime has it on x86.
    void (*encode)(Type, Codes, const void* y, std::size_t n, float step, std::uint8_t* codes);
    // The largest |y|, as f32; NaN where one is.
    float (*largest)(Type, const void* y, std::size_t n);
};

// Null where the library was built for another processor.
extern const Kernels* const kAvx512;
extern const Kernels* const kAvx2;
extern const Kernels* const kNeon;
extern const Kernels* const kPortable;

// The fastest of them that this processor runs, or the one named by RMSNORM_EXPORT_ISA. A `small` call
// does without vectors of 64 bytes: those lower the clock of all that runs within the next millisecond.
const Kernels& kernels(bool small = false);

}  // namespace rmsnorm_export::onnxruntime
