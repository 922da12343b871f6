// The TensorRT that this library meets at run time.
#pragma once

#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdio>

namespace rmsnorm_export {

template <typename Function>
Function* symbol(void* library, char const* name) noexcept {
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

// The major version of the TensorRT behind a dlopen handle when its interfaces are not those of the
// headers that this library was built with; 0 when they are, or there is no TensorRT.
//
// ILogger, ILoggerFinder and IPluginRegistry changed between TensorRT 10 and 11: a call of the one
// through the headers of the other ends in another function. TensorRT-RTX counts its own versions;
// its 1.x has the interfaces of 11.
inline std::int32_t foreign(void* library) noexcept {
    auto* const version =
        symbol<decltype(getInferLibMajorVersion)>(library, "getInferLibMajorVersion");
    auto const major = version ? version() : NV_TENSORRT_MAJOR;
    return major == NV_TENSORRT_MAJOR || (major == 1 && NV_TENSORRT_MAJOR >= 11) ? 0 : major;
}

inline void sayForeign(std::int32_t major) noexcept {
    std::fprintf(stderr,
                 "rmsnorm_export: no plugin for this TensorRT: the library was built for "
                 "version %d, found %d; build it with the headers of that version\n",
                 NV_TENSORRT_MAJOR, major);
}

}  // namespace rmsnorm_export
