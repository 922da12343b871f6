#include "launch_typed.cuh"

template cudaError_t
rmsnorm_export::launch_typed<__nv_bfloat16>(Task, Device const&, cudaStream_t);
