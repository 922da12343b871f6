#include "operator.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace rmsnorm_export::onnxruntime {
namespace {

template <class Value>
struct Attribute {
    const char* name;
    Value Norm::*value;
};
constexpr Attribute<float> kFloats[] = {{"epsilon", &Norm::epsilon},
                                        {"scale_offset", &Norm::scale_offset}};
constexpr Attribute<std::int64_t> kIntegers[] = {{"axis", &Norm::axis},
                                                 {"last_axis", &Norm::last_axis},
                                                 {"stash_type", &Norm::stash_type},
                                                 {"scale_before_cast", &Norm::scale_before_cast},
                                                 {"epsilon_outside", &Norm::epsilon_outside},
                                                 {"epsilon_clamp", &Norm::epsilon_clamp},
                                                 {"partial_size", &Norm::partial_size},
                                                 {"group_size", &Norm::group_size},
                                                 {"round_rstd", &Norm::round_rstd},
                                                 {"association", &Norm::association},
                                                 {"gate_first", &Norm::gate_first},
                                                 {"rotary_dim", &Norm::rotary_dim},
                                                 {"rotary_interleaved", &Norm::rotary_interleaved}};

struct Rule {
    bool good;
    const char* sentence;
};

// Where `element_type` is one of kElementTypes.
bool type_of(std::int64_t element_type, Type& type) {
    const auto* const place = std::find(kElementTypes, std::end(kElementTypes), element_type);
    type = static_cast<Type>(place - kElementTypes);
    return place != std::end(kElementTypes);
}

// Without ones in front, and where `both`, behind: a scale may have a 1 for each axis beside its own.
Sizes own_sizes(Sizes sizes, bool both) {
    const auto is_own = [](std::int64_t size) { return size != 1; };
    sizes.erase(sizes.begin(), std::find_if(sizes.begin(), sizes.end(), is_own));
    while (both && !sizes.empty() && sizes.back() == 1) sizes.pop_back();
    return sizes;
}

}  // namespace

