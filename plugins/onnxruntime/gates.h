// Rows of gates, where the stash type is f32: a piece of a row at once, in loops of their own, for the
// steps of one element wait for one another, and the processor looks no further ahead than a few
// vectors. An activation is the same whatever stands beside it, computed or from a table.

// The bits of kUsualGate.
constexpr std::int16_t kUsualHalf = 0x5570, kUsualBfloat = 0x42ae;
using Numbers = std::int16_t __attribute__((vector_size(4 * kLanes)));

#if !defined(OWN_ENTRIES)
// The entries of two vectors of places; with `pairs` the even ones first.
template <bool pairs>
INLINE void entries(const float* table, const std::uint16_t* places, float* to) {
    for (std::size_t i = 0; i < 2 * kLanes; ++i) {
        to[pairs ? i % 2 * kLanes + i / 2 : i] = table[places[i]];
    }
}
#endif

template <class T>
class Gates {
  public:
    explicit Gates(const Rows& rows)
        : sigmoid(rows.norm->sigmoid), fetched(rows.fetched),
          table(kTypeOf<T> == kFloat ? nullptr : rows.activations) {}

    // The activations of n gates, at most kPiece; what to fetch is `ahead` elements from them.
    template <bool pairs>
    INLINE void make(const T* from, std::size_t n, std::size_t ahead) {
        if (table) return look_up<pairs>(from, n, ahead);
        compute<pairs>(from, n, ahead, [&](auto lot, std::size_t i, std::size_t, auto& y) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            EACH store(made + i + j * kLanes, y[j]);
        });
    }
    template <int K>
    INLINE void of(std::size_t i, Floats (&y)[K]) const {
        EACH y[j] = load(made + i + j * kLanes);
    }
    // x * activation, of n.
    INLINE void times(const T* x, const T* from, std::size_t n, std::size_t ahead, float* to) {
        for (std::size_t at = 0; at < n; at += kPiece) {
            const std::size_t size = n - at < kPiece ? n - at : kPiece;
            const auto by_x = [&](auto lot, std::size_t i, std::size_t count, auto& y) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                fetch<false, K>(fetched, x + at + ahead + i);
                EACH y[j] = get<float>(x + at + i + j * kLanes, count) * y[j];
                put_lot<false, false>(to + at + i, y, count);
            };
            if (!table) {
                compute<false>(from + at, size, ahead, by_x);
                continue;
            }
            look_up<false>(from + at, size, ahead);
            each_lot<4>(size, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
                Floats y[decltype(lot)::kVectors];
                of(i, y);
                by_x(lot, i, count, y);
            });
        }
    }

  private:
    const bool sigmoid, fetched;
    const float* const table;
    alignas(64) float made[kPiece];

    template <bool pairs>
    INLINE void look_up(const T* from, std::size_t n, std::size_t ahead) {
        const auto* const places = reinterpret_cast<const std::uint16_t*>(from);
        each_lot<4>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            fetch<false, K>(fetched, from + i + ahead);
            if constexpr (K > 1) {
                for (int j = 0; j < K; j += 2) {
                    entries<pairs>(table, places + i + j * kLanes, made + i + j * kLanes);
                }
            } else {
                for (std::size_t j = 0; j < count; ++j) made[i + j] = table[places[i + j]];
            }
        });
    }

