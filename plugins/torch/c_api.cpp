// librmsnorm_torch.so: the kernels behind C functions, for the benchmarks beside PyTorch's.
// toolbox/abi.py has the structures.
#include "rmsnorm.h"

using namespace rmsnorm_export;

#define RMSNORM_EXPORTED extern "C" __attribute__((visibility("default")))

// A sentence when the problem is refused, else null. `problem` is a Problem in memory; its layout is
// checked by rmsnorm_problem_bytes.
RMSNORM_EXPORTED char const* rmsnorm_refusal(Problem const* problem) { return refusal(*problem); }

// The same of the shapes of x and of cos and sin, without their last axis; fills the problem.
RMSNORM_EXPORTED char const* rmsnorm_broadcast_tables(Problem* problem, std::int64_t const* of_x,
                                                      int x_axes, std::int64_t const* of_table,
                                                      int table_axes) {
    return broadcast_tables(*problem, of_x, x_axes, of_table, table_axes);
}

RMSNORM_EXPORTED int rmsnorm_launch(Problem const* problem, Pointers const* pointers,
                                    long long rows, void* stream) {
    return launch(*problem, *pointers, rows, static_cast<cudaStream_t>(stream));
}

RMSNORM_EXPORTED char const* rmsnorm_error(int status) {
    return cudaGetErrorString(static_cast<cudaError_t>(status));
}

RMSNORM_EXPORTED int rmsnorm_problem_bytes() { return static_cast<int>(sizeof(Problem)); }
