// The creators of plugin.h: their class and the table of names.
#include "plugin.h"

#include <cstdio>
#include <string>
#include <utility>

namespace rmsnorm_export {
namespace {

using nvinfer1::PluginFieldCollection;

class Creator final : public nvinfer1::IPluginCreatorV3One {
  public:
    Creator(std::string name, Kind kind, bool quantized) : name_{std::move(name)} {
        blank_.kind = kind;
        blank_.quantized = quantized;
    }

    nvinfer1::IPluginV3* createPlugin(char const* layer, PluginFieldCollection const* fields,
                                      nvinfer1::TensorRTPhase) noexcept override {
        char who[160];
        std::snprintf(who, sizeof who, "%s '%.80s'", name_.c_str(), layer ? layer : "");
        auto attributes = blank_;
        return read(who, fields, attributes) ? makePlugin(name_.c_str(), attributes) : nullptr;
    }

    PluginFieldCollection const* getFieldNames() noexcept override { return fields_.of(blank_); }
    char const* getPluginName() const noexcept override { return name_.c_str(); }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }

  private:
    std::string name_;
    Attributes blank_;
    FieldList fields_;
};

// A function body has one rounding order, so `optimize` gives the sites of a second one another
// operator name (rmsnorm_export/op/body_key.py). Here all is in the attributes, and those names are
// the same plugin. Names with a size in them are left to the function body.
constexpr char const* kSuffixes[] = {
    "",
    "_scale_before_cast",
    "_scale_after_cast",
    "_round_rstd",
    "_rstd_not_rounded",
    "_epsilon_outside",
    "_epsilon_inside",
    "_stash_float32",
    "_stash_float16",
    "_stash_bfloat16",
    "_whole",
    "_ungrouped",
    "_last_axis",
};
constexpr char const* kGateSuffixes[] = {"_silu", "_sigmoid", "_gate_first", "_gate_last"};
constexpr std::pair<char const*, Kind> kKinds[] = {{"RMSNorm", Kind::kRMSNorm},
                                                   {"SkipRMSNorm", Kind::kSkipRMSNorm},
                                                   {"GatedRMSNorm", Kind::kGatedRMSNorm}};

}  // namespace

std::vector<nvinfer1::IPluginCreatorInterface*> const& creators() {
    static auto const& all = *[] {
        auto* const made = new std::vector<nvinfer1::IPluginCreatorInterface*>;
        for (auto const& [name, kind] : kKinds) {
            for (auto const* suffix : kSuffixes) {
                made->push_back(new Creator(std::string{name} + suffix, kind, false));
            }
            made->push_back(new Creator(std::string{"Quantized"} + name, kind, true));
        }
        for (auto const* suffix : kGateSuffixes) {
            made->push_back(
                new Creator(std::string{"GatedRMSNorm"} + suffix, Kind::kGatedRMSNorm, false));
        }
        return made;
    }();
    return all;
}

}  // namespace rmsnorm_export
