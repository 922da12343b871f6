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
        must(norm_.stash == kFloat || norm_.stash == norm_.x, "stash_type must be f32 or the type of X");
        const bool coded = norm_.codes != Codes::kNone, int8 = norm_.codes == Codes::kInt8;
        must(!norm_.step_per_row || norm_.axis == -1, "codes with a scale for each row need axis -1");
        kernels::Norm& norm = problem_.norm;
        norm.kind = static_cast<kernels::Kind>(norm_.kind);
        norm.epsilon = norm_.epsilon;
        norm.scale_offset = norm_.scale_offset;
        norm.epsilon_outside = norm_.epsilon_outside;
        norm.epsilon_clamp = norm_.epsilon_clamp;
        norm.scale_before_cast = norm_.scale_before_cast;
        norm.round_rstd = norm_.round_rstd;
        norm.stash_half = norm_.stash != kFloat;
        norm.gate_first = norm_.gate_first;
        norm.association = static_cast<std::int32_t>(norm_.association);
        norm.activation = norm_.sigmoid ? kernels::Activation::kSigmoid : kernels::Activation::kSilu;
        norm.partial_size = norm_.partial_size;
        norm.group_size = norm_.group_size;
        norm.rotary_dim = norm_.rotary_dim;
        norm.rotary_interleaved = norm_.rotary_interleaved;
        problem_.x = problem_.y = kTypeOf[norm_.x];
        if (coded) {
            problem_.quantize =
                norm_.step_per_row ? kernels::Quantize::kPerRow : kernels::Quantize::kStatic;
            problem_.y = int8 ? kernels::Type::kINT8 : kernels::Type::kFP8E4M3;
        }
        // What is wrong whatever the tensors are: asked about the smallest row with room for it.
        kernels::Problem smallest = problem_;
        smallest.n = std::max<std::int64_t>({2, norm.partial_size, norm.group_size, norm.rotary_dim});
        smallest.table_width = norm.rotary_dim ? norm.rotary_dim : smallest.n;
        must(kernels::refusal(smallest));
    }

private:
    void must(const char* sentence, const Call& call = {}) const {
        if (!sentence) return;
        refuse(std::string("on a GPU ") + sentence +
                   " (without the CUDA provider the CPU's kernels run the node)",
               call);
    }
    void must(bool good, const char* sentence, const Call& call = {}) const {
        must(good ? nullptr : sentence, call);
    }

    kernels::Type weight(const Tensor& tensor, const Call& call) const {
        must(tensor.type == kFloat || tensor.type == norm_.x,
             "scale and bias must be f32 or of the type of X", call);
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
            must(kernels::broadcast_tables(problem, x.data(), axes(x), table.data(), axes(table)), call);
        }
        must(kernels::refusal(problem), call);
        must(!norm_.step_per_row || call.scales, "a node must have an output for the scales of its codes",
             call);
        kernels::Pointers pointers;
        pointers.x = call.x.data;
        pointers.other = call.second.data;
        pointers.scale = call.scale.data;
        pointers.bias = call.bias.data;
        pointers.y = call.y;
        pointers.sum = call.sum;
        pointers.quant_scale = static_cast<const float*>(call.step.data);
        pointers.row_scale = call.scales;
        pointers.cos = call.cos.data;
        pointers.sin = call.sin.data;
        // The tactic is not chosen by the number of rows: a row gives the same in every batch.
        must_run(kernels::launch(problem, pointers, static_cast<std::int64_t>(call.rows),
                                 kernels::Tactic::kThroughput, stream(context)));
    }

    cudaStream_t stream(OrtKernelContext* context) const {
        void* queue = nullptr;
        check(api_.KernelContext_GetGPUComputeStream(context, &queue));
        return static_cast<cudaStream_t>(queue);
    }

    void must_run(cudaError_t status) const {
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
    return {"CUDAExecutionProvider", {kFloat, kHalf, kBfloat},
            [](const OrtApi* api, const OrtKernelInfo* info, const Norm& norm) -> Operator* {
                return new CudaOperator(api, info, norm);
            }};
}

}  // namespace rmsnorm_export::onnxruntime
