// The nodes of the CUDA provider as those of the CPU's, for kernels that run there (tests/shim); and
// once more under their own name, which an ONNX Runtime without CUDA has to leave alone.
#include "../../onnxruntime/operator.h"

std::vector<rmsnorm_export::onnxruntime::Provider> rmsnorm_export::onnxruntime::providers() {
    Provider here = cuda();
    here.name = nullptr;
    return {here, cuda()};
}
