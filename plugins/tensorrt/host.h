// What the library and the TensorRT that loads it are to each other: creators, a log, a version.
#pragma once

#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <vector>

namespace rmsnorm_export {

constexpr char const* kNamespace = "rmsnorm_export";
constexpr char const* kVersion = "1";

// One creator for each operator name, made on first use and never destroyed: a registry may outlive
// the static objects of this library.
std::vector<nvinfer1::IPluginCreatorInterface*> const& creators();

// From where the logger comes; null means stderr. Not owned.
inline std::atomic<nvinfer1::ILoggerFinder*> logger_source{nullptr};

// Logs an error that says what is wrong, what was found and what would be right. Always false, so
// that a check can return it. No allocation: callbacks must not throw.
[[gnu::format(printf, 1, 2)]] inline bool refuse(char const* format, ...) noexcept {
    char text[512];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    nvinfer1::ILogger* logger = nullptr;
    try {
        auto* const source = logger_source.load();
        logger = source ? source->findLogger() : nullptr;
    } catch (...) {  // then stderr
    }
    if (logger) {
        logger->log(nvinfer1::ILogger::Severity::kERROR, text);
    } else {
        std::fprintf(stderr, "%s\n", text);
    }
    return false;
}

// A library that is in the process already, or null. The path null is the program itself.
using Library = std::unique_ptr<void, int (*)(void*)>;
inline Library loaded(char const* path) noexcept {
    return {::dlopen(path, RTLD_LAZY | RTLD_NOLOAD), ::dlclose};
}

template <typename Function>
Function* symbol(Library const& library, char const* name) noexcept {
    return library ? reinterpret_cast<Function*>(::dlsym(library.get(), name)) : nullptr;
}

// Whether a library has a TensorRT whose interfaces are not those of the headers that this one was
// built with; says so when `aloud`.
//
// ILogger, ILoggerFinder and IPluginRegistry changed between TensorRT 10 and 11: a call of the one
// through the headers of the other ends in another function. TensorRT-RTX counts its own versions;
// its 1.x has the interfaces of 11.
inline bool foreign(Library const& library, bool aloud) noexcept {
    auto* const get = symbol<decltype(getInferLibMajorVersion)>(library, "getInferLibMajorVersion");
    auto const major = get ? get() : NV_TENSORRT_MAJOR;
    bool const known = major == NV_TENSORRT_MAJOR || (major == 1 && NV_TENSORRT_MAJOR >= 11);
    if (!known && aloud) {
        std::fprintf(stderr,
                     "rmsnorm_export: no plugin for this TensorRT: the library was built for "
                     "version %d, found %d; build it with the headers of that version\n",
                     NV_TENSORRT_MAJOR, major);
    }
    return !known;
}

}  // namespace rmsnorm_export
