// The gate: sigmoid and silu, for one instruction set.

Doubles logistic(Doubles z) {
    for (std::size_t i = 0; i < kLanes / 2; ++i) z[i] = 1.0 / (1.0 + exp(-z[i]));
    return z;
}

#if FUSED
// 1 / (1 + e^-z) of K vectors side by side, each step of which waits for the one before. Every 101st
// float from -110 to 110 came out within 1.02 ulp, with AVX2 and with AVX-512.
// e = e^-|z|, at most 1, is a power of two in parts and a little less, kept as the sum of two
// floats, e + lack. s = o / (1 + e), where o is e or 1, is near at first, then corrected by the
// remainder, which is exact but for the last bits however 1 + e was rounded: (o - s) - e * s, and of
// what is lacking likewise.
template <int K>
INLINE void logistic(const Floats (&z)[K], Floats (&y)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    const Floats to_parts = all(0x1.8p23F / kParts);  // the sum ends with the parts of k
    Floats u[K], sum[K], k[K], square[K], p[K], e[K], lack[K], inverse[K], over[K], near[K], left[K];
    EACH u[j] = bits_as<Floats>(bits_as<Ints>(z[j]) & 0x7fffffff);
    EACH u[j] = smaller(all(104.0F), u[j]);  // below is no float; NaN stays
    EACH sum[j] = fused_multiply_add(u[j], all(-0x1.715476p0F), to_parts);
    EACH k[j] = sum[j] - to_parts;  // e^-|z| = 2^k * e^-u
    EACH u[j] = fused_multiply_add(k[j], all(0x1.62e43p-1F), u[j]);
    EACH u[j] = fused_multiply_add(k[j], all(-0x1.05c61p-29F), u[j]);
    // e^-u - 1, within 2^-32.
    EACH square[j] = u[j] * u[j];
    constexpr float kSecond = kParts == 4 ? 0x1.000006p-1F : 0.5F;
    constexpr float kThird = kParts == 4 ? -0x1.5571d8p-3F : -0x1.555c76p-3F;
    constexpr float kFourth = kParts == 4 ? 0x1.552116p-5F : 0x1.554842p-5F;
    EACH p[j] = fused_multiply_add(u[j], all(kThird), all(kSecond));
    EACH p[j] = fused_multiply_add(square[j], all(kFourth), p[j]);
    EACH u[j] = u[j] - lack_of_power(sum[j]);
    EACH p[j] = fused_multiply_add(square[j], p[j], -u[j]);
    EACH e[j] = power(sum[j], k[j]);
    EACH lack[j] = e[j] * p[j];
    EACH near[j] = e[j] + lack[j];
    EACH lack[j] = (e[j] - near[j]) + lack[j];
    EACH e[j] = near[j];
    EACH inverse[j] = reciprocal(e[j] + 1.0F);
    EACH over[j] = by_sign(z[j], e[j], all(1.0F));
    EACH near[j] = over[j] * inverse[j];
    EACH left[j] = fused_multiply_add(-e[j], near[j], over[j] - near[j]);
    EACH left[j] = fused_multiply_add(-lack[j], near[j], left[j] + by_sign(z[j], lack[j], Floats{}));
    EACH y[j] = fused_multiply_add(left[j], inverse[j], near[j]);
}
#else
// The same without FMA, of doubles in the end. Every third float from -110 to 110 came out within
// 1.02 ulp.
template <int K>
INLINE void logistic(const Floats (&z)[K], Floats (&y)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    const Floats to_integer = all(0x1.8p23F);  // the sum ends with k
    Floats u[K], sum[K], k[K], p[K], square[K];
    EACH u[j] = larger(all(-104.0F), smaller(all(104.0F), z[j]));  // beyond s is 0 or 1; NaN stays
    EACH sum[j] = fused_multiply_add(u[j], all(-0x1.715476p0F), to_integer);
    EACH k[j] = sum[j] - to_integer;  // e^-z = 2^k * e^-u
    EACH u[j] = fused_multiply_add(k[j], all(0x1.62e4p-1F), u[j]);  // of which the product is exact
    EACH u[j] = fused_multiply_add(k[j], all(0x1.7f7d1cp-20F), u[j]);
    // (e^-u - 1 + u) / u^2, within 2^-28 of e^-u; in pairs, which need not wait for one another.
    const auto line = [&](Floats x, float slope, float start) LAMBDA {
        return fused_multiply_add(x, all(slope), all(start));
    };
    EACH square[j] = u[j] * u[j];
    EACH p[j] = fused_multiply_add(square[j], all(0x1.6b6e4ap-10F),
                                   line(u[j], -0x1.122f7ap-7F, 0x1.555688p-5F));
    EACH p[j] = fused_multiply_add(square[j], p[j], line(u[j], -0x1.5554a4p-3F, 0.5F));
    EACH p[j] = fused_multiply_add(p[j], square[j], -u[j]);
    EACH {
        Wide e = widen(p[j]);
        e = times_power({1.0 + e.low, 1.0 + e.high}, sum[j]);
        // The sum is larger than s, or NaN where z is.
        y[j] = smaller(narrow({1.0 / (1.0 + e.low), 1.0 / (1.0 + e.high)}), sum[j]);
    }
}
#endif
INLINE Floats logistic(Floats z) {
    Floats one[1] = {z}, y[1];
    logistic(one, y);
    return y[0];
}

