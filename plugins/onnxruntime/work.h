// One call's rows, shared out in tasks, and the tables that turn them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// What makes codes of rows of the norm.
struct Encoder {
    const Norm& norm;
    const Kernels& kernels;
    std::size_t row;            // elements of the last axis
    float step;                 // where it is given
    std::uint8_t* codes;
    void* scales;               // of rows f32, of blocks powers of two as E8M0; may be null

    // `count` rows; `y` has the norm of them, `first` is the place of the first.
    void apply(const char* y, std::size_t first, std::size_t count) const {
        const std::size_t bytes = kBytes[norm.x];
        const bool blocks = norm.steps >= Steps::kBlock;
        const std::size_t length = blocks ? kBlock : row, begin = first * row / length;
        for (std::size_t i = 0; i < count * row / length; ++i, y += length * bytes) {
            std::uint8_t* const to = codes + (begin + i) * length;
            const float most =
                norm.steps == Steps::kGiven ? 0.0F : kernels.largest(norm.x, y, length);
            if (!blocks) {
                float by = step;
                if (norm.steps == Steps::kRow) {
                    by = most / (norm.codes == Codes::kInt8 ? 127.0F : 448.0F);
                    if (by == 0) by = 1;
                    if (scales) static_cast<float*>(scales)[begin + i] = by;
                    if (norm.codes == Codes::kInt8 && !std::isfinite(most)) {
                        std::fill_n(to, length, std::uint8_t{0});
                        continue;
                    }
                }
                kernels.encode(norm.x, norm.codes, y, length, by, to);
                continue;
            }
            const std::uint8_t exponent = exponent_of(most);
            if (scales) static_cast<std::uint8_t*>(scales)[begin + i] = exponent;
            if (exponent == 255) {
                std::fill_n(to, length, std::uint8_t{0x7f});
            } else {
                kernels.encode(norm.x, norm.codes, y, length, std::ldexp(1.0F, exponent - 127), to);
            }
        }
    }

private:
    // Of the power of two that the largest of a block, `most`, is divided by: 448 is 1.75 * 2^8.
    std::uint8_t exponent_of(float most) const {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &most, sizeof bits);
        if (bits >= 0x7f800000U) return 255;
        if (norm.steps == Steps::kBlock) bits += 0x1fffffU;
        return static_cast<std::uint8_t>(std::max<std::int32_t>(static_cast<std::int32_t>(bits >> 23) - 8, 0));
    }
};

// The rows of a call, in tasks that threads may share. Rows whose elements lie apart (inner > 1) are
// brought together, as many at once as lie side by side in a line of the cache, and their result is
// spread again.
class Work {
public:
    bool failed{false};  // only ever set to true

    Work(const Kernels& kernels, const Rows& rows, std::size_t inner, std::size_t bytes,
         std::size_t lane, const Tables* tables, const Encoder* encoder)
        : kernels_(kernels), rows_(rows), tables_(tables), encoder_(encoder), inner_(inner),
          segments_(rows.segments), bytes_(bytes),
          at_once_(std::min(inner, kLine / bytes)), per_task_(shared_out(rows, encoder)) {
        const Norm& norm = *rows.norm;
        const bool skip = norm.kind == Kind::kSkipRMSNorm;
        const bool kept = kernels.keeps_halves && norm.x == kHalf;
        const bool summed = skip && (!rows.sum || rows.streamed) && inner == 1;
        const bool buffered = norm.gate_first || kept || summed;
        scratch_ = buffered ? std::max(rows.segment, kScratch) * lane : 0;
        // X, which Y replaces, then residual or gate, then the sum.
        if (inner > 1) together_ = at_once_ * rows.segment * bytes;
        if (encoder) coded_ = per_task_ * rows.segment * bytes;
        buffers_ = 1 + (rows.second != nullptr) + skip;
    }

    std::size_t tasks() const {
        if (inner_ > 1) return segments_ / inner_ * blocks();
        return segments_ == per_task_ ? 1 : (segments_ + per_task_ - 1) / per_task_;
    }

    void task(std::size_t index) {
        const std::size_t size = scratch_ + coded_ + buffers_ * together_;
        const std::unique_ptr<char, void (*)(void*)> space(
            size ? static_cast<char*>(std::malloc(size)) : nullptr, std::free);
        if (size && !space) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
        } else if (inner_ > 1) {
            gathered(index, space.get());
        } else {
            const std::size_t begin = index * per_task_;
            const std::size_t end = std::min(begin + per_task_, segments_);
            if (encoder_) return coded(begin, end - begin, space.get());
            kernels_.run(rows_, begin, end, space.get());
#if defined(__SSE2__)
            if (rows_.streamed) _mm_sfence();  // others see what was streamed only after this
#endif
            if (tables_) {
                tables_->apply(kernels_, static_cast<char*>(rows_.y), begin, end,
                               rows_.segment * bytes_);
            }
        }
    }

private:
    static std::size_t shared_out(const Rows& rows, const Encoder* encoder) {
        // Without a division, which is dear beside a short row.
        if (rows.segments * rows.segment <= kTask) return rows.segments;
        const std::size_t segments = std::max<std::size_t>(kTask / rows.segment, 1);
        return encoder ? (segments + rows.per_row - 1) / rows.per_row * rows.per_row : segments;
    }

    // Whole rows, whose norm is only here.
    void coded(std::size_t begin, std::size_t segments, char* space) const {
        const std::size_t at = begin * rows_.segment * bytes_;
        char* const y = space + scratch_;
        Rows rows = rows_;
        rows.x = static_cast<const char*>(rows.x) + at;
        if (rows.second) rows.second = static_cast<const char*>(rows.second) + at;
        if (rows.sum) rows.sum = static_cast<char*>(rows.sum) + at;
        rows.y = y;
        kernels_.run(rows, 0, segments, space);
        const std::size_t first = begin * rows_.segment / encoder_->row;
        encoder_->apply(y, first, segments * rows_.segment / encoder_->row);
    }

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
    const Encoder* const encoder_;
    const std::size_t inner_, segments_, bytes_, at_once_, per_task_;
    std::size_t scratch_{0}, coded_{0}, together_{0}, buffers_{0};
};

}  // namespace rmsnorm_export::onnxruntime
