// A node of the operator: its attributes read and checked, its tensors checked; and who computes it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "api.h"
#include "norm.h"
#include "shape.h"

namespace rmsnorm_export::onnxruntime {

// What cannot be computed: a whole sentence that says what was found and what to do.
struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Tensor {
    const void* data{nullptr};  // null where the input is absent
    Type type{kFloat};
    Shape shape;
    bool present{false};
};

// One run of a node: tensors that fit each other, and how X is cut into [rows, n, inner].
struct Call {
    Tensor x, second, cos, sin;  // second: residual or gate
    const Tensor *scale, *bias;  // never null
    Tensor step;         // of codes, where it is given: one f32
    void* y{nullptr};    // the norm, or its codes
    void* sum{nullptr};  // may be null
    void* scales{nullptr};  // of codes, where they are not; may be null
    std::size_t elements{0};  // at least 1: rows of n
    std::size_t rows{0};
    std::size_t n{0};
    std::size_t inner{1};
    std::size_t turned{0};  // elements of a row that cos and sin turn, and
    std::size_t width{0};   // entries of a row of theirs: those, or half of them
};

class Operator {
public:
    // Throws Refusal.
    Operator(const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x);
    virtual ~Operator() = default;

    // Throws Refusal.
    void compute(OrtKernelContext* context) const;

    const ort::Api& api() const { return api_; }
    // Throws Refusal where the attributes are of other codes than the node's name.
    void must_give(Codes codes, Steps steps) const;

protected:
    // Throws Refusal.
    virtual void run(OrtKernelContext* context, const Call& call) const = 0;
    // `count` scales of rows without elements.
    virtual void fill_ones(OrtKernelContext* context, float* scales, std::size_t count) const = 0;

    void check(OrtStatus* status) const;
    [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

    // Inputs before the scale.
    std::size_t required() const;
    // An input that is an initializer, in the memory of the node's provider; else an absent one. Its
    // data is there while the node is made.
    Tensor constant(const OrtKernelInfo* info, std::size_t index) const;

    ort::Api api_;
    Norm norm_;
    Tensor weights_[2];  // scale and bias, where they are constant and not to be asked for again

private:
    // "RMSNorm node 'name'", for messages.
    std::string where() const;
    // In place: a tensor that is handed on is copied in wider pieces than it was written in, for which
    // the processor waits.
    void read(const OrtValue* value, std::size_t index, Tensor& tensor) const;
    void input(OrtKernelContext* context, std::size_t index, std::size_t inputs, Tensor& tensor) const;
    // The constant, or what is read into `tensor`.
    const Tensor* weight(OrtKernelContext* context, std::size_t which, std::size_t inputs,
                         Tensor& tensor) const;
    void check_tables(Call& call) const;
    Tensor step_of_codes(OrtKernelContext* context, std::size_t index) const;
    void* output(OrtKernelContext* context, std::size_t index, const Shape& shape) const;

    std::string name_;
};

// Where nodes run.
struct Provider {
    const char* name;         // of ONNX Runtime's execution provider; null: the CPU's
    std::vector<Type> types;  // of X
    Operator* (*make)(const OrtApi*, const OrtKernelInfo*, Kind, Type);
};

// The values of the attribute `quantize`, with which the names of operators that give codes end.
struct Quantizer {
    const char* word;
    Codes codes;
    Steps steps;
};
constexpr Quantizer kQuantizers[] = {{"int8", Codes::kInt8, Steps::kGiven},
                                     {"fp8", Codes::kFp8, Steps::kGiven},
                                     {"int8_per_row", Codes::kInt8, Steps::kRow},
                                     {"fp8_per_row", Codes::kFp8, Steps::kRow},
                                     {"mxfp8", Codes::kFp8, Steps::kBlock},
                                     {"mxfp8_floor", Codes::kFp8, Steps::kBlockFloor}};

Provider cpu();
Provider cuda();

// Those that this library has kernels for.
std::vector<Provider> providers();

}  // namespace rmsnorm_export::onnxruntime
