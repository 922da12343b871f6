// The attributes of the operator that rmsnorm_export/op/spec.py defines; its field names are used
// unchanged.
#pragma once

#include <cstdint>

namespace rmsnorm_export {

enum class Kind : std::int32_t { kRMSNorm, kSkipRMSNorm, kGatedRMSNorm, kRotaryRMSNorm };
enum class Activation : std::int32_t { kSilu, kSigmoid };
enum class Quantize : std::int32_t { kNone, kStatic, kPerRow };

// Its fields in the order of NormSpec, of the types that toolbox/abi.py gives them.
struct Norm {
    Kind kind{Kind::kRMSNorm};
    float epsilon{1e-5F};
    bool scale_before_cast{false};
    float scale_offset{0.0F};
    bool epsilon_outside{false};
    std::int64_t partial_size{0};
    std::int64_t group_size{0};
    bool round_rstd{false};
    std::int64_t association{0};  // order of the products when stash_half, see spec.py
    bool epsilon_clamp{false};
    Activation activation{Activation::kSilu};
    bool gate_first{false};
    std::int64_t rotary_dim{0};  // 0: all of the row
    bool rotary_interleaved{false};
    bool stash_half{false};  // stash_type is T, a half type, instead of f32
};

}  // namespace rmsnorm_export
