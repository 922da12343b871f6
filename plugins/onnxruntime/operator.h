// A node of the operator: its attributes read and checked, its tensors checked; and who computes it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "api.h"
#include "norm.h"

namespace rmsnorm_export::onnxruntime {

// What cannot be computed: a whole sentence that says what was found and what to do.
struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Sizes = std::vector<std::int64_t>;
// Elements of the axes [first, last).
inline std::size_t elements(const Sizes& sizes, std::size_t first, std::size_t last) {
    std::size_t product = 1;
    for (; first < last; ++first) product *= static_cast<std::size_t>(sizes[first]);
    return product;
}

struct Tensor {
    const char* name{nullptr};  // null where the input is absent
    Type type{kFloat};
    Sizes shape;
    const void* data{nullptr};
};

// One run of a node: tensors that fit each other, and how X is cut into [rows, n, inner].
struct Call {
    Tensor x, second, cos, sin;  // second: residual or gate
    Tensor scale, bias;
    Tensor step;              // of codes, where it is given: one f32
    void* y{nullptr};         // the norm, or its codes
    void* sum{nullptr};       // may be null
    void* scales{nullptr};    // of codes, where they are not given, f32; may be null
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
    Operator(const OrtApi* api, const OrtKernelInfo* info, const Norm& norm);
    virtual ~Operator() = default;

    // Throws Refusal.
    void compute(OrtKernelContext* context) const;

    const ort::Api& api() const { return api_; }

protected:
    // Throws Refusal.
    virtual void run(OrtKernelContext* context, const Call& call) const = 0;

    void check(OrtStatus* status) const;
    // `sentence`: what must hold. The attributes and tensors of the node are added to it.
    [[noreturn]] void refuse(const std::string& sentence, const Call& call = {}) const;
    void must(bool good, const char* sentence, const Call& call = {}) const {
        if (!good) refuse(sentence, call);
    }

    ort::Api api_;
    Norm norm_;

private:
    bool done(OrtStatus* status) const;
    void read_attributes(const OrtKernelInfo* info);
    void check_attributes() const;
    Tensor input(OrtKernelContext* context, std::size_t index, const char* name) const;
    void* output(OrtKernelContext* context, std::size_t index, const Sizes& shape) const;
    void read_inputs(OrtKernelContext* context, Call& call) const;
    void check_tensors(Call& call) const;
    void check_tables(Call& call) const;

    std::string name_;
};

template <class Node>
Operator* make(const OrtApi* api, const OrtKernelInfo* info, const Norm& norm) {
    return new Node(api, info, norm);
}

// Where nodes run.
struct Provider {
    const char* name;         // of ONNX Runtime's execution provider; null: the CPU's
    std::vector<Type> types;  // of X
    decltype(&make<Operator>) make_node;  // of a norm's kind, type and codes
};

Provider cpu();
__attribute__((weak)) Provider cuda();  // null in a library without CUDA

}  // namespace rmsnorm_export::onnxruntime
