#include "operator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "../kernels/attributes.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// In the order of a node's inputs.
constexpr Tensor Call::*kInputs[] = {&Call::x,     &Call::second, &Call::cos, &Call::sin,
                                     &Call::scale, &Call::bias,   &Call::step};

// Where `element_type` is one of kElementTypes.
bool type_of(std::int64_t element_type, Type& type) {
    const auto* const place = std::find(kElementTypes, std::end(kElementTypes), element_type);
    type = static_cast<Type>(place - kElementTypes);
    return place != std::end(kElementTypes);
}

using Range = std::pair<const std::int64_t*, const std::int64_t*>;

// Without ones in front, and where `both`, behind: a scale may have a 1 for each axis beside its own.
Range own_sizes(const std::int64_t* first, const std::int64_t* last, bool both) {
    while (first != last && *first == 1) ++first;
    while (both && first != last && last[-1] == 1) --last;
    return {first, last};
}

}  // namespace

Operator::Operator(const OrtApi* api, const OrtKernelInfo* info, const Norm& norm)
    : api_(api), norm_(norm) {
    std::size_t size = 0;
    done(api_.KernelInfo_GetNodeName(info, nullptr, &size));
    name_.resize(size);
    done(api_.KernelInfo_GetNodeName(info, name_.data(), &size));
    name_ = name_.c_str();
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
// apart by asking for every type. It does not list what a node has: an attribute that is not known here
// is not seen, which is why a function body with one has a name that is not known here either.
void Operator::read_attributes(const OrtKernelInfo* info) {
    for (const auto& each : kAttributes<Norm>) {
        if (!each.belongs(kKinds[static_cast<int>(norm_.kind)])) continue;
        float number = 0;
        std::int64_t whole = 0;
        std::size_t size = 0;
        const bool is_real = done(api_.KernelInfoGetAttribute_float(info, each.name, &number));
        const bool is_integer = done(api_.KernelInfoGetAttribute_int64(info, each.name, &whole));
        const bool is_text = done(api_.KernelInfoGetAttribute_string(info, each.name, nullptr, &size));
        const Sort sort = is_real ? Sort::kReal : is_integer ? Sort::kInteger : Sort::kWord;
        if (!is_real && !is_integer && !is_text) continue;
        if (sort != each.sort) {
            refuse(std::string("the attribute ") + each.name +
                   " must be of the type that it has elsewhere");
        }
        constexpr std::int64_t most = std::int64_t{1} << 53;  // a double is as exact
        double value = is_real ? number : static_cast<double>(std::clamp(whole, -most, most));
        if (is_text) {
            std::string text(size, '\0');
            check(api_.KernelInfoGetAttribute_string(info, each.name, text.data(), &size));
            const auto* const word = std::find(each.words, std::end(each.words), text.c_str());
            value = static_cast<double>(word - each.words);
            if (value > each.high) refuse(std::string(each.name) + " must be " + each.choices());
        }
        each.member(norm_, &value);
    }
    must(type_of(norm_.stash_type, norm_.stash),
         "stash_type must be 1 (f32), 10 (f16), 11 (f64) or 16 (bf16)");
}

void Operator::check_attributes() const {
    const Norm& norm = norm_;
    const bool parts = norm.partial_size || norm.group_size;
    must(std::isfinite(norm.epsilon) && norm.epsilon >= 0, "epsilon must be finite, and at least 0");
    must(norm.axis < 0, "axis must be counted from the end: -1 is the last");
    must(norm.axis <= norm.last_axis && norm.last_axis < 0,
         "last_axis must be counted from the end, and not be before axis");
    must(std::isfinite(norm.scale_offset), "scale_offset must be finite");
    must(norm.partial_size >= 0 && norm.group_size >= 0 && !(norm.partial_size && norm.group_size),
         "partial_size and group_size must be at least 0, and one of them 0");
    must(norm.axis == -1 || !parts, "partial_size and group_size need axis -1");
    must(!norm.epsilon_outside || !norm.epsilon_clamp,
         "one of epsilon_outside and epsilon_clamp must be 0");
    must(norm.association == 0 || (norm.association == 1 && norm.round_rstd) || norm.association == 2,
         "association must be 0, 2 or, with round_rstd, 1");
    must(!norm.association || (!norm.group_size && norm.last_axis == -1),
         "association needs last_axis -1, and no group_size");
    must(!norm.round_rstd || !norm.scale_before_cast,
         "one of round_rstd and scale_before_cast must be 0");
    must(norm.rotary_dim >= 0 && norm.rotary_dim % 2 == 0, "rotary_dim must be even, and at least 0");
    must(norm.kind != Kind::kRotaryRMSNorm || (norm.axis == -1 && !parts),
         "a rotary embedding needs axis -1, and no partial_size or group_size");
}

bool Operator::done(OrtStatus* status) const {
    if (status) api_.ReleaseStatus(status);
    return !status;
}

void Operator::check(OrtStatus* status) const {
    if (!done(status)) refuse("ONNX Runtime must hand out its tensors: check the model");
}

void Operator::refuse(const std::string& sentence, const Call& call) const {
    const std::string coded = norm_.coded() ? "Quantized" : "";
    std::string text = "rmsnorm_export: " + coded + kKinds[static_cast<int>(norm_.kind)] + " node '" +
                       name_ + "': " + sentence + "; it has";
    for (const auto input : kInputs) {
        const Tensor& tensor = call.*input;
        if (!tensor.name) continue;
        text += std::string(" ") + tensor.name + " " + kTypeNames[tensor.type] + " [";
        for (const std::int64_t size : tensor.shape) {
            text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
        }
        text += "],";
    }
    Norm norm = norm_;
    for (const auto& each : kAttributes<Norm>) {
        const double value = each.member(norm, nullptr);
        const bool real = each.sort == Sort::kReal;
        if (!real && value == 0) continue;
        const auto whole = static_cast<std::int64_t>(value);
        text += std::string(" ") + each.name + " ";
        text += (real ? std::to_string(value) : std::to_string(whole)) + ",";
    }
    text.pop_back();
    throw Refusal(text);
}

Tensor Operator::input(OrtKernelContext* context, std::size_t index, const char* name) const {
    Tensor tensor;
    const OrtValue* value = nullptr;
    check(api_.KernelContext_GetInput(context, index, &value));
    if (!value) return tensor;
    ort::ElementType element_type = ort::kUndefined;
    std::size_t rank = 0;
    if (const auto refer = api_.GetTensorElementTypeAndShapeDataReference) {
        const std::int64_t* sizes = nullptr;
        check(refer(value, &element_type, &sizes, &rank));
        tensor.shape.assign(sizes, sizes + rank);
    } else {
        OrtTensorTypeAndShapeInfo* raw = nullptr;
        check(api_.GetTensorTypeAndShape(value, &raw));
        const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_.ReleaseTensorTypeAndShapeInfo)>
            info(raw, api_.ReleaseTensorTypeAndShapeInfo);
        check(api_.GetTensorElementType(raw, &element_type));
        check(api_.GetDimensionsCount(raw, &rank));
        tensor.shape.resize(rank);
        check(api_.GetDimensions(raw, tensor.shape.data(), rank));
    }
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
    const bool rotary = norm_.kind == Kind::kRotaryRMSNorm, skip = norm_.kind == Kind::kSkipRMSNorm;
    const char* const second = norm_.like_x() == 1 ? nullptr : skip ? "residual" : "gate";
    const char* const names[] = {"X", second, rotary ? "cos" : nullptr, rotary ? "sin" : nullptr,
                                 "scale", "bias"};
    std::size_t inputs = 0, index = 0;
    check(api_.KernelContext_GetInputCount(context, &inputs));
    if (norm_.step_given() && inputs) call.step = input(context, --inputs, "scale of codes");
    for (std::size_t i = 0; i < std::size(names) && index < inputs; ++i) {
        if (names[i]) call.*kInputs[i] = input(context, index++, names[i]);
    }
}

