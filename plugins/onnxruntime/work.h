// One call's rows, shared out in tasks, and the tables that turn them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "norm.h"
#include "shape.h"

namespace rmsnorm_export::onnxruntime {

constexpr std::size_t kBytes[kTypes] = {4, 2, 2, 8};

// Elements that are worth a task of their own: some 10 microseconds.
constexpr std::size_t kTask = 16384;

// Which row of the tables a row of X takes: their axes before the last are broadcast against X's,
// aligned at the right. Axes that go on where the next one ends are one.
class Tables {
public:
    const char* cos{nullptr};
    const char* sin{nullptr};
    std::size_t row_bytes{0};
    Turn turn;

    Tables() = default;
    Tables(const Sizes& x, const Sizes& table) {
        std::int64_t stride = 1;
        const auto* of_table = table.last;
        for (const auto* size = x.last; size != x.first;) {
            --size;
            const bool there = of_table != table.first && *--of_table == *size;
            const std::int64_t step = there && *size != 1 ? stride : 0;
            if (there) stride *= *size;
            if (*size == 1) continue;
            if (!axes_.empty() && step == axes_.back().step * axes_.back().size) {
                axes_.back().size *= *size;
            } else {
                axes_.push_back({*size, step});
            }
        }
    }
    // Rows [begin, end) of y, which have `n` elements of `bytes`.
    void apply(const Kernels& kernels, char* y, std::size_t begin, std::size_t end,
               std::size_t row) const {
        for (std::size_t index = begin; index < end; ++index) {
            std::size_t left = index, of_table = 0;
            for (const Axis& axis : axes_) {
                const auto size = static_cast<std::size_t>(axis.size);
                of_table += left % size * static_cast<std::size_t>(axis.step);
                left /= size;
            }
            const std::size_t at = of_table * row_bytes;
            kernels.turn(turn, y + index * row, cos + at, sin + at);
        }
    }

private:
    struct Axis {
        std::int64_t size, step;
    };
    std::vector<Axis> axes_;  // the last first
};

// The rows of a call, in tasks that threads may share. Rows whose elements lie apart (inner > 1) are
// brought together, as many at once as lie side by side in a line of the cache, and their result is
// spread again.
class Work {
public:
    bool failed{false};  // only ever set to true

    Work(const Kernels& kernels, const Rows& rows, std::size_t inner, std::size_t elements,
         std::size_t bytes, std::size_t lane, const Tables* tables)
        : kernels_(kernels), rows_(rows), tables_(tables), inner_(inner), segments_(elements / rows.segment),
          bytes_(bytes), at_once_(std::min(inner, kLine / bytes)),
          per_task_(std::max<std::size_t>(kTask / rows.segment, 1)) {
        const Norm& norm = *rows.norm;
        const bool skip = norm.kind == Kind::kSkipRMSNorm;
        const bool buffered = norm.gate_first || (skip && !rows.sum && inner == 1);
        scratch_ = buffered ? std::max(rows.segment, kScratch) * lane : 0;
        // X, which Y replaces, then residual or gate, then the sum.
        if (inner > 1) together_ = at_once_ * rows.segment * bytes;
        buffers_ = 1 + (rows.second != nullptr) + skip;
    }

    std::size_t tasks() const {
        return inner_ > 1 ? segments_ / inner_ * blocks() : (segments_ + per_task_ - 1) / per_task_;
    }

    void task(std::size_t index) {
        const std::size_t size = scratch_ + buffers_ * together_;
        const std::unique_ptr<char, void (*)(void*)> space(
            size ? static_cast<char*>(std::malloc(size)) : nullptr, std::free);
        if (size && !space) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
        } else if (inner_ > 1) {
            gathered(index, space.get());
        } else {
            const std::size_t begin = index * per_task_;
            const std::size_t end = std::min(begin + per_task_, segments_);
            kernels_.run(rows_, begin, end, space.get());
            if (tables_) {
                tables_->apply(kernels_, static_cast<char*>(rows_.y), begin, end,
                               rows_.segment * bytes_);
            }
        }
    }

private:
    static constexpr std::size_t kLine = 64;

    std::size_t blocks() const { return (inner_ + at_once_ - 1) / at_once_; }

    void gathered(std::size_t index, char* space) const {
        const std::size_t first = index % blocks() * at_once_;
        const std::size_t columns = std::min(at_once_, inner_ - first);
        const std::size_t at = (index / blocks() * rows_.segment * inner_ + first) * bytes_;
        char* const x = space + scratch_;
        char* const second = rows_.second ? x + together_ : nullptr;
        char* const sum = x + (second ? 2 : 1) * together_;
        Rows rows = rows_;
        rows.x = rows.y = x;
        rows.second = second;
        rows.sum = sum;
        move<true>(x, const_cast<void*>(rows_.x), at, columns);
        if (second) move<true>(second, const_cast<void*>(rows_.second), at, columns);
        kernels_.run(rows, 0, columns, space);
        move<false>(x, rows_.y, at, columns);
        if (rows_.sum) move<false>(sum, rows_.sum, at, columns);
    }

    template <bool in>
    void move(char* rows, void* tensor, std::size_t at, std::size_t columns) const {
        char* const from = static_cast<char*>(tensor) + at;
        if (bytes_ == 2) transpose<in, std::uint16_t>(rows, from, columns);
        if (bytes_ == 4) transpose<in, std::uint32_t>(rows, from, columns);
        if (bytes_ == 8) transpose<in, std::uint64_t>(rows, from, columns);
    }
    template <bool in, class Bits>
    void transpose(char* rows, char* tensor, std::size_t columns) const {
        auto* to = reinterpret_cast<Bits*>(rows);
        auto* line = reinterpret_cast<Bits*>(tensor);
        for (std::size_t i = 0; i < rows_.segment; ++i, line += inner_) {
            for (std::size_t column = 0; column < columns; ++column) {
                Bits& together = to[column * rows_.segment + i];
                if (in) {
                    together = line[column];
                } else {
                    line[column] = together;
                }
            }
        }
    }

    const Kernels& kernels_;
    const Rows& rows_;
    const Tables* const tables_;
    const std::size_t inner_, segments_, bytes_, at_once_, per_task_;
    std::size_t scratch_{0}, together_{0}, buffers_{0};
};

}  // namespace rmsnorm_export::onnxruntime
