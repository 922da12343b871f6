// Entry points of librmsnorm_plugin.so, for IPluginRegistry::loadLibrary, trtexec --dynamicPlugins
// and --setPluginsToSerialize. Registers nothing by itself: TensorRT takes the creators from here.
#include "host.h"
#include "log.h"
#include "plugin.h"

namespace {

std::int32_t foreignCaller(void* address) noexcept {
    Dl_info info{};
    void* const library =
        ::dladdr(address, &info) ? ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    auto const major = library ? rmsnorm_export::foreign(library) : 0;
    if (library) {
        ::dlclose(library);
    }
    return major;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    if (!foreignCaller(__builtin_return_address(0))) {
        rmsnorm_export::setLoggerSource(finder);
    }
}

extern "C" [[gnu::visibility("default")]] nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& count) {
    auto const& all = rmsnorm_export::creators();
    auto const major = foreignCaller(__builtin_return_address(0));
    count = major ? 0 : std::int32_t(all.size());
    if (major) {
        rmsnorm_export::sayForeign(major);
    }
    return all.data();
}
