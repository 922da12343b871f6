#include "operator.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace rmsnorm_export::onnxruntime {
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
    std::string activation = "silu", quantize;
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
        if (kind != Kind::kRotaryRMSNorm) attributes.read("quantize", quantize);
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
    if (!quantize.empty()) {
        norm_.codes = Codes::kFp8;
        const auto* known = std::find_if(std::begin(kQuantizers), std::end(kQuantizers),
                                         [&](const Quantizer& one) { return quantize == one.word; });
        must(known != std::end(kQuantizers), "quantize is '" + quantize + "'",
             "use int8, fp8, int8_per_row, fp8_per_row, mxfp8 or mxfp8_floor");
        norm_.codes = known->codes;
        norm_.steps = known->steps;
        must(norm_.steps < Steps::kBlock || norm_.axis == -1,
             "codes of blocks are to be made with axis " + std::to_string(norm_.axis), "use axis -1");
    }

    // What cannot matter for X of type T: as NormSpec.canonical.
    const bool half = x == kHalf || x == kBfloat;
    if (x != norm_.stash || !half) norm_.association = 0;
    if (x == norm_.stash) {
        norm_.scale_before_cast = false;
        norm_.round_rstd = norm_.round_rstd && half;
    }
}

void Operator::must_give(Codes codes, Steps steps) const {
    if (norm_.codes != codes || norm_.steps != steps) {
        refuse("the attribute quantize says other codes than the operator's name",
               "give RMSNorm none, QuantizedRMSNorm_int8 that of int8, and so on");
    }
}

