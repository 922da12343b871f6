// What ONNX Runtime finds in this library: RegisterCustomOps, which adds the operator's names.
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <new>

#include "../kernels/attributes.h"
#include "operator.h"

namespace rmsnorm_export::onnxruntime {
namespace {

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
    }
}

// One name with one type of X, of one provider. ONNX Runtime takes the one that fits the node; the
// types of scale and bias are open. Its `norm` has what the name says: kind, type and codes.
struct NamedOp : ort::CustomOp {
    Provider provider;
    std::string name;
    Norm norm;

    static const NamedOp& own(const CustomOp* op) { return *static_cast<const NamedOp*>(op); }

    // The norm or its codes; the sum of SkipRMSNorm; scales of the codes.
    static ort::ElementType output_type(const CustomOp* op, std::size_t index) {
        const Norm& norm = own(op).norm;
        if (!norm.coded() || (index && index <= norm.sums())) return kElementTypes[norm.x];
        return index ? ort::kF32 : norm.int8 ? ort::kI8 : ort::kF8E4M3;
    }

    NamedOp(const Provider& of, const std::string& called, const Norm& named)
        : CustomOp{}, provider(of), name(called), norm(named) {
        GetName = [](const CustomOp* op) { return own(op).name.c_str(); };
        GetExecutionProviderType = [](const CustomOp* op) { return own(op).provider.name; };
        GetInputType = [](const CustomOp* op, std::size_t index) {
            return index < own(op).norm.like_x() ? kElementTypes[own(op).norm.x] : ort::kUndefined;
        };
        GetInputTypeCount = [](const CustomOp* op) { return own(op).norm.inputs(); };
        GetInputCharacteristic = [](const CustomOp* op, std::size_t index) {
            return index < own(op).norm.required() ? ort::kRequired : ort::kOptional;
        };
        GetOutputType = output_type;
        GetOutputTypeCount = [](const CustomOp* op) { return own(op).norm.outputs(); };
        GetOutputCharacteristic = [](const CustomOp*, std::size_t index) {
            return index ? ort::kOptional : ort::kRequired;
        };
        GetInputMemoryType = [](const CustomOp*, std::size_t) -> std::int32_t { return 0; };
        GetStartVersion = GetEndVersion = [](const CustomOp*) { return 1; };
        CreateKernelV2 = [](const CustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                            void** kernel) {
            return guarded(ort::Api(api), [&] {
                *kernel = own(op).provider.make_node(api, info, own(op).norm);
            });
        };
        KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
            const auto* node = static_cast<const Operator*>(kernel);
            return guarded(node->api(), [&] { node->compute(context); });
        };
        KernelDestroy = [](void* kernel) { delete static_cast<Operator*>(kernel); };
    }
};

// All names of each operator; the name of codes says their type, for ONNX Runtime knows
// that of an output by no attribute. Each name and type takes it 45 microseconds to open a session.
std::deque<NamedOp> make_all() {
    std::deque<NamedOp> ops;
    std::vector<Provider> providers{cpu()};
    if (cuda) providers.push_back(cuda());
    const auto add = [&](const std::string& name, Norm norm) {
        for (const Provider& provider : providers) {
            for (const Type x : provider.types) {
                norm.x = x;
                ops.emplace_back(provider, name, norm);
            }
        }
    };
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
        const std::string kind = kKinds[i];
        Norm norm;
        norm.kind = static_cast<Kind>(i);
        for (const std::string& name : names_of(kind)) add(name, norm);
        if (norm.kind == Kind::kRotaryRMSNorm) continue;
        for (const bool per_row : {false, true}) {
            norm.quantize = per_row ? Quantize::kPerRow : Quantize::kStatic;
            for (const bool int8 : {false, true}) {
                norm.int8 = int8;
                add("Quantized" + kind + (int8 ? "_int8" : "_fp8") + (per_row ? "_per_row" : ""), norm);
            }
        }
    }
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
        // Its first function is in the same place in every version.
        const auto* const first = reinterpret_cast<void* const*>(base->GetApi(1));
        return reinterpret_cast<decltype(ort::Api::CreateStatus)>(*first)(ort::kFail, message.c_str());
    }
    char* minor = nullptr;
    const long major = std::strtol(base->GetVersionString(), &minor, 10);
    if (major > 1 || std::strtol(minor + (*minor == '.'), nullptr, 10) >= 24) {
        ort::Api::latest = table;
    }
    const ort::Api api(table);
    return guarded(api, [&] {
        static std::mutex mutex;
        static const std::deque<NamedOp> ops = make_all();
        static std::map<const OrtApi*, OrtCustomOpDomain*> domains;  // sessions may outlive all else
        const std::lock_guard<std::mutex> lock(mutex);
        const auto must = [&](OrtStatus* status) {
            if (!status) return;
            api.ReleaseStatus(status);
            throw Refusal("rmsnorm_export: ONNX Runtime refused an operator; register this library once "
                          "for each SessionOptions");
        };
        OrtCustomOpDomain*& domain = domains[table];
        if (!domain) {
            must(api.CreateCustomOpDomain("rmsnorm_export", &domain));
            for (const NamedOp& op : ops) must(api.CustomOpDomain_Add(domain, &op));
        }
        must(api.AddCustomOpDomain(options, domain));
    });
}
