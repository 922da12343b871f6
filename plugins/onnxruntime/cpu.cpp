// The nodes of ONNX Runtime's CPU provider: rows shared out among its threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "operator.h"

namespace rmsnorm_export::onnxruntime {

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        const char* const named = std::getenv("RMSNORM_EXPORT_ISA");
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
            !__builtin_cpu_supports("f16c")) {
            throw Refusal("rmsnorm_export: this processor has no AVX2, FMA or F16C, which the kernels "
                          "need; omit this library");
        }
        const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return avx512 && (!named || std::strcmp(named, "avx2")) ? kernels_avx512 : kernels_avx2;
    }();
    return chosen;
}
#else
extern const Kernels kernels_neon;

const Kernels& kernels() { return kernels_neon; }
#endif

namespace {

// Elements that are worth a task of their own: some 10 microseconds.
constexpr std::size_t kTask = 16384;

// Bytes of all tensors of a call from which its outputs pass the caches by: no longer there when they are
// read, they are written in half the time where their lines are not read first.
constexpr std::size_t kStreamed = std::size_t{32} << 20;
// The same from which they are fetched ahead: smaller ones are in the caches.
constexpr std::size_t kFetched = std::size_t{4} << 20;

using Space = std::unique_ptr<char[]>;

// A place in a tensor, `bytes` from its start; null where there is none.
void* offset(const void* tensor, std::size_t bytes) {
    return tensor ? const_cast<char*>(static_cast<const char*>(tensor)) + bytes : nullptr;
}

// One call's rows, in tasks that threads may share.
class Work {
public:
    std::atomic<bool> failed{false};

    Work(const Norm& norm, const Call& call, const void* factor, const void* bias)
        : norm_(norm), call_(call), bytes_(kBytes[norm.x]),
          codes_(norm.coded() ? static_cast<std::size_t>(call.x.shape.back()) : 0) {
        rows_.norm = &norm;
        rows_.factor = factor;
        rows_.bias = bias;
        rows_.segment = norm.group_size ? static_cast<std::size_t>(norm.group_size) : call.n;
        rows_.summed = norm.partial_size ? static_cast<std::size_t>(norm.partial_size) : rows_.segment;
        rows_.per_row = call.n / rows_.segment;
        const std::size_t tensors = 2 + (call.second.data != nullptr) + (call.sum != nullptr);
        const std::size_t size = tensors * call.elements * bytes_;
        rows_.fetched = size >= kFetched && call.inner == 1;
        rows_.streamed = !call.turned && !codes_ && call.inner == 1 && size >= kStreamed;
        // Rows whose elements lie apart are brought together, as many as lie side by side in a line of
        // the cache.
        columns_ = std::min(call.inner, 64 / bytes_);
        if (codes_ && call.inner > 1) norms_.reset(new char[call.elements * bytes_]);
        blocks_ = (call.inner + columns_ - 1) / columns_;
        rows_per_task_ = std::max<std::size_t>(kTask / call.n, 1);
    }

    std::size_t tasks() const {
        if (call_.inner > 1) return call_.rows / call_.inner * blocks_;
        return (call_.rows + rows_per_task_ - 1) / rows_per_task_;
    }

