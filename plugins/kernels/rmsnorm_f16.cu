#include "launch_typed.cuh"

template cudaError_t
rmsnorm_export::launch_typed<__half>(Task, Device const&, cudaStream_t);
