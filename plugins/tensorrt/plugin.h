// One norm of a network, as TensorRT's IPluginV3.
//
// Its state is the node and the number of inputs, which TensorRT tells to every callback but
// enqueue; so a copy is complete. All else follows from the descriptions of each call.
#pragma once

#include "node.h"

#include <new>

namespace rmsnorm_export {

class Plugin final : public IPluginV3,
                     public IPluginV3OneCore,
                     public IPluginV3OneBuild,
                     public IPluginV3OneRuntime {
  public:
    explicit Plugin(Node const& node) noexcept : node_{node} {}

    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
        switch (type) {
            case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
            case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
            case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
        }
        return nullptr;
    }

    IPluginV3* clone() noexcept override { return new (std::nothrow) Plugin(*this); }
    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }
    PluginFieldCollection const* getFieldsToSerialize() noexcept override { return node_.serialized(); }

    char const* getPluginName() const noexcept override { return node_.name; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }
    char const* getTimingCacheID() noexcept override { return node_.id; }
    char const* getMetadataString() noexcept override { return node_.id; }
    std::int32_t getNbOutputs() const noexcept override { return node_.outputs(); }

    std::int32_t getOutputDataTypes(DataType* types, std::int32_t outputs, DataType const* given,
                                    std::int32_t inputs) const noexcept override {
        bool good = node_.counts(inputs, outputs);
        PluginTensorDesc in[kRoles]{};  // of which the types are known
        for (std::int32_t i = 0; good && i < inputs; ++i) {
            auto const role = node_.role(i, inputs);
            in[i].type = given[i];
            good = (node_.accepts(role, given[i], given[0]) &&
                    (role != kSin || given[i] == given[1])) ||
                   node_.refuseInput(role, in[i], in[0]);
        }
        for (std::int32_t i = 0; good && i < outputs; ++i) {
            types[i] = node_.typeOf(node_.role(inputs + i, inputs), given[0]);
        }
        return !good;
    }

    std::int32_t getOutputShapes(DimsExprs const* given, std::int32_t inputs, DimsExprs const*,
                                 std::int32_t, DimsExprs* shapes, std::int32_t outputs,
                                 IExprBuilder& expressions) noexcept override {
        bool const good = node_.counts(inputs, outputs) && node_.ranked(given[0].nbDims);
        for (std::int32_t i = 0; good && i < outputs; ++i) {
            shapes[i] = given[0];
            if (node_.role(inputs + i, inputs) == kRowScale) {  // X with 1 for what is normalised
                auto* const end = shapes[i].d + given[0].nbDims;
                std::fill(end + node_.axis, end + node_.last_axis + 1, expressions.constant(1));
            }
        }
        return !good;
    }

    bool supportsFormatCombination(std::int32_t position, DynamicPluginTensorDesc const* tensors,
                                   std::int32_t inputs, std::int32_t outputs) noexcept override {
        auto const& desc = tensors[position].desc;
        auto const role = node_.role(position, inputs);
        return node_.counts(inputs, outputs) &&
               ((node_.isWeight(role) && desc.dims.nbDims < 0) ||
                (desc.format == TensorFormat::kLINEAR &&
                 node_.accepts(role, desc.type, tensors[0].desc.type) &&
                 (role != kSin || desc.type == tensors[1].desc.type)));
    }

    std::int32_t configurePlugin(DynamicPluginTensorDesc const* in, std::int32_t inputs,
                                 DynamicPluginTensorDesc const*,
                                 std::int32_t outputs) noexcept override {
        PluginTensorDesc tensors[kRoles];
        for (std::int32_t i = 0; i < inputs && i < kRoles; ++i) {
            tensors[i] = in[i].desc;
        }
        return !node_.resolve(tensors, inputs, outputs, nullptr);
    }

    std::int32_t onShapeChange(PluginTensorDesc const* in, std::int32_t inputs,
                               PluginTensorDesc const*, std::int32_t outputs) noexcept override {
        inputs_ = inputs;
        return !node_.resolve(in, inputs, outputs, nullptr);
    }

    std::int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*,
                         void const* const* inputs, void* const* outputs, void*,
                         cudaStream_t stream) noexcept override {
        bool const good = node_.resolve(in, inputs_, node_.outputs(), inputs);
        if (!good || node_.rows == 0) {  // no rows: the addresses may be null
            return !good;
        }
        void const* from[kRoles]{};
        for (std::int32_t i = 0; i < inputs_; ++i) {
            from[node_.role(i, inputs_)] = inputs[i];
        }
        void* to[kRoles]{};
        for (std::int32_t i = 0; i < node_.outputs(); ++i) {
            to[node_.role(inputs_ + i, inputs_)] = outputs[i];
        }
        auto const* const quant_scale = static_cast<float const*>(from[kQuantScale]);
        auto* const row_scale = to[kRowScale];
        Pointers const pointers{from[kX], from[kOther], from[kScale], from[kBias], quant_scale,
                                to[kY],   to[kSum],     row_scale,    from[kCos],  from[kSin]};
        auto const status = launch(node_.problem, pointers, node_.rows, stream);
        if (status != cudaSuccess) {
            refuse("%s: the kernel was not launched: %s", node_.name, cudaGetErrorString(status));
        }
        return status;
    }

  private:
    Node node_;
    std::int32_t inputs_{0};
};

}  // namespace rmsnorm_export
