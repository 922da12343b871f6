#include "operator.h"

#include <cmath>

namespace rmsnorm_export::onnxruntime {
namespace {

bool type_of(std::int64_t element_type, Type& type) {
    switch (element_type) {
        case ort::kF32: type = kFloat; return true;
        case ort::kF16: type = kHalf; return true;
        case ort::kBF16: type = kBfloat; return true;
        case ort::kF64: type = kDouble; return true;
        default: return false;
    }
}

template <class T>
std::string is(const char* name, T value) {
    return std::string(name) + " is " + std::to_string(value);
}

}  // namespace

Operator::Operator(const OrtApi* api, const OrtKernelInfo* info, const Norm& norm)
    : api_(api), norm_(norm) {
    std::size_t size = 0;
    if (OrtStatus* status = api_.KernelInfo_GetNodeName(info, nullptr, &size)) {
        api_.ReleaseStatus(status);
    } else {
        name_.resize(size);
        check(api_.KernelInfo_GetNodeName(info, name_.data(), &size));
        name_ = name_.c_str();
    }
    read_attributes(info);
    check_attributes();
    // What cannot matter for X of type T: as NormSpec.canonical.
    const bool half = norm_.x == kHalf || norm_.x == kBfloat;
    if (norm_.x != norm_.stash || !half) norm_.association = 0;
    if (norm_.x == norm_.stash) {
        norm_.scale_before_cast = false;
        norm_.round_rstd = norm_.round_rstd && half;
    }
}

// ONNX Runtime fails alike for an attribute that is absent and for one of another type: those are told
// apart by asking for the other types.
void Operator::read_attributes(const OrtKernelInfo* info) {
    const auto done = [&](OrtStatus* status) {
        if (status) api_.ReleaseStatus(status);
        return status == nullptr;
    };
    float number = 0;
    std::int64_t integer = 0;
    std::string text;
    const auto is_float = [&](const char* name) {
        return done(api_.KernelInfoGetAttribute_float(info, name, &number));
    };
    const auto is_integer = [&](const char* name) {
        return done(api_.KernelInfoGetAttribute_int64(info, name, &integer));
    };
    const auto is_text = [&](const char* name) {
        std::size_t size = 0;  // with the terminating 0
        if (!done(api_.KernelInfoGetAttribute_string(info, name, nullptr, &size))) return false;
        text.resize(size);
        check(api_.KernelInfoGetAttribute_string(info, name, text.data(), &size));
        text = text.c_str();
        return true;
    };
    const auto other = [&](const char* name, const char* type) {
        if (is_float(name) || is_integer(name) || is_text(name)) {
            refuse(std::string("the attribute ") + name + " has another type",
                   std::string("make it ") + type);
        }
    };
    const auto read = [&](const char* name, auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, float>) {
            is_float(name) ? void(value = number) : other(name, "a float");
        } else {
            is_integer(name) ? void(value = static_cast<Value>(integer)) : other(name, "an integer");
        }
    };
    std::int64_t stash = ort::kF32;
    read("epsilon", norm_.epsilon);
    read("axis", norm_.axis);
    read("last_axis", norm_.last_axis);
    read("stash_type", stash);
    read("scale_before_cast", norm_.scale_before_cast);
    read("scale_offset", norm_.scale_offset);
    read("epsilon_outside", norm_.epsilon_outside);
    read("epsilon_clamp", norm_.epsilon_clamp);
    read("partial_size", norm_.partial_size);
    read("group_size", norm_.group_size);
    read("round_rstd", norm_.round_rstd);
    read("association", norm_.association);
    if (norm_.kind == Kind::kGatedRMSNorm) {
        read("gate_first", norm_.gate_first);
        if (!is_text("activation")) {
            text = "silu";
            other("activation", "a string");
        }
        norm_.sigmoid = text == "sigmoid";
        if (text != "silu" && text != "sigmoid") {
            refuse("activation is '" + text + "'", "use silu or sigmoid");
        }
    }
    if (norm_.kind == Kind::kRotaryRMSNorm) {
        read("rotary_dim", norm_.rotary_dim);
        read("rotary_interleaved", norm_.rotary_interleaved);
    }
    if (!type_of(stash, norm_.stash)) {
        refuse(is("stash_type", stash), "use 1 (f32), 10 (f16), 11 (f64) or 16 (bf16)");
    }
}

