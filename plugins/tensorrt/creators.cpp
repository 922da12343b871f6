// The creators of host.h: their class and the table of names.
#include "plugin.h"

#include <string>

namespace rmsnorm_export {
namespace {

class Creator final : public nvinfer1::IPluginCreatorV3One {
  public:
    explicit Creator(std::string const& name) : name_{name}, blank_{name_.c_str()} {}

    nvinfer1::IPluginV3* createPlugin(char const* layer, PluginFieldCollection const* fields,
                                      nvinfer1::TensorRTPhase) noexcept override {
        auto node = blank_;
        return node.read(layer, fields) ? new (std::nothrow) Plugin{node} : nullptr;
    }

    PluginFieldCollection const* getFieldNames() noexcept override { return blank_.attributes(); }
    char const* getPluginName() const noexcept override { return blank_.name; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }

  private:
    std::string name_;
    Node blank_;
};

// A function body has one rounding order, so `optimize` gives the sites of a second one another
// operator name (rmsnorm_export/op/body_key.py). Here all is in the attributes, and those names are
// the same plugin. Other names, of several words or a third size, are left to the function body.
constexpr char const* kSuffixes[] = {
    "", "_scale_before_cast", "_scale_after_cast", "_round_rstd", "_rstd_not_rounded",
    "_epsilon_outside", "_epsilon_inside", "_epsilon_clamp", "_stash_float32", "_stash_float16",
    "_stash_bfloat16"};
// Of the operators whose rows may be cut, and other axes than the last.
constexpr char const* kRowSuffixes[] = {
    "_whole", "_ungrouped", "_last_axis", "_partial", "_partial_2", "_grouped", "_grouped_2",
    "_several_axes", "_several_axes_2", "_channels", "_channels_2", "_epsilon_clamp_channels"};
constexpr char const* kCodeSuffixes[] = {"", "_fp8", "_int8", "_fp8_per_row", "_int8_per_row"};
constexpr char const* kGateSuffixes[] = {"_silu", "_sigmoid", "_gate_first", "_gate_last"};
constexpr char const* kRotarySuffixes[] = {
    "_rotary_part", "_rotary_whole", "_interleaved", "_halves", "_half_table", "_full_table",
    "_table_float32", "_table_as_x"};

}  // namespace

std::vector<nvinfer1::IPluginCreatorInterface*> const& creators() {
    static auto const& all = *[] {
        auto* const made = new std::vector<nvinfer1::IPluginCreatorInterface*>;
        auto const add = [&](std::string const& kind, auto const& suffixes) {
            for (auto const* suffix : suffixes) {
                made->push_back(new Creator(kind + suffix));
            }
        };
        for (std::string const kind : {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm"}) {
            add("Quantized" + kind, kCodeSuffixes);
            add(kind, kSuffixes);
            add(kind, kRowSuffixes);
        }
        add("GatedRMSNorm", kGateSuffixes);
        add("RotaryRMSNorm", kSuffixes);
        add("RotaryRMSNorm", kRotarySuffixes);
        return made;
    }();
    return all;
}

}  // namespace rmsnorm_export
