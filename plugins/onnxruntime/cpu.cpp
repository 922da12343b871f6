// The nodes of ONNX Runtime's CPU provider: rows shared out among its threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "operator.h"

namespace rmsnorm_export::onnxruntime {

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#endif
extern const Kernels kernels_baseline;

namespace {

// Elements that are worth a task of their own: some 10 microseconds.
constexpr std::size_t kTask = 16384;

// Bytes of a line of the cache.
constexpr std::size_t kLine = 64;

// Bytes of all tensors of a call from which its outputs pass the caches by: no longer there when they are
// read, they are written in half the time where their lines are not read first.
constexpr std::size_t kStreamed = std::size_t{32} << 20;

// A place in a tensor, `bytes` from its start; null where there is none.
template <class Pointer>
Pointer* offset(Pointer* tensor, std::size_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
    return tensor ? static_cast<Byte*>(tensor) + bytes : nullptr;
}

// Codes of rows of the last axis, whose norm is `y`; `first` is the place of the first of them.
void encode(const Norm& norm, const Call& call, const char* y, std::size_t first, std::size_t count) {
    const auto length = static_cast<std::size_t>(call.x.shape.last[-1]);
    for (std::size_t row = first; row < first + count; ++row, y += length * kBytes[norm.x]) {
        std::uint8_t* const codes = static_cast<std::uint8_t*>(call.y) + row * length;
        float step = call.step.data ? *static_cast<const float*>(call.step.data) : 1.0F;
        if (norm.step_per_row) {
            const float most = kernels().largest(norm.x, y, length);
            step = most / (norm.codes == Codes::kInt8 ? 127.0F : 448.0F);
            if (step == 0) step = 1;
            if (call.scales) static_cast<float*>(call.scales)[row] = step;
            if (norm.codes == Codes::kInt8 && !std::isfinite(most)) {
                std::fill_n(codes, length, std::uint8_t{0});
                continue;
            }
        }
        kernels().encode(norm.x, norm.codes, y, length, step, codes);
    }
}

using Space = std::unique_ptr<char[]>;

// One call's rows, in tasks that threads may share.
class Work {
public:
    std::atomic<bool> failed{false};

    Work(const Norm& norm, const Call& call, const void* factor, const void* bias)
        : norm_(norm), call_(call), coded_(norm.codes != Codes::kNone), bytes_(kBytes[norm.x]) {
        rows_.norm = &norm;
        rows_.x = call.x.data;
        rows_.second = call.second.data;
        rows_.y = call.y;
        rows_.sum = call.sum;
        rows_.factor = factor;
        rows_.bias = bias;
        rows_.segment = norm.group_size ? static_cast<std::size_t>(norm.group_size) : call.n;
        rows_.summed = norm.partial_size ? static_cast<std::size_t>(norm.partial_size) : rows_.segment;
        rows_.per_row = call.n / rows_.segment;
        rows_.segments = call.rows * rows_.per_row;
        const std::size_t tensors = 2 + (rows_.second != nullptr) + (rows_.sum != nullptr);
        rows_.streamed = !call.turned && !coded_ && call.inner == 1 &&
                         tensors * call.elements * bytes_ >= kStreamed;
        if (call.turned) find_table_rows();
        // Rows whose elements lie apart are brought together, as many as lie side by side in a line.
        columns_ = std::min(call.inner, kLine / bytes_);
        blocks_ = (call.inner + columns_ - 1) / columns_;
        rows_per_task_ = std::max<std::size_t>(kTask / call.n, 1);
    }

    std::size_t tasks() const {
        if (call_.inner > 1) return call_.rows / call_.inner * blocks_;
        return (call_.rows + rows_per_task_ - 1) / rows_per_task_;
    }