    void task(std::size_t index) {
        try {
            call_.inner > 1 ? apart(index) : together(index * rows_per_task_);
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    }

    // Rows that lie apart are not those of the codes, which are made when the norm is whole.
    void finish() const {
        if (norms_) encode(norms_.get(), 0, call_.elements / codes_);
    }

private:
    // Codes of rows of the last axis, whose norm is `y`; `first` is the place of the first of them.
    void encode(const char* y, std::size_t first, std::size_t count) const {
        for (std::size_t row = first; row < first + count; ++row, y += codes_ * bytes_) {
            auto* const codes = static_cast<std::uint8_t*>(call_.y) + row * codes_;
            const auto* const given = static_cast<const float*>(call_.step.data);
            const float step = kernels().encode(norm_.x, norm_.int8, y, codes_, given, codes);
            if (call_.scales) static_cast<float*>(call_.scales)[row] = step;
        }
    }
    void run(const Rows& rows, std::size_t count) const {
        const std::size_t lanes = std::max(rows.segment, kScratch);
        const Space scratch(norm_.like_x() > 1 ? new char[lanes * kBytes[norm_.lane()]] : nullptr);
        kernels().run(rows, 0, count * rows.per_row, scratch.get());
    }

    void together(std::size_t begin) const {
        const std::size_t count = std::min(rows_per_task_, call_.rows - begin);
        const std::size_t row_bytes = call_.n * bytes_, at = begin * row_bytes;
        const Space norms(codes_ ? new char[count * row_bytes] : nullptr);
        Rows rows = rows_;
        rows.x = offset(call_.x.data, at);
        rows.second = offset(call_.second.data, at);
        rows.sum = offset(call_.sum, at);
        rows.y = codes_ ? norms.get() : offset(call_.y, at);
        run(rows, count);
        if (codes_) encode(norms.get(), begin * call_.n / codes_, count * call_.n / codes_);
        for (std::size_t row = 0; call_.turned && row < count; ++row) {
            turn(offset(rows.y, row * row_bytes), begin + row);
        }
    }

    void apart(std::size_t index) const {
        const std::size_t first = index % blocks_ * columns_, n = call_.n;
        const std::size_t columns = std::min(columns_, call_.inner - first);
        const std::size_t at = (index / blocks_ * n * call_.inner + first) * bytes_;
        const std::size_t size = n * columns * bytes_;
        const Space space(new char[3 * size]);
        // From a tensor to a place in the space or, with true_type, back.
        const auto move = [&](const void* tensor, std::size_t place, auto back) -> void* {
            const std::size_t inner = call_.inner;
            char* const own = space.get() + place * size;
            const auto by = [&](auto element) {
                auto* far = static_cast<decltype(element)*>(offset(tensor, at));
                auto* const near = reinterpret_cast<decltype(element)*>(own);
                for (std::size_t i = 0; i < n; ++i, far += inner) {
#pragma GCC unroll 8
                    for (std::size_t column = 0; column < columns; ++column) {
                        auto &there = far[column], &here = near[column * n + i];
                        back ? there = here : here = there;
                    }
                }
            };
            if (!tensor) return nullptr;
            bytes_ == 2 ? by(std::uint16_t{}) : bytes_ == 4 ? by(std::uint32_t{}) : by(std::uint64_t{});
            return own;
        };
        Rows rows = rows_;
        rows.x = rows.y = move(call_.x.data, 0, std::false_type{});
        rows.second = move(call_.second.data, 1, std::false_type{});
        if (call_.sum) rows.sum = space.get() + 2 * size;
        run(rows, columns);
        move(norms_ ? norms_.get() : call_.y, 0, std::true_type{});
        move(call_.sum, 2, std::true_type{});
    }

    // Tables are broadcast, aligned at the right.
    void turn(void* y, std::size_t row) const {
        const Sizes &x = call_.x.shape, &table = call_.cos.shape;
        std::size_t place = 0, stride = call_.width * kBytes[call_.cos.type];
        for (std::size_t i = 2; i <= table.size(); ++i) {
            const auto size = static_cast<std::size_t>(table.end()[-i]);
            if (size > 1) place += row % size * stride;
            stride *= size;
            row /= static_cast<std::size_t>(x.end()[-i]);
        }
        kernels().turn(norm_, call_.cos.type, call_.turned, call_.width != call_.turned, y,
                       offset(call_.cos.data, place), offset(call_.sin.data, place));
    }

    const Norm& norm_;
    const Call& call_;
    const std::size_t bytes_, codes_;  // of a row of codes, else 0
    Rows rows_;
    std::size_t columns_, blocks_, rows_per_task_;
    Space norms_;
};

class CpuOperator final : public Operator {
public:
    using Operator::Operator;

private:
    void run(OrtKernelContext* context, const Call& call) const override {
        Space spaces[2];
        const auto operand = [&](const Tensor& tensor, float shift, Space& space) -> const void* {
            const Type product = norm_.scale_before_cast ? norm_.stash : norm_.x;
            if (!tensor.name || (tensor.type == product && shift == 0)) return tensor.data;
            space.reset(new char[call.n * kBytes[product]]);
            kernels().operand(product, tensor.type, tensor.data, call.n, shift, space.get());
            return space.get();
        };
        const void* const factor = operand(call.scale, norm_.scale_offset, spaces[0]);
        const void* const bias = operand(call.bias, 0.0F, spaces[1]);
        Work work(norm_, call, factor, bias);
        const auto task = [](void* data, std::size_t i) { static_cast<Work*>(data)->task(i); };
        check(api_.KernelContext_ParallelFor(context, task, work.tasks(), 0, &work));
        if (work.failed) throw std::bad_alloc();
        work.finish();
    }
};

}  // namespace

Provider cpu() {
    kernels();  // refuses a processor that cannot run them
    return {nullptr, {kFloat, kHalf, kBfloat, kDouble}, make<CpuOperator>};
}

}  // namespace rmsnorm_export::onnxruntime
