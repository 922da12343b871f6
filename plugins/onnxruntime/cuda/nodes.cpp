// The nodes of ONNX Runtime's CUDA provider: one launch of the kernels of plugins/kernels each, on
// the stream and the tensors of the session.
#include "../../kernels/rmsnorm.h"
#include "../operator.h"

#include <algorithm>
#include <utility>

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
        if (norm_.codes != Codes::kNone) {
            problem_.quantize = norm_.steps == Steps::kRow ? kernels::Quantize::kPerRow
                                                           : kernels::Quantize::kStatic;
            problem_.y =
                norm_.codes == Codes::kInt8 ? kernels::Type::kINT8 : kernels::Type::kFP8E4M3;
            if (norm_.steps == Steps::kRow && norm_.axis != -1) {
                refuse("on a GPU codes have a scale for each row that is normalised, and axis is " +
                           std::to_string(norm_.axis),
                       std::string("use axis -1, or ") + kElsewhere);
            }
        }
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
        weight(*call.scale, "scale", problem.has_scale, problem.scale);
        weight(*call.bias, "bias", problem.has_bias, problem.bias);
        if (!call.scale->present) problem.norm.association = 0;
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
        pointers.scale = call.scale->data;
        pointers.bias = call.bias->data;
        pointers.y = call.y;
        pointers.sum = call.sum;
        pointers.quant_scale = static_cast<const float*>(call.step.data);
        pointers.row_scale = call.scales;
        if (problem.quantize >= kernels::Quantize::kPerRow && !call.scales) {
            refuse("the node has no output for the scales of its codes",
                   std::string("give it one, or ") + kElsewhere);
        }
        pointers.cos = call.cos.data;
        pointers.sin = call.sin.data;
        // The tactic is not chosen by the number of rows: a row gives the same in every batch.
        const cudaError_t status =
            kernels::launch(problem, pointers, static_cast<std::int64_t>(call.rows),
                            kernels::Tactic::kThroughput, stream(context));
        must_run(status);
    }

    void fill_ones(OrtKernelContext* context, float* scales, std::size_t count) const override {
        // 0x3f800000, byte by byte: a copy from the host would outlive it in a captured graph.
        auto* const bytes = reinterpret_cast<unsigned char*>(scales);
        must_run(cudaMemsetAsync(bytes, 0, count * sizeof(float), stream(context)));
        for (const auto& [place, value] : {std::pair(2, 0x80), std::pair(3, 0x3f)}) {
            must_run(
                cudaMemset2DAsync(bytes + place, sizeof(float), value, 1, count, stream(context)));
        }
    }

    cudaStream_t stream(OrtKernelContext* context) const {
        void* given = nullptr;
        check(api_.KernelContext_GetGPUComputeStream(context, &given));
        return static_cast<cudaStream_t>(given);
    }

    void must_run(cudaError_t status) const {
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
