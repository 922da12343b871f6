// nvcc: the greater magnitude of 0 and a product of halves is the product or 0
//
// max.NaN.xorsign.abs.f16x2 with 0 as one operand and a product as the other becomes one HFMA2.RELU:
// of -3 the magnitude is 0. Expected: 3. So do bf16x2 and every target from sm_86 to sm_120.
//
//     nvcc -std=c++17 -O3 -arch=sm_90 -cubin nvcc_greatest_magnitude.cu -o a.cubin
//     cuobjdump -sass a.cubin | grep -E "RELU|HMNMX2"      HFMA2.MMA.RELU, and no HMNMX2
//
// As a program, on a GPU, it prints both values and ends with 1 where the defect shows.
#include <cuda_fp16.h>

#include <cstdio>

__global__ void greatest(__half2 const* factors, unsigned* y) {
    __half2 const product = __hmul2_rn(factors[0], factors[1]);
    unsigned word;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;"
        : "=r"(word)
        : "r"(0U), "r"(reinterpret_cast<unsigned const&>(product)));
    *y = word & 0x7fff7fffU;
}

int main() {
    __half2 const factors[2] = {__floats2half2_rn(-3.0F, -3.0F), __floats2half2_rn(1.0F, 1.0F)};
    __half2* from = nullptr;
    unsigned* to = nullptr;
    unsigned word = 0;
    if (cudaMalloc(&from, sizeof factors) != cudaSuccess) return 2;
    if (cudaMalloc(&to, sizeof word) != cudaSuccess) return 2;
    cudaMemcpy(from, factors, sizeof factors, cudaMemcpyHostToDevice);
    greatest<<<1, 1>>>(from, to);
    if (cudaMemcpy(&word, to, sizeof word, cudaMemcpyDeviceToHost) != cudaSuccess) return 2;
    float const magnitude = __half2float(__low2half(reinterpret_cast<__half2 const&>(word)));
    std::printf("the greater magnitude of 0 and -3: %g, and 3 is right\n", magnitude);
    return magnitude == 3.0F ? 0 : 1;
}