    void task(std::size_t index) {
        try {
            const std::size_t lane = kBytes[norm_.lane()];
            const Space scratch(new char[std::max(rows_.segment, kScratch) * lane]);
            if (call_.inner > 1) return apart(index, scratch.get());
            const std::size_t begin = index * rows_per_task_;
            together(begin, std::min(begin + rows_per_task_, call_.rows), scratch.get());
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    }

private:
    // Rows [begin, end).
    void together(std::size_t begin, std::size_t end, char* scratch) {
        const std::size_t row_bytes = call_.n * bytes_, count = end - begin;
        Rows rows = rows_;
        rows.x = offset(rows.x, begin * row_bytes);
        rows.second = offset(rows.second, begin * row_bytes);
        rows.sum = offset(rows.sum, begin * row_bytes);
        const Space norms(coded_ ? new char[count * row_bytes] : nullptr);
        rows.y = coded_ ? norms.get() : offset(rows.y, begin * row_bytes);
        kernels().run(rows, 0, count * rows.per_row, scratch);
        if (coded_) {
            const std::size_t codes = call_.n / static_cast<std::size_t>(call_.x.shape.last[-1]);
            encode(norm_, call_, norms.get(), begin * codes, count * codes);
        }
        if (call_.turned) {
            for (std::size_t row = begin; row < end; ++row) {
                turn(static_cast<char*>(rows.y) + (row - begin) * row_bytes, row);
            }
        }
    }

    void apart(std::size_t index, char* scratch) {
        const std::size_t first = index % blocks_ * columns_, n = rows_.segment;
        const std::size_t columns = std::min(columns_, call_.inner - first);
        const std::size_t at = (index / blocks_ * n * call_.inner + first) * bytes_;
        const std::size_t size = n * columns * bytes_;
        const Space space(new char[3 * size]);
        Rows rows = rows_;
        rows.x = rows.y = space.get();  // which Y replaces
        if (rows.second) rows.second = space.get() + size;
        if (rows.sum) rows.sum = space.get() + 2 * size;
        const auto move = [&](const void* from, std::size_t row, std::size_t element, void* to,
                              std::size_t to_row, std::size_t to_element) {
            for (std::size_t i = 0; i < n; ++i) {
                for (std::size_t column = 0; column < columns; ++column) {
                    const void* const one = offset(from, (column * row + i * element) * bytes_);
                    void* const place = offset(to, (column * to_row + i * to_element) * bytes_);
                    if (bytes_ == 2) std::memcpy(place, one, 2);
                    if (bytes_ == 4) std::memcpy(place, one, 4);
                    if (bytes_ == 8) std::memcpy(place, one, 8);
                }
            }
        };
        move(offset(rows_.x, at), 1, call_.inner, space.get(), n, 1);
        if (rows.second) move(offset(rows_.second, at), 1, call_.inner, space.get() + size, n, 1);
        kernels().run(rows, 0, columns, scratch);
        move(rows.y, n, 1, offset(rows_.y, at), 1, call_.inner);
        if (rows.sum) move(rows.sum, n, 1, offset(rows_.sum, at), 1, call_.inner);
    }

    // Axes of X before its last, the last of them first, and how far the tables' rows lie apart on each:
    // they are broadcast, aligned at the right.
    void find_table_rows() {
        const Sizes &x = call_.x.shape, &table = call_.cos.shape;
        turn_ = {norm_.x, call_.cos.type, call_.turned, call_.width != call_.turned,
                 norm_.rotary_interleaved};
        std::size_t stride = 1;
        for (const auto* size = x.last - 1; size-- != x.first;) {
            const auto* const of_table = table.last - (x.last - size);
            const bool there = of_table >= table.first && *of_table == *size && *size != 1;
            axes_.push_back({static_cast<std::size_t>(*size), there ? stride : 0});
            if (there) stride *= axes_.back().size;
        }
    }
    void turn(char* y, std::size_t row) const {
        std::size_t of_table = 0;
        for (const Axis& axis : axes_) {
            of_table += row % axis.size * axis.stride;
            row /= axis.size;
        }
        const std::size_t at = of_table * call_.width * kBytes[call_.cos.type];
        kernels().turn(turn_, y, offset(call_.cos.data, at), offset(call_.sin.data, at));
    }

    struct Axis {
        std::size_t size, stride;
    };
    const Norm& norm_;
    const Call& call_;
    const bool coded_;
    const std::size_t bytes_;
    Rows rows_;
    Turn turn_;
    std::vector<Axis> axes_;
    std::size_t columns_, blocks_, rows_per_task_;
};

class CpuOperator final : public Operator {
public:
    using Operator::Operator;

private:
    void run(OrtKernelContext* context, const Call& call) const override {
        Norm norm = norm_;
        if (!call.scale.present) norm.association = 0;
        Space held[3];
        const auto operand = [&](const Tensor& tensor, float shift, Space& lanes) -> const void* {
            if (!tensor.present || (tensor.type == norm.product() && shift == 0)) return tensor.data;
            lanes.reset(new char[call.n * kBytes[norm.product()]]);
            kernels().operand(norm, tensor.type, tensor.data, call.n, shift, lanes.get());
            return lanes.get();
        };
        const void* const factor = operand(call.scale, norm.scale_offset, held[0]);
        const void* const bias = operand(call.bias, 0.0F, held[1]);
        // Rows that lie apart are not those of the codes: the norm is kept whole in between.
        const bool whole = norm.codes != Codes::kNone && call.inner > 1;
        Call plain = call;
        Norm uncoded = norm;
        if (whole) {
            held[2].reset(new char[call.elements * kBytes[norm.x]]);
            plain.y = held[2].get();
            uncoded.codes = Codes::kNone;
        }
        Work work(uncoded, plain, factor, bias);
        const auto task = [](void* data, std::size_t i) { static_cast<Work*>(data)->task(i); };
        if (work.tasks() == 1) {
            work.task(0);
        } else {
            check(api_.KernelContext_ParallelFor(context, task, work.tasks(), 0, &work));
        }
        if (work.failed) refuse("there is no memory for a row", "free some memory");
        if (whole) {
            const auto row = static_cast<std::size_t>(call.x.shape.last[-1]);
            encode(norm, call, held[2].get(), 0, call.elements / row);
        }
    }

    void fill_ones(OrtKernelContext*, float* scales, std::size_t count) const override {
        std::fill_n(scales, count, 1.0F);
    }
};

}  // namespace

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        const char* const named = std::getenv("RMSNORM_EXPORT_ISA");
        const std::string wanted = named ? named : "";
        const auto takes = [&](const Kernels& one) { return wanted.empty() || wanted == one.name; };
#if defined(__x86_64__)
        __builtin_cpu_init();
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        if (avx512 && takes(kernels_avx512)) return kernels_avx512;
        if (avx2 && takes(kernels_avx2)) return kernels_avx2;
#endif
        return kernels_baseline;
    }();
    return chosen;
}

Provider cpu() {
    return {nullptr, {kFloat, kHalf, kBfloat, kDouble},
            [](const OrtApi* api, const OrtKernelInfo* info, const Norm& norm) -> Operator* {
                return new CpuOperator(api, info, norm);
            }};
}

}  // namespace rmsnorm_export::onnxruntime
