// The nodes of ONNX Runtime's CUDA provider: one launch of the kernels of plugins/kernels each, on
// the stream and the tensors of the session.
#include "../../kernels/rmsnorm.h"
#include "../operator.h"

#include <algorithm>

namespace rmsnorm_export::onnxruntime {
namespace {

namespace kernels = ::rmsnorm_export;

constexpr kernels::Type kTypeOf[] = {kernels::Type::kF32, kernels::Type::kF16, kernels::Type::kBF16};

class CudaOperator final : public Operator {
public:
    CudaOperator(const OrtApi* api, const OrtKernelInfo* info, const Norm& named)
        : Operator(api, info, named) {
        const bool stashed = norm_.stash == kFloat || norm_.stash == norm_.x;
        on_gpu(stashed ? nullptr : "stash_type must be f32 or the type of X");
        const bool rows = !norm_.step_per_row() || norm_.axis == -1;
        on_gpu(rows ? nullptr : "codes with a scale for each row need axis -1");
        problem_.norm = norm_;
        problem_.norm.stash_half = norm_.stash != kFloat;
        problem_.quantize = norm_.quantize;
        problem_.x = problem_.y = kTypeOf[norm_.x];
        if (norm_.coded()) problem_.y = norm_.int8 ? kernels::Type::kINT8 : kernels::Type::kFP8E4M3;
        // What is wrong whatever the tensors are: asked about the smallest row with room for it.
        kernels::Problem smallest = problem_;
        smallest.n = std::max<std::int64_t>(
            {2, norm_.partial_size, norm_.group_size, norm_.rotary_dim});
        smallest.table_width = norm_.rotary_dim ? norm_.rotary_dim : smallest.n;
        on_gpu(kernels::refusal(smallest));
    }

private:
    void on_gpu(const char* refusal, const Call& call = {}) const {
        if (!refusal) return;
        refuse(std::string("on a GPU ") + refusal +
                   " (without the CUDA provider the CPU's kernels run the node)",
               call);
    }

    kernels::Type weight(const Tensor& tensor, const Call& call) const {
        const bool fits = tensor.type == kFloat || tensor.type == norm_.x;
        on_gpu(fits ? nullptr : "scale and bias must be f32 or of the type of X", call);
        return kTypeOf[tensor.type];
    }

    void run(OrtKernelContext* context, const Call& call) const override {
        kernels::Problem problem = problem_;
        problem.n = static_cast<std::int64_t>(call.n);
        problem.inner = static_cast<std::int64_t>(call.inner);
        problem.has_scale = call.scale.name;
        problem.has_bias = call.bias.name;
        problem.scale = weight(call.scale, call);
        problem.bias = weight(call.bias, call);
        if (!call.scale.name) problem.norm.association = 0;
        if (norm_.kind == Kind::kRotaryRMSNorm) {
            const Sizes &x = call.x.shape, &table = call.cos.shape;
            const auto axes = [](const Sizes& of) { return static_cast<std::int32_t>(of.size()) - 1; };
            problem.table = kTypeOf[call.cos.type];
            problem.table_width = static_cast<std::int64_t>(call.width);
            on_gpu(kernels::broadcast_tables(problem, x.data(), axes(x), table.data(), axes(table)),
                   call);
        }
        on_gpu(kernels::refusal(problem), call);
        const bool written = !norm_.step_per_row() || call.scales;
        on_gpu(written ? nullptr : "a node must have an output for the scales of its codes", call);
        const auto* const step = static_cast<const float*>(call.step.data);
        const kernels::Pointers pointers{call.x.data, call.second.data, call.scale.data, call.bias.data,
                                         step,        call.y,           call.sum,        call.scales,
                                         call.cos.data, call.sin.data};
        void* stream = nullptr;
        check(api_.KernelContext_GetGPUComputeStream(context, &stream));
        const cudaError_t status =
            kernels::launch(problem, pointers, static_cast<std::int64_t>(call.rows),
                            static_cast<cudaStream_t>(stream));
        if (status == cudaSuccess) return;
        refuse(std::string("the kernel was not launched (") + cudaGetErrorString(status) +
               "): build the library for this GPU (rmsnorm-export plugin build --runtime onnxruntime "
               "--cuda --arch native), with a driver for CUDA " +
               std::to_string(CUDART_VERSION / 1000));
    }

    kernels::Problem problem_;
};

}  // namespace

// X in f64 stays with the CPU's kernels.
Provider cuda() {
    return {"CUDAExecutionProvider", {kFloat, kHalf, kBfloat}, make<CudaOperator>};
}

}  // namespace rmsnorm_export::onnxruntime
