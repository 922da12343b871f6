#include "launch_typed.cuh"

template cudaError_t
rmsnorm_export::launch_typed<float>(Task, Device const&, cudaStream_t);
