// Norms as models have them, for one instruction set: T is not f64, S is f32, all of a segment is
// summed, and of the rounding orders the one that the loop is made for. Short segments are done
// many at a time, pass by pass, so that the processor need not wait for the root of each.

enum Order { kCastFirst, kScaleFirst, kRoundRstd };
enum Operands { kNone, kFactor, kFactorAndBias };

// row / rms. Of f32, with FMA, correctly rounded (quotients below 2^-100: within an ulp), which is
// quicker than to divide: from a quotient within an ulp, and 1 / rms rounded to nearest, one step
// with the exact remainder leads to the nearest (Markstein 1990). Of half types row * (1 / rms), that
// in two parts: within 2^-46 of the quotient before it is rounded to f32, and then to T; with
// kRoundRstd by 1 / rms rounded to T.
template <class T, Order order>
struct Divisor {
    static constexpr bool kHalfType = kTypeOf<T> != kFloat;
    float rms, inverse, inverse_low;

    INLINE Floats quotient(Floats row) const {
        if constexpr (order == kRoundRstd) return row * inverse;
#if FUSED
        const Floats r = Floats{} + inverse;
        const Floats near = fused_multiply_add(row, r, row * inverse_low);
        if constexpr (kHalfType) return near;
        // The remainder with this sign, as with the other the step would make +0 of -0.
        const Floats excess = fused_multiply_add(near, Floats{} + rms, -row);
        return fused_multiply_add(-excess, r, near);
#else
        return row / rms;
#endif
    }
};
// Segments whose roots are found before the first of them is finished.
constexpr std::size_t kMost = 32;

// Of each of `count` segments, at most kMost, side by side, from its root and the inverse of that.
template <class T, Order order>
class Divisors {
  public:
    INLINE Divisors(const double* roots, const double* exact, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) rms[i] = static_cast<float>(roots[i]);
        for (std::size_t i = 0; i < count; ++i) inverse[i] = static_cast<float>(exact[i]);
        if constexpr (order == kRoundRstd) {
            for (std::size_t i = 0; i < count; i += kLanes) {
                store(inverse + i, round_to<T>(load(inverse + i)));
            }
        } else if constexpr (kTypeOf<T> != kFloat) {
            // Rounded down: -0 stays what it is only if the second part is not negative. Without a
            // branch, for nobody foresees which way it goes.
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint32_t up = static_cast<double>(inverse[i]) > exact[i];
                inverse[i] = bits_as<float>(bits_as<std::uint32_t>(inverse[i]) - up);
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            inverse_low[i] = static_cast<float>(exact[i] - static_cast<double>(inverse[i]));
        }
    }
    INLINE Divisor<T, order> of(std::size_t i) const { return {rms[i], inverse[i], inverse_low[i]}; }

  private:
    float rms[kMost], inverse[kMost]{}, inverse_low[kMost];
};

// Whether no step of it overflows or underflows.
INLINE bool good_root(double root) { return root > 0x1p-60 && root < 0x1p60; }

// The sum of squares of n elements; `row(Lot<K>, i, count, v)` makes K vectors of the row. For rows of
// half types those of a lot are first added in f32, pair by pair, which loses less than the mean does by
// becoming f32; one that overflows has no good root.
template <class T, class Row>
INLINE double sum_quick(std::size_t n, Row row) {
    constexpr bool added = kTypeOf<T> != kFloat;
    constexpr int together = !added ? kTogether : kLanes == 16 ? 4 : 8;
    SumOfFloats sums[2];  // so that one need not wait for the other
    each_lot<together>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
        constexpr int K = decltype(lot)::kVectors;
        Floats v[K];
        row(lot, i, count, v);
        EACH v[j] = v[j] * v[j];
        if constexpr (added) {
            for (int half = K / 2; half; half /= 2) {
                for (int j = 0; j < half; ++j) v[j] = v[j] + v[j + half];
            }
            sums[0].add(v[0]);
        } else {
            EACH sums[j % 2].add(v[j]);
        }
    });
    sums[0].low += sums[1].low;
    sums[0].high += sums[1].high;
    return sums[0].total();
}

// Elements of rows that the second level of the cache holds beside their next.
constexpr std::size_t kNear = 32768;

// A place in an operand's row of n elements, in one of the forms that Kernels::operand makes.
template <class Operand>
INLINE const Operand* of_row(const void* operand, std::size_t n, std::size_t place) {
    if (!operand) return nullptr;
    const std::size_t before = sizeof(Operand) == sizeof(float) ? 0 : n * sizeof(float);
    const void* const row = static_cast<const char*>(operand) + before;
    return static_cast<const Operand*>(row) + place;
}

