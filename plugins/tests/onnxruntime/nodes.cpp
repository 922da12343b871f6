// The nodes of the CUDA provider as those of the CPU's, for kernels that are interpreted (tests/ptx);
// the library has them once more under their own name, which an ONNX Runtime without CUDA has to leave
// alone.
#include "../../onnxruntime/operator.h"

rmsnorm_export::onnxruntime::Provider rmsnorm_export::onnxruntime::cpu() {
    Provider here = cuda();
    here.name = nullptr;
    return here;
}
