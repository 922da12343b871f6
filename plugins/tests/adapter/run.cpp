// What the runtime does: serialise, create again, clone, attach, change shapes, enqueue.
//
// The adapter's launches come to a recorder (the linker's --wrap), so that the whole Problem, the
// addresses, the rows and the tactic can be compared; the kernels are called only without a GPU.
#include "check.h"
#include "fakes.h"

#include "../../kernels/rmsnorm.h"

namespace {

struct Launch {
    rmsnorm_export::Problem problem;
    rmsnorm_export::Pointers pointers;
    std::int64_t rows;
    rmsnorm_export::Tactic tactic;
    cudaStream_t stream;
    int count;
    cudaError_t answer;
    bool real;
};
Launch seen{};

}  // namespace

// The linker's names of the recorder and of what it stands before.
#define LAUNCH "_ZN14rmsnorm_export6launchERKNS_7ProblemERKNS_8PointersElNS_6TacticEP11CUstream_st"
cudaError_t record(rmsnorm_export::Problem const&, rmsnorm_export::Pointers const&, std::int64_t,
                   rmsnorm_export::Tactic, cudaStream_t) noexcept __asm__("__wrap_" LAUNCH);
cudaError_t launchKernels(rmsnorm_export::Problem const&, rmsnorm_export::Pointers const&,
                          std::int64_t, rmsnorm_export::Tactic, cudaStream_t) noexcept
    __asm__("__real_" LAUNCH);

cudaError_t record(rmsnorm_export::Problem const& problem, rmsnorm_export::Pointers const& pointers,
                   std::int64_t rows, rmsnorm_export::Tactic tactic, cudaStream_t stream) noexcept {
    seen = {problem, pointers, rows, tactic, stream, seen.count + 1, seen.answer, seen.real};
    return seen.real ? launchKernels(problem, pointers, rows, tactic, stream) : seen.answer;
}

namespace {

using rmsnorm_export::Quantize;
using rmsnorm_export::Tactic;
using rmsnorm_export::Type;

Type kernelType(DataType type) {
    switch (type) {
        case DataType::kHALF: return Type::kF16;
        case DataType::kBF16: return Type::kBF16;
        case DataType::kFP8: return Type::kFP8E4M3;
        case DataType::kINT8: return Type::kINT8;
        default: return Type::kF32;
    }
}

// Addresses that differ, one for each tensor; never read.
struct Addresses {
    explicit Addresses(std::vector<PluginTensorDesc> const& all, int inputs) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            auto* const address = reinterpret_cast<void*>(0x1000 * (i + 1));
            if (static_cast<int>(i) < inputs) {
                in.push_back(all[i].dims.nbDims < 0 ? nullptr : address);
            } else {
                out.push_back(address);
            }
        }
    }
    std::vector<void const*> in;
    std::vector<void*> out;
};

int enqueue(Owner const& plugin, std::vector<PluginTensorDesc> const& all, int inputs,
            Addresses const& addresses) {
    return runtime(plugin).enqueue(all.data(), all.data() + inputs, addresses.in.data(),
                                   addresses.out.data(), nullptr,
                                   reinterpret_cast<cudaStream_t>(0x77));
}

int changeShape(Owner const& plugin, std::vector<PluginTensorDesc> const& all, int inputs) {
    return runtime(plugin).onShapeChange(all.data(), inputs, all.data() + inputs,
                                         static_cast<int>(all.size()) - inputs);
}

bool pointersAre(Case const& one, Addresses const& at, int weights) {
    std::size_t next = 1;
    std::size_t after = 1;
    auto const in = [&](bool there) { return there ? at.in[next++] : nullptr; };
    auto const out = [&](bool there) { return there ? at.out[after++] : nullptr; };
    auto const& got = seen.pointers;
    return got.x == at.in[0] && got.other == in(one.other()) && got.cos == in(one.rotary()) &&
           got.sin == in(one.rotary()) && got.scale == in(weights > 0) &&
           got.bias == in(weights > 1) && got.quant_scale == in(one.fixed()) &&
           got.y == at.out[0] && got.sum == out(one.skip()) && got.row_scale == out(one.perRow());
}

