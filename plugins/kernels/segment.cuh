// The way of a segment through the operator, a vector of W elements at a time: what the kernels
// share. They differ in where a row waits between its sum and its output.
#pragma once

#include "quantise.cuh"

namespace rmsnorm_export {

template <typename T, typename S, int W>
struct Segment {
    Task const& task;
    Mode mode;  // a constant after inlining, in all kernels but one
    std::int64_t number;
    int end;  // there are no vectors from here on
    std::int64_t start{first(task, number)};
    std::int64_t parameter{task.groups == 1 ? 0 : number % task.groups * task.size};

    // Where a vector begins. Elements that are read one by one may lie apart.
    __device__ std::int64_t at(int vector) const {
        return W == 1 ? start + vector * task.problem.inner : start + vector * W;
    }

    // The inputs are read once, so they should not push the weights out of the caches.
    __device__ void load(Raw<T, W>& x, Raw<T, W>& other, int vector) const {
        x = other = Raw<T, W>{};
        if (vector >= end) return;
        x = __ldcs(raw<T, W>(task.pointers.x, at(vector)));
        if (mode == Mode::kPlain) return;
        other = __ldcs(raw<T, W>(task.pointers.other, at(vector)));
    }

    // What `squares` made of the inputs, once more.
    __device__ Raw<T, W> again(int vector) const {
        bool const skip = mode == Mode::kSkip;
        bool const stored = skip && task.pointers.sum != nullptr;
        Raw<T, W> const x = *raw<T, W>(stored ? task.pointers.sum : task.pointers.x, at(vector));
        if (!skip || stored) return x;
        return pack<T>(unpack<T>(x) + unpack<T>(*raw<T, W>(task.pointers.other, at(vector))));
    }

    // Their sum. For kSkip x becomes the sum with the residual, which is stored as well.
    __device__ float squares(Raw<T, W>& x, Raw<T, W> const& other, int vector) const {
        if (mode == Mode::kSkip) {
            Floats<W> const sum = unpack<T>(x) + unpack<T>(other);
            x = pack<T>(sum);
            bool const wanted = task.pointers.sum != nullptr;
            if (wanted && vector < end) store<T>(sum, task.pointers.sum, at(vector));
        }
        return sum_of_squares<S>(values(x, other), task.limit - vector * W);
    }

    // y, not yet rounded to T.
    __device__ Floats<W> output(Divisor<T> const& rms, Raw<T, W> const& x, Raw<T, W> const& other,
                                int vector) const {
        std::int64_t const index = parameter + vector * W;
        Floats<W> const normalised = values(x, other);
        Floats<W> const gain = load_gain<T, W>(task, index);
        Floats<W> const y = normalise<T, S>(normalised, task, rms, gain, index);
        if (mode != Mode::kGated) return y;
        return activate<S>(y, unpack<T>(other), task.problem.norm);
    }

private:
    __device__ static std::int64_t first(Task const& task, std::int64_t number) {
        std::int64_t const inner = W == 1 ? task.problem.inner : 1;
        if (inner == 1) return number * task.size;
        return number / inner * inner * task.size + number % inner;
    }

    // What is normalised.
    __device__ Floats<W> values(Raw<T, W> const& x, Raw<T, W> const& other) const {
        Floats<W> const values = unpack<T>(x);
        if (mode != Mode::kGateFirst) return values;
        return activate<S>(values, unpack<T>(other), task.problem.norm);
    }
};

}  // namespace rmsnorm_export