Operator::Operator(const OrtApi* api, const OrtKernelInfo* info, const Norm& norm)
    : api_(api), norm_(norm) {
    std::size_t size = 0;
    if (done(api_.KernelInfo_GetNodeName(info, nullptr, &size))) {
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
    float number = 0;
    std::int64_t integer = 0;
    std::size_t size = 0;
    const auto must_be_absent = [&](const char* name) {
        if (done(api_.KernelInfoGetAttribute_float(info, name, &number)) ||
            done(api_.KernelInfoGetAttribute_int64(info, name, &integer)) ||
            done(api_.KernelInfoGetAttribute_string(info, name, nullptr, &size))) {
            refuse(std::string("the attribute ") + name + " must be of the type that it has elsewhere");
        }
    };
    for (const auto& [name, value] : kFloats) {
        const bool read = done(api_.KernelInfoGetAttribute_float(info, name, &(norm_.*value)));
        if (!read) must_be_absent(name);
    }
    for (const auto& [name, value] : kIntegers) {
        const bool read = done(api_.KernelInfoGetAttribute_int64(info, name, &(norm_.*value)));
        if (!read) must_be_absent(name);
    }
    std::string activation = "silu";
    if (done(api_.KernelInfoGetAttribute_string(info, "activation", nullptr, &size))) {
        activation.resize(size);
        check(api_.KernelInfoGetAttribute_string(info, "activation", activation.data(), &size));
        activation = activation.c_str();
    } else {
        must_be_absent("activation");
    }
    norm_.sigmoid = activation == "sigmoid";
    if (!norm_.sigmoid && activation != "silu") refuse("activation must be silu or sigmoid");
    if (!type_of(norm_.stash_type, norm_.stash)) {
        refuse("stash_type must be 1 (f32), 10 (f16), 11 (f64) or 16 (bf16)");
    }
    norm_.gate_first = norm_.gate_first && norm_.kind == Kind::kGatedRMSNorm;
}

void Operator::check_attributes() const {
    const Norm& norm = norm_;
    const bool parts = norm.partial_size || norm.group_size;
    const Rule rules[] = {
        {std::isfinite(norm.epsilon) && norm.epsilon >= 0, "epsilon must be finite, and at least 0"},
        {norm.axis < 0, "axis must be counted from the end: -1 is the last"},
        {norm.axis <= norm.last_axis && norm.last_axis < 0,
         "last_axis must be counted from the end, and not be before axis"},
        {std::isfinite(norm.scale_offset), "scale_offset must be finite"},
        {norm.partial_size >= 0 && norm.group_size >= 0 && !(norm.partial_size && norm.group_size),
         "partial_size and group_size must be at least 0, and one of them 0"},
        {norm.axis == -1 || !parts, "partial_size and group_size need axis -1"},
        {!norm.epsilon_outside || !norm.epsilon_clamp,
         "one of epsilon_outside and epsilon_clamp must be 0"},
        {norm.association == 0 || (norm.association == 1 && norm.round_rstd) || norm.association == 2,
         "association must be 0, 2 or, with round_rstd, 1"},
        {!norm.association || (!norm.group_size && norm.last_axis == -1),
         "association needs last_axis -1, and no group_size"},
        {!norm.round_rstd || !norm.scale_before_cast,
         "one of round_rstd and scale_before_cast must be 0"},
        {norm.rotary_dim >= 0 && norm.rotary_dim % 2 == 0, "rotary_dim must be even, and at least 0"},
        {norm.kind != Kind::kRotaryRMSNorm || (norm.axis == -1 && !parts),
         "a rotary embedding needs axis -1, and no partial_size or group_size"},
    };
    for (const Rule& rule : rules) {
        if (!rule.good) refuse(rule.sentence);
    }
}

bool Operator::done(OrtStatus* status) const {
    if (status) api_.ReleaseStatus(status);
    return !status;
}

void Operator::check(OrtStatus* status) const {
    if (!done(status)) refuse("ONNX Runtime must hand out its tensors: check the model");
}

void Operator::refuse(const std::string& sentence, const Call& call) const {
    const std::string coded = norm_.codes == Codes::kNone ? "" : "Quantized";
    std::string text = "rmsnorm_export: " + coded + kKinds[static_cast<int>(norm_.kind)] + " node '" +
                       name_ + "': " + sentence + "; it has";
    for (const Tensor* tensor :
         {&call.x, &call.second, &call.cos, &call.sin, &call.scale, &call.bias, &call.step}) {
        if (!tensor->name) continue;
        text += std::string(" ") + tensor->name + " " + kTypeNames[tensor->type] + " [";
        for (const std::int64_t size : tensor->shape) {
            text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
        }
        text += "],";
    }
    for (const auto& [name, value] : kFloats) {
        text += std::string(" ") + name + " " + std::to_string(norm_.*value) + ",";
    }
    for (const auto& [name, value] : kIntegers) {
        if (norm_.*value) text += std::string(" ") + name + " " + std::to_string(norm_.*value) + ",";
    }
    text.pop_back();
    throw Refusal(text);
}

Tensor Operator::input(OrtKernelContext* context, std::size_t index, const char* name) const {
    Tensor tensor;
    const OrtValue* value = nullptr;
    check(api_.KernelContext_GetInput(context, index, &value));
    if (!value) return tensor;
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_.GetTensorTypeAndShape(value, &raw));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_.ReleaseTensorTypeAndShapeInfo)> info(
        raw, api_.ReleaseTensorTypeAndShapeInfo);
    ort::ElementType element_type = ort::kUndefined;
    std::size_t rank = 0;
    check(api_.GetTensorElementType(raw, &element_type));
    check(api_.GetDimensionsCount(raw, &rank));
    tensor.shape.resize(rank);
    check(api_.GetDimensions(raw, tensor.shape.data(), rank));
    if (!type_of(element_type, tensor.type)) {
        refuse(std::string(name) + " must be f16, bf16, f32 or f64, and has the ONNX type " +
               std::to_string(element_type));
    }
    void* data = nullptr;
    check(api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    tensor.data = data;
    tensor.name = name;
    return tensor;
}

void* Operator::output(OrtKernelContext* context, std::size_t index, const Sizes& shape) const {
    OrtValue* value = nullptr;
    check(api_.KernelContext_GetOutput(context, index, shape.data(), shape.size(), &value));
    void* data = nullptr;
    if (value) check(api_.GetTensorMutableData(value, &data));
    return data;
}

void Operator::read_inputs(OrtKernelContext* context, Call& call) const {
    std::size_t inputs = 0, index = 0;
    check(api_.KernelContext_GetInputCount(context, &inputs));
    if (norm_.step_given() && inputs) call.step = input(context, --inputs, "scale of codes");
    const auto next = [&](Tensor& tensor, const char* name) {
        if (index < inputs) tensor = input(context, index, name);
        ++index;
    };
    next(call.x, "X");
    if (norm_.like_x() == 2) {
        next(call.second, norm_.kind == Kind::kSkipRMSNorm ? "residual" : "gate");
    }
    if (norm_.kind == Kind::kRotaryRMSNorm) {
        next(call.cos, "cos");
        next(call.sin, "sin");
    }
    next(call.scale, "scale");
    next(call.bias, "bias");
}

