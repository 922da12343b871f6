// What TensorRT would be to the plugin: a logger, expressions, tensor descriptions, creators.
#pragma once

#include "fields.h"

#include <array>
#include <cstdint>

using nvinfer1::Dims;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginCapabilityType;
using nvinfer1::PluginTensorDesc;
using nvinfer1::TensorFormat;
using nvinfer1::TensorRTPhase;

extern "C" void setLoggerFinder(nvinfer1::ILoggerFinder* finder);
extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& count);

// Keeps the last sentence.
class Log final : public nvinfer1::ILogger {
  public:
    void log(Severity severity, char const* message) noexcept override {
        last = message;
        errors += severity == Severity::kERROR;
    }
    std::string last;
    int errors{0};
};

// Whether nothing was said since `count` errors, or a sentence that has `word` in it.
inline bool said(Log const& log, int count, std::string const& word) {
    return log.errors > count && log.last.find(word) != log.last.npos;
}

class Finder final : public nvinfer1::ILoggerFinder {
  public:
    explicit Finder(Log& log) : log_{log} {}
    nvinfer1::ILogger* findLogger() override { return &log_; }

  private:
    Log& log_;
};

// Without an implementation behind it: every use of it, other than its address, would crash.
class Expression final : public nvinfer1::IDimensionExpr {
  public:
    Expression() { mImpl = nullptr; }
};

// Knows the constant 1.
class Constants final : public nvinfer1::apiv::VExprBuilder {
  public:
    using Size = nvinfer1::IDimensionExpr const;
    Size* constant(std::int64_t value) override { return value == 1 ? &one_ : nullptr; }
    Size* operation(nvinfer1::DimensionOperation, Size&, Size&) override { return nullptr; }
    Size* declareSizeTensor(std::int32_t, Size&, Size&) override { return nullptr; }

  private:
    Expression one_;
};

class Expressions final : public nvinfer1::IExprBuilder {
  public:
    Expressions() { mImpl = &constants_; }

  private:
    Constants constants_;
};

inline Dims dims(std::vector<std::int64_t> const& sizes) {
    Dims made{};
    made.nbDims = static_cast<std::int32_t>(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        made.d[i] = sizes[i];
    }
    return made;
}

inline Dims noDims() {
    Dims made{};
    made.nbDims = -1;
    return made;
}

inline PluginTensorDesc tensor(DataType type, Dims const& shape) {
    return {shape, type, TensorFormat::kLINEAR, -1.0F};
}

inline std::vector<DynamicPluginTensorDesc> dynamic(std::vector<PluginTensorDesc> const& tensors) {
    std::vector<DynamicPluginTensorDesc> made;
    for (auto const& desc : tensors) {
        made.push_back({desc, desc.dims, desc.dims, desc.dims});
    }
    return made;
}

inline nvinfer1::IPluginCreatorV3One* creator(std::string const& name) {
    std::int32_t count = 0;
    auto* const* all = getCreators(count);
    for (std::int32_t i = 0; i < count; ++i) {
        auto* const found = static_cast<nvinfer1::IPluginCreatorV3One*>(all[i]);
        if (found->getPluginName() == name) {
            return found;
        }
    }
    return nullptr;
}

using Owner = std::unique_ptr<nvinfer1::IPluginV3>;

inline Owner make(std::string const& op, Fields fields,
                  TensorRTPhase phase = TensorRTPhase::kBUILD) {
    auto* const found = creator(op);
    return Owner{found ? found->createPlugin("layer", fields.collection(), phase) : nullptr};
}

inline nvinfer1::IPluginV3OneBuild& builder(Owner const& plugin) {
    return *static_cast<nvinfer1::IPluginV3OneBuild*>(
        plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
}

inline nvinfer1::IPluginV3OneRuntime& runtime(Owner const& plugin) {
    return *static_cast<nvinfer1::IPluginV3OneRuntime*>(
        plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

// Names, types and bytes of attributes, comparable.
inline std::string bytes(PluginFieldCollection const& fields) {
    std::string all;
    for (std::int32_t i = 0; i < fields.nbFields; ++i) {
        auto const& field = fields.fields[i];
        if (!std::strcmp(field.name, "library")) {
            continue;
        }
        auto const size = field.type == PluginFieldType::kCHAR ? 1 : 4;
        all += std::string{field.name} + ":" + std::to_string(static_cast<int>(field.type)) + ":";
        all.append(static_cast<char const*>(field.data),
                   static_cast<std::size_t>(field.length * size));
        all += "\n";
    }
    return all;
}

// All tensors of a case at X of `shape`: inputs, then outputs.
inline std::vector<PluginTensorDesc> tensors(Case const& one, DataType type, DataType weight,
                                             int weights, std::vector<std::int64_t> const& shape) {
    std::vector<std::int64_t> const row{shape.end() + one.axis, shape.end() + one.last_axis + 1};
    auto rows = shape;
    std::fill(rows.end() + one.axis, rows.end() + one.last_axis + 1, 1);
    std::vector<PluginTensorDesc> made{tensor(type, dims(shape))};
    if (one.other()) {
        made.push_back(made[0]);
    }
    if (one.rotary()) {  // one row of angles for each of the axis before the last
        auto const angles = tensor(weight, dims({shape[shape.size() - 2], one.width}));
        made.insert(made.end(), 2, angles);
    }
    for (int i = 0; i < weights; ++i) {
        made.push_back(tensor(weight, dims(row)));
    }
    if (one.fixed()) {
        made.push_back(tensor(DataType::kFLOAT, dims({})));
    }
    auto const code = one.quantize.rfind("int8", 0) == 0 ? DataType::kINT8 : DataType::kFP8;
    made.push_back(tensor(one.quantize.empty() ? type : code, dims(shape)));
    if (one.skip()) {
        made.push_back(made[0]);
    }
    if (one.perRow()) {
        made.push_back(tensor(DataType::kFLOAT, dims(rows)));
    }
    return made;
}

// A type of X that the case's stash_type allows.
inline DataType typeOf(Case const& one) {
    return one.stash_type == 16 ? DataType::kBF16 : DataType::kHALF;
}

void badFields(Log& log);
void build(Case const& one, Log& log);
void badBuild(Log& log);
void run(Case const& one, Log& log);
void badRun(Log& log);
