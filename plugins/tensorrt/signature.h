// What each tensor of a node is, and the checks that lead from TensorRT's descriptions to a
// Problem.
//
//     X, residual | gate, scale?, bias?, quant_scale (static)  ->  Y, sum (Skip), row_scale (per
//     row)
//
// An optional input is absent when the node ends before it or TensorRT has a null tensor for it.
#pragma once

#include "attributes.h"

namespace rmsnorm_export {

using nvinfer1::DataType;

// Positions, counting inputs and then outputs as TensorRT does; -1 where there is no such tensor.
struct Signature {
    // Refuses counts that no node of these attributes has.
    bool assign(char const* who, Attributes const& attributes, std::int32_t input_count,
                std::int32_t output_count) noexcept;

    // Whether the tensor at `position` may have `type` when X has `x`; no later one is looked at.
    bool accepts(std::int32_t position, DataType type, DataType x) const noexcept;

    bool optional(std::int32_t position) const noexcept {
        return position > 0 && (position == scale || position == bias);
    }

    std::int32_t inputs{0}, other{-1}, scale{-1}, bias{-1}, quant_scale{-1}, sum{-1}, row_scale{-1};
    std::int32_t stash_type{1};
    bool quantized{false};
    DataType code{DataType::kFP8};  // type of Y when quantized
};

// Descriptions of all inputs by position; null for an absent one.
using Tensors = std::array<nvinfer1::PluginTensorDesc const*, 5>;

// As `accepts`, and refuses when not.
bool checkType(char const* who, Signature const& signature, std::int32_t position, DataType type,
               DataType x) noexcept;

// Fills the problem and the number of rows, or refuses. Where sizes are not known yet (-1) only
// what is known is checked, and n or rows are -1.
bool resolve(char const* who, Attributes const& attributes, Signature const& signature,
             Tensors const& tensors, Problem& problem, std::int64_t& rows) noexcept;

}  // namespace rmsnorm_export