void launched(Case const& one, Owner const& plugin, int weights) {
    auto const label = one.name + ", " + std::to_string(weights) + " weights: ";
    auto const inputs = one.inputs(weights);
    auto const type = typeOf(one);
    for (auto const weight : {type, DataType::kFLOAT}) {
        std::int64_t const many = std::int64_t{1} << 33;
        auto const all = tensors(one, type, weight, weights, {many, 4, 64});
        Addresses const at{all, inputs};
        seen = {};
        bool good = changeShape(plugin, all, inputs) == 0 &&
                    enqueue(plugin, all, inputs, at) == 0 && seen.count == 1;
        bool const apart = one.last_axis == -2;
        check(good && seen.rows == many * (apart ? 64 : one.axis == -2 ? 1 : 4) &&
                  seen.problem.n == (apart ? 4 : one.axis == -2 ? 256 : 64) &&
                  seen.problem.inner == (apart ? 64 : 1),
              label + "rows and row length past 2^31");
        check(pointersAre(one, at, weights), label + "addresses");
        auto const& problem = seen.problem;
        auto const quantize = one.quantize.empty() ? Quantize::kNone
                              : one.fixed()        ? Quantize::kStatic
                                                   : Quantize::kPerRow;
        check(problem.x == kernelType(type) && problem.has_scale == (weights > 0) &&
                  problem.has_bias == (weights > 1) && problem.quantize == quantize &&
                  (!one.rotary() ||
                   (problem.table == kernelType(weight) && problem.table_width == one.width &&
                    problem.runs[0] == many && problem.runs[1] == 4 && problem.strides[2] == 1 &&
                    problem.strides[1] == 0)) &&
                  (weights < 1 || problem.scale == kernelType(weight)) &&
                  (weights < 2 || problem.bias == kernelType(weight)) &&
                  problem.y == kernelType(all[static_cast<std::size_t>(inputs)].type) &&
                  seen.stream == reinterpret_cast<cudaStream_t>(0x77),
              label + "types and stream");
    }
}

template <typename T>
T value(PluginFieldCollection const& fields, char const* name) {
    T found{};
    for (std::int32_t i = 0; i < fields.nbFields; ++i) {
        if (!std::strcmp(fields.fields[i].name, name)) {
            std::memcpy(&found, fields.fields[i].data, sizeof found);
        }
    }
    return found;
}

bool normIs(Case one) {
    auto const& fields = *one.fields.collection();
    auto const integer = [&](char const* name) { return value<std::int32_t>(fields, name); };
    auto const& norm = seen.problem.norm;
    auto const kind = one.skip()    ? rmsnorm_export::Kind::kSkipRMSNorm
                      : one.other() ? rmsnorm_export::Kind::kGatedRMSNorm
                      : one.rotary() ? rmsnorm_export::Kind::kRotaryRMSNorm
                                     : rmsnorm_export::Kind::kRMSNorm;
    bool const sigmoid = value<std::array<char, 3>>(fields, "activation")[2] == 'g';
    return norm.kind == kind && norm.epsilon == value<float>(fields, "epsilon") &&
           norm.scale_offset == value<float>(fields, "scale_offset") &&
           norm.scale_before_cast == (integer("scale_before_cast") == 1) &&
           norm.epsilon_outside == (integer("epsilon_outside") == 1) &&
           norm.epsilon_clamp == (integer("epsilon_clamp") == 1) &&
           norm.partial_size == integer("partial_size") &&
           norm.group_size == integer("group_size") &&
           norm.round_rstd == (integer("round_rstd") == 1) &&
           norm.association == integer("association") &&
           norm.stash_half == (integer("stash_type") != 1) &&
           norm.gate_first == (integer("gate_first") == 1) &&
           norm.rotary_dim == integer("rotary_dim") &&
           norm.rotary_interleaved == (integer("rotary_interleaved") == 1) &&
           (norm.activation == rmsnorm_export::Activation::kSigmoid) == sigmoid;
}

}  // namespace

