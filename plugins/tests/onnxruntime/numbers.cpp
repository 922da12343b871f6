// Norms by the kernels of the processor that this runs on, without ONNX Runtime: cases on standard
// input, their outputs on standard output; tests/plugins/test_native_isas.py compares them.

#include "../../onnxruntime/norm.h"

#include <cstdio>
#include <vector>

using namespace rmsnorm_export::onnxruntime;
using rmsnorm_export::Activation, rmsnorm_export::Kind;

namespace {

struct Case {
    std::int64_t kind, x, stash, rows, n, group, scale_before_cast, round_rstd, gate_first, sigmoid;
};

using Data = std::vector<unsigned char>;

Data take(std::size_t bytes) {
    Data data(bytes);
    if (std::fread(data.data(), 1, bytes, stdin) != bytes) data.clear();
    return data;
}

void compute(const Case& given) {
    Norm norm;
    norm.kind = static_cast<Kind>(given.kind);
    norm.x = static_cast<Type>(given.x);
    norm.stash = static_cast<Type>(given.stash);
    norm.epsilon = 0x1p-17F;
    norm.group_size = given.group;
    norm.scale_before_cast = given.scale_before_cast;
    norm.round_rstd = given.round_rstd;
    norm.gate_first = given.gate_first;
    norm.activation = given.sigmoid ? Activation::kSigmoid : Activation::kSilu;
    const auto n = static_cast<std::size_t>(given.n);
    const std::size_t bytes = static_cast<std::size_t>(given.rows) * n * kBytes[norm.x];
    const bool two = norm.kind != Kind::kRMSNorm, skip = norm.kind == Kind::kSkipRMSNorm;
    const Data x = take(bytes), second = take(two ? bytes : 0), scale = take(n * sizeof(float));
    Data y(bytes), sum(skip ? bytes : 0), factor(n * 8), scratch(2 * (n + kScratch) * 8);
    const Type product = norm.scale_before_cast ? norm.stash : norm.x;
    kernels().operand(product, kFloat, scale.data(), n, 0.0F, factor.data());
    Rows rows;
    rows.norm = &norm;
    rows.x = x.data();
    rows.second = two ? second.data() : nullptr;
    rows.y = y.data();
    rows.sum = skip ? sum.data() : nullptr;
    rows.factor = factor.data();
    rows.segment = rows.summed = given.group ? static_cast<std::size_t>(given.group) : n;
    rows.per_row = n / rows.segment;
    kernels().run(rows, 0, static_cast<std::size_t>(given.rows) * rows.per_row, scratch.data());
    std::fwrite(y.data(), 1, y.size(), stdout);
    std::fwrite(sum.data(), 1, sum.size(), stdout);
}

}  // namespace

int main() {
    for (Case next; std::fread(&next, sizeof next, 1, stdin) == 1;) compute(next);
}
