// Nodes with any attributes, tensors of any shape and bits, without ONNX Runtime: each is computed
// or refused with a sentence. Compiled with sanitizers, which see what a process of Python hides:
// every tensor is an allocation of its own, and the tasks of ParallelFor are threads.
//
//     native_fuzz SEED COUNT     prints `N computed, N refused`

#include "../../onnxruntime/api.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

using namespace rmsnorm_export::ort;

struct OrtStatus {
    std::string text;
};
struct OrtTensorTypeAndShapeInfo {
    ElementType type;
    std::vector<std::int64_t> shape;
};
struct OrtValue {
    OrtTensorTypeAndShapeInfo info;
    std::vector<unsigned char> data;
};
struct OrtKernelContext {
    std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
    std::vector<ElementType> types;  // of outputs
};
struct OrtKernelInfo {
    std::map<std::string, std::variant<float, std::int64_t, std::string>> attributes;
};
struct OrtCustomOpDomain {
    std::vector<const CustomOp*> ops;
};

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const ApiBase*);

namespace {

OrtCustomOpDomain domain;

std::size_t size_of(ElementType type) {
    switch (type) {
        case kF16:
        case kBF16: return 2;
        case kF32: return 4;
        case kI8:
        case kF8E4M3: return 1;
        default: return 8;
    }
}

std::unique_ptr<OrtValue> tensor(ElementType type, std::vector<std::int64_t> shape) {
    std::size_t bytes = size_of(type);
    for (const auto size : shape) bytes *= static_cast<std::size_t>(size);
    return std::unique_ptr<OrtValue>(
        new OrtValue{{type, std::move(shape)}, std::vector<unsigned char>(bytes)});
}

// ---- what the library uses of ONNX Runtime ------------------------------------------------------

OrtStatus* CreateStatus(ErrorCode, const char* text) { return new OrtStatus{text}; }
void ReleaseStatus(OrtStatus* status) { delete status; }
OrtStatus* CreateCustomOpDomain(const char*, OrtCustomOpDomain** made) {
    *made = &domain;
    return nullptr;
}
OrtStatus* CustomOpDomain_Add(OrtCustomOpDomain* to, const CustomOp* op) {
    to->ops.push_back(op);
    return nullptr;
}
OrtStatus* AddCustomOpDomain(OrtSessionOptions*, OrtCustomOpDomain*) { return nullptr; }
OrtStatus* GetTensorMutableData(OrtValue* value, void** data) {
    *data = value->data.data();
    return nullptr;
}
OrtStatus* GetTensorTypeAndShape(const OrtValue* value, OrtTensorTypeAndShapeInfo** info) {
    *info = new OrtTensorTypeAndShapeInfo(value->info);
    return nullptr;
}
void ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo* info) { delete info; }
OrtStatus* GetTensorElementType(const OrtTensorTypeAndShapeInfo* info, ElementType* type) {
    *type = info->type;
    return nullptr;
}
OrtStatus* GetDimensionsCount(const OrtTensorTypeAndShapeInfo* info, std::size_t* rank) {
    *rank = info->shape.size();
    return nullptr;
}
OrtStatus* GetDimensions(const OrtTensorTypeAndShapeInfo* info, std::int64_t* sizes,
                         std::size_t rank) {
    std::copy_n(info->shape.begin(), rank, sizes);
    return nullptr;
}
template <class T>
OrtStatus* attribute(const OrtKernelInfo* info, const char* name, T* value) {
    const auto found = info->attributes.find(name);
    if (found == info->attributes.end() || !std::holds_alternative<T>(found->second)) {
        return new OrtStatus{"there is none"};
    }
    *value = std::get<T>(found->second);
    return nullptr;
}
OrtStatus* KernelInfoGetAttribute_float(const OrtKernelInfo* info, const char* name, float* value) {
    return attribute(info, name, value);
}
OrtStatus* KernelInfoGetAttribute_int64(const OrtKernelInfo* info, const char* name,
                                        std::int64_t* value) {
    return attribute(info, name, value);
}
OrtStatus* handed_out(const std::string& text, char* to, std::size_t* size) {
    if (to) std::memcpy(to, text.c_str(), text.size() + 1);
    *size = text.size() + 1;
    return nullptr;
}
OrtStatus* KernelInfoGetAttribute_string(const OrtKernelInfo* info, const char* name, char* to,
                                         std::size_t* size) {
    std::string text;
    OrtStatus* const status = attribute(info, name, &text);
    return status ? status : handed_out(text, to, size);
}
OrtStatus* KernelInfo_GetNodeName(const OrtKernelInfo*, char* to, std::size_t* size) {
    return handed_out("a norm", to, size);
}
OrtStatus* KernelContext_GetInputCount(const OrtKernelContext* context, std::size_t* count) {
    *count = context->inputs.size();
    return nullptr;
}
OrtStatus* KernelContext_GetOutputCount(const OrtKernelContext* context, std::size_t* count) {
    *count = context->outputs.size();
    return nullptr;
}
OrtStatus* KernelContext_GetInput(const OrtKernelContext* context, std::size_t index,
                                  const OrtValue** value) {
    *value = context->inputs.at(index).get();
    return nullptr;
}
OrtStatus* KernelContext_GetOutput(OrtKernelContext* context, std::size_t index,
                                   const std::int64_t* shape, std::size_t rank, OrtValue** value) {
    auto& output = context->outputs.at(index);
    output = tensor(context->types.at(index), {shape, shape + rank});
    *value = output.get();
    return nullptr;
}
OrtStatus* KernelContext_GetGPUComputeStream(const OrtKernelContext*, void** stream) {
    *stream = nullptr;
    return nullptr;
}
OrtStatus* KernelContext_ParallelFor(const OrtKernelContext*, void (*task)(void*, std::size_t),
                                     std::size_t count, std::size_t, void* data) {
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (std::size_t index; (index = next++) < count;) task(data, index);
        });
    }
    for (auto& thread : threads) thread.join();
    return nullptr;
}