template <int K>
INLINE void activations(Floats (&z)[K], bool sigmoid) {
    Floats s[K];
    logistic(z, s);
    EACH z[j] = sigmoid ? s[j] : z[j] * s[j];
}

// The gates of type T, where the stash type is f32. `make` makes those of n at most kPiece,
// `of` has them, by their places. `times` makes x * activation; the x to fetch are `ahead` elements from those.
#if FUSED
// The sigmoid in fewer steps: 1 / (1 + e^-z) whatever the sign of z, |z| at most kUsualGate. With AVX2
// and AVX-512 every value of the half types came out within 1.1 ulp, and where `fine` every third float
// from -87 to 87 within 0.63.
constexpr float kUsualGate = 87.0F;  // e^-kUsualGate is no subnormal
constexpr std::int16_t kUsualHalf = 0x5570, kUsualBfloat = 0x42ae;  // the same
using Shorts = std::int16_t __attribute__((vector_size(4 * kLanes)));
// e^-z = e + rest of K vectors: e is a power of two in parts.
template <bool fine, int K>
INLINE void exponential(const Floats (&z)[K], Floats (&e)[K], Floats (&rest)[K]) {
    const auto all = [](float value) LAMBDA { return Floats{} + value; };
    const Floats to_parts = all(0x1.8p23F / kParts);  // the sum ends with the parts of k
    Floats u[K], sum[K], k[K], p[K];
    EACH sum[j] = fused_multiply_add(z[j], all(-0x1.715476p0F), to_parts);
    EACH k[j] = sum[j] - to_parts;  // e^-z = 2^k * e^-u
    EACH u[j] = fused_multiply_add(k[j], all(0x1.62e43p-1F), z[j]);
    EACH u[j] = fused_multiply_add(k[j], all(-0x1.05c61p-29F), u[j]);
    // (e^-u - 1) / u, within 2^-32 of e^-u, of sixteenths within 2^-29.
    if constexpr (kParts == 16) {
        EACH p[j] = fused_multiply_add(u[j], all(-0x1.555762p-3F), all(0x1.00022p-1F));
    } else {
        EACH p[j] = fused_multiply_add(u[j], all(0x1.552116p-5F), all(-0x1.5571d8p-3F));
        EACH p[j] = fused_multiply_add(u[j], p[j], all(0x1.000006p-1F));
    }
    EACH p[j] = fused_multiply_add(u[j], p[j], all(-1.0F));
    EACH e[j] = usual_power(sum[j], k[j]);
    if constexpr (fine || kParts == 16) {
        EACH rest[j] = fused_multiply_add(u[j], p[j], lack_of_power(sum[j])) * e[j];
    } else {
        EACH rest[j] = p[j] * (u[j] * e[j]);
    }
}
// s = 1 / (1 + e + rest) from a reciprocal r, and r * (1 + a + a^2) with a = 1 - r * (1 + e + rest):
// a^2 is next to nothing where r is within 2^-14. Where `fine` what 1 + e lost when it was rounded is
// in the rest.
template <bool fine, int K>
INLINE void inverse_of(const Floats (&e)[K], const Floats (&rest)[K], Floats (&s)[K]) {
    const Floats one = Floats{} + 1.0F;
    Floats sum[K], r[K], a[K];
    EACH sum[j] = e[j] + one;
    EACH r[j] = near_reciprocal(sum[j] + rest[j]);
    if constexpr (fine) {
        EACH s[j] = ((larger(e[j], one) - sum[j]) + smaller(e[j], one)) + rest[j];
        EACH a[j] = fused_multiply_add(-sum[j], r[j], one);
        EACH a[j] = fused_multiply_add(-s[j], r[j], a[j]);
    } else {
        EACH a[j] = fused_multiply_add(-e[j], r[j], one) - r[j];
        EACH a[j] = fused_multiply_add(-rest[j], r[j], a[j]);
    }
    if constexpr (kNearBits < 14) EACH a[j] = fused_multiply_add(a[j], a[j], a[j]);
    EACH s[j] = fused_multiply_add(a[j], r[j], r[j]);
}

