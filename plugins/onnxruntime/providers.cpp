// The library without CUDA.
#include "operator.h"

std::vector<rmsnorm_export::onnxruntime::Provider> rmsnorm_export::onnxruntime::providers() {
    return {cpu()};
}
