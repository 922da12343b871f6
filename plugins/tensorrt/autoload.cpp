// librmsnorm_plugin_autoload.so: registers the creators when it is loaded, for those who only
// dlopen (ctypes.CDLL, polygraphy --plugins, ONNX Runtime's trt_extra_plugin_lib_paths). Links no
// TensorRT: every flavour that is in the process is found and served.
#include "host.h"

#include <link.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
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

// Registers until that has succeeded once; whether it has.
bool registered() {
    static std::mutex mutex;
    static bool done = false;
    std::lock_guard<std::mutex> const lock(mutex);
    if (!done) {
        static auto& logger = *new GlobalLogger;  // TensorRT may use it until the process ends
        logger_source = &logger;
        done = registerAll(logger);
    }
    return done;
}

// Whether LD_PRELOAD names this library: then every child of the program has it, too.
bool preloaded() noexcept {
    Dl_info own{};
    char const* const list = std::getenv("LD_PRELOAD");
    if (!list || !::dladdr(reinterpret_cast<void*>(&preloaded), &own)) return false;
    char const* const name = std::strrchr(own.dli_fname, '/');
    return std::strstr(list, name ? name + 1 : own.dli_fname) != nullptr;
}

[[gnu::constructor]] void start() noexcept {
    try {
        if (registered() || preloaded()) return;
        // Polygraphy loads plugins before TensorRT. Then the one that this was built for is loaded,
        // and stays, for it is loaded next.
        auto const own = "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
        if (!(::dlopen(own.c_str(), RTLD_LAZY) && registered())) {
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

// TensorRT's function of that name, behind the one here: that of the program, or of the library
// that calls.
void* create(char const* name, void* caller, void* logger, std::int32_t version) noexcept {
    try {
        registered();
    } catch (...) {
        std::fprintf(stderr, "rmsnorm_export: no plugin is registered: out of memory\n");
    }
    using Create = void*(void*, std::int32_t);
    auto* next = reinterpret_cast<Create*>(::dlsym(RTLD_NEXT, name));
    Dl_info of_caller{};
    if (!next && ::dladdr(caller, &of_caller)) {
        next = symbol<Create>(loaded(of_caller.dli_fname), name);
    }
    return next ? next(logger, version) : nullptr;
}

}  // namespace
}  // namespace rmsnorm_export

// Preloaded, the library does nothing before a program asks for a TensorRT: these stand before those
// of libnvinfer then. Loaded in another way nobody finds them.
#define RMSNORM_EXPORTED extern "C" __attribute__((visibility("default")))
RMSNORM_EXPORTED void* createInferRuntime_INTERNAL(void* logger, std::int32_t version) noexcept {
    return rmsnorm_export::create(__func__, __builtin_return_address(0), logger, version);
}
RMSNORM_EXPORTED void* createInferBuilder_INTERNAL(void* logger, std::int32_t version) noexcept {
    return rmsnorm_export::create(__func__, __builtin_return_address(0), logger, version);
}
