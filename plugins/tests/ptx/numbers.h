// Types of numbers that C++ lacks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace ptx {

struct Format {
    int bits;   // of the fraction
    int least;  // exponent of a normal number
    double most;
};
constexpr Format kBF16{7, -126, 3.3895313892515355e38};
constexpr Format kF16{10, -14, 65504.0};
constexpr Format kE4M3{3, -6, 448.0};

// The code of a number rounded once to a format, without its sign: beyond the greatest number that
// one's, or the next.
inline unsigned magnitude_code(double value, Format const& format, bool saturate) {
    double const magnitude = std::fabs(value);
    if (!(magnitude < std::numeric_limits<double>::infinity())) {
        if (std::isnan(value)) return ~0U;
        return magnitude_code(format.most, format, true) + (saturate ? 0 : 1);
    }
    int const exponent =
        magnitude > 0 ? std::max(std::ilogb(magnitude), format.least) : format.least;
    auto const units =
        static_cast<std::int64_t>(std::nearbyint(std::ldexp(magnitude, format.bits - exponent)));
    auto const code = ((static_cast<std::int64_t>(exponent) - format.least) << format.bits) + units;
    double const rounded = std::ldexp(static_cast<double>(units), exponent - format.bits);
    if (rounded > format.most) return magnitude_code(HUGE_VAL, format, saturate);
    return static_cast<unsigned>(code);
}

// A half type: f16 or bf16.
template <Format const& kFormat>
struct Half {
    std::uint16_t code;

    Half() = default;
    explicit Half(double value) {
        unsigned const magnitude = magnitude_code(value, kFormat, false);
        code = static_cast<std::uint16_t>(magnitude == ~0U ? 0x7fffU
                                                           : magnitude | std::signbit(value) << 15);
    }
    explicit operator double() const {
        unsigned const magnitude = code & 0x7fffU;
        unsigned const greatest = magnitude_code(kFormat.most, kFormat, true);
        int const exponent = std::max(static_cast<int>(magnitude >> kFormat.bits), 1);
        unsigned const hidden = magnitude >> kFormat.bits != 0 ? 1U << kFormat.bits : 0;
        double value = std::ldexp((magnitude & ((1U << kFormat.bits) - 1)) + hidden,
                                  exponent - 1 + kFormat.least - kFormat.bits);
        if (magnitude > greatest) value = magnitude == greatest + 1 ? HUGE_VAL : NAN;
        return code >> 15 != 0 ? -value : value;
    }
};
using F16 = Half<kF16>;
using BF16 = Half<kBF16>;

// Two of a type in 32 bits.
template <typename V>
struct Two {
    V low, high;
};

inline std::uint8_t e4m3_of(float value) {
    unsigned const magnitude = magnitude_code(value, kE4M3, true);
    unsigned const sign = std::signbit(value) ? 0x80U : 0U;
    return static_cast<std::uint8_t>((magnitude == ~0U ? 0x7fU : magnitude) | sign);
}

inline float without_denormals(float value) {
    return std::fabs(value) < 0x1p-126F ? std::copysign(0.0F, value) : value;
}

// An approximation: up to an ulp off, the same for the same number.
inline float about(double exact) {
    auto const value = static_cast<float>(exact);
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    unsigned const way = word * 2654435761U >> 16;
    if (way % 3 == 0 || value == 0 || !std::isfinite(value)) return value;
    return std::nextafter(value, way % 3 == 1 ? HUGE_VALF : -HUGE_VALF);
}

}  // namespace ptx
