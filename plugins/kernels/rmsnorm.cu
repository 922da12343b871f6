// The host side of rmsnorm.h: what is refused, and the task of a launch.

#include "rmsnorm.h"

#include <cmath>

#include "launch_typed.h"

namespace rmsnorm_export {

namespace {

bool is_half(Type type) { return type == Type::kF16 || type == Type::kBF16; }

struct Rule {
    bool broken;
    char const* sentence;
};

template <typename E>
bool one_of(E value, E last) {
    return value >= E{} && value <= last;
}

// With T = S no cast rounds, so the order of the casts is moot; without it association is. The
// same rules as NormSpec.canonical.
Norm canonical(Norm norm, Type x) {
    if (!norm.stash_half) norm.association = 0;
    if (norm.stash_half || x == Type::kF32) norm.scale_before_cast = false;
    if (x == Type::kF32) norm.round_rstd = false;
    return norm;
}

// Pointers of tensors that the problem lacks become null, the others must be there.
bool complete(Problem const& problem, Pointers& pointers) {
    bool const skip = problem.norm.kind == Kind::kSkipRMSNorm;
    if (problem.norm.kind == Kind::kRMSNorm) pointers.other = nullptr;
    if (!skip) pointers.sum = nullptr;
    if (!problem.has_scale) pointers.scale = nullptr;
    if (!problem.has_bias) pointers.bias = nullptr;
    return pointers.x != nullptr && pointers.y != nullptr &&
           (problem.norm.kind == Kind::kRMSNorm || pointers.other != nullptr) &&
           (!skip || pointers.sum != nullptr) &&
           (!problem.has_scale || pointers.scale != nullptr) &&
           (!problem.has_bias || pointers.bias != nullptr) &&
           (problem.quantize != Quantize::kStatic || pointers.quant_scale != nullptr) &&
           (problem.quantize != Quantize::kPerRow || pointers.row_scale != nullptr);
}

cudaError_t current_device(Device& device) {
    int id = 0;
    int major = 0;
    int minor = 0;
    cudaError_t status = cudaGetDevice(&id);
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    }
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    }
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, id);
    }
    device.sm = 10 * major + minor;
    return status;
}

}  // namespace

char const* refusal(Problem const& problem) noexcept {
    Norm const& norm = problem.norm;
    bool const quantised = problem.quantize != Quantize::kNone;
    bool const coded = problem.y == Type::kFP8E4M3 || problem.y == Type::kINT8;
    bool const wide_scale = problem.scale == problem.x || problem.scale == Type::kF32;
    bool const wide_bias = problem.bias == problem.x || problem.bias == Type::kF32;
    bool const sizes_fit = norm.group_size == 0 || problem.n % norm.group_size == 0;
    Rule const rules[] = {
        {problem.n < 1 || problem.n > kMaxRow, "a row must have 1 to 1048576 elements"},
        {problem.x != Type::kF32 && !is_half(problem.x), "x must be f32, f16 or bf16"},
        {problem.has_scale && !wide_scale, "scale must be of the type of x, or f32"},
        {problem.has_bias && !wide_bias, "bias must be of the type of x, or f32"},
        {!one_of(problem.quantize, Quantize::kPerRow), "quantize must be none, static or per row"},
        {!quantised && problem.y != problem.x, "y must be of the type of x, unless quantised"},
        {quantised && !coded, "a quantised y must be FP8 E4M3 or INT8"},
        {!one_of(norm.kind, Kind::kGatedRMSNorm),
         "kind must be RMSNorm, SkipRMSNorm or GatedRMSNorm"},
        {!one_of(norm.activation, Activation::kSigmoid), "activation must be silu or sigmoid"},
        {!std::isfinite(norm.epsilon) || norm.epsilon < 0.0F,
         "epsilon must be finite and not negative"},
        {!std::isfinite(norm.scale_offset), "scale_offset must be finite"},
        {norm.scale_offset != 0.0F && !problem.has_scale,
         "scale_offset needs a scale to be added to"},
        {norm.partial_size < 0 || norm.partial_size > problem.n,
         "partial_size must be 0 or at most the elements of a row"},
        {norm.group_size < 0 || !sizes_fit, "group_size must be 0 or divide the elements of a row"},
        {norm.partial_size != 0 && norm.group_size != 0,
         "partial_size and group_size cannot be combined"},
        {norm.round_rstd && norm.scale_before_cast,
         "round_rstd leaves nothing to scale before the cast: set one of the two"},
        {norm.stash_half && !is_half(problem.x), "stash_half needs x of f16 or bf16"},
        {norm.association < 0 || norm.association > 2, "association must be 0, 1 or 2"},
        {norm.association == 1 && !norm.round_rstd, "association 1 needs round_rstd"},
        {norm.association != 0 && norm.group_size != 0,
         "association and group_size cannot be combined"},
    };
    for (Rule const& rule : rules) {
        if (rule.broken) return rule.sentence;
    }
    return nullptr;
}

cudaError_t launch(Problem const& problem, Pointers const& pointers, std::int64_t rows,
                   Tactic tactic, cudaStream_t stream) noexcept {
    if (refusal(problem) != nullptr || rows < 0) return cudaErrorInvalidValue;
    if (rows == 0) return cudaSuccess;
    Task task{};
    task.problem = problem;
    task.problem.norm = canonical(problem.norm, problem.x);
    task.pointers = pointers;
    if (!complete(problem, task.pointers)) return cudaErrorInvalidValue;
    Norm const& norm = problem.norm;
    std::int64_t const size = norm.group_size != 0 ? norm.group_size : problem.n;
    task.size = static_cast<std::int32_t>(size);
    task.groups = static_cast<std::int32_t>(problem.n / size);
    task.limit = static_cast<std::int32_t>(norm.partial_size != 0 ? norm.partial_size : size);
    task.segments = rows * task.groups;
    Device device;
    cudaError_t const status = current_device(device);
    if (status != cudaSuccess) return status;
    switch (problem.x) {
        case Type::kF16: return launch_f16(task, device, tactic, stream);
        case Type::kBF16: return launch_bf16(task, device, tactic, stream);
        default: return launch_f32(task, device, tactic, stream);
    }
}

}  // namespace rmsnorm_export