// Here they have two loops of their own, for the steps of one element wait for one another, and the
// processor looks no further ahead than a few vectors.
template <class T>
class Gates {
  public:
    explicit Gates(bool activation_is_sigmoid) : sigmoid(activation_is_sigmoid) {}

    template <bool pairs>
    INLINE void make(const T* from, std::size_t n, std::size_t ahead) {
        const auto fetched = [&](auto lot, std::size_t i) LAMBDA {
            fetch<false, decltype(lot)::kVectors>(from + i + ahead);
        };
        if (exponentials<pairs>(from, n, fetched)) {
            const auto keep = [&](auto, std::size_t i, std::size_t count, auto& y) LAMBDA {
                put_lot<false, false>(made + i, y, count);
            };
            sigmoid ? finish<pairs, true>(from, n, keep) : finish<pairs, false>(from, n, keep);
        } else {
            make_any<pairs>(from, nullptr, n, made);
        }
    }
    template <bool, int K>
    INLINE void of(const T*, std::size_t i, std::size_t, Floats (&y)[K]) const {
        EACH y[j] = load(made + i + j * kLanes);
    }
    INLINE void times(const T* x, const T* from, std::size_t n, std::size_t ahead, float* to) {
        for (std::size_t i = 0; i < n; i += kPiece) {
            piece(x + i, from + i, n - i < kPiece ? n - i : kPiece, ahead, to + i);
        }
    }

  private:
    static constexpr bool kFine = kTypeOf<T> == kFloat;
    const bool sigmoid;
    alignas(64) float made[kPiece];  // at first the exponentials
    alignas(64) float rests[kPiece];

