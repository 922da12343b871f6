// What one launch does: the only parameter of every kernel.
#pragma once

#include "rmsnorm.h"

namespace rmsnorm_export {

// How a row comes about from x and the other input; gate_first is a mode because it changes the
// values whose squares are summed.
enum class Mode : std::int32_t { kPlain, kSkip, kGated, kGateFirst };

// A segment is what has one root mean square: a row, or a group of one.
struct Task {
    Problem problem;
    Pointers pointers;
    std::int64_t segments;
    std::int32_t size;     // elements of a segment
    std::int32_t groups;   // segments of a row
    std::int32_t limit;    // the first `limit` elements of a segment make its mean square
    std::int32_t lanes;    // threads of a segment (row_registers)
    std::int32_t cluster;  // blocks of a segment (row_long)
    std::int32_t staged;   // vectors that a block keeps in shared memory (row_long)
};

}  // namespace rmsnorm_export
