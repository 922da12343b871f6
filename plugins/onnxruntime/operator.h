// A node of the operator: its attributes read and checked, its tensors checked, its rows shared out.
#pragma once

#include <stdexcept>
#include <string>

#include "api.h"
#include "norm.h"

namespace rmsnorm_export {

// What cannot be computed: a whole sentence that says what was found and what to do.
struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Sizes;
class Tables;

class Operator {
public:
    // Throws Refusal.
    Operator(const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x);

    // Throws Refusal.
    void compute(OrtKernelContext* context) const;

    // "RMSNorm node 'name'", for messages.
    std::string where() const;

    const ort::Api& api() const { return api_; }

private:
    struct Tensor;
    Tensor input(OrtKernelContext* context, std::size_t index, std::size_t inputs) const;
    Tables tables(const Sizes& x, std::size_t n, const Tensor& cos, const Tensor& sin) const;
    void check(OrtStatus* status) const;
    [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

    ort::Api api_;
    std::string name_;
    Norm norm_;
};

}  // namespace rmsnorm_export