// ---- random nodes -------------------------------------------------------------------------------

std::mt19937_64 random_bits;

std::int64_t upto(std::int64_t most) {
    return static_cast<std::int64_t>(random_bits() % static_cast<std::uint64_t>(most + 1));
}
bool chance(int of) { return upto(of - 1) == 0; }

OrtKernelInfo attributes() {
    OrtKernelInfo info;
    const auto set = [&](const char* name, auto value) {
        if (!chance(6)) return;
        info.attributes[name] = value;
        if (chance(40)) info.attributes[name] = std::string("text");
        if (chance(40)) info.attributes[name] = std::int64_t(random_bits());
        if (chance(40)) info.attributes[name] = -1e30F;
    };
    constexpr float kEpsilons[] = {0.0F, 1e-6F, 0.5F, 1e38F};
    constexpr std::int64_t kTypes[] = {kF32, kF16, kBF16, kF64};
    const std::int64_t axis = -1 - upto(2);
    set("epsilon", kEpsilons[upto(3)]);
    set("axis", axis);
    set("last_axis", chance(2) ? axis : -1 - upto(2));
    set("stash_type", kTypes[upto(3)]);
    for (const char* flag : {"scale_before_cast", "epsilon_outside", "epsilon_clamp", "round_rstd",
                             "gate_first", "rotary_interleaved"}) {
        set(flag, upto(1));
    }
    set("scale_offset", static_cast<float>(upto(2)));
    set("rotary_dim", upto(9));
    set("partial_size", upto(9));
    set("group_size", upto(9));
    set("association", upto(2));
    set("activation", std::string(chance(2) ? "silu" : "sigmoid"));
    return info;
}

std::unique_ptr<OrtValue> filled(ElementType type, const std::vector<std::int64_t>& shape) {
    auto made = tensor(type, shape);
    // Any bits: NaN, infinities and subnormal numbers are among them.
    for (auto& byte : made->data) byte = static_cast<unsigned char>(random_bits());
    return made;
}

