// What a host of the kernels reads: the one list of the attributes of a node, and the operators'
// names. A host has a structure with the members of Norm, and with axis, last_axis and stash_type.
#pragma once

#include <cfloat>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "plugin_limits.h"
#include "norm.h"

namespace rmsnorm_export {

enum class Sort { kReal, kInteger, kWord };

template <typename Host>
struct Attribute {
    char const* name;
    Sort sort;
    double low;  // to high: what the kernels for GPUs take
    double high;
    double (*member)(Host&, double const*);  // what it is; after taking a value, where there is one
    char const* only{""};         // for the operators with this in their name
    std::string_view words[4]{};  // the value of a word is its place here

    bool belongs(char const* op) const noexcept { return std::strstr(op, only); }

    std::string choices() const {
        std::string text(words[0]);
        for (int i = 1; i <= high; ++i) text.append(" or ").append(words[i]);
        return text;
    }
};

template <auto Member, typename Host>
double of(Host& host, double const* value) {
    auto& member = host.*Member;
    if (value) member = static_cast<std::remove_reference_t<decltype(member)>>(*value);
    return static_cast<double>(member);
}

// In the order of NormSpec.
template <typename Host>
constexpr Attribute<Host> kAttributes[] = {
    {"epsilon", Sort::kReal, 0, FLT_MAX, of<&Host::epsilon>},
    {"axis", Sort::kInteger, -kMaxAxes, -1, of<&Host::axis>},
    {"stash_type", Sort::kInteger, 1, 16, of<&Host::stash_type>},
    {"scale_before_cast", Sort::kInteger, 0, 1, of<&Host::scale_before_cast>},
    {"scale_offset", Sort::kReal, -FLT_MAX, FLT_MAX, of<&Host::scale_offset>},
    {"epsilon_outside", Sort::kInteger, 0, 1, of<&Host::epsilon_outside>},
    {"partial_size", Sort::kInteger, 0, kMaxRow, of<&Host::partial_size>},
    {"group_size", Sort::kInteger, 0, kMaxRow, of<&Host::group_size>},
    {"round_rstd", Sort::kInteger, 0, 1, of<&Host::round_rstd>},
    {"association", Sort::kInteger, 0, 2, of<&Host::association>},
    {"epsilon_clamp", Sort::kInteger, 0, 1, of<&Host::epsilon_clamp>},
    {"last_axis", Sort::kInteger, -kMaxAxes, -1, of<&Host::last_axis>},
    {"activation", Sort::kWord, 0, 1, of<&Host::activation>, "Gated", {"silu", "sigmoid"}},
    {"gate_first", Sort::kInteger, 0, 1, of<&Host::gate_first>, "Gated"},
    {"rotary_dim", Sort::kInteger, 0, kMaxRow, of<&Host::rotary_dim>, "Rotary"},
    {"rotary_interleaved", Sort::kInteger, 0, 1, of<&Host::rotary_interleaved>, "Rotary"}};

// All names of an operator: its own, and those of second function bodies.
inline std::vector<std::string> names_of(std::string const& op) {
    std::vector<std::string> all{op};
    for (auto const& [operators, suffixes] : kOperatorNames) {
        std::istringstream others(operators), words(suffixes);
        bool has = false;
        for (std::string other; others >> other;) has = has || other == op;
        for (std::string word; has && words >> word;) all.push_back(op + word);
    }
    return all;
}

}  // namespace rmsnorm_export