// Segments [begin, begin + segments), of which `from` has what is divided by each's root. Piece by
// piece; where kApart is set a loop of f16 ends where v is rounded, for the steps of one element wait for
// one another, and the processor looks no further ahead than a few vectors. Whether all were finished:
// those without a good root are not.
template <class T, Order order, Operands operands, bool gated, class From>
bool finish_quick(const Rows& rows, const From* from, std::size_t begin, std::size_t segments,
                  const double* roots, const double* inverses) {
    // What is stored is rounded to T by that.
    constexpr bool kRounded = order != kScaleFirst && (gated || operands != kNone);
    constexpr bool kLoops = kApart && kRounded && kTypeOf<T> == kHalf;
    constexpr bool pairs = kPaired<T>;
    constexpr int together = pairs ? 8 : kTogether;  // pairs are rounded two at a time
    // Of floats pairs take twice as long to make.
    using Operand = typename Choose<pairs && order != kScaleFirst, T, float>::type;
    constexpr std::size_t most = kLoops || gated ? kPiece : SIZE_MAX;
    const std::size_t n = rows.segment, row = rows.per_row * n;
    std::size_t at = begin * n, in_row = at ? at % row : 0;
    // Behind the last there is nothing to fetch.
    const std::size_t ahead = begin + segments < rows.segments ? segments * n : 0;
    const bool near = ahead <= kNear, fetched = rows.fetched, may_stream = rows.streamed;
    typename Choose<gated, Gates<T>, NoGates>::type gates(rows);
    alignas(64) T kept[kLoops ? kPiece : 1];
    const Divisors<T, order> divisors(roots, inverses, segments);
    bool all = true;
    std::size_t length = n;
    for (std::size_t k = 0, many = 1; k < segments;
         k += many, from += length, at += length, in_row += length) {
        if (in_row == row) in_row = 0;
        many = 1, length = n;
        if (!good_root(roots[k])) {
            all = false;
            continue;
        }
        // Those of one row whose vectors are the same ones in loops over all of them.
        while (length + n <= most && n % (4 * kLanes) == 0 && k + many < segments &&
               in_row + length < row && good_root(roots[k + many])) {
            ++many, length += n;
        }
        const bool streamed = may_stream && at_line(static_cast<T*>(rows.y) + at);
        for (std::size_t begun = 0, size = 0; begun < length; begun += size) {
            size = length - begun < most ? length - begun : most;
            const Operand* const factor = of_row<Operand>(rows.factor, row, in_row + begun);
            const Operand* const bias = of_row<Operand>(rows.bias, row, in_row + begun);
            const auto* const gate = static_cast<const T*>(rows.second) + (gated ? at + begun : 0);
            const auto* const next = static_cast<const T*>(near ? rows.x : rows.y) + at + begun + ahead;
            T* const y = static_cast<T*>(rows.y) + at + begun;
            if constexpr (gated) gates.template make<pairs>(gate, size, near ? ahead : kAhead<T>);
            const auto times_factor = [&](auto lot, std::size_t i, std::size_t count, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Floats w[K];
                get_lot<pairs>(factor + i, count, w);
                EACH v[j] = v[j] * w[j];
            };
            const auto plus_bias = [&](auto lot, std::size_t i, std::size_t count, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Floats w[K];
                get_lot<pairs>(bias + i, count, w);
                EACH v[j] = v[j] + w[j];
            };
            const auto times_gate = [&](auto lot, std::size_t i, std::size_t, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Floats z[K];
                gates.of(i, z);
                EACH v[j] = v[j] * z[j];
            };
            const auto put_y = [&](std::size_t i, std::size_t count, auto& v) LAMBDA {
                put_out<pairs, order != kScaleFirst>(y + i, v, count, streamed);
            };
            for (std::size_t of = 0; of < many; ++of) {
                const Divisor<T, order> divisor = divisors.of(k + of);
                const auto quotients = [&](auto lot, std::size_t in, std::size_t count) LAMBDA {
                    constexpr int K = decltype(lot)::kVectors;
                    const std::size_t i = of * n + in;
                    Floats v[K];
                    if (!kLoops) fetch<true, K>(fetched && !streamed, y + i + kAhead<T>);
                    if constexpr (gated || sizeof(From) == sizeof(T)) {
                        fetch<false, K>(fetched && (near || !streamed), next + i);
                    }
                    get_lot<pairs>(from + begun + i, count, v);
                    if constexpr (order == kRoundRstd && sizeof(From) != sizeof(T)) {
                        EACH v[j] = round_to<T>(v[j]);
                    }
                    EACH v[j] = divisor.quotient(v[j]);
                    if constexpr (kLoops) {
                        put_lot<pairs, true>(kept + i, v, count);
                    } else {
                        // NaN would have made rms one.
                        const auto round = [&]() LAMBDA {
                            if constexpr (kRounded) EACH v[j] = round_number<T>(v[j]);
                        };
                        round();
                        if constexpr (operands != kNone) {
                            times_factor(lot, i, count, v);
                            if (gated || operands == kFactorAndBias) round();
                        }
                        if constexpr (operands == kFactorAndBias) {
                            plus_bias(lot, i, count, v);
                            if (gated) round();
                        }
                        if constexpr (gated) times_gate(lot, i, count, v);
                        put_y(i, count, v);
                    }
                };
                each_lot<together>(many == 1 ? size : n, quotients);
            }
            const auto loop = [&](auto last, auto step) LAMBDA {
                each_lot(size, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
                    constexpr int K = decltype(lot)::kVectors;
                    Floats v[K];
                    get_lot<pairs>(kept + i, count, v);
                    step(lot, i, count, v);
                    if constexpr (decltype(last)::kSet) {
                        fetch<true, K>(fetched && !streamed, y + i + kAhead<T>);
                        put_y(i, count, v);
                    } else {
                        put_lot<pairs, true>(kept + i, v, count);
                    }
                });
            };
            if constexpr (kLoops && operands != kNone) {
                loop(Flag<!gated && operands == kFactor>{}, times_factor);
            }
            if constexpr (kLoops && operands == kFactorAndBias) loop(Flag<!gated>{}, plus_bias);
            if constexpr (kLoops && gated) loop(Flag<true>{}, times_gate);
        }
    }
    return all;
}