void Operator::check_attributes() const {
    const Norm& norm = norm_;
    const struct {
        bool good;
        std::string what;
        const char* fix;
    } rules[] = {
        {std::isfinite(norm.epsilon) && norm.epsilon >= 0, is("epsilon", norm.epsilon),
         "make it finite and at least 0"},
        {norm.axis < 0, is("axis", norm.axis), "count it from the end: -1"},
        {norm.axis <= norm.last_axis && norm.last_axis < 0,
         is("last_axis", norm.last_axis) + ", " + is("axis", norm.axis),
         "count it from the end, and not before axis"},
        {std::isfinite(norm.scale_offset), is("scale_offset", norm.scale_offset), "make it finite"},
        {norm.partial_size >= 0 && norm.group_size >= 0,
         is("partial_size", norm.partial_size) + ", " + is("group_size", norm.group_size),
         "make both at least 0"},
        {!norm.partial_size || !norm.group_size, "partial_size and group_size are both given",
         "use one of them"},
        {norm.axis == -1 || !(norm.partial_size || norm.group_size),
         "partial_size or group_size is given with axis " + std::to_string(norm.axis), "use axis -1"},
        {!norm.epsilon_outside || !norm.epsilon_clamp,
         "epsilon_outside and epsilon_clamp are both set", "use one of them"},
        {norm.association >= 0 && norm.association <= 2, is("association", norm.association),
         "use 0, 1 or 2"},
        {norm.association != 1 || norm.round_rstd, "association is 1 without round_rstd",
         "set round_rstd, whose 1 / rms it multiplies"},
        {!norm.association || !norm.group_size, "association and group_size are both given",
         "use one of them"},
        {!norm.association || norm.last_axis == -1,
         "association is given with last_axis " + std::to_string(norm.last_axis), "use last_axis -1"},
        {!norm.round_rstd || !norm.scale_before_cast,
         "round_rstd and scale_before_cast are both set", "use one of them"},
        {norm.rotary_dim >= 0 && norm.rotary_dim % 2 == 0, is("rotary_dim", norm.rotary_dim),
         "make it even, and at least 0"},
        {norm.kind != Kind::kRotaryRMSNorm ||
             (norm.axis == -1 && !norm.partial_size && !norm.group_size),
         "a rotary embedding follows a norm of other rows than the last axis",
         "use axis -1, and no partial_size or group_size"},
    };
    for (const auto& rule : rules) {
        if (!rule.good) refuse(rule.what, rule.fix);
    }
}

void Operator::refuse(const std::string& what, const std::string& fix) const {
    const std::string kind = kKinds[static_cast<int>(norm_.kind)];
    const std::string name = (norm_.codes == Codes::kNone ? "" : "Quantized") + kind;
    throw Refusal("rmsnorm_export: " + name + " node '" + name_ + "': " + what + "; " + fix);
}

void Operator::check(OrtStatus* status) const {
    if (status) {
        api_.ReleaseStatus(status);
        refuse("ONNX Runtime did not hand out a tensor", "check the model with onnx.checker");
    }
}

