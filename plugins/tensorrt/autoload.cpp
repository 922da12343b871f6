// librmsnorm_plugin_autoload.so: registers the creators when it is loaded, for those who only
// dlopen (ctypes.CDLL, polygraphy --plugins, ONNX Runtime's trt_extra_plugin_lib_paths). Links no
// TensorRT: every flavour that is in the process is found and served.
#include "host.h"
#include "log.h"
#include "plugin.h"

#include <link.h>

#include <algorithm>
#include <string>

#define RMSNORM_QUOTED(text) #text
#define RMSNORM_TEXT(macro) RMSNORM_QUOTED(macro)

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

// Registers with every TensorRT that is in the process, and returns how many there are. By library,
// because a global lookup does not see what Python has loaded.
std::size_t registerAll(GlobalLogger& logger) {
    std::vector<std::string> libraries;
    ::dl_iterate_phdr(remember, &libraries);
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
    return registries.size();
}

// The TensorRT that this library was built for, where the loader finds it.
constexpr char const kTensorRT[] = "libnvinfer.so." RMSNORM_TEXT(NV_TENSORRT_MAJOR);

[[gnu::constructor]] void start() noexcept {
    try {
        auto& logger = *new GlobalLogger;  // TensorRT may use it until the process ends
        setLoggerSource(&logger);
        auto found = registerAll(logger);
        // Polygraphy and LD_PRELOAD load plugins before TensorRT; it stays, for they load it next.
        if (!found && ::dlopen(kTensorRT, RTLD_LAZY)) {
            found = registerAll(logger);
        }
        if (!found) {
            std::fprintf(stderr,
                         "rmsnorm_export: no plugin is registered: no TensorRT is loaded in this "
                         "process, and the loader does not find %s; load it (import tensorrt) "
                         "before this library\n",
                         kTensorRT);
        }
    } catch (...) {
        std::fprintf(stderr, "rmsnorm_export: no plugin is registered: out of memory\n");
    }
}

}  // namespace
}  // namespace rmsnorm_export
