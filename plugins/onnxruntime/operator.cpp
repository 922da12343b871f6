#include "operator.h"

#include <cmath>
#include <cstdlib>
#include <memory>

#include "work.h"

namespace rmsnorm_export {
namespace {

constexpr const char* kKinds[] = {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "RotaryRMSNorm"};

bool type_of(std::int64_t element_type, Type& type) {
    switch (element_type) {
        case ort::kF32: type = kFloat; return true;
        case ort::kF16: type = kHalf; return true;
        case ort::kBF16: type = kBfloat; return true;
        case ort::kF64: type = kDouble; return true;
        default: return false;
    }
}

// The attributes of one node. ONNX Runtime fails alike for one that is absent and for one of
// another type: those are told apart by asking for the other types.
class Attributes {
public:
    Attributes(const ort::Api& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

    void read(const char* name, float& value) const {
        if (!get(name, value)) absent<std::int64_t, std::string>(name, "a float");
    }
    void read(const char* name, std::int64_t& value) const {
        if (!get(name, value)) absent<float, std::string>(name, "an integer");
    }
    void read(const char* name, std::string& value) const {
        if (!get(name, value)) absent<float, std::int64_t>(name, "a string");
    }
    void read(const char* name, bool& value) const {
        std::int64_t number = value;
        read(name, number);
        value = number != 0;
    }

private:
    template <class One, class Other>
    void absent(const char* name, const char* type) const {
        One one{};
        Other other{};
        if (get(name, one) || get(name, other)) {
            throw Refusal(std::string("the attribute ") + name + " has another type; make it " +
                          type);
        }
    }
    bool done(OrtStatus* status) const {
        if (status) api_.ReleaseStatus(status);
        return status == nullptr;
    }
    bool get(const char* name, float& value) const {
        return done(api_.KernelInfoGetAttribute_float(info_, name, &value));
    }
    bool get(const char* name, std::int64_t& value) const {
        return done(api_.KernelInfoGetAttribute_int64(info_, name, &value));
    }
    bool get(const char* name, std::string& value) const {
        std::size_t size = 0;
        if (!done(api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size))) return false;
        std::string found(size, '\0');
        if (!done(api_.KernelInfoGetAttribute_string(info_, name, found.data(), &size))) return false;
        found.resize(size ? size - 1 : 0);  // the size counts the terminating 0
        value = found;
        return true;
    }

