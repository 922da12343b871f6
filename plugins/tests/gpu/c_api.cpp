// The kernels behind a C function, for ctypes: scripts/gpu/library.py times them beside PyTorch's.
#include "rmsnorm.h"

using namespace rmsnorm_export;

// A sentence when the problem is refused, else null. `problem` is a Problem in memory; its layout is
// checked by rmsnorm_problem_bytes.
extern "C" char const* rmsnorm_refusal(Problem const* problem) { return refusal(*problem); }

extern "C" int rmsnorm_launch(Problem const* problem, Pointers const* pointers, long long rows,
                              int tactic, void* stream) {
    return launch(*problem, *pointers, rows, static_cast<Tactic>(tactic),
                  static_cast<cudaStream_t>(stream));
}

extern "C" char const* rmsnorm_error(int status) {
    return cudaGetErrorString(static_cast<cudaError_t>(status));
}

extern "C" int rmsnorm_problem_bytes() { return static_cast<int>(sizeof(Problem)); }