void Operator::cut(Call& call) const {
    const std::size_t rank = call.x.shape.size();
    if (rank < static_cast<std::size_t>(-norm_.axis)) refuse("X must have the axis", call);
    const std::size_t first = rank - static_cast<std::size_t>(-norm_.axis);
    const std::size_t last = rank + 1 - static_cast<std::size_t>(-norm_.last_axis);
    call.n = elements(call.x.shape, first, last);
    call.inner = elements(call.x.shape, last, rank);
    call.rows = elements(call.x.shape, 0, first) * call.inner;
    call.elements = call.rows * call.n;
}

void Operator::check_tensors(const Call& call) const {
    const Sizes& shape = call.x.shape;
    const auto n = static_cast<std::int64_t>(call.n);
    const bool behind = norm_.last_axis != -1;
    const Sizes normalised =
        own_sizes({shape.end() + norm_.axis, shape.end() + norm_.last_axis + 1}, behind);
    const auto fits = [&](const Tensor& tensor) {
        return !tensor.name || own_sizes(tensor.shape, behind) == normalised;
    };
    const Tensor& step = call.step;
    const Rule rules[] = {
        {norm_.partial_size <= n, "partial_size must be at most the elements of a row"},
        {!norm_.group_size || n % norm_.group_size == 0, "group_size must divide the elements of a row"},
        {norm_.like_x() == 1 || (call.second.shape == shape && call.second.type == norm_.x),
         "residual or gate must have the shape and type of X"},
        {fits(call.scale), "scale must have one element per element of a row"},
        {fits(call.bias), "bias must have one element per element of a row"},
        {norm_.scale_offset == 0 || call.scale.name, "scale_offset needs a scale"},
        {!norm_.step_given() ||
             (step.name && step.type == kFloat && elements(step.shape, 0, step.shape.size()) == 1),
         "the last input must be the scale of the codes, one f32"},
        {!norm_.step_per_row || shape.back() || !elements(shape, 0, shape.size() - 1),
         "a row must have elements, whose codes have a scale"},
    };
    for (const Rule& rule : rules) {
        if (!rule.good) refuse(rule.sentence, call);
    }
}

void Operator::check_tables(Call& call) const {
    const Sizes &x = call.x.shape, &table = call.cos.shape;
    const Type type = call.cos.type;
    const std::size_t dim = norm_.rotary_dim ? static_cast<std::size_t>(norm_.rotary_dim) : call.n;
    bool fits = table == call.sin.shape && !table.empty() && table.size() <= x.size();
    for (std::size_t i = 2; fits && i <= table.size(); ++i) {
        fits = table.end()[-i] == 1 || table.end()[-i] == x.end()[-i];
    }
    call.turned = dim;
    call.width = fits ? static_cast<std::size_t>(table.back()) : 0;
    const Rule rules[] = {
        {dim <= call.n && dim % 2 == 0, "rotary_dim must be even, and at most the elements of a row"},
        {type == call.sin.type && (type == norm_.x || (type == kFloat && norm_.x != kDouble)),
         "cos and sin must have the type of X, or f32 where that is f16 or bf16"},
        {fits && (call.width == dim || call.width * 2 == dim),
         "cos and sin must broadcast against X, with rotary_dim entries in the last axis or half"},
    };
    for (const Rule& rule : rules) {
        if (!rule.good) refuse(rule.sentence, call);
    }
}

void Operator::compute(OrtKernelContext* context) const {
    Call call;
    read_inputs(context, call);
    cut(call);
    check_tensors(call);
    if (norm_.kind == Kind::kRotaryRMSNorm) check_tables(call);
    std::size_t outputs = 0;
    check(api_.KernelContext_GetOutputCount(context, &outputs));
    const std::size_t sums = norm_.kind == Kind::kSkipRMSNorm;
    call.y = output(context, 0, call.x.shape);
    if (sums && outputs > 1) call.sum = output(context, 1, call.x.shape);
    if (norm_.step_per_row && outputs > 1 + sums) {
        Sizes rows = call.x.shape;
        rows.back() = 1;
        call.scales = output(context, 1 + sums, rows);
    }
    if (call.elements) run(context, call);
}

}  // namespace rmsnorm_export::onnxruntime