OrtKernelContext tensors(const CustomOp* op) {
    OrtKernelContext context;
    std::vector<std::int64_t> shape(static_cast<std::size_t>(1 + upto(chance(10) ? 11 : 3)));
    for (auto& size : shape) size = upto(shape.size() > 4 ? 2 : 9);
    if (chance(2)) shape[static_cast<std::size_t>(upto(
                       static_cast<std::int64_t>(shape.size()) - 1))] = upto(400);
    const std::size_t count = op->GetInputTypeCount(op);
    // Cos and sin, often as the norm of whole rows takes them.
    auto turned = shape;
    for (std::size_t i = 0; i + 1 < turned.size(); ++i) turned[i] = chance(3) ? 1 : turned[i];
    turned.erase(turned.begin(), turned.end() - 1 - upto(static_cast<std::int64_t>(turned.size()) - 1));
    turned.back() /= chance(2) ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
        const ElementType type = op->GetInputType(op, i);
        auto own = shape;
        if (i > 0 && type == kUndefined && op->GetInputCharacteristic(op, i) == kRequired) {
            context.inputs.push_back(filled(chance(4) ? kF32 : op->GetInputType(op, 0), turned));
        } else if (type == kUndefined) {  // scale and bias
            constexpr ElementType kTypes[] = {kF32, kF16, kBF16, kF64};
            const auto rank = static_cast<std::int64_t>(own.size());
            own.erase(own.begin(), own.end() - 1 - (chance(4) ? upto(rank - 1) : 0));
            if (chance(8)) own.assign(1, shape[static_cast<std::size_t>(upto(rank - 1))]);
            if (chance(16)) own.push_back(1);
            context.inputs.push_back(chance(4) ? nullptr : filled(kTypes[upto(3)], own));
        } else {
            if (chance(30) && !own.empty()) own.pop_back();
            context.inputs.push_back(filled(type, own));
        }
    }
    const std::string name = op->GetName(op);
    if (name.size() > 5 && (name.find("_int8") == name.size() - 5 || name.find("_fp8") == name.size() - 4)) {
        while (!context.inputs.back()) context.inputs.pop_back();
        if (!chance(10)) context.inputs.push_back(filled(kF32, {}));
        if (context.inputs.size() > count) context.inputs.erase(context.inputs.end() - 2);
    }
    while (context.inputs.size() > 1 && !context.inputs.back()) context.inputs.pop_back();
    for (std::size_t i = 0; i < op->GetOutputTypeCount(op); ++i) {
        context.types.push_back(op->GetOutputType(op, i));
    }
    context.outputs.resize(op->GetOutputTypeCount(op) - static_cast<std::size_t>(
                                                            op->GetOutputTypeCount(op) > 1 && chance(2)));
    return context;
}

// Whether there was a status; what it says has to be a sentence about the node.
bool refused(OrtStatus* status) {
    const std::unique_ptr<OrtStatus> held(status);
    if (!held) return false;
    if (held->text.find("rmsnorm_export: ") != 0 || held->text.find(" node 'a norm': ") == held->text.npos) {
        std::printf("no sentence: %s\n", held->text.c_str());
        std::exit(1);
    }
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    random_bits.seed(static_cast<std::uint64_t>(std::atoll(arguments[1])));
    void* table[512]{};
#define X(name, place, ...) table[place] = reinterpret_cast<void*>(&name);
    RMSNORM_ORT_FUNCTIONS(X)
#undef X
    static const void* const kTable = table;
    static const ApiBase base{
        [](std::uint32_t) { return static_cast<const OrtApi*>(kTable); }, [] { return "1.17.0"; }};
    if (refused(RegisterCustomOps(nullptr, &base))) return 1;
    long computed = 0, refusals = 0;
    const long nodes = std::atol(arguments[2]);
    for (long left = nodes; left > 0; --left) {
        const CustomOp* const op = domain.ops[static_cast<std::size_t>(
            upto(static_cast<std::int64_t>(domain.ops.size()) - 1))];
        OrtKernelInfo info = attributes();
        OrtKernelContext context = tensors(op);
        void* kernel = nullptr;
        if (refused(op->CreateKernelV2(op, static_cast<const OrtApi*>(kTable), &info, &kernel))) {
            ++refusals;
            continue;
        }
        for (int again = 0; again < 3; ++again) {
            if (again) context = tensors(op);
            ++(refused(op->KernelComputeV2(kernel, &context)) ? refusals : computed);
        }
        op->KernelDestroy(kernel);
    }
    std::printf("%ld computed, %ld refused\n", computed, refusals);
}
