// The host side of rmsnorm.h: what is refused, and the task of a launch.

#include "rmsnorm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <utility>

#include "plugin_limits.h"
#include "task.h"

namespace rmsnorm_export {

namespace {

// With T = S no cast rounds, so the order of the casts is moot; without it association is. The
// same rules as NormSpec.canonical.
Norm canonical(Norm norm, Type x, std::int64_t n) {
    if (!norm.stash_half) norm.association = 0;
    if (norm.stash_half || x == Type::kF32) norm.scale_before_cast = false;
    if (x == Type::kF32) norm.round_rstd = false;
    if (norm.rotary_dim == 0) norm.rotary_dim = n;
    return norm;
}

// A pointer to a tensor that the problem lacks becomes null; any other must not be.
template <typename P>
bool settle(P*& pointer, bool wanted) {
    if (!wanted) pointer = nullptr;
    return !wanted || pointer != nullptr;
}

bool complete(Problem const& problem, Pointers& pointers) {
    return settle(pointers.x, true) && settle(pointers.y, true) &&
           settle(pointers.other, problem.norm.kind == Kind::kSkipRMSNorm ||
                                      problem.norm.kind == Kind::kGatedRMSNorm) &&
           settle(pointers.cos, problem.norm.kind == Kind::kRotaryRMSNorm) &&
           settle(pointers.sin, problem.norm.kind == Kind::kRotaryRMSNorm) &&
           (problem.norm.kind == Kind::kSkipRMSNorm || settle(pointers.sum, false)) &&
           settle(pointers.scale, problem.has_scale) && settle(pointers.bias, problem.has_bias) &&
           settle(pointers.quant_scale, problem.quantize == Quantize::kStatic) &&
           settle(pointers.row_scale, problem.quantize == Quantize::kPerRow);
}

Mode mode_of(Norm const& norm) {
    if (norm.kind == Kind::kSkipRMSNorm) return Mode::kSkip;
    if (norm.kind != Kind::kGatedRMSNorm) return Mode::kPlain;
    return norm.gate_first ? Mode::kGateFirst : Mode::kGated;
}

// What of this library a device runs: the driver may have translated code for an earlier one.
__global__ void compiled_for() {}

cudaError_t current_device(Device& device) {
    thread_local Device known;  // asked for once; a launch takes microseconds
    int id = 0;
    cudaError_t status = cudaGetDevice(&id);
    if (status == cudaSuccess && (known.sm == 0 || known.id != id)) {
        cudaDeviceAttr const asked[] = {
            cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
            cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin};
        int answers[4]{};
        for (int i = 0; i < 4 && status == cudaSuccess; ++i) {
            status = cudaDeviceGetAttribute(&answers[i], asked[i], id);
        }
        int const sm = 10 * answers[0] + answers[1];
        cudaFuncAttributes code{};
        if (status == cudaSuccess) {
            status = cudaFuncGetAttributes(&code, reinterpret_cast<void const*>(compiled_for));
        }
        if (status != cudaSuccess) return status;
        known = {id, code.ptxVersion < sm ? code.ptxVersion : sm, answers[2], answers[3]};
    }
    device = known;
    return status;
}

}  // namespace

char const* refusal(Problem const& problem) noexcept {
    Norm const& norm = problem.norm;
    bool const quantised = problem.quantize != Quantize::kNone;
    bool const coded = problem.y == Type::kFP8E4M3 || problem.y == Type::kINT8;
    auto const one_of = [](auto value, auto last) {
        return value >= decltype(last){} && value <= last;
    };
    auto const fits = [&](Type type) { return type == problem.x || type == Type::kF32; };
    auto const partial = norm.partial_size;
    auto const group = norm.group_size;
    bool const rotary = norm.kind == Kind::kRotaryRMSNorm;
    auto const turned = norm.rotary_dim != 0 ? norm.rotary_dim : problem.n;
    std::pair<bool, char const*> const rules[] = {
        {problem.n < 1 || problem.n > kMaxRow, "a row must have 1 to 1048576 elements"},
        {!one_of(problem.x, Type::kBF16), "x must be f32, f16 or bf16"},
        {problem.has_scale && !fits(problem.scale), "scale must be of the type of x, or f32"},
        {problem.has_bias && !fits(problem.bias), "bias must be of the type of x, or f32"},
        {!one_of(problem.quantize, Quantize::kPerRow),
         "quantize must be none, static or per row"},
        {!quantised && problem.y != problem.x, "y must be of the type of x, unless quantised"},
        {quantised && !coded, "a quantised y must be FP8 E4M3 or INT8"},
        {!one_of(norm.kind, Kind::kRotaryRMSNorm),
         "kind must be RMSNorm, SkipRMSNorm, GatedRMSNorm or RotaryRMSNorm"},
        {!one_of(norm.activation, Activation::kSigmoid), "activation must be silu or sigmoid"},
        {!std::isfinite(norm.epsilon) || norm.epsilon < 0.0F,
         "epsilon must be finite and not negative"},
        {!std::isfinite(norm.scale_offset), "scale_offset must be finite"},
        {norm.scale_offset != 0.0F && !problem.has_scale, "scale_offset needs a scale"},
        {partial < 0 || partial > problem.n,
         "partial_size must be 0 or at most the elements of a row"},
        {group < 0 || (group != 0 && problem.n % group != 0),
         "group_size must be 0 or divide the elements of a row"},
        {partial != 0 && group != 0, "partial_size and group_size cannot be combined"},
        {problem.inner < 1, "the elements of a row must lie at least 1 apart"},
        {problem.inner > 1 && (partial != 0 || group != 0),
         "partial_size and group_size need the last axis"},
        {norm.epsilon_outside && norm.epsilon_clamp,
         "epsilon_outside and epsilon_clamp cannot be combined"},
        {norm.round_rstd && norm.scale_before_cast,
         "round_rstd leaves nothing to scale before the cast: set one of the two"},
        {norm.stash_half && problem.x == Type::kF32, "stash_half needs x of f16 or bf16"},
        {norm.association < 0 || norm.association > 2, "association must be 0, 1 or 2"},
        {norm.association == 1 && !norm.round_rstd, "association 1 needs round_rstd"},
        {norm.association != 0 && group != 0, "association and group_size cannot be combined"},
        {rotary && (problem.n % 2 != 0 || turned % 2 != 0 || turned < 0 || turned > problem.n),
         "rotary_dim must be even and at most the elements of a row, and those must be even"},
        {rotary && (partial != 0 || group != 0 || problem.inner != 1),
         "partial_size, group_size and other axes than the last have no rotary embedding"},
        {rotary && quantised, "a norm with a rotary embedding cannot be quantised"},
        {rotary && !fits(problem.table), "cos and sin must be of the type of x, or f32"},
        {rotary && problem.table_width != turned && 2 * problem.table_width != turned,
         "cos and sin must have rotary_dim entries in a row, or half as many"},
        {rotary && (problem.runs[0] < 1 || problem.runs[1] < 1),
         "the runs of rows that share cos and sin must have at least 1"},
    };
    for (auto const& [broken, sentence] : rules) {
        if (broken) return sentence;
    }
    return nullptr;
}

char const* broadcast_tables(Problem& problem, std::int64_t const* of_x, std::int32_t x_axes,
                             std::int64_t const* of_table, std::int32_t table_axes) noexcept {
    std::int64_t sizes[kMaxRuns]{1, 1, 1};  // of the runs, from the last
    bool own[kMaxRuns]{};                   // whether the tables have a row for each of a run
    int run = -1;
    for (std::int32_t i = 1; i <= (x_axes > table_axes ? x_axes : table_axes); ++i) {
        std::int64_t const size = i <= x_axes ? of_x[x_axes - i] : 1;
        std::int64_t const there = i <= table_axes ? of_table[table_axes - i] : 1;
        if (there != 1 && there != size) return "cos and sin must broadcast against the rows of x";
        if (size == 1) continue;
        if (run < 0 || own[run] != (there != 1)) {
            if (++run == kMaxRuns) return "cos and sin must repeat along at most two runs of axes of x";
            own[run] = there != 1;
        }
        sizes[run] *= size > 0 ? size : 1;  // of no rows nothing is launched
    }
    std::int64_t stride = 1;
    for (int i = 0; i < kMaxRuns; ++i) {
        problem.strides[kMaxRuns - 1 - i] = own[i] ? stride : 0;
        if (own[i]) stride *= sizes[i];
    }
    problem.runs[0] = sizes[1];
    problem.runs[1] = sizes[0];
    return nullptr;
}

cudaError_t launch(Problem const& problem, Pointers const& pointers, std::int64_t rows,
                   cudaStream_t stream) noexcept {
    if (refusal(problem) != nullptr || rows < 0) return cudaErrorInvalidValue;
    if (rows == 0) return cudaSuccess;
    bool const rotary = problem.norm.kind == Kind::kRotaryRMSNorm;
    if (rotary && rows % (problem.runs[0] * problem.runs[1]) != 0) return cudaErrorInvalidValue;
    Task task{};
    task.problem = problem;
    task.problem.norm = canonical(problem.norm, problem.x, problem.n);
    task.pointers = pointers;
    if (!complete(problem, task.pointers)) return cudaErrorInvalidValue;
    Norm const& norm = task.problem.norm;
    std::int64_t const size = norm.group_size != 0 ? norm.group_size : problem.n;
    task.mode = mode_of(norm);
    task.size = static_cast<std::int32_t>(size);
    task.groups = static_cast<std::int32_t>(problem.n / size);
    task.limit = static_cast<std::int32_t>(norm.partial_size != 0 ? norm.partial_size : size);
    task.inverse = 1.0F / static_cast<float>(task.limit);
    task.together = problem.quantize == Quantize::kPerRow ? task.groups : 1;
    task.segments = rows * task.groups;
    Device device;
    cudaError_t const status = current_device(device);
    if (status != cudaSuccess) return status;
    switch (problem.x) {
        case Type::kF16: return launch_typed<__half>(task, device, stream);
        case Type::kBF16: return launch_typed<__nv_bfloat16>(task, device, stream);
        default: return launch_typed<float>(task, device, stream);
    }
}

}  // namespace rmsnorm_export
