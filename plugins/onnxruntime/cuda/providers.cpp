// The library with CUDA, which has the CPU's kernels too: ONNX Runtime takes one library with the
// operator's names, and nodes that the GPU does not run stay with the CPU.
#include "../operator.h"

std::vector<rmsnorm_export::onnxruntime::Provider> rmsnorm_export::onnxruntime::providers() {
    return {cpu(), cuda()};
}
