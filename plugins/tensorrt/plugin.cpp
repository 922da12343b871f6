// One norm of a network, as TensorRT's IPluginV3.
//
// Its state is the attributes, the tactic and the number of inputs, which TensorRT tells to every
// callback but enqueue; so a copy is complete. All else follows from the descriptions of each call.
#include "plugin.h"

#include "log.h"
#include "signature.h"

#include <cstdio>
#include <new>

namespace rmsnorm_export {
namespace {

using namespace nvinfer1;

PluginTensorDesc const& description(PluginTensorDesc const& tensor) {
    return tensor;
}
PluginTensorDesc const& description(DynamicPluginTensorDesc const& tensor) {
    return tensor.desc;
}

template <typename Description>
Tensors present(Description const* in, std::int32_t inputs) noexcept {
    Tensors tensors{};
    for (std::size_t i = 0; i < std::size_t(inputs); ++i) {
        tensors[i] = description(in[i]).dims.nbDims < 0 ? nullptr : &description(in[i]);
    }
    return tensors;
}

class Plugin final : public IPluginV3,
                     public IPluginV3OneCore,
                     public IPluginV3OneBuild,
                     public IPluginV3OneRuntime {
  public:
    Plugin(char const* name, Attributes const& attributes) noexcept
        : name_{name}, attributes_{attributes} {
        auto const used = std::size_t(std::snprintf(id_, sizeof id_ / 2, "%s", name));
        describe(attributes_, id_ + used, sizeof id_ - used);
    }

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

    char const* getPluginName() const noexcept override { return name_; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }
    char const* getTimingCacheID() noexcept override { return id_; }
    char const* getMetadataString() noexcept override { return id_; }

    // Written anew each time: in a copy the list still points into the original.
    PluginFieldCollection const* getFieldsToSerialize() noexcept override {
        return fields_.of(attributes_);
    }

    std::int32_t getNbOutputs() const noexcept override {
        return 1 + (attributes_.kind == Kind::kSkipRMSNorm) +
               (attributes_.quantization() == Quantize::kPerRow);
    }

    std::int32_t getOutputDataTypes(DataType* types, std::int32_t outputs, DataType const* given,
                                    std::int32_t inputs) const noexcept override {
        Signature signature;
        bool good = signature.assign(name_, attributes_, inputs, outputs);
        for (std::int32_t i = 0; good && i < inputs; ++i) {
            good = checkType(name_, signature, i, given[i], given[0]);
        }
        for (std::int32_t i = 0; good && i < outputs; ++i) {
            types[i] = inputs + i == signature.row_scale ? DataType::kFLOAT
                       : i == 0 && signature.quantized   ? signature.code
                                                         : given[0];
        }
        return !good;
    }

    std::int32_t getOutputShapes(DimsExprs const* given, std::int32_t inputs, DimsExprs const*,
                                 std::int32_t, DimsExprs* shapes, std::int32_t outputs,
                                 IExprBuilder&) noexcept override {
        Signature signature;
        if (!signature.assign(name_, attributes_, inputs, outputs)) {
            return 1;
        }
        auto const leading = given[0].nbDims + attributes_.axis;
        for (std::int32_t i = 0; i < outputs && leading >= 0; ++i) {
            shapes[i] = given[0];
            if (inputs + i == signature.row_scale) {
                shapes[i].nbDims = leading;
            }
        }
        return leading < 0 &&
               !refuse("%s: X must have at least %d dimensions for axis %d; found %d", name_,
                       -attributes_.axis, attributes_.axis, given[0].nbDims);
    }

    bool supportsFormatCombination(std::int32_t position, DynamicPluginTensorDesc const* tensors,
                                   std::int32_t inputs, std::int32_t outputs) noexcept override {
        Signature signature;
        auto const& desc = tensors[position].desc;
        return signature.assign(name_, attributes_, inputs, outputs) &&
               ((signature.optional(position) && desc.dims.nbDims < 0) ||
                (desc.format == TensorFormat::kLINEAR &&
                 signature.accepts(position, desc.type, tensors[0].desc.type)));
    }

    std::int32_t configurePlugin(DynamicPluginTensorDesc const* in, std::int32_t inputs,
                                 DynamicPluginTensorDesc const*,
                                 std::int32_t outputs) noexcept override {
        return !usable(in, inputs, outputs);
    }

    std::int32_t getNbTactics() noexcept override { return 2; }

    std::int32_t getValidTactics(std::int32_t* tactics, std::int32_t count) noexcept override {
        Tactic const all[] = {Tactic::kThroughput, Tactic::kLowLatency};
        for (std::int32_t i = 0; i < count && i < 2; ++i) {
            tactics[i] = std::int32_t(all[i]);
        }
        return 0;
    }

    std::int32_t setTactic(std::int32_t tactic) noexcept override {
        if (tactic < 0 || tactic > std::int32_t(Tactic::kLowLatency)) {
            return !refuse(
                "%s: tactics are 1 and 2; found %d, of another version of this library; "
                "build the engine again",
                name_, tactic);
        }
        tactic_ = tactic == 0 ? Tactic::kThroughput : Tactic(tactic);  // 0: TensorRT chose none
        return 0;
    }

    std::int32_t onShapeChange(PluginTensorDesc const* in, std::int32_t inputs,
                               PluginTensorDesc const*, std::int32_t outputs) noexcept override {
        inputs_ = inputs;
        return !usable(in, inputs, outputs);
    }

    std::int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*,
                         void const* const* inputs, void* const* outputs, void*,
                         cudaStream_t stream) noexcept override {
        Signature signature;
        Problem problem;
        std::int64_t rows = 0;
        if (!signature.assign(name_, attributes_, inputs_, getNbOutputs())) {
            return 1;
        }
        auto tensors = present(in, inputs_);
        for (std::int32_t i = 0; i < inputs_; ++i) {
            if (signature.optional(i) && !inputs[i]) {
                tensors[std::size_t(i)] = nullptr;
            }
        }
        if (!resolve(name_, attributes_, signature, tensors, problem, rows)) {
            return 1;
        }
        if (rows == 0) {  // and the addresses may be null
            return 0;
        }
        auto const input = [&](std::int32_t i) { return i < 0 ? nullptr : inputs[i]; };
        auto const output = [&](std::int32_t i) { return i < 0 ? nullptr : outputs[i - inputs_]; };
        Pointers const pointers{inputs[0],
                                input(signature.other),
                                input(signature.scale),
                                input(signature.bias),
                                static_cast<float const*>(input(signature.quant_scale)),
                                outputs[0],
                                output(signature.sum),
                                static_cast<float*>(output(signature.row_scale))};
        auto const status = launch(problem, pointers, rows, tactic_, stream);
        if (status != cudaSuccess) {
            refuse("%s: the kernel was not launched: %s", name_, cudaGetErrorString(status));
        }
        return status;
    }

  private:
    template <typename Description>
    bool usable(Description const* in, std::int32_t inputs, std::int32_t outputs) const noexcept {
        Signature signature;
        Problem problem;
        std::int64_t rows = 0;
        return signature.assign(name_, attributes_, inputs, outputs) &&
               resolve(name_, attributes_, signature, present(in, inputs), problem, rows);
    }

    char const* name_;
    Attributes attributes_;
    Tactic tactic_{Tactic::kThroughput};
    std::int32_t inputs_{0};
    FieldList fields_;
    char id_[384];
};

}  // namespace

nvinfer1::IPluginV3* makePlugin(char const* name, Attributes const& attributes) noexcept {
    return new (std::nothrow) Plugin(name, attributes);
}

}  // namespace rmsnorm_export
