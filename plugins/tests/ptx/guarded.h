// Bytes between guards, `offset` bytes away from a 256-byte boundary, in the memory of the CPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

class Guarded {
public:
    Guarded(std::size_t bytes, std::size_t offset)
        : bytes_(bytes), before_(kGuard + offset), total_(before_ + bytes + kGuard) {
        all_ = static_cast<unsigned char*>(
            std::aligned_alloc(kGuard, (total_ + kGuard - 1) / kGuard * kGuard));
        std::memset(all_, kFill, total_);
    }
    ~Guarded() { std::free(all_); }
    Guarded(Guarded const&) = delete;
    Guarded& operator=(Guarded const&) = delete;

    unsigned char* data() const { return bytes_ > 0 ? all_ + before_ : nullptr; }
    std::size_t bytes() const { return bytes_; }
    bool guards_intact() const {
        auto const filled = [](unsigned char byte) { return byte == kFill; };
        unsigned char* const end = all_ + before_ + bytes_;
        return std::all_of(all_, all_ + before_, filled) && std::all_of(end, all_ + total_, filled);
    }

protected:
    static constexpr std::size_t kGuard = 256;
    static constexpr unsigned char kFill = 0xa5;

    std::size_t const bytes_, before_, total_;
    unsigned char* all_;
};
