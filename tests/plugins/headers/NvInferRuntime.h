// Of TensorRT's interface what a plugin library and its self-test name, for machines without
// TensorRT's headers: the same names, signatures and order of virtual functions, no comments, no
// defaults. A library that is compiled with it runs in a genuine registry.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nvinfer1 {

struct InterfaceInfo { char const* kind; std::int32_t major, minor; };
enum class APILanguage : std::int32_t { kCPP, kPYTHON };
enum class PluginFieldType : std::int32_t { kFLOAT16, kFLOAT32, kFLOAT64, kINT8, kINT16, kINT32, kCHAR };
enum class TensorRTPhase : std::int32_t { kBUILD, kRUNTIME };
enum class PluginCapabilityType : std::int32_t { kCORE, kBUILD, kRUNTIME };
enum class DataType : std::int32_t;
struct PluginTensorDesc;
struct DynamicPluginTensorDesc;
struct DimsExprs;
struct IExprBuilder;
struct IPluginResourceContext;

struct PluginField {
    char const* name;
    void const* data;
    PluginFieldType type;
    std::int32_t length;
};

struct PluginFieldCollection {
    std::int32_t nbFields;
    PluginField const* fields;
};

struct IVersionedInterface {
    virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;
};

struct IPluginCapability : IVersionedInterface {};
struct IPluginCreatorInterface : IVersionedInterface {};

struct IPluginV3 : IVersionedInterface {
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType) noexcept = 0;
    virtual IPluginV3* clone() noexcept = 0;
};

struct IPluginV3OneCore : IPluginCapability {
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual char const* getPluginName() const noexcept = 0;
    virtual char const* getPluginVersion() const noexcept = 0;
    virtual char const* getPluginNamespace() const noexcept = 0;
};

struct IPluginV3OneBuild : IPluginCapability {
    using Descs = DynamicPluginTensorDesc const*;
    using Exprs = DimsExprs const*;
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual std::int32_t configurePlugin(Descs, std::int32_t, Descs, std::int32_t) noexcept = 0;
    virtual std::int32_t getOutputDataTypes(DataType*, std::int32_t, DataType const*,
                                            std::int32_t) const noexcept = 0;
    virtual std::int32_t getOutputShapes(Exprs, std::int32_t, Exprs, std::int32_t, DimsExprs*,
                                         std::int32_t, IExprBuilder&) noexcept = 0;
    virtual bool supportsFormatCombination(std::int32_t, Descs, std::int32_t,
                                           std::int32_t) noexcept = 0;
    virtual std::int32_t getNbOutputs() const noexcept = 0;
    virtual std::size_t getWorkspaceSize(Descs, std::int32_t, Descs, std::int32_t) const noexcept {
        return 0;
    }
    virtual std::int32_t getValidTactics(std::int32_t*, std::int32_t) noexcept { return 0; }
    virtual std::int32_t getNbTactics() noexcept { return 0; }
    virtual char const* getTimingCacheID() noexcept { return nullptr; }
    virtual std::int32_t getFormatCombinationLimit() noexcept { return 100; }
    virtual char const* getMetadataString() noexcept { return nullptr; }
};

struct IPluginV3OneRuntime : IPluginCapability {
    using Descs = PluginTensorDesc const*;
    InterfaceInfo getInterfaceInfo() const noexcept override {
        return {"PLUGIN_V3ONE_RUNTIME", 1, 0};
    }
    virtual std::int32_t setTactic(std::int32_t) noexcept { return 0; }
    virtual std::int32_t onShapeChange(Descs, std::int32_t, Descs, std::int32_t) noexcept = 0;
    virtual std::int32_t enqueue(Descs, Descs, void const* const*, void* const*, void*,
                                 CUstream_st*) noexcept = 0;
    virtual IPluginV3* attachToContext(IPluginResourceContext*) noexcept = 0;
    virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};

struct IPluginCreatorV3One : IPluginCreatorInterface {
    InterfaceInfo getInterfaceInfo() const noexcept override {
        return {"PLUGIN CREATOR_V3ONE", 1, 0};
    }
    virtual IPluginV3* createPlugin(char const*, PluginFieldCollection const*,
                                    TensorRTPhase) noexcept = 0;
    virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
    virtual char const* getPluginName() const noexcept = 0;
    virtual char const* getPluginVersion() const noexcept = 0;
    virtual char const* getPluginNamespace() const noexcept = 0;
};

}  // namespace nvinfer1
