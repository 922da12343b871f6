// What one launch does: the only parameter of every kernel.
#pragma once

#include "launch_table.h"
#include "rmsnorm.h"

namespace rmsnorm_export {

// How a row comes about from x and the other input; gate_first is a mode because it changes the
// values whose squares are summed. kAny: the kernel looks at Task::mode.
enum class Mode : std::int32_t { kPlain, kSkip, kGated, kGateFirst, kAny };

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
};

// The device that is current.
struct Device {
    int id{0};
    int sm{0};  // or that which the kernels were compiled for, when that is an earlier one
    int processors{0};
    int shared{0};  // bytes that a block may ask for
};

// For one type of x, each in a translation unit of its own so that they build at the same time.
template <typename T>
cudaError_t launch_typed(Task task, Device const& device, Tactic tactic, cudaStream_t stream);

}  // namespace rmsnorm_export
