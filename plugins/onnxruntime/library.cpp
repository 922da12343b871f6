// What ONNX Runtime finds in this library: RegisterCustomOps, which adds the operator's names.
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "operator.h"

namespace rmsnorm_export::onnxruntime {
namespace {

constexpr const char* kDomain = "rmsnorm_export";

// One name with one type of X, of one provider. ONNX Runtime takes the one that fits the node; the
// types of scale and bias are open.
struct NamedOp : ort::CustomOp {
    Provider provider;
    std::string name;
    Kind kind;
    Type x;
    Codes codes{Codes::kNone};
    bool step_per_row{false};
};

ort::ElementType element_type(Type type) {
    constexpr ort::ElementType kElementTypes[] = {ort::kF32, ort::kF16, ort::kBF16, ort::kF64};
    return kElementTypes[type];
}

const NamedOp& named(const ort::CustomOp* op) { return *static_cast<const NamedOp*>(op); }

// X, then residual or gate.
std::size_t like_x(const ort::CustomOp* op) {
    const Kind kind = named(op).kind;
    return kind == Kind::kSkipRMSNorm || kind == Kind::kGatedRMSNorm ? 2 : 1;
}
// Those and the tables.
std::size_t required(const ort::CustomOp* op) {
    return like_x(op) + (named(op).kind == Kind::kRotaryRMSNorm ? 2 : 0);
}
bool coded(const ort::CustomOp* op) { return named(op).codes != Codes::kNone; }
bool given(const ort::CustomOp* op) { return coded(op) && !named(op).step_per_row; }

// The norm or its codes; the sum of SkipRMSNorm; scales of the codes.
ort::ElementType output_type(const ort::CustomOp* op, std::size_t index) {
    const std::size_t sums = named(op).kind == Kind::kSkipRMSNorm ? 1 : 0;
    if (!coded(op) || (index && index <= sums)) return element_type(named(op).x);
    if (index) return ort::kF32;
    return named(op).codes == Codes::kInt8 ? ort::kI8 : ort::kF8E4M3;
}

// A C function must not throw.
template <class Body>
OrtStatus* guarded(const ort::Api& api, Body body) {
    try {
        body();
        return nullptr;
    } catch (const Refusal& refusal) {
        return api.CreateStatus(ort::kInvalidArgument, refusal.what());
    } catch (const std::bad_alloc&) {
        return api.CreateStatus(ort::kFail, "rmsnorm_export: there is no memory; free some memory");
    } catch (const std::exception& error) {
        return api.CreateStatus(ort::kFail, error.what());
    }
}

NamedOp make(const Provider& provider, const std::string& name, Kind kind, Type x) {
    NamedOp op;
    op.provider = provider;
    op.name = name;
    op.kind = kind;
    op.x = x;
    op.GetName = [](const ort::CustomOp* self) { return named(self).name.c_str(); };
    op.GetExecutionProviderType = [](const ort::CustomOp* self) { return named(self).provider.name; };
    op.GetInputType = [](const ort::CustomOp* self, std::size_t index) {
        return index < like_x(self) ? element_type(named(self).x) : ort::kUndefined;
    };
    op.GetInputTypeCount = [](const ort::CustomOp* self) { return required(self) + 2 + given(self); };
    op.GetInputCharacteristic = [](const ort::CustomOp* self, std::size_t index) {
        return index < required(self) ? ort::kRequired : ort::kOptional;
    };
    op.GetOutputType = output_type;
    op.GetOutputTypeCount = [](const ort::CustomOp* self) -> std::size_t {
        return 1 + (named(self).kind == Kind::kSkipRMSNorm) + (coded(self) && !given(self));
    };
    op.GetOutputCharacteristic = [](const ort::CustomOp*, std::size_t index) {
        return index ? ort::kOptional : ort::kRequired;
    };
    op.GetInputMemoryType = [](const ort::CustomOp*, std::size_t) -> std::int32_t { return 0; };
    op.GetVariadicInputMinArity = [](const ort::CustomOp*) { return 0; };
    op.GetVariadicInputHomogeneity = [](const ort::CustomOp*) { return 0; };
    op.GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 0; };
    op.GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
    op.GetStartVersion = [](const ort::CustomOp*) { return 1; };
    op.GetEndVersion = [](const ort::CustomOp*) { return 1; };
    op.CreateKernelV2 = [](const ort::CustomOp* self, const OrtApi* api, const OrtKernelInfo* info,
                           void** kernel) {
        return guarded(ort::Api(api), [&] {
            std::unique_ptr<Operator> made(
                named(self).provider.make(api, info, named(self).kind, named(self).x));
            made->must_give(named(self).codes, named(self).step_per_row);
            *kernel = made.release();
        });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
        const auto* made = static_cast<const Operator*>(kernel);
        return guarded(made->api(), [&] { made->compute(context); });
    };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
    return op;
}

// The names that the function bodies of a model have (op/body_key.py): the operator's, and that with
// a word for what a body differs in. Other names, of several words or a third size, are not here:
// those keep their bodies. Each name and type takes ONNX Runtime 45 microseconds to open a session.
constexpr const char* kWords[] = {
    "", "_stash_float32", "_stash_float16", "_stash_bfloat16", "_scale_before_cast", "_round_rstd",
    "_scale_after_cast", "_rstd_not_rounded", "_epsilon_outside", "_epsilon_inside",
    "_epsilon_clamp"};
constexpr const char* kRowWords[] = {
    "_whole", "_ungrouped", "_last_axis", "_partial", "_partial_2", "_grouped", "_grouped_2",
    "_several_axes", "_several_axes_2", "_channels", "_channels_2", "_epsilon_clamp_channels"};
constexpr const char* kGateWords[] = {"_silu", "_sigmoid", "_gate_first", "_gate_last"};
constexpr const char* kRotaryWords[] = {
    "_rotary_part", "_rotary_whole", "_interleaved", "_halves", "_half_table", "_full_table",
    "_table_float32", "_table_as_x"};

std::deque<NamedOp> make_all() {
    std::deque<NamedOp> ops;
    const std::vector<Provider> all = providers();
    const auto add = [&](Kind kind, const char* base, const auto& words) {
        for (const char* word : words) {
            for (const Provider& provider : all) {
                for (const Type x : provider.types) {
                    ops.push_back(make(provider, std::string(base) + word, kind, x));
                }
            }
        }
    };
    const std::pair<Kind, const char*> rows[] = {{Kind::kRMSNorm, "RMSNorm"},
                                                 {Kind::kSkipRMSNorm, "SkipRMSNorm"},
                                                 {Kind::kGatedRMSNorm, "GatedRMSNorm"}};
    for (const auto& [kind, base] : rows) {
        add(kind, base, kWords);
        add(kind, base, kRowWords);
        // The name says the type of the codes: ONNX Runtime knows that of an output by no attribute.
        for (const Quantizer& made : kQuantizers) {
            for (const Provider& provider : all) {
                for (const Type x : provider.types) {
                    const std::string name = std::string("Quantized") + base + "_" + made.word;
                    ops.push_back(make(provider, name, kind, x));
                    ops.back().codes = made.codes;
                    ops.back().step_per_row = made.step_per_row;
                }
            }
        }
    }
    add(Kind::kGatedRMSNorm, "GatedRMSNorm", kGateWords);
    add(Kind::kRotaryRMSNorm, "RotaryRMSNorm", kWords);
    add(Kind::kRotaryRMSNorm, "RotaryRMSNorm", kRotaryWords);
    return ops;
}

}  // namespace
}  // namespace rmsnorm_export::onnxruntime

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const rmsnorm_export::ort::ApiBase* base) {
    using namespace rmsnorm_export;
    using namespace rmsnorm_export::onnxruntime;
    const OrtApi* table = base->GetApi(ort::kApiVersion);
    if (!table) {
        const std::string message = std::string("rmsnorm_export: this is ONNX Runtime ") +
                                    base->GetVersionString() + "; use 1.17 or newer";
        return ort::create_status(base->GetApi(1))(ort::kFail, message.c_str());
    }
    char* minor = nullptr;
    const long major = std::strtol(base->GetVersionString(), &minor, 10);
    if (major > 1 || (*minor == '.' && std::strtol(minor + 1, nullptr, 10) >= 24)) {
        ort::Api::latest = table;
    }
    const ort::Api api(table);
    return guarded(api, [&] {
        static std::mutex mutex;
        static const std::deque<NamedOp> ops = make_all();
        static std::map<const OrtApi*, OrtCustomOpDomain*> domains;  // sessions may outlive all else
        const std::lock_guard<std::mutex> lock(mutex);
        const auto must = [&](OrtStatus* status) {
            if (status) {
                api.ReleaseStatus(status);
                throw Refusal("rmsnorm_export: ONNX Runtime refused an operator; register this "
                              "library once for each SessionOptions");
            }
        };
        OrtCustomOpDomain*& domain = domains[table];
        if (!domain) {
            must(api.CreateCustomOpDomain(kDomain, &domain));
            for (const NamedOp& op : ops) must(api.CustomOpDomain_Add(domain, &op));
        }
        must(api.AddCustomOpDomain(options, domain));
    });
}
