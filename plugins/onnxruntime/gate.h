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
    // e^-u - 1, within 2^-32, of quarters within 2^-27.
    EACH square[j] = u[j] * u[j];
    constexpr float kSecond = kParts == 4 ? 0x1.000006p-1F : 0.5F;
    constexpr float kThird = kParts == 4 ? -0x1.5571d8p-3F : -0x1.555c76p-3F;
    constexpr float kFourth = kParts == 4 ? 0x1.552116p-5F : 0x1.555da6p-5F;
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

#if FUSED
// The sigmoid in fewer steps: 1 / (1 + e^-z) whatever the sign of z, |z| at most kUsualGate. With AVX2
// and AVX-512 every value of the half types came out within 1.1 ulp, and where `fine` floats from -87 to
// 87 within 0.63, with AVX2, whose powers are in quarters, within 0.77.
constexpr float kUsualGate = 87.0F;  // e^-kUsualGate is no subnormal
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
    // (e^-u - 1) / u, of quarters within 2^-27 of e^-u, of sixteenths within 2^-29.
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
#endif

template <class S, class V>
__attribute__((noinline)) V activation(V gate, bool sigmoid) {
    const V z = round_to<S>(gate);
    const V s = round_to<S>(logistic(z));
    return sigmoid ? s : round_to<S>(z * s);
}
