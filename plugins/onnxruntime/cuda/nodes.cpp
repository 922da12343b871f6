// The nodes of ONNX Runtime's CUDA provider: one launch of the kernels of plugins/kernels each, on
// the stream and the tensors of the session.
#include "../../kernels/rmsnorm.h"
#include "../operator.h"

#include <algorithm>

namespace rmsnorm_export::onnxruntime {
namespace {

namespace kernels = ::rmsnorm_export;

constexpr const char* kElsewhere =
    "run the model without the CUDA provider: the CPU kernels have no such limit";

constexpr kernels::Type kTypeOf[] = {kernels::Type::kF32, kernels::Type::kF16, kernels::Type::kBF16};

class CudaOperator final : public Operator {
public:
    CudaOperator(const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x)
        : Operator(api, info, kind, x) {
        if (norm_.stash != kFloat && norm_.stash != x) {
            refuse("stash_type is neither f32 nor the type of X, and the CUDA kernels have no other",
                   std::string("use 1 (f32), or ") + kElsewhere);
        }
        kernels::Norm& norm = problem_.norm;
        norm.kind = static_cast<kernels::Kind>(kind);
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
        problem_.x = problem_.y = kTypeOf[x];
        // What is wrong whatever the tensors are: asked about the smallest row with room for it.
        kernels::Problem smallest = problem_;
        smallest.n = std::max<std::int64_t>(
            {2, norm.partial_size, norm.group_size, norm.rotary_dim});
        smallest.table_width = norm.rotary_dim ? norm.rotary_dim : smallest.n;
        must(kernels::refusal(smallest),
             "partial_size is " + std::to_string(norm.partial_size) + ", group_size is " +
                 std::to_string(norm.group_size) + ", rotary_dim is " +
                 std::to_string(norm.rotary_dim));
    }

private:
    void must(const char* sentence, const std::string& found) const {
        if (sentence) refuse(std::string("on a GPU ") + sentence + ", and " + found, kElsewhere);
    }

    void weight(const Tensor& tensor, const char* name, bool& present, kernels::Type& type) const {
        present = tensor.present;
        if (!present) return;
        if (tensor.type != kFloat && tensor.type != norm_.x) {
            refuse(std::string(name) + " is neither f32 nor of the type of X",
                   std::string("cast it to f32, or ") + kElsewhere);
        }
        type = kTypeOf[tensor.type];
    }

    void run(OrtKernelContext* context, const Call& call) const override {
        kernels::Problem problem = problem_;
        problem.n = static_cast<std::int64_t>(call.n);
        problem.inner = static_cast<std::int64_t>(call.inner);
        weight(call.scale, "scale", problem.has_scale, problem.scale);
        weight(call.bias, "bias", problem.has_bias, problem.bias);
        if (!call.scale.present) problem.norm.association = 0;
        const Sizes x(call.x.shape);
        if (norm_.kind == Kind::kRotaryRMSNorm) {
            const Sizes table(call.cos.shape);
            const auto axes = [](const Sizes& of) {
                return static_cast<std::int32_t>(of.last - of.first) - 1;
            };
            problem.table = kTypeOf[call.cos.type];
            problem.table_width = static_cast<std::int64_t>(call.width);
            must(kernels::broadcast_tables(problem, x.first, axes(x), table.first, axes(table)),
                 "cos has the shape " + table.text() + ", X " + x.text());
        }
        must(kernels::refusal(problem), "X has the shape " + x.text());

        kernels::Pointers pointers;
        pointers.x = call.x.data;
        pointers.other = call.second.data;
        pointers.scale = call.scale.data;
        pointers.bias = call.bias.data;
        pointers.y = call.y;
        // A sum that nobody wants is written all the same, where Y comes to stand: a thread reads its
        // elements of the one before it writes those of the other.
        pointers.sum = call.sum ? call.sum : call.y;
        pointers.cos = call.cos.data;
        pointers.sin = call.sin.data;
        void* stream = nullptr;
        check(api_.KernelContext_GetGPUComputeStream(context, &stream));
        // The tactic is not chosen by the number of rows: a row gives the same in every batch.
        const cudaError_t status =
            kernels::launch(problem, pointers, static_cast<std::int64_t>(call.elements / call.n),
                            kernels::Tactic::kThroughput, static_cast<cudaStream_t>(stream));
        if (status != cudaSuccess) {
            refuse(std::string("the kernel was not launched: ") + cudaGetErrorString(status),
                   status == cudaErrorNoKernelImageForDevice
                       ? std::string("build the library for this GPU: rmsnorm-export plugin build "
                                     "--runtime onnxruntime --cuda --arch native")
                       : "see whether nvidia-smi names a GPU, and a driver for CUDA " +
                             std::to_string(CUDART_VERSION / 1000));
        }
    }

    kernels::Problem problem_;
};

}  // namespace

// X in f64 stays with the CPU's kernels.
Provider cuda() {
    return {"CUDAExecutionProvider", {kFloat, kHalf, kBfloat},
            [](const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x) -> Operator* {
                return new CudaOperator(api, info, kind, x);
            }};
}

}  // namespace rmsnorm_export::onnxruntime
