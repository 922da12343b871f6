// The attributes of a node: read from plugin fields, checked, and written as plugin fields.
//
// Names and meaning are those of NormSpec in rmsnorm_export/op/spec.py; the quantised operators
// have one more, quantize: fp8 or int8 (static), fp8_per_row or int8_per_row.
#pragma once

#include "../kernels/rmsnorm.h"

#include <NvInferRuntime.h>

#include <array>

namespace rmsnorm_export {

struct Attributes {
    Kind kind{Kind::kRMSNorm};  // this and quantized are the creator's, not fields
    bool quantized{false};
    float epsilon{0.0F};
    float scale_offset{0.0F};
    std::int32_t axis{-1};
    std::int32_t stash_type{1};  // ONNX element type: 1 float32, 10 float16, 16 bfloat16
    std::int32_t scale_before_cast{0};
    std::int32_t epsilon_outside{0};
    std::int32_t partial_size{0};
    std::int32_t group_size{0};
    std::int32_t round_rstd{0};
    std::int32_t association{0};
    std::int32_t gate_first{0};
    char activation[16]{};
    char quantize[16]{};

    Norm norm() const noexcept;
    Quantize quantization() const noexcept;
};

// The fields of a kind, in the order of the schema. They point into the Attributes given, which
// must outlive the list.
class FieldList {
  public:
    nvinfer1::PluginFieldCollection const* of(Attributes const& attributes) noexcept;

  private:
    std::array<nvinfer1::PluginField, 13> fields_{};
    nvinfer1::PluginFieldCollection collection_{};
};

// Fills `attributes`, whose kind and quantized are set, or refuses; every field must be there.
// `who` starts the sentence.
bool read(char const* who, nvinfer1::PluginFieldCollection const* fields,
          Attributes& attributes) noexcept;

// All attributes as text, at most `size` bytes with the NUL.
void describe(Attributes const& attributes, char* text, std::size_t size) noexcept;

}  // namespace rmsnorm_export