    const ort::Api& api_;
    const OrtKernelInfo* info_;
};

}  // namespace

struct Operator::Tensor {
    const void* data{nullptr};  // null where the input is absent
    Type type{kFloat};
    Shape shape = Shape();
    bool present{false};
};

Operator::Operator(const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x) : api_(api) {
    std::size_t size = 0;
    if (OrtStatus* status = api_.KernelInfo_GetNodeName(info, nullptr, &size)) {
        api_.ReleaseStatus(status);
    } else {
        std::string name(size, '\0');
        check(api_.KernelInfo_GetNodeName(info, name.data(), &size));
        name_ = name.c_str();
    }
    norm_.kind = kind;
    norm_.x = x;
    const auto must = [&](bool good, const std::string& what, const std::string& fix) {
        if (!good) refuse(what, fix);
    };
    std::int64_t stash = ort::kF32;
    std::string activation = "silu";
    try {
        const Attributes attributes(api_, info);
        attributes.read("epsilon", norm_.epsilon);
        attributes.read("axis", norm_.axis);
        attributes.read("last_axis", norm_.last_axis);
        attributes.read("stash_type", stash);
        attributes.read("scale_before_cast", norm_.scale_before_cast);
        attributes.read("scale_offset", norm_.scale_offset);
        attributes.read("epsilon_outside", norm_.epsilon_outside);
        attributes.read("epsilon_clamp", norm_.epsilon_clamp);
        attributes.read("partial_size", norm_.partial_size);
        attributes.read("group_size", norm_.group_size);
        attributes.read("round_rstd", norm_.round_rstd);
        attributes.read("association", norm_.association);
        if (kind == Kind::kGatedRMSNorm) {
            attributes.read("activation", activation);
            attributes.read("gate_first", norm_.gate_first);
        }
        if (kind == Kind::kRotaryRMSNorm) {
            attributes.read("rotary_dim", norm_.rotary_dim);
            attributes.read("rotary_interleaved", norm_.rotary_interleaved);
        }
    } catch (const Refusal& refusal) {
        throw Refusal("rmsnorm_export: " + where() + ": " + refusal.what());
    }
    must(std::isfinite(norm_.epsilon) && norm_.epsilon >= 0,
         "epsilon is " + std::to_string(norm_.epsilon), "make it finite and at least 0");
    must(norm_.axis < 0, "axis is " + std::to_string(norm_.axis), "count it from the end: -1");
    must(norm_.axis <= norm_.last_axis && norm_.last_axis < 0,
         "last_axis is " + std::to_string(norm_.last_axis) + ", axis is " +
             std::to_string(norm_.axis),
         "count it from the end, and not before axis");
    must(type_of(stash, norm_.stash), "stash_type is " + std::to_string(stash),
         "use 1 (f32), 10 (f16), 11 (f64) or 16 (bf16)");
    must(std::isfinite(norm_.scale_offset),
         "scale_offset is " + std::to_string(norm_.scale_offset), "make it finite");
    must(norm_.partial_size >= 0 && norm_.group_size >= 0,
         "partial_size is " + std::to_string(norm_.partial_size) + ", group_size is " +
             std::to_string(norm_.group_size),
         "make both at least 0");
    must(!(norm_.partial_size && norm_.group_size), "partial_size and group_size are both given",
         "use one of them");
    must(norm_.axis == -1 || !(norm_.partial_size || norm_.group_size),
         "partial_size or group_size is given with axis " + std::to_string(norm_.axis),
         "use axis -1");
    must(!(norm_.epsilon_outside && norm_.epsilon_clamp),
         "epsilon_outside and epsilon_clamp are both set", "use one of them");
    must(norm_.association >= 0 && norm_.association <= 2,
         "association is " + std::to_string(norm_.association), "use 0, 1 or 2");
    must(norm_.association != 1 || norm_.round_rstd, "association is 1 without round_rstd",
         "set round_rstd, whose 1 / rms it multiplies");
    must(!(norm_.association && norm_.group_size), "association and group_size are both given",
         "use one of them");
    must(!norm_.association || norm_.last_axis == -1,
         "association is given with last_axis " + std::to_string(norm_.last_axis),
         "use last_axis -1");
    must(activation == "silu" || activation == "sigmoid", "activation is '" + activation + "'",
         "use silu or sigmoid");
    must(!(norm_.round_rstd && norm_.scale_before_cast),
         "round_rstd and scale_before_cast are both set", "use one of them");
    must(norm_.rotary_dim >= 0 && norm_.rotary_dim % 2 == 0,
         "rotary_dim is " + std::to_string(norm_.rotary_dim), "make it even, and at least 0");
    must(kind != Kind::kRotaryRMSNorm ||
             (norm_.axis == -1 && !norm_.partial_size && !norm_.group_size),
         "a rotary embedding follows a norm of other rows than the last axis",
         "use axis -1, and no partial_size or group_size");
    norm_.sigmoid = activation == "sigmoid";

    // What cannot matter for X of type T: as NormSpec.canonical.
    const bool half = x == kHalf || x == kBfloat;
    if (x != norm_.stash || !half) norm_.association = 0;
    if (x == norm_.stash) {
        norm_.scale_before_cast = false;
        norm_.round_rstd = norm_.round_rstd && half;
    }
}

std::string Operator::where() const {
    return std::string(kKinds[static_cast<int>(norm_.kind)]) + " node '" + name_ + "'";
}

void Operator::refuse(const std::string& what, const std::string& fix) const {
    throw Refusal("rmsnorm_export: " + where() + ": " + what + "; " + fix);
}

void Operator::check(OrtStatus* status) const {
    if (status) {
        api_.ReleaseStatus(status);
        refuse("ONNX Runtime did not hand out a tensor", "check the model with onnx.checker");
    }
}

Operator::Tensor Operator::input(OrtKernelContext* context, std::size_t index,
                                std::size_t inputs) const {
    Tensor tensor;
    const OrtValue* value = nullptr;
    if (index < inputs) check(api_.KernelContext_GetInput(context, index, &value));
    if (!value) return tensor;
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_.GetTensorTypeAndShape(value, &raw));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, ort::Api::ReleaseTensorTypeAndShapeInfoFunction*>
        info(raw, api_.ReleaseTensorTypeAndShapeInfo);
    ort::ElementType element_type = ort::kUndefined;
    check(api_.GetTensorElementType(raw, &element_type));
    if (!type_of(element_type, tensor.type)) {
        refuse("input " + std::to_string(index) + " has element type " +
                   std::to_string(element_type),
               "cast it to f16, bf16, f32 or f64");
    }
    std::size_t rank = 0;
    check(api_.GetDimensionsCount(raw, &rank));
    tensor.shape = Shape(rank);
    check(api_.GetDimensions(raw, tensor.shape.data(), rank));
    void* data = nullptr;
    check(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    tensor.data = data;
    tensor.present = true;
    return tensor;
}

Tables Operator::tables(const Sizes& x, std::size_t n, const Tensor& cos,
                        const Tensor& sin) const {
    const Sizes shape(cos.shape);
    const std::string found = "cos has the shape " + shape.text() + ", sin " +
                              Sizes(sin.shape).text() + ", X " + x.text();
    const std::size_t dim = norm_.rotary_dim ? static_cast<std::size_t>(norm_.rotary_dim) : n;
    if (dim > n || dim % 2) {
        refuse(std::to_string(dim) + " elements of X of shape " + x.text() + " are to be turned",
               "use an even rotary_dim of at most a row");
    }
    if (cos.type != sin.type || (cos.type != norm_.x && !(cos.type == kFloat && norm_.x != kDouble))) {
        refuse("cos and sin differ in type, or are neither of X's nor f32",
               "cast both to the type of X, or to f32 where that is f16 or bf16");
    }
    const auto axes = shape.last - shape.first;
    bool fits = shape == Sizes(sin.shape) && axes > 0 && axes <= x.last - x.first;
    for (const auto* size = shape.last - 1; fits && size-- != shape.first;) {
        const std::int64_t of_x = x.last[size - shape.last];
        fits = *size == 1 || *size == of_x;
    }
    const auto width = fits ? static_cast<std::size_t>(shape.last[-1]) : 0;
    if (!fits || (width != dim && width * 2 != dim)) {
        refuse(found, "make both broadcast against X, with " + std::to_string(dim) + " or " +
                          std::to_string(dim / 2) + " entries in the last axis");
    }
    Tables made({x.first, x.last - 1}, {shape.first, shape.last - 1});
    made.cos = static_cast<const char*>(cos.data);
    made.sin = static_cast<const char*>(sin.data);
    made.row_bytes = width * kBytes[cos.type];
    made.turn = {norm_.x, cos.type, dim, width != dim, norm_.rotary_interleaved};
    return made;
}

void Operator::compute(OrtKernelContext* context) const {
    const bool two = norm_.kind == Kind::kSkipRMSNorm || norm_.kind == Kind::kGatedRMSNorm;
    const bool rotary = norm_.kind == Kind::kRotaryRMSNorm;
    const std::size_t weights = rotary ? 3 : two ? 2 : 1;
    std::size_t inputs = 0, outputs = 0;
    check(api_.KernelContext_GetInputCount(context, &inputs));
    check(api_.KernelContext_GetOutputCount(context, &outputs));
    const Tensor x = input(context, 0, inputs);
    const Tensor second = two ? input(context, 1, inputs) : Tensor{};
    const Tensor scale = input(context, weights, inputs);
    const Tensor bias = input(context, weights + 1, inputs);
    const Sizes shape(x.shape);
    if (x.shape.size() < static_cast<std::size_t>(-norm_.axis)) {
        refuse("X has the shape " + shape.text() + ", axis is " + std::to_string(norm_.axis),
               "give X at least " + std::to_string(-norm_.axis) + " dimensions");
    }
    const Sizes normalised(shape.last + norm_.axis, shape.last + norm_.last_axis + 1);
    const std::size_t all = shape.elements(), n = normalised.elements();
    const std::size_t inner = Sizes(normalised.last, shape.last).elements();
    // A scale may have a 1 for each axis behind its own.
    const auto own_sizes = [&](const Sizes& sizes) {
        const Sizes own = sizes.without_leading_ones();
        return norm_.last_axis == -1 ? own : own.without_trailing_ones();
    };
    const auto part = static_cast<std::size_t>(norm_.partial_size);
    const auto group = static_cast<std::size_t>(norm_.group_size);
    const auto row = [&] { return ", a row has " + std::to_string(n) + " elements"; };
    if (part > n) refuse("partial_size is " + std::to_string(part) + row(), "use at most those");
    if (group && n % group) {
        refuse("group_size is " + std::to_string(group) + row(), "use a divisor of that");
    }
    if (two && (Sizes(second.shape) != shape || second.type != norm_.x)) {
        const char* name = norm_.kind == Kind::kSkipRMSNorm ? "residual" : "gate";
        refuse(name + (" has the shape " + Sizes(second.shape).text()) + ", X " + shape.text(),
               "expand and cast it to those of X");
    }
    for (const Tensor* tensor : {&scale, &bias}) {
        const Sizes own(tensor->shape);
        if (tensor->present && own_sizes(own) != own_sizes(normalised)) {
            refuse((tensor == &scale ? "scale" : "bias") + (" has the shape " + own.text()) +
                       ", the normalised axes " + normalised.text(),
                   "give it one element per element of a row");
        }
    }
    if (norm_.scale_offset != 0 && !scale.present) {
        refuse("scale_offset is " + std::to_string(norm_.scale_offset) + " and there is no scale",
               "pass a scale, or use scale_offset 0");
    }

    Tables tables;
    if (rotary) {
        const Tensor cos = input(context, 1, inputs), sin = input(context, 2, inputs);
        tables = this->tables(shape, n, cos, sin);
    }

    const auto output = [&](std::size_t index) -> void* {
        OrtValue* value = nullptr;
        check(api_.KernelContext_GetOutput(context, index, x.shape.begin(), x.shape.size(), &value));
        void* data = nullptr;
        if (value) check(api_.GetTensorMutableData(value, &data));
        return data;
    };
    Norm norm = norm_;
    if (!scale.present) norm.association = 0;
    Rows rows;
    rows.norm = &norm;
    rows.x = x.data;
    rows.second = second.data;
    rows.y = output(0);
    if (norm.kind == Kind::kSkipRMSNorm && outputs > 1) rows.sum = output(1);
    if (all == 0) return;

    const Kernels& kernels = rmsnorm_export::kernels();
    const std::size_t lane = norm.wide() ? sizeof(double) : sizeof(float);
    std::unique_ptr<char[]> held[2];
    const auto operand = [&](const Tensor& tensor, float offset, int which) -> const void* {
        if (!tensor.present) return nullptr;
        const Type lanes = norm.wide() ? kDouble : kFloat;
        if (tensor.type == lanes && norm.product() == lanes && offset == 0) return tensor.data;
        held[which].reset(new char[n * lane]);
        kernels.operand(norm, tensor.type, tensor.data, n, offset, held[which].get());
        return held[which].get();
    };
    rows.factor = operand(scale, norm.scale_offset, 0);
    rows.bias = operand(bias, 0.0F, 1);
    rows.segment = group ? group : n;
    rows.summed = part ? part : rows.segment;
    rows.per_row = n / rows.segment;

    Work work(kernels, rows, inner, all, kBytes[norm.x], lane, rotary ? &tables : nullptr);
    const std::size_t tasks = work.tasks();
    if (tasks == 1) {
        work.task(0);
    } else {
        check(api_.KernelContext_ParallelFor(
            context, [](void* data, std::size_t index) { static_cast<Work*>(data)->task(index); },
            tasks, 0, &work));
    }
    if (work.failed) refuse("there is no memory for a row", "free some memory");
}

const Kernels& kernels() {
    static const Kernels& chosen = [&]() -> const Kernels& {
        const Kernels* usable[] = {kAvx512, kAvx2, kPortable};
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))) {
            usable[0] = nullptr;
        }
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c"))) {
            usable[0] = usable[1] = nullptr;
        }
#endif
        const char* wanted = std::getenv("RMSNORM_EXPORT_ISA");
        const Kernels* first = nullptr;
        for (const Kernels* each : usable) {
            if (!each) continue;
            if (wanted && each->name == std::string(wanted)) return *each;
            if (!first) first = each;
        }
        return *first;
    }();
    return chosen;
}

}  // namespace rmsnorm_export
