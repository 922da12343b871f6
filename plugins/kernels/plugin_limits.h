// What the plugin takes, of which a node has to be sure before it names the plugin: the one table of
// it, for the compilers and for rmsnorm_export/lower/plugin.py.
#pragma once

#include <cstdint>

namespace rmsnorm_export {

constexpr std::int64_t kMaxRow = 1048576;  // elements, on a GPU
constexpr int kMaxAxes = 8;                // that are normalised
constexpr int kMaxRuns = 3;                // of axes of x along which cos and sin repeat, or do not

// The names of the operators, and what they may have after them. A function body has one rounding
// order, so `optimize` gives the sites of a second one another name (op/body_key.py). Here all is in
// the attributes, and those names are the same operator. Other names, of several words or a third
// size, are left to the function body.
struct OperatorNames {
    char const* operators;
    char const* suffixes;
};
constexpr OperatorNames kOperatorNames[] = {
    {"RMSNorm SkipRMSNorm GatedRMSNorm RotaryRMSNorm",
     "_scale_before_cast _scale_after_cast _round_rstd _rstd_not_rounded _epsilon_outside "
     "_epsilon_inside _epsilon_clamp _stash_float32 _stash_float16 _stash_bfloat16"},
    {"RMSNorm SkipRMSNorm GatedRMSNorm",  // of rows that may be cut, and other axes than the last
     "_whole _ungrouped _last_axis _partial _partial_2 _grouped _grouped_2 _several_axes "
     "_several_axes_2 _channels _channels_2 _epsilon_clamp_channels"},
    {"GatedRMSNorm", "_silu _sigmoid _gate_first _gate_last"},
    {"RotaryRMSNorm",
     "_rotary_part _rotary_whole _interleaved _halves _half_table _full_table _table_float32 "
     "_table_as_x"},
    {"QuantizedRMSNorm QuantizedSkipRMSNorm QuantizedGatedRMSNorm",
     "_fp8 _int8 _fp8_per_row _int8_per_row"}};

}  // namespace rmsnorm_export