template <class From>
using Finish = bool (*)(const Rows&, const From*, std::size_t, std::size_t, const double*,
                        const double*);

template <class T, Order order, class From>
Finish<From> finish_of(const Rows& rows, bool gated) {
    constexpr Finish<From> all[2][3] = {{finish_quick<T, order, kNone, false, From>,
                                         finish_quick<T, order, kFactor, false, From>,
                                         finish_quick<T, order, kFactorAndBias, false, From>},
                                        {finish_quick<T, order, kNone, true, From>,
                                         finish_quick<T, order, kFactor, true, From>,
                                         finish_quick<T, order, kFactorAndBias, true, From>}};
    return all[gated][rows.bias ? kFactorAndBias : rows.factor ? kFactor : kNone];
}

// Roots and their inverses of `count` sums, side by side.
INLINE void roots_of(const Norm& norm, std::size_t summed, std::size_t count, double* sums,
                     double* inverses) {
    if (norm.epsilon_outside || norm.epsilon_clamp) {
        for (std::size_t i = 0; i < count; ++i) {
            sums[i] = root_mean_square<float>(norm, sums[i], summed);
        }
    } else {
        const double n = static_cast<double>(summed), part = 1.0 / n;
        const auto root = [&](double mean) LAMBDA {
            return __builtin_sqrtf(static_cast<float>(mean) + norm.epsilon);
        };
        if (summed & (summed - 1)) {
            for (std::size_t i = 0; i < count; ++i) sums[i] = root(sums[i] / n);
        } else {  // the product is exact
            for (std::size_t i = 0; i < count; ++i) sums[i] = root(sums[i] * part);
        }
    }
    for (std::size_t i = 0; i < count; ++i) inverses[i] = 1.0 / sums[i];
}

// Segments [begin, end), as many at once as short ones need: `prepare(at, elements)`, the sum of
// squares of each, `sum(at, i, ahead)` of the i-th of them, whose next are `ahead` elements from these,
// their roots, and what is made of `left(at)`.
template <class P, class From, class Prepare, class Sum, class Left>
INLINE void run_lots(const Rows& rows, std::size_t begin, std::size_t end, void* scratch,
                     Prepare prepare, Sum sum, Left left) {
    using T = typename P::T;
    const Norm& norm = *rows.norm;
    const bool gated = norm.kind == Kind::kGatedRMSNorm && !norm.gate_first;
    const auto finish = [&] {
        if constexpr (kTypeOf<T> != kFloat) {
            if (norm.round_rstd) return finish_of<T, kRoundRstd, From>(rows, gated);
            if (norm.scale_before_cast) return finish_of<T, kScaleFirst, From>(rows, gated);
        }
        return finish_of<T, kCastFirst, From>(rows, gated);
    }();
    // Of a skip's rows there is more to keep near, and of f32.
    constexpr std::size_t most = kTypeOf<T> == kFloat ? kScratch / 4 * 3 : kScratch;
    const std::size_t lot = norm.kind == Kind::kSkipRMSNorm ? kScratch / 3 : most;
    std::size_t at_once = end - begin > 1 ? lot / rows.segment : 1;
    at_once = at_once < 1 ? 1 : at_once > kMost ? kMost : at_once;
    double roots[kMost], inverses[kMost];
    for (; begin < end; begin += at_once) {
        const std::size_t count = end - begin < at_once ? end - begin : at_once;
        const std::size_t elements = count * rows.segment;
        const std::size_t ahead = begin + count < rows.segments ? elements : 0;
        prepare(begin * rows.segment, elements, ahead);
        for (std::size_t i = 0; i < count; ++i) {
            roots[i] = sum((begin + i) * rows.segment, i, ahead);
        }
        roots_of(norm, rows.summed, count, roots, inverses);
        if (finish(rows, left(begin * rows.segment), begin, count, roots, inverses)) continue;
        for (std::size_t i = 0; i < count; ++i) {  // last, for they use the scratch
            if (!good_root(roots[i])) run_segment<P>(rows, begin + i, scratch);
        }
    }
}

