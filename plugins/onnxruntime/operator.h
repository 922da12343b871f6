// A node of the operator: its attributes read and checked, its tensors checked; and who computes it.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
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

// Sizes of a tensor, or of some of its axes.
struct Sizes {
    const std::int64_t *first{nullptr}, *last{nullptr};

    bool operator==(const Sizes& other) const {
        return std::equal(first, last, other.first, other.last);
    }
    bool operator!=(const Sizes& other) const { return !(*this == other); }
    std::size_t rank() const { return static_cast<std::size_t>(last - first); }
    Sizes without_leading_ones() const {
        return {std::find_if(first, last, [](std::int64_t size) { return size != 1; }), last};
    }
    Sizes without_trailing_ones() const {
        const auto* end = last;
        while (end != first && end[-1] == 1) --end;
        return {first, end};
    }
    std::size_t elements() const {
        std::size_t product = 1;
        for (const auto* size = first; size != last; ++size) product *= static_cast<std::size_t>(*size);
        return product;
    }
    std::string text() const {
        std::string joined;
        for (const auto* size = first; size != last; ++size) {
            joined += (joined.empty() ? "" : ", ") + std::to_string(*size);
        }
        return "[" + joined + "]";
    }
};

struct Tensor {
    const void* data{nullptr};  // null where the input is absent
    Type type{kFloat};
    Sizes shape;  // ONNX Runtime's own, or of 1.23 and earlier a copy:
    std::shared_ptr<std::int64_t[]> copied;
    bool present{false};
};

// One run of a node: tensors that fit each other, and how X is cut into [rows, n, inner].
struct Call {
    Tensor x, second, cos, sin;  // second: residual or gate
    Tensor scale, bias;
    Tensor step;            // of codes, where it is given: one f32
    void* y{nullptr};       // the norm, or its codes
    void* sum{nullptr};     // may be null
    void* scales{nullptr};  // of codes, where they are not given, f32; may be null
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
    // `count` scales of rows without elements.
    virtual void fill_ones(OrtKernelContext* context, float* scales, std::size_t count) const = 0;

    void check(OrtStatus* status) const;
    [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

    ort::Api api_;
    Norm norm_;

private:
    void read_attributes(const OrtKernelInfo* info);
    void check_attributes() const;
    Tensor input(OrtKernelContext* context, std::size_t index) const;
    void cut(Call& call) const;
    void check_tensors(const Call& call) const;
    void check_tables(Call& call) const;
    void* output(OrtKernelContext* context, std::size_t index, const Sizes& shape) const;

    std::string name_;
};

// Where nodes run.
struct Provider {
    const char* name;         // of ONNX Runtime's execution provider; null: the CPU's
    std::vector<Type> types;  // of X
    Operator* (*make)(const OrtApi*, const OrtKernelInfo*, const Norm&);  // of kind, type and codes
};

// Words with which the names of operators that give codes end.
struct Quantizer {
    const char* word;
    Codes codes;
    bool step_per_row;
};
constexpr Quantizer kQuantizers[] = {{"int8", Codes::kInt8, false},
                                     {"fp8", Codes::kFp8, false},
                                     {"int8_per_row", Codes::kInt8, true},
                                     {"fp8_per_row", Codes::kFp8, true}};

Provider cpu();
Provider cuda();

// Those that this library has kernels for.
std::vector<Provider> providers();

}  // namespace rmsnorm_export::onnxruntime
