// Shapes of tensors, and parts of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace rmsnorm_export::onnxruntime {

// The sizes of a tensor; those of usual ranks without an allocation.
class Shape {
public:
    // Sizes unknown.
    void resize(std::size_t rank) {
        rank_ = rank;
        large_.resize(rank > kSmall ? rank : 0);
    }
    std::size_t size() const { return rank_; }
    std::int64_t* data() { return large_.empty() ? small_ : large_.data(); }
    const std::int64_t* begin() const { return large_.empty() ? small_ : large_.data(); }
    const std::int64_t* end() const { return begin() + rank_; }

private:
    static constexpr std::size_t kSmall = 8;
    std::size_t rank_{0};
    std::int64_t small_[kSmall];
    std::vector<std::int64_t> large_;
};

struct Sizes {  // some of a shape
    const std::int64_t *first, *last;
    explicit Sizes(const Shape& shape) : first(shape.begin()), last(shape.end()) {}
    Sizes(const std::int64_t* begin, const std::int64_t* end) : first(begin), last(end) {}
    bool operator==(const Sizes& other) const {
        return std::equal(first, last, other.first, other.last);
    }
    bool operator!=(const Sizes& other) const { return !(*this == other); }
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

}  // namespace rmsnorm_export::onnxruntime