template <class P>
void run_quick(const Rows& rows, std::size_t begin, std::size_t end, void* scratch) {
    using T = typename P::T;
    const Norm& norm = *rows.norm;
    const std::size_t n = rows.segment;
    const T* const x = static_cast<const T*>(rows.x);
    const T* const second = static_cast<const T*>(rows.second);
    const auto nothing = [](std::size_t, std::size_t, std::size_t) LAMBDA {};
    // Each pass over a row fetches one of two tensors, so that the memory has something to do in both.
    if (norm.kind == Kind::kSkipRMSNorm) {
        // In the scratch, segment by segment, where nobody reads the sum, and where it is streamed.
        T* const all = static_cast<T*>(rows.sum);
        const bool streamed =
            all && rows.streamed && n <= kNear && at_line(all) && at_line(all + n);
        const bool kept = !all || streamed;
        T* const totals = kept ? static_cast<T*>(scratch) : all;
        const auto left = [&](std::size_t at) LAMBDA { return totals + (kept ? 0 : at); };
        const auto sum = [&](std::size_t at, std::size_t index, std::size_t ahead) LAMBDA {
            T* const to = totals + (kept ? index * n : at);
            const T* const next = second + at + (ahead <= kNear ? ahead : 0);
            const auto row = [&](auto lot, std::size_t i, std::size_t count, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Floats w[K];
                fetch<true, K>(rows.fetched && !kept, to + i + kAhead<T>);
                fetch<false, K>(rows.fetched, next + i);
                get_lot<kPaired<T>>(x + at + i, count, v);
                get_lot<kPaired<T>>(second + at + i, count, w);
                EACH v[j] = v[j] + w[j];
                put_lot<kPaired<T>, true>(to + i, v, count);
                if (streamed) put_out<kPaired<T>, true>(all + at + i, v, count, true);
                EACH v[j] = round_number<T>(v[j]);
            };
            return sum_quick<T>(n, row);
        };
        run_lots<P, T>(rows, begin, end, scratch, nothing, sum, left);
    } else if (norm.gate_first) {
        float* const buffer = static_cast<float*>(scratch);
        const auto prepare = [&](std::size_t at, std::size_t elements, std::size_t ahead) LAMBDA {
            Gates<T>(rows).times(x + at, second + at, elements, ahead, buffer);
        };
        const auto sum = [&](std::size_t, std::size_t index, std::size_t) LAMBDA {
            const auto row = [&](auto lot, std::size_t i, std::size_t count, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                EACH v[j] = get<float>(buffer + index * n + i + j * kLanes, count);
            };
            return sum_quick<T>(n, row);
        };
        const auto left = [&](std::size_t) LAMBDA { return buffer; };
        run_lots<P, float>(rows, begin, end, scratch, prepare, sum, left);
    } else if constexpr (kTypeOf<T> == kHalf && kKeepsHalves) {
        float* const buffer = static_cast<float*>(scratch);
        const auto sum = [&](std::size_t at, std::size_t index, std::size_t) LAMBDA {
            const auto row = [&](auto lot, std::size_t i, std::size_t count, auto& v) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                get_lot<false>(x + at + i, count, v);
                EACH put<float>(buffer + index * n + i + j * kLanes, v[j], count);
            };
            return sum_quick<T>(n, row);
        };
        const auto left = [&](std::size_t) LAMBDA { return buffer; };
        run_lots<P, float>(rows, begin, end, scratch, nothing, sum, left);
    } else {
        const auto sum = [&](std::size_t at, std::size_t, std::size_t) LAMBDA {
            const auto row = [&](auto, std::size_t i, std::size_t count, auto& v) LAMBDA {
                get_lot<kPaired<T>>(x + at + i, count, v);
            };
            return sum_quick<T>(n, row);
        };
        const auto left = [&](std::size_t at) LAMBDA { return x + at; };
        run_lots<P, T>(rows, begin, end, scratch, nothing, sum, left);
    }
}
