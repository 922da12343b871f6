// Entry points of librmsnorm_plugin.so, for IPluginRegistry::loadLibrary, trtexec --dynamicPlugins
// and --setPluginsToSerialize. Registers nothing by itself: TensorRT takes the creators from here.
#include "host.h"

using namespace rmsnorm_export;

static bool foreignCaller(void* address, bool aloud) noexcept {
    Dl_info info{};
    return ::dladdr(address, &info) && foreign(loaded(info.dli_fname), aloud);
}

extern "C" [[gnu::visibility("default")]] void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    if (!foreignCaller(__builtin_return_address(0), false)) {
        logger_source = finder;
    }
}

extern "C" [[gnu::visibility("default")]] nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& count) {
    bool const none = foreignCaller(__builtin_return_address(0), true);
    count = none ? 0 : std::int32_t(creators().size());
    return creators().data();
}
