// What one launch does: the only parameter of every kernel.
#pragma once

#include "launch_table.h"
#include "rmsnorm.h"

namespace rmsnorm_export {

// How a row comes about from x and the other input; gate_first is a mode because it changes the
// values whose squares are summed. kAny: the kernel looks at Task::mode.
enum class Mode : std::int32_t { kPlain, kSkip, kGated, kGateFirst, kAny };

// How the teams of row_rotary.cuh go through the rows: an item is up to Choice::rows rows with the
// same row of the tables. Item (a * divisors[1] + b) * divisors[0] + c begins at the element
// a * x[2] + b * x[1] + c * x[0] of x, with the entry a * table[2] + b * table[1] + c * table[0].
struct Walk {
    std::uint32_t divisors[2];
    std::int64_t x[3];
    std::int64_t table[3];
    std::int64_t step;      // elements of x from one row of an item to the next
    std::int32_t share;     // rows with the same row of the tables
    bool shared_last;       // whether c counts parts of them, else b does
};

// A segment is what has one root mean square: a row, or a group of one.
struct Task {
    Problem problem;
    Pointers pointers;
    Mode mode;
    Choice choice;
    std::int64_t segments;
    std::int32_t size;      // elements of a segment
    std::int32_t groups;    // segments of a row
    std::int32_t limit;     // the first `limit` elements of a segment make its mean square
    float inverse;          // 1 / limit
    std::int32_t together;  // segments with one scale for their codes: those of a row, or 1
    Walk walk;              // of Path::kRotary, whose segments are items
};

// The device that is current.
struct Device {
    int id{0};
    int sm{0};  // or that which the kernels were compiled for, when that is an earlier one
    int processors{0};
    int shared{0};  // bytes that a block may ask for
};

using Kernel = void (*)(Task);

// For one type of x, each in a translation unit of its own so that they build at the same time.
template <typename T>
cudaError_t launch_typed(Task task, Device const& device, cudaStream_t stream);

}  // namespace rmsnorm_export
