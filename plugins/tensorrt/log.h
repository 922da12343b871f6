// Sentences for the user, through TensorRT's logger. No allocation: callbacks must not throw.
#pragma once

#include <NvInferRuntime.h>

namespace rmsnorm_export {

// From where the logger comes; null, the default, means stderr. Kept, not owned.
void setLoggerSource(nvinfer1::ILoggerFinder* finder) noexcept;

// Logs an error that says what is wrong, what was found and what would be right. Always false, so
// that a check can return it.
[[gnu::format(printf, 1, 2)]] bool refuse(char const* format, ...) noexcept;

}  // namespace rmsnorm_export