void Operator::check_tensors(Call& call) const {
    const Sizes& shape = call.x.shape;
    const std::size_t rank = shape.size();
    must(rank >= static_cast<std::size_t>(-norm_.axis), "X must have the axis", call);
    const std::size_t first = rank - static_cast<std::size_t>(-norm_.axis);
    const std::size_t last = rank + 1 - static_cast<std::size_t>(-norm_.last_axis);
    call.n = elements(shape, first, last);
    call.inner = elements(shape, last, rank);
    call.rows = elements(shape, 0, first) * call.inner;
    call.elements = call.rows * call.n;
    const auto n = static_cast<std::int64_t>(call.n);
    const bool behind = norm_.last_axis != -1;
    const auto [begin, end] = own_sizes(shape.data() + first, shape.data() + last, behind);
    const auto fits = [&, begin = begin, end = end](const Tensor& tensor) {
        const auto* const sizes = tensor.shape.data();
        const Range own = own_sizes(sizes, sizes + tensor.shape.size(), behind);
        return !tensor.name || std::equal(begin, end, own.first, own.second);
    };
    const Tensor &step = call.step, &second = call.second;
    must(norm_.partial_size <= n, "partial_size must be at most the elements of a row", call);
    must(!norm_.group_size || n % norm_.group_size == 0,
         "group_size must divide the elements of a row", call);
    must(norm_.like_x() == 1 || (second.shape == shape && second.type == norm_.x),
         "residual or gate must have the shape and type of X", call);
    must(fits(call.scale), "scale must have one element per element of a row", call);
    must(fits(call.bias), "bias must have one element per element of a row", call);
    must(norm_.scale_offset == 0 || call.scale.name, "scale_offset needs a scale", call);
    must(!norm_.step_given() ||
             (step.name && step.type == kFloat && elements(step.shape, 0, step.shape.size()) == 1),
         "the last input must be the scale of the codes, one f32", call);
    must(!norm_.step_per_row() || shape.back() || !elements(shape, 0, shape.size() - 1),
         "a row must have elements, whose codes have a scale", call);
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
    must(dim <= call.n && dim % 2 == 0,
         "rotary_dim must be even, and at most the elements of a row", call);
    must(type == call.sin.type && (type == norm_.x || (type == kFloat && norm_.x != kDouble)),
         "cos and sin must have the type of X, or f32 where that is f16 or bf16", call);
    must(fits && (call.width == dim || call.width * 2 == dim),
         "cos and sin must broadcast against X, with rotary_dim entries in the last axis or half",
         call);
}

void Operator::compute(OrtKernelContext* context) const {
    Call call;
    read_inputs(context, call);
    check_tensors(call);
    if (norm_.kind == Kind::kRotaryRMSNorm) check_tables(call);
    std::size_t outputs = 0;
    check(api_.KernelContext_GetOutputCount(context, &outputs));
    call.y = output(context, 0, call.x.shape);
    if (norm_.sums() && outputs > 1) call.sum = output(context, 1, call.x.shape);
    if (norm_.step_per_row() && outputs == norm_.outputs()) {
        Sizes rows = call.x.shape;
        rows.back() = 1;
        call.scales = output(context, outputs - 1, rows);
    }
    if (call.elements) run(context, call);
}

}  // namespace rmsnorm_export::onnxruntime
