// librmsnorm_plugin_autoload.so: registers the creators when it is loaded, for those who only
// dlopen (ctypes.CDLL, polygraphy --plugins, ONNX Runtime's trt_extra_plugin_lib_paths). Links no
// TensorRT: every flavour that is in the process is found and served.
#include "host.h"
#include "log.h"
#include "plugin.h"

#include <link.h>

#include <algorithm>
#include <string>

namespace rmsnorm_export {
namespace {

// The global logger of the first TensorRT that has one.
class GlobalLogger final : public nvinfer1::ILoggerFinder {
  public:
    nvinfer1::ILogger* findLogger() override {
        for (auto* const get : getters) {
            if (auto* const found = get ? get() : nullptr) {
                return found;
            }
        }
        return nullptr;
    }
    std::vector<decltype(getLogger)*> getters;
};

int remember(dl_phdr_info* info, std::size_t, void* names) {
    static_cast<std::vector<std::string>*>(names)->emplace_back(info->dlpi_name);
    return 0;
}

// By library, because a global lookup does not see what Python has loaded.
void registerAll() {
    std::vector<std::string> libraries;
    ::dl_iterate_phdr(remember, &libraries);
    auto& logger = *new GlobalLogger;  // TensorRT may use it until the process ends
    std::vector<nvinfer1::IPluginRegistry*> registries;
    for (auto const& name : libraries) {
        auto const* const path = name.empty() ? nullptr : name.c_str();  // the program itself
        void* const library = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!library) {
            continue;
        }
        auto* const get = symbol<decltype(getPluginRegistry)>(library, "getPluginRegistry");
        auto* const registry = get ? get() : nullptr;
        if (registry &&
            std::find(registries.begin(), registries.end(), registry) == registries.end()) {
            registries.push_back(registry);
            if (auto const major = foreign(library)) {
                sayForeign(major);
            } else {
                for (auto* const creator : creators()) {
                    // False where the name is taken: by the other library or another copy of this.
                    registry->registerCreator(*creator, kNamespace);
                }
                logger.getters.push_back(symbol<decltype(getLogger)>(library, "getLogger"));
            }
        }
        ::dlclose(library);
    }
    setLoggerSource(&logger);
    if (registries.empty()) {
        std::fprintf(stderr,
                     "rmsnorm_export: no plugin is registered: no TensorRT is loaded in this "
                     "process; load it (import tensorrt) before this library\n");
    }
}

[[gnu::constructor]] void start() noexcept {
    try {
        registerAll();
    } catch (...) {
        std::fprintf(stderr, "rmsnorm_export: no plugin is registered: out of memory\n");
    }
}

}  // namespace
}  // namespace rmsnorm_export