    INLINE void piece(const T* x, const T* from, std::size_t n, std::size_t ahead, float* to) {
        const auto fetched = [&](auto lot, std::size_t i) LAMBDA {
            fetch<false, decltype(lot)::kVectors>(from + ahead + i);
        };
        if (!exponentials<false>(from, n, fetched)) return make_any<false>(from, x, n, to);
        const auto by_x = [&](auto lot, std::size_t i, std::size_t count, auto& y) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            fetch<false, K>(x + ahead + i);
            EACH y[j] = get<float>(x + i + j * kLanes, count) * y[j];
            put_lot<false, false>(to + i, y, count);
        };
        sigmoid ? finish<false, true>(from, n, by_x) : finish<false, false>(from, n, by_x);
    }
    // False where a |z| is above kUsualGate. Of NaN it makes NaN.
    template <bool pairs, class Fetch>
    INLINE bool exponentials(const T* from, std::size_t n, Fetch fetched) {
        Floats most{};  // of |z|, and of half types
        Shorts most_bits{};
        each_lot<4>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K], e[K], rest[K];
            fetched(lot, i);
            get_lot<pairs>(from + i, count, z);
            if constexpr (sizeof(T) == 2 && K % 2 == 0) {
                for (int j = 0; j < K; j += 2) {
                    Shorts both;
                    __builtin_memcpy(&both, from + i + j * kLanes, sizeof both);
                    both &= 0x7fff;
                    most_bits = (both > most_bits) ? both : most_bits;
                }
            } else {
                EACH most = larger(bits_as<Floats>(bits_as<Ints>(z[j]) & 0x7fffffff), most);
            }
            exponential<kFine>(z, e, rest);
            EACH store(made + i + j * kLanes, e[j]);
            EACH store(rests + i + j * kLanes, rest[j]);
        });
        const Shorts above = most_bits > (kTypeOf<T> == kHalf ? kUsualHalf : kUsualBfloat);
        return !any(most > kUsualGate) && !any(bits_as<Ints>(above) != 0);
    }
    template <bool pairs, bool only_sigmoid, class Put>
    INLINE void finish(const T* from, std::size_t n, Put put_activations) {
        each_lot<4>(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K], e[K], rest[K], s[K];
            EACH e[j] = load(made + i + j * kLanes);
            EACH rest[j] = load(rests + i + j * kLanes);
            inverse_of<kFine>(e, rest, s);
            if constexpr (!only_sigmoid) {
                get_lot<pairs>(from + i, count, z);
                EACH s[j] = z[j] * s[j];
            }
            put_activations(lot, i, count, s);
        });
    }
    template <bool pairs>
    __attribute__((noinline)) void make_any(const T* from, const T* x, std::size_t n, float* to) {
        each_lot(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K];
            get_lot<pairs>(from + i, count, z);
            activations(z, sigmoid);
            if (x) EACH z[j] = get<float>(x + i + j * kLanes, count) * z[j];
            EACH put<float>(to + i + j * kLanes, z[j], count);
        });
    }
};
#else
template <class T>
class Gates {
  public:
    explicit Gates(bool activation_is_sigmoid) : sigmoid(activation_is_sigmoid) {}

    template <bool>
    INLINE void make(const T*, std::size_t, std::size_t) {}
    template <bool pairs, int K>
    INLINE void of(const T* from, std::size_t i, std::size_t count, Floats (&y)[K]) const {
        get_lot<pairs>(from + i, count, y);
        activations(y, sigmoid);
    }
    INLINE void times(const T* x, const T* from, std::size_t n, std::size_t ahead, float* to) {
        each_lot(n, [&](auto lot, std::size_t i, std::size_t count) LAMBDA {
            constexpr int K = decltype(lot)::kVectors;
            Floats z[K];
            fetch<false, K>(x + ahead + i);
            fetch<false, K>(from + ahead + i);
            of<false>(from, i, count, z);
            EACH put<float>(to + i + j * kLanes,
                            get<float>(x + i + j * kLanes, count) * z[j], count);
        });
    }

  private:
    const bool sigmoid;
};
#endif
struct NoGates {
    explicit NoGates(bool) {}
    template <bool, class T, int K>
    void of(const T*, std::size_t, std::size_t, Floats (&)[K]) const {}
};

template <class S, class V>
__attribute__((noinline)) V activation(V gate, bool sigmoid) {
    const V z = round_to<S>(gate);
    const V s = round_to<S>(logistic(z));
    return sigmoid ? s : round_to<S>(z * s);
}