std::string Operator::where() const {
    return std::string(norm_.codes == Codes::kNone ? "" : "Quantized") + kKinds[static_cast<int>(norm_.kind)] + " node '" + name_ + "'";
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

void Operator::read(const OrtValue* value, std::size_t index, Tensor& tensor) const {
    ort::ElementType element_type = ort::kUndefined;
    std::size_t rank = 0;
    if (api_.GetTensorElementTypeAndShapeDataReference) {
        const std::int64_t* sizes = nullptr;
        check(api_.GetTensorElementTypeAndShapeDataReference(value, &element_type, &sizes, &rank));
        tensor.shape.resize(rank);
        std::copy_n(sizes, rank, tensor.shape.data());
    } else {  // a copy, which takes as long as the norm of a short row
        OrtTensorTypeAndShapeInfo* raw = nullptr;
        check(api_.GetTensorTypeAndShape(value, &raw));
        const std::unique_ptr<OrtTensorTypeAndShapeInfo,
                              ort::Api::ReleaseTensorTypeAndShapeInfoFunction*>
            info(raw, api_.ReleaseTensorTypeAndShapeInfo);
        check(api_.GetTensorElementType(raw, &element_type));
        check(api_.GetDimensionsCount(raw, &rank));
        tensor.shape.resize(rank);
        check(api_.GetDimensions(raw, tensor.shape.data(), rank));
    }
    if (!type_of(element_type, tensor.type)) {
        refuse("input " + std::to_string(index) + " has element type " +
                   std::to_string(element_type),
               "cast it to f16, bf16, f32 or f64");
    }
    void* data = nullptr;
    check(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    tensor.data = data;
    tensor.present = true;
}

void Operator::input(OrtKernelContext* context, std::size_t index, std::size_t inputs,
                     Tensor& tensor) const {
    const OrtValue* value = nullptr;
    if (index < inputs) check(api_.KernelContext_GetInput(context, index, &value));
    if (value) read(value, index, tensor);
}

const Tensor* Operator::weight(OrtKernelContext* context, std::size_t which, std::size_t inputs,
                               Tensor& tensor) const {
    const std::size_t index = required() + which;
    // Behind them is the step of codes, which may be a constant too.
    if (index < inputs && weights_[which].present) return &weights_[which];
    input(context, index, inputs, tensor);
    return &tensor;
}

Tensor Operator::constant(const OrtKernelInfo* info, std::size_t index) const {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(api_.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &value));
    try {
        Tensor tensor;
        if (is_constant && value) read(value, index, tensor);
        return tensor;
    } catch (const Refusal&) {  // it is refused again when the node runs
        return Tensor();
    }
}

std::size_t Operator::required() const {
    if (norm_.kind == Kind::kRotaryRMSNorm) return 3;
    return norm_.kind == Kind::kRMSNorm ? 1 : 2;
}

void Operator::check_tables(Call& call) const {
    const Sizes x(call.x.shape), shape(call.cos.shape);
    const Type type = call.cos.type;
    const std::string found = "cos has the shape " + shape.text() + ", sin " +
                              Sizes(call.sin.shape).text() + ", X " + x.text();
    const std::size_t dim = norm_.rotary_dim ? static_cast<std::size_t>(norm_.rotary_dim) : call.n;
    if (dim > call.n || dim % 2) {
        refuse(std::to_string(dim) + " elements of X of shape " + x.text() + " are to be turned",
               "use an even rotary_dim of at most a row");
    }
    if (type != call.sin.type || (type != norm_.x && !(type == kFloat && norm_.x != kDouble))) {
        refuse("cos and sin differ in type, or are neither of X's nor f32",
               "cast both to the type of X, or to f32 where that is f16 or bf16");
    }
    const auto axes = shape.last - shape.first;
    bool fits = shape == Sizes(call.sin.shape) && axes > 0 && axes <= x.last - x.first;
    for (const auto* size = shape.last - 1; fits && size-- != shape.first;) {
        const std::int64_t of_x = x.last[size - shape.last];
        fits = *size == 1 || *size == of_x;
    }
    call.turned = dim;
    call.width = fits ? static_cast<std::size_t>(shape.last[-1]) : 0;
    if (!fits || (call.width != dim && call.width * 2 != dim)) {
        refuse(found, "make both broadcast against X, with " + std::to_string(dim) + " or " +
                          std::to_string(dim / 2) + " entries in the last axis");
    }
}

Tensor Operator::step_of_codes(OrtKernelContext* context, std::size_t index) const {
    Tensor given;
    input(context, index, index + 1, given);
    if (!given.present || given.type != kFloat || Sizes(given.shape).elements() != 1) {
        refuse("the last input is no scale of codes", "give it one element of type f32");
    }
    return given;
}

void* Operator::output(OrtKernelContext* context, std::size_t index, const Shape& shape) const {
    OrtValue* value = nullptr;
    check(api_.KernelContext_GetOutput(context, index, shape.begin(), shape.size(), &value));
    void* data = nullptr;
    if (value) check(api_.GetTensorMutableData(value, &data));
    return data;
}

void Operator::compute(OrtKernelContext* context) const {
    const bool two = norm_.kind == Kind::kSkipRMSNorm || norm_.kind == Kind::kGatedRMSNorm;
    const bool rotary = norm_.kind == Kind::kRotaryRMSNorm;
    const bool skip = norm_.kind == Kind::kSkipRMSNorm;
    std::size_t inputs = 0, outputs = 1;
    check(api_.KernelContext_GetInputCount(context, &inputs));
    if (skip || norm_.codes != Codes::kNone) {
        check(api_.KernelContext_GetOutputCount(context, &outputs));
    }
    Call call;
    if (norm_.codes != Codes::kNone && norm_.steps == Steps::kGiven && inputs) {
        call.step = step_of_codes(context, --inputs);
    }
    input(context, 0, inputs, call.x);
    if (two) input(context, 1, inputs, call.second);
    Tensor given[2];
    call.scale = weight(context, 0, inputs, given[0]);
    call.bias = weight(context, 1, inputs, given[1]);
    const Sizes shape(call.x.shape);
    if (call.x.shape.size() < static_cast<std::size_t>(-norm_.axis)) {
        refuse("X has the shape " + shape.text() + ", axis is " + std::to_string(norm_.axis),
               "give X at least " + std::to_string(-norm_.axis) + " dimensions");
    }
    const Sizes normalised(shape.last + norm_.axis, shape.last + norm_.last_axis + 1);
    const std::size_t n = call.n = normalised.elements();
    call.inner = Sizes(normalised.last, shape.last).elements();
    call.rows = Sizes(shape.first, normalised.first).elements() * call.inner;
    call.elements = call.rows * n;
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
    if (two && (Sizes(call.second.shape) != shape || call.second.type != norm_.x)) {
        const char* name = norm_.kind == Kind::kSkipRMSNorm ? "residual" : "gate";
        refuse(name + (" has the shape " + Sizes(call.second.shape).text()) + ", X " + shape.text(),
               "expand and cast it to those of X");
    }
    for (const Tensor* tensor : {call.scale, call.bias}) {
        const Sizes own(tensor->shape);
        if (tensor->present && own_sizes(own) != own_sizes(normalised)) {
            refuse((tensor == call.scale ? "scale" : "bias") + (" has the shape " + own.text()) +
                       ", the normalised axes " + normalised.text(),
                   "give it one element per element of a row");
        }
    }
    if (norm_.scale_offset != 0 && !call.scale->present) {
        refuse("scale_offset is " + std::to_string(norm_.scale_offset) + " and there is no scale",
               "pass a scale, or use scale_offset 0");
    }
    if (rotary) {
        input(context, 1, inputs, call.cos);
        input(context, 2, inputs, call.sin);
        check_tables(call);
    }
    call.y = output(context, 0, call.x.shape);
    if (skip && outputs > 1) call.sum = output(context, 1, call.x.shape);
    if (norm_.codes != Codes::kNone && norm_.steps != Steps::kGiven) {
        Shape steps = call.x.shape;
        std::int64_t& last = steps.data()[steps.size() - 1];
        if (norm_.steps != Steps::kRow && last % static_cast<std::int64_t>(kBlock)) {
            refuse("a row has " + std::to_string(last) + " elements", "make that a multiple of 32");
        }
        last = norm_.steps == Steps::kRow ? 1 : last / static_cast<std::int64_t>(kBlock);
        const std::size_t index = skip ? 2 : 1;
        if (outputs > index) call.scales = output(context, index, steps);
        if (call.scales && !call.elements && norm_.steps == Steps::kRow) {
            fill_ones(context, static_cast<float*>(call.scales), Sizes(steps).elements());
        }
    }
    if (call.elements) run(context, call);
}

}  // namespace rmsnorm_export::onnxruntime
