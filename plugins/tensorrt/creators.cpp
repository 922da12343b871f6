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

}  // namespace

std::vector<nvinfer1::IPluginCreatorInterface*> const& creators() {
    static auto const& all = *[] {
        auto* const made = new std::vector<nvinfer1::IPluginCreatorInterface*>;
        for (char const* op : {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "RotaryRMSNorm",
                               "QuantizedRMSNorm", "QuantizedSkipRMSNorm", "QuantizedGatedRMSNorm"}) {
            for (auto const& name : names_of(op)) {
                made->push_back(new Creator(name));
            }
        }
        return made;
    }();
    return all;
}

}  // namespace rmsnorm_export