void run(Case const& given, Log& log) {
    auto one = given;
    auto const before = log.errors;
    auto original = make(one.op, one.fields);
    if (!original) {
        return;  // build() has said so
    }
    auto const wanted = bytes(*one.fields.collection());
    auto const* const list = runtime(original).getFieldsToSerialize();
    check(bytes(*list) == wanted, one.name + ": fields to serialise are those given");
    auto const& last = list->fields[list->nbFields - 1];
    check(!std::strcmp(last.name, "library") && last.type == PluginFieldType::kCHAR &&
              std::strstr(static_cast<char const*>(last.data), ", kernels "),
          one.name + ": and the library");
    Owner restored{creator(one.op)->createPlugin("layer", list, TensorRTPhase::kRUNTIME)};
    check(restored && bytes(*runtime(restored).getFieldsToSerialize()) == wanted &&
              builder(restored).getTimingCacheID() ==
                  std::string{builder(original).getTimingCacheID()},
          one.name + ": the same after serialisation");

    // Each of these must live without what it came from.
    check(runtime(original).setTactic(2) == 0, one.name + ": tactic 2");
    Owner copy{original->clone()};
    auto const* const copied = runtime(copy).getFieldsToSerialize();
    original.reset();
    check(bytes(*copied) == wanted, one.name + ": fields of a clone without the original");
    Owner attached{runtime(copy).attachToContext(nullptr)};
    copy.reset();
    check(attached && attached->getCapabilityInterface(PluginCapabilityType::kCORE) &&
              attached->getCapabilityInterface(PluginCapabilityType::kBUILD) &&
              bytes(*runtime(attached).getFieldsToSerialize()) == wanted &&
              std::strstr(builder(attached).getTimingCacheID(), "epsilon=") &&
              std::strstr(builder(attached).getTimingCacheID(), " kernels="),
          one.name + ": attached, without the clone");

    int const least = one.needs_scale;
    for (int weights = least; weights <= 2; ++weights) {
        launched(one, attached, weights);
    }
    check(normIs(one), one.name + ": attributes of the launch");
    check(seen.tactic == Tactic::kLowLatency, one.name + ": the tactic outlives clones");
    check(runtime(attached).setTactic(0) == 0, one.name + ": tactic 0, the default");
    launched(one, restored, least);
    check(seen.tactic == Tactic::kThroughput, one.name + ": throughput unless told");

    auto const type = typeOf(one);
    auto const empty = tensors(one, type, type, least, {0, 4, 64});
    Addresses nowhere{empty, one.inputs(least)};
    std::fill(nowhere.in.begin(), nowhere.in.end(), nullptr);
    std::fill(nowhere.out.begin(), nowhere.out.end(), nullptr);
    if (least > 0) {
        nowhere.in[static_cast<std::size_t>(one.inputs(0) - one.fixed())] = &seen;  // the scale
    }
    seen = {};
    check(changeShape(attached, empty, one.inputs(least)) == 0 &&
              enqueue(attached, empty, one.inputs(least), nowhere) == 0 && seen.count == 0,
          one.name + ": no rows, no launch");
    check(log.errors == before, one.name + ": nothing to complain about (" + log.last + ")");
}

void badRun(Log& log) {
    auto const one = cases("RMSNorm")[0];
    auto const plugin = make(one.op, one.fields);
    auto const good = tensors(one, DataType::kHALF, DataType::kHALF, 1, {4, 64});
    Addresses const at{good, 2};
    auto before = log.errors;
    check(enqueue(plugin, good, 2, at) != 0 && said(log, before, "found 0"),
          "refused: enqueue before onShapeChange");
    auto bad = good;
    bad[1].dims = dims({32});
    before = log.errors;
    check(changeShape(plugin, bad, 2) != 0 && said(log, before, "32"),
          "refused: onShapeChange to a scale of another length");
    before = log.errors;
    seen = {};
    check(enqueue(plugin, bad, 2, at) != 0 && said(log, before, "32") && seen.count == 0,
          "refused: enqueue of a scale of another length");
    check(changeShape(plugin, good, 2) == 0 && enqueue(plugin, good, 2, at) == 0 && seen.count == 1,
          "a good shape after a bad one");

    before = log.errors;
    seen = {};
    seen.answer = cudaErrorLaunchOutOfResources;
    check(enqueue(plugin, good, 2, at) == cudaErrorLaunchOutOfResources &&
              said(log, before, "launched"),
          "a launch error is returned");

    auto null = good;
    null[1].dims = noDims();
    Addresses const without{null, 2};
    seen = {};
    check(changeShape(plugin, null, 2) == 0 && enqueue(plugin, null, 2, without) == 0 &&
              !seen.problem.has_scale && !seen.pointers.scale,
          "a null scale is no scale");
    seen = {};
    check(changeShape(plugin, good, 2) == 0 && enqueue(plugin, good, 2, without) == 0 &&
              !seen.problem.has_scale,
          "nor is a scale without an address");
    before = log.errors;
    for (int const tactic : {-1, 3}) {
        check(runtime(plugin).setTactic(tactic) != 0 && said(log, before, "tactic"),
              "refused: tactic " + std::to_string(tactic));
    }

    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        before = log.errors;
        seen = {};
        seen.real = true;
        check(changeShape(plugin, good, 2) == 0 && enqueue(plugin, good, 2, at) != 0 &&
                  said(log, before, "launched"),
              "without a GPU the kernels say so");
    }
}
