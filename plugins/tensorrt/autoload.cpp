// librmsnorm_plugin_autoload.so: registers the creators when it is loaded, for those who only
// dlopen (ctypes.CDLL, polygraphy --plugins, ONNX Runtime's trt_extra_plugin_lib_paths). Links no
// TensorRT: every flavour that is in the process is found and served.
#include "host.h"

#include <link.h>

#include <set>
#include <string>

namespace rmsnorm_export {
namespace {

// The global logger of the first TensorRT that has one.
struct GlobalLogger final : nvinfer1::ILoggerFinder {
    nvinfer1::ILogger* findLogger() override {
        nvinfer1::ILogger* found = nullptr;
        for (std::size_t i = 0; i < getters.size() && !found; ++i) {
            found = getters[i] ? getters[i]() : nullptr;
        }
        return found;
    }
    std::vector<decltype(getLogger)*> getters;
};

int remember(dl_phdr_info* info, std::size_t, void* names) {
    static_cast<std::vector<std::string>*>(names)->emplace_back(info->dlpi_name);
    return 0;
}

// Registers with every TensorRT that is in the process; true when there is one. By library, because
// a global lookup does not see what Python has loaded.
bool registerAll(GlobalLogger& logger) {
    std::vector<std::string> names;
    ::dl_iterate_phdr(remember, &names);
    std::set<nvinfer1::IPluginRegistry*> registries;
    for (auto const& name : names) {
        auto const library = loaded(name.empty() ? nullptr : name.c_str());
        auto* const get = symbol<decltype(getPluginRegistry)>(library, "getPluginRegistry");
        auto* const registry = get ? get() : nullptr;
        if (registry && registries.insert(registry).second && !foreign(library, true)) {
            for (auto* const creator : creators()) {
                // False where the name is taken: by the other library or another copy of this.
                registry->registerCreator(*creator, kNamespace);
            }
            logger.getters.push_back(symbol<decltype(getLogger)>(library, "getLogger"));
        }
    }
    return !registries.empty();
}

[[gnu::constructor]] void start() noexcept {
    try {
        auto& logger = *new GlobalLogger;  // TensorRT may use it until the process ends
        logger_source = &logger;
        // Polygraphy and LD_PRELOAD load plugins before TensorRT. Then the one that this was built
        // for is loaded, and stays, for they load it next.
        auto const own = "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
        if (!registerAll(logger) && !(::dlopen(own.c_str(), RTLD_LAZY) && registerAll(logger))) {
            std::fprintf(stderr,
                         "rmsnorm_export: no plugin is registered: no TensorRT is loaded in this "
                         "process, and the loader does not find %s; load it (import tensorrt) "
                         "before this library\n",
                         own.c_str());
        }
    } catch (...) {
        std::fprintf(stderr, "rmsnorm_export: no plugin is registered: out of memory\n");
    }
}

}  // namespace
}  // namespace rmsnorm_export

// For the self-test alone. It is not exported: loadLibrary must not take this library for its own.
extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
    count = std::int32_t(rmsnorm_export::creators().size());
    return rmsnorm_export::creators().data();
}