Tensor Operator::input(OrtKernelContext* context, std::size_t index) const {
    Tensor tensor;
    const OrtValue* value = nullptr;
    check(api_.KernelContext_GetInput(context, index, &value));
    if (!value) return tensor;
    ort::ElementType element_type = ort::kUndefined;
    std::size_t rank = 0;
    if (api_.GetTensorElementTypeAndShapeDataReference) {
        check(api_.GetTensorElementTypeAndShapeDataReference(value, &element_type,
                                                             &tensor.shape.first, &rank));
    } else {
        OrtTensorTypeAndShapeInfo* raw = nullptr;
        check(api_.GetTensorTypeAndShape(value, &raw));
        const std::unique_ptr<OrtTensorTypeAndShapeInfo,
                              ort::Api::ReleaseTensorTypeAndShapeInfoFunction*>
            info(raw, api_.ReleaseTensorTypeAndShapeInfo);
        check(api_.GetTensorElementType(raw, &element_type));
        check(api_.GetDimensionsCount(raw, &rank));
        tensor.copied.reset(new std::int64_t[rank]);
        tensor.shape.first = tensor.copied.get();
        check(api_.GetDimensions(raw, tensor.copied.get(), rank));
    }
    tensor.shape.last = tensor.shape.first + rank;
    if (!type_of(element_type, tensor.type)) {
        refuse("input " + std::to_string(index) + " has element type " + std::to_string(element_type),
               "cast it to f16, bf16, f32 or f64");
    }
    void* data = nullptr;
    check(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    tensor.data = data;
    tensor.present = true;
    return tensor;
}

void* Operator::output(OrtKernelContext* context, std::size_t index, const Sizes& shape) const {
    OrtValue* value = nullptr;
    check(api_.KernelContext_GetOutput(context, index, shape.first, shape.rank(), &value));
    void* data = nullptr;
    if (value) check(api_.GetTensorMutableData(value, &data));
    return data;
}

void Operator::cut(Call& call) const {
    const Sizes& shape = call.x.shape;
    if (shape.rank() < static_cast<std::size_t>(-norm_.axis)) {
        refuse("X has the shape " + shape.text() + ", " + is("axis", norm_.axis),
               "give X at least " + std::to_string(-norm_.axis) + " dimensions");
    }
    const auto *begin = shape.last + norm_.axis, *end = shape.last + norm_.last_axis + 1;
    call.n = Sizes{begin, end}.elements();
    call.inner = Sizes{end, shape.last}.elements();
    call.rows = Sizes{shape.first, begin}.elements() * call.inner;
    call.elements = call.rows * call.n;
}

void Operator::check_tensors(const Call& call) const {
    const Sizes& shape = call.x.shape;
    const Sizes normalised{shape.last + norm_.axis, shape.last + norm_.last_axis + 1};
    // A scale may have a 1 for each axis behind its own.
    const auto own_sizes = [&](const Sizes& sizes) {
        const Sizes own = sizes.without_leading_ones();
        return norm_.last_axis == -1 ? own : own.without_trailing_ones();
    };
    const auto n = static_cast<std::int64_t>(call.n);
    const std::string row = ", a row has " + std::to_string(n) + " elements";
    if (norm_.partial_size > n) {
        refuse(is("partial_size", norm_.partial_size) + row, "use at most those");
    }
    if (norm_.group_size && n % norm_.group_size) {
        refuse(is("group_size", norm_.group_size) + row, "use a divisor of that");
    }
    if (norm_.like_x() == 2 && (call.second.shape != shape || call.second.type != norm_.x)) {
        const char* name = norm_.kind == Kind::kSkipRMSNorm ? "residual" : "gate";
        refuse(name + (" has the shape " + call.second.shape.text()) + ", X " + shape.text(),
               "expand and cast it to those of X");
    }
    for (const Tensor* tensor : {&call.scale, &call.bias}) {
        if (tensor->present && own_sizes(tensor->shape) != own_sizes(normalised)) {
            const std::string name = tensor == &call.scale ? "scale" : "bias";
            refuse(name + " has the shape " + tensor->shape.text() + ", the normalised axes " +
                       normalised.text(),
                   "give it one element per element of a row");
        }
    }
    if (norm_.scale_offset != 0 && !call.scale.present) {
        refuse(is("scale_offset", norm_.scale_offset) + " and there is no scale",
               "pass a scale, or use scale_offset 0");
    }
}

void Operator::check_tables(Call& call) const {
    const Sizes &x = call.x.shape, &table = call.cos.shape;
    const Type type = call.cos.type;
    const std::size_t dim = norm_.rotary_dim ? static_cast<std::size_t>(norm_.rotary_dim) : call.n;
    if (dim > call.n || dim % 2) {
        refuse(std::to_string(dim) + " elements of X of shape " + x.text() + " are to be turned",
               "use an even rotary_dim of at most a row");
    }
    if (type != call.sin.type || (type != norm_.x && !(type == kFloat && norm_.x != kDouble))) {
        refuse("cos and sin differ in type, or are neither of X's nor f32",
               "cast both to the type of X, or to f32 where that is f16 or bf16");
    }
    bool fits = table == call.sin.shape && table.rank() > 0 && table.rank() <= x.rank();
    for (std::size_t i = 2; fits && i <= table.rank(); ++i) {
        fits = table.last[-i] == 1 || table.last[-i] == x.last[-i];
    }
    call.turned = dim;
    call.width = fits ? static_cast<std::size_t>(table.last[-1]) : 0;
    if (!fits || (call.width != dim && call.width * 2 != dim)) {
        refuse("cos has the shape " + table.text() + ", sin " + call.sin.shape.text() + ", X " +
                   x.text(),
               "make both broadcast against X, with " + std::to_string(dim) + " or " +
                   std::to_string(dim / 2) + " entries in the last axis");
    }
}

void Operator::compute(OrtKernelContext* context) const {
    const bool coded = norm_.codes != Codes::kNone, skip = norm_.kind == Kind::kSkipRMSNorm;
    std::size_t inputs = 0, outputs = 1, index = 0;
    check(api_.KernelContext_GetInputCount(context, &inputs));
    if (skip || coded) check(api_.KernelContext_GetOutputCount(context, &outputs));
    Call call;
    if (norm_.step_given() && inputs) {
        call.step = input(context, --inputs);
        if (!call.step.present || call.step.type != kFloat || call.step.shape.elements() != 1) {
            refuse("the last input is no scale of codes", "give it one element of type f32");
        }
    }
    const auto next = [&](Tensor& tensor) {
        if (index < inputs) tensor = input(context, index);
        ++index;
    };
    next(call.x);
    cut(call);
    if (norm_.like_x() == 2) next(call.second);
    if (norm_.kind == Kind::kRotaryRMSNorm) {
        next(call.cos);
        next(call.sin);
    }
    next(call.scale);
    next(call.bias);
    check_tensors(call);
    if (norm_.kind == Kind::kRotaryRMSNorm) check_tables(call);
    call.y = output(context, 0, call.x.shape);
    if (skip && outputs > 1) call.sum = output(context, 1, call.x.shape);
    const std::size_t of_scales = skip ? 2 : 1;
    if (norm_.step_per_row && outputs > of_scales) {
        std::vector<std::int64_t> rows(call.x.shape.first, call.x.shape.last);
        rows.back() = 1;
        const Sizes shape{rows.data(), rows.data() + rows.size()};
        call.scales = output(context, of_scales, shape);
        if (call.scales && !call.elements) {
            fill_ones(context, static_cast<float*>(call.scales), shape.elements());
        }
    }
    if (call.elements) run(context, call);
}

}  // namespace rmsnorm_export::onnxruntime
