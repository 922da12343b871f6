// The vectors of one instruction set, of kLanes floats, which the file that includes this has defined.

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Bits = std::uint32_t __attribute__((vector_size(4 * kLanes)));  // for sums that may wrap around
using Doubles = double __attribute__((vector_size(4 * kLanes)));  // half as many
struct Wide {
    Doubles low, high;
};
