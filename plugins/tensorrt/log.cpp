// Implementation of log.h.
#include "log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace rmsnorm_export {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> source{nullptr};

nvinfer1::ILogger* logger() noexcept {
    auto* const finder = source.load();
    try {
        return finder ? finder->findLogger() : nullptr;
    } catch (...) {
        return nullptr;
    }
}

}  // namespace

void setLoggerSource(nvinfer1::ILoggerFinder* finder) noexcept {
    source = finder;
}

bool refuse(char const* format, ...) noexcept {
    char text[512];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (auto* const found = logger()) {
        found->log(nvinfer1::ILogger::Severity::kERROR, text);
    } else {
        std::fprintf(stderr, "%s\n", text);
    }
    return false;
}

}  // namespace rmsnorm_export
