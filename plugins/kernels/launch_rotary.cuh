// From a problem with a rotary embedding to the kernel of row_rotary.cuh that computes it.
#pragma once

#include "row_rotary.cuh"

namespace rmsnorm_export {

// The items of `rows` rows: those that share their angles are in the last run of the problem, or in
// the one before it. None when they cannot be counted in 31 bits.
inline std::int64_t plan_walk(Problem const& problem, std::int64_t rows, int at_once, Walk& walk) {
    std::int64_t const before = problem.runs[0];
    std::int64_t const last = problem.runs[1];
    std::int64_t const n = problem.n;
    std::int64_t const width = problem.table_width;
    bool const shared_last = problem.strides[2] == 0;
    std::int64_t const share = shared_last ? last : before;
    std::int64_t const parts = (share + at_once - 1) / at_once;
    std::int64_t const items = rows / share * parts;
    if (items > 0x7fffffff || share > 0x7fffffff) return 0;
    int const of_parts = shared_last ? 0 : 1;
    walk.shared_last = shared_last;
    walk.share = static_cast<std::int32_t>(share);
    walk.step = shared_last ? n : last * n;
    walk.divisors[of_parts] = static_cast<std::uint32_t>(parts);
    walk.divisors[1 - of_parts] = static_cast<std::uint32_t>(shared_last ? before : last);
    walk.x[2] = before * last * n;
    walk.x[of_parts] = at_once * walk.step;
    walk.x[1 - of_parts] = shared_last ? last * n : n;
    walk.table[2] = problem.strides[0] * width;
    walk.table[1 - of_parts] = problem.strides[shared_last ? 1 : 2] * width;
    return items;
}

template <typename T, typename C, Order order>
Kernel rotary_kernel_of(bool interleaved) {
    return interleaved ? row_rotary<T, C, true, order> : row_rotary<T, C, false, order>;
}

template <typename T, typename C>
Kernel rotary_kernel_of(Order order, bool interleaved) {
    switch (order) {
        case Order::kNarrow: return rotary_kernel_of<T, C, Order::kNarrow>(interleaved);
        case Order::kWideOffset: return rotary_kernel_of<T, C, Order::kWideOffset>(interleaved);
        case Order::kWide:
            if constexpr (kHalf<T>) return rotary_kernel_of<T, C, Order::kWide>(interleaved);
            [[fallthrough]];
        default: return rotary_kernel_of<T, C, Order::kOther>(interleaved);
    }
}

// Null for rows and angles that are no whole aligned vectors, for longer rows, and for a stash type
// of half precision.
template <typename T>
Kernel rotary_kernel(Task& task, Order order, bool low_latency) {
    constexpr int W = kWidth<T>;
    Problem const& problem = task.problem;
    Pointers const& p = task.pointers;
    bool const interleaved = problem.norm.rotary_interleaved;
    auto const at = [](void const* tensor) { return reinterpret_cast<std::uintptr_t>(tensor); };
    bool const whole = task.size % (2 * W) == 0 &&
                       problem.norm.rotary_dim % (interleaved ? W : 2 * W) == 0 &&
                       (at(p.x) | at(p.scale) | at(p.bias) | at(p.cos) | at(p.sin) | at(p.y)) % 16 == 0;
    Choice choice = choose_rotary(task.size * std::int64_t{sizeof(T)}, low_latency);
    if (order == Order::kOther) choice.rows = 1;
    if (problem.norm.stash_half || !whole || choice.threads == 0) return nullptr;
    std::int64_t const items = plan_walk(problem, task.segments, choice.rows, task.walk);
    if (items == 0) return nullptr;
    task.segments = items;
    task.choice = choice;
    bool const own_type = !kHalf<T> || problem.table == problem.x;
    return own_type ? rotary_kernel_of<T, T>(order, interleaved)
                    : rotary_kernel_of<T, float>(order, interleaved);
}

}  // namespace rmsnorm_export