#if FUSED
    static constexpr bool kFine = kTypeOf<T> == kFloat;
    alignas(64) float powers[kPiece], rests[kPiece];  // e^-z is their sum

    template <bool pairs, class Put>
    INLINE void compute(const T* from, std::size_t n, std::size_t ahead, Put put_activations) {
        if (!exponentials<pairs>(from, n, ahead)) return compute_any<pairs>(from, n, put_activations);
        const auto step = [&](auto only_sigmoid) LAMBDA {
            each_lot<4>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
                constexpr int K = decltype(lot)::kVectors;
                Floats z[K], y[K];
                usual(i, y);
                if constexpr (!decltype(only_sigmoid)::kSet) {
                    get_lot<pairs>(from + i, count, z);
                    EACH y[j] = z[j] * y[j];
                }
                put_activations(lot, i, count, y);
            });
        };
        sigmoid ? step(Flag<true>{}) : step(Flag<false>{});
    }
    // The sigmoid of the i-th and those beside it, where exponentials() was true of them.
    template <int K>
    INLINE void usual(std::size_t i, Floats (&y)[K]) const {
        Floats e[K], rest[K];
        EACH e[j] = load(powers + i + j * kLanes);
        EACH rest[j] = load(rests + i + j * kLanes);
        inverse_of<kFine>(e, rest, y);
    }
    // False where a |z| is above kUsualGate. Of NaN it makes NaN.
    template <bool pairs>
    INLINE bool exponentials(const T* from, std::size_t n, std::size_t ahead) {
        Floats most{};  // of |z|, and the bits of half types
        Numbers most_bits{};
        each_lot<4>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K], e[K], rest[K];
            fetch<false, K>(fetched, from + i + ahead);
            get_lot<pairs>(from + i, count, z);
            if constexpr (sizeof(T) == 2 && K % 2 == 0) {
                for (int j = 0; j < K; j += 2) {
                    Numbers both;
                    __builtin_memcpy(&both, from + i + j * kLanes, sizeof both);
                    both &= 0x7fff;
                    most_bits = (both > most_bits) ? both : most_bits;
                }
            } else {
                EACH most = larger(bits_as<Floats>(bits_as<Ints>(z[j]) & 0x7fffffff), most);
            }
            exponential<kFine>(z, e, rest);
            EACH store(powers + i + j * kLanes, e[j]);
            EACH store(rests + i + j * kLanes, rest[j]);
        });
        const Numbers above = most_bits > (kTypeOf<T> == kHalf ? kUsualHalf : kUsualBfloat);
        return !any(most > kUsualGate) && !any(bits_as<Ints>(above) != 0);
    }
    template <bool pairs, class Put>
    __attribute__((noinline)) void compute_any(const T* from, std::size_t n, Put put_activations) {
        each_lot(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K], s[K], y[K];
            get_lot<pairs>(from + i, count, z);
            usual(i, s);
            EACH y[j] = z[j];
            activations(y, sigmoid);
            EACH {
                const Floats size = bits_as<Floats>(bits_as<Ints>(z[j]) & 0x7fffffff);
                y[j] = (size > kUsualGate) ? y[j] : sigmoid ? s[j] : z[j] * s[j];
            }
            put_activations(lot, i, count, y);
        });
    }
#else
    template <bool pairs, class Put>
    INLINE void compute(const T* from, std::size_t n, std::size_t ahead, Put put_activations) {
        each_lot(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats y[K];
            fetch<false, K>(fetched, from + i + ahead);
            get_lot<pairs>(from + i, count, y);
            activations(y, sigmoid);
            put_activations(lot, i, count, y);
        });
    }
#endif
};
struct NoGates {
    explicit NoGates(const Rows&) {}
    template <int K>
    void of(std::size_t, Floats (&)[K]) const {}
};

// A table of the activations of all numbers of type T, by their bits.
template <class T>
void fill_activations(const Rows& rows, float* to) {
    T all[kPiece];
    Gates<T> gates(rows);
    for (std::size_t first = 0; first < std::size_t{1} << 16; first += kPiece) {
        for (std::size_t i = 0; i < kPiece; ++i) all[i].bits = static_cast<std::uint16_t>(first + i);
        gates.template make<false>(all, kPiece, 0);
        for (std::size_t i = 0; i < kPiece; i += kLanes) {
            Floats y[1];
            gates.of(i, y);
            store(to + first + i, y[0]);
        }
    }
}
void fill_activations(const Norm& norm, float* to) {
    Rows rows;
    rows.norm = &norm;
    norm.x == kHalf ? fill_activations<Half>(rows, to) : fill_activations<Bfloat>(rows, to);
}
