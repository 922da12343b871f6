// What each instruction does in the lanes of a warp.
#include <stdexcept>
#include <type_traits>
#include <unordered_map>

#include "machine.h"
#include "numbers.h"

namespace ptx {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using s16 = std::int16_t;
using u32 = std::uint32_t;
using s32 = std::int32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

template <typename Change>
void each(Lanes lanes, Change change) {
    if (lanes == ~0U) {
#pragma GCC ivdep
        for (int i = 0; i < kLanes; ++i) change(i);
    } else {
        for (int i = 0; i < kLanes; ++i) {
            if (lanes >> i & 1) change(i);
        }
    }
}

// A function of operands 1, 2 ..., whose result is operand 0.
template <typename F, typename R, typename... A, std::size_t... I>
Operation pure(F f, R (F::*)(A...) const, std::index_sequence<I...>) {
    return [f](Warp& warp, Instruction const& at, Lanes lanes) {
        int const from[] = {at.operands[1 + I].at...};
        int const to = at.operands[0].at;
        each(lanes, [&](int i) { warp.put(to, i, R(f(warp.get<A>(from[I], i)...))); });
    };
}
template <typename F, typename R, typename... A>
Operation pure(F f, R (F::*signature)(A...) const) {
    return pure(f, signature, std::index_sequence_for<A...>());
}
template <typename F>
Operation pure(F f) {
    return pure(f, &F::operator());
}

using Table = std::unordered_map<std::string, Operation>;

template <typename V>
void add_bits(Table& table, std::string const& type) {
    constexpr unsigned kBits = 8 * sizeof(V);
    table["and" + type] = pure([](V a, V b) -> V { return a & b; });
    table["or" + type] = pure([](V a, V b) -> V { return a | b; });
    table["xor" + type] = pure([](V a, V b) -> V { return a ^ b; });
    table["not" + type] = pure([](V a) -> V { return ~a; });
    table["shl" + type] = pure([](V a, u32 by) -> V { return by < kBits ? a << by : 0; });
}

template <typename V>
void add_moves(Table& table, std::string const& type) {
    table["mov" + type] = pure([](V a) { return a; });
    table["selp" + type] = pure([](V a, V b, u32 first) { return first ? a : b; });
}

template <typename V>
void add_comparisons(Table& table, std::string const& type) {
    table["setp.eq" + type] = pure([](V a, V b) -> u32 { return a == b; });
    table["setp.ne" + type] = pure([](V a, V b) -> u32 { return a < b || a > b; });
    table["setp.lt" + type] = pure([](V a, V b) -> u32 { return a < b; });
    table["setp.le" + type] = pure([](V a, V b) -> u32 { return a <= b; });
    table["setp.gt" + type] = pure([](V a, V b) -> u32 { return a > b; });
    table["setp.ge" + type] = pure([](V a, V b) -> u32 { return a >= b; });
    // Or one of them is a NaN.
    table["setp.neu" + type] = pure([](V a, V b) -> u32 { return a != b; });
    table["setp.ltu" + type] = pure([](V a, V b) -> u32 { return !(a >= b); });
    table["setp.gtu" + type] = pure([](V a, V b) -> u32 { return !(a <= b); });
}

template <typename V>
void add_whole_numbers(Table& table, std::string const& type) {
    using U = std::make_unsigned_t<V>;
    constexpr unsigned kBits = 8 * sizeof(V);
    auto const undefined = [](V a, V b) {
        return b == 0 || (std::is_signed_v<V> && b == V(-1) && a == V(U{1} << (kBits - 1)));
    };
    table["add" + type] = pure([](U a, U b) -> U { return a + b; });
    table["sub" + type] = pure([](U a, U b) -> U { return a - b; });
    table["neg" + type] = pure([](U a) -> U { return U{0} - a; });
    table["mul.lo" + type] = pure([](U a, U b) -> U { return a * b; });
    table["mad.lo" + type] = pure([](U a, U b, U c) -> U { return a * b + c; });
    table["div" + type] =
        pure([undefined](V a, V b) -> V { return undefined(a, b) ? V(-1) : a / b; });
    table["rem" + type] =
        pure([undefined](V a, V b) -> V { return undefined(a, b) ? V(0) : a % b; });
    table["min" + type] = pure([](V a, V b) { return std::min(a, b); });
    table["max" + type] = pure([](V a, V b) { return std::max(a, b); });
    table["shr" + type] =
        pure([](V a, u32 by) -> V { return a >> std::min(by, kBits - 1) >> (by >= kBits); });
    add_comparisons<V>(table, type);
    add_moves<V>(table, type);
}

template <typename From, typename... To>
void add_conversions(Table& table, std::string const& from, char const* const (&to)[6]) {
    int i = 0;
    ((table[std::string("cvt") + to[i++] + from] = pure([](From a) { return static_cast<To>(a); })),
     ...);
}

template <typename V>
void add_real_numbers(Table& table, std::string const& type) {
    for (std::string const& rounded : {std::string(), std::string(".rn")}) {
        table["add" + rounded + type] = pure([](V a, V b) { return a + b; });
        table["mul" + rounded + type] = pure([](V a, V b) { return a * b; });
    }
    table["fma.rn" + type] = pure([](V a, V b, V c) { return std::fma(a, b, c); });
    table["div.rn" + type] = pure([](V a, V b) { return a / b; });
    table["sqrt.rn" + type] = pure([](V a) { return std::sqrt(a); });
    table["neg" + type] = pure([](V a) { return -a; });
    table["abs" + type] = pure([](V a) { return std::fabs(a); });
    table["copysign" + type] = pure([](V sign, V a) { return std::copysign(a, sign); });
    add_comparisons<V>(table, type);
    add_moves<V>(table, type);
}

// In pairs, each rounded once; what max.NaN.xorsign.abs makes of signs is their product.
template <typename H>
void add_half_numbers(Table& table, std::string const& type) {
    using P = Two<H>;
    auto const one = [](double a, double b, double c) { return H(std::fma(a, b, c)); };
    auto const greater = [](H a, H b) {
        double const x = std::fabs(double(a)), y = std::fabs(double(b));
        H result{x > y ? x : y};
        if (std::isnan(x) || std::isnan(y)) result.code = 0x7fff;
        return result;
    };
    table["cvt.rn" + type + ".f32"] = pure([](float a) { return H(a); });
    table["cvt.f32" + type] = pure([](H a) { return float(double(a)); });
    table["cvt.rn" + type + "x2.f32"] =
        pure([](float high, float low) { return P{H(low), H(high)}; });
    table["fma.rn" + type + "x2"] = pure([one](P a, P b, P c) {
        return P{one(double(a.low), double(b.low), double(c.low)),
                 one(double(a.high), double(b.high), double(c.high))};
    });
    table["add.rn" + type + "x2"] = table["add" + type + "x2"] = pure([](P a, P b) {
        return P{H(double(a.low) + double(b.low)), H(double(a.high) + double(b.high))};
    });
    table["mul.rn" + type + "x2"] = table["mul" + type + "x2"] = pure([](P a, P b) {
        return P{H(double(a.low) * double(b.low)), H(double(a.high) * double(b.high))};
    });
    table["max.NaN.xorsign.abs" + type + "x2"] = pure([greater](P a, P b) {
        auto const signed_one = [&](H x, H y) {
            H result = greater(x, y);
            if (result.code != 0x7fff) result.code |= (x.code ^ y.code) & 0x8000;
            return result;
        };
        return P{signed_one(a.low, b.low), signed_one(a.high, b.high)};
    });
}

void add_conversions(Table& table) {
    table["cvt.f64.f32"] = pure([](float a) -> double { return a; });
    table["cvt.rn.f32.s32"] = pure([](s32 a) { return static_cast<float>(a); });
    table["cvt.sat.f32.f32"] = pure([](float a) { return a > 0 ? std::min(a, 1.0F) : 0.0F; });
    table["cvt.rni.s32.f32"] = pure([](float a) -> s32 {
        if (std::isnan(a)) return 0;
        return static_cast<s32>(std::clamp(std::nearbyint(double{a}), -0x1p31, 0x1p31 - 1));
    });
    table["cvt.rn.satfinite.e4m3x2.f32"] = pure(
        [](float high, float low) { return static_cast<u16>(e4m3_of(high) << 8 | e4m3_of(low)); });
    table["cvt.pack.sat.s8.s32.b32"] = pure([](s32 a, s32 b, u32 c) -> u32 {
        auto const byte = [](s32 value) { return static_cast<u8>(std::clamp(value, -128, 127)); };
        return c << 16 | static_cast<u32>(byte(a)) << 8 | byte(b);
    });
}

void add_others(Table& table) {
    table["mul.wide.s32"] = pure([](s32 a, s32 b) { return s64{a} * b; });
    table["mul.wide.u32"] = pure([](u32 a, u32 b) { return u64{a} * b; });
    table["and.pred"] = pure([](u32 a, u32 b) -> u32 { return a && b; });
    table["or.pred"] = pure([](u32 a, u32 b) -> u32 { return a || b; });
    table["xor.pred"] = pure([](u32 a, u32 b) -> u32 { return !a != !b; });
    table["not.pred"] = pure([](u32 a) -> u32 { return !a; });
    table["clz.b32"] = pure([](u32 a) -> u32 { return a == 0 ? 32 : static_cast<u32>(__builtin_clz(a)); });
    table["mov.pred"] = pure([](u32 a) -> u32 { return a != 0; });
    table["cvta.to.global.u64"] = pure([](u64 a) { return a; });
    table["pack.b32"] = pure([](u16 a, u16 b) -> u32 { return a | u32{b} << 16; });
    table["pack.b64"] = pure([](u32 a, u32 b) { return a | u64{b} << 32; });
    table["prmt.b32"] = pure([](u32 a, u32 b, u32 bytes) {
        u32 result = 0;
        for (int i = 0; i < 4; ++i) {
            u32 const which = bytes >> 4 * i & 15;
            auto byte = static_cast<u8>((a | u64{b} << 32) >> 8 * (which & 7));
            if (which & 8) byte = byte & 0x80 ? 0xff : 0;
            result |= u32{byte} << 8 * i;
        }
        return result;
    });
    table["fma.rm.f32"] = pure([](float a, float b, float c) {  // rounded down
        double const exact = std::fma(double{a}, double{b}, double{c});
        auto const nearest = static_cast<float>(exact);
        return nearest > exact ? std::nextafter(nearest, -HUGE_VALF) : nearest;
    });
    table["div.approx.f32"] = pure([](float a, float b) { return about(double{a} / b); });
    auto const approximate = [&](char const* name, double (*f)(double)) {
        table[name] =
            pure([f](float a) { return without_denormals(about(f(without_denormals(a)))); });
    };
    approximate("rsqrt.approx.ftz.f32", [](double a) { return 1 / std::sqrt(a); });
    approximate("rcp.approx.ftz.f32", [](double a) { return 1 / a; });
    approximate("ex2.approx.ftz.f32", [](double a) { return std::exp2(a); });
    table["max.NaN.xorsign.abs.f32"] = pure([](u32 a, u32 b) -> u32 {
        u32 const greater = std::max(a & 0x7fffffffU, b & 0x7fffffffU);
        return greater > 0x7f800000U ? 0x7fffffffU : greater | ((a ^ b) & 0x80000000U);
    });
    auto const unpack = [](int bits) {
        return [bits](Warp& warp, Instruction const& at, Lanes lanes) {
            each(lanes, [&](int i) {
                auto const value = bits == 16 ? warp.get<u32>(at.operands[2].at, i)
                                              : warp.get<u64>(at.operands[2].at, i);
                u64 const low = value & ((u64{1} << bits) - 1);
                warp.put(at.operands[0].at, i, static_cast<u32>(low));
                warp.put(at.operands[1].at, i, static_cast<u32>(value >> bits));
            });
        };
    };
    table["unpack.b32"] = unpack(16);
    table["unpack.b64"] = unpack(32);
}

// ld and st of `count` values; `sign`: they are extended by it.
struct Access {
    enum { kParameter, kShared, kGlobal } space;
    int count;
    unsigned bytes;
    bool sign;

    explicit Access(std::string const& name)
        : space(name.find(".param") != name.npos    ? kParameter
                : name.find(".shared") != name.npos ? kShared
                                                    : kGlobal),
          count(name.find(".v4") != name.npos   ? 4
                : name.find(".v2") != name.npos ? 2
                                                : 1),
          bytes(static_cast<unsigned>(std::stoi(name.substr(name.rfind('.') + 2))) / 8),
          sign(name[name.rfind('.') + 1] == 's') {}

    // Null where the lane must not.
    unsigned char* bytes_of(Warp& warp, Instruction const& at, Operand const& operand, int lane,
                            bool write) const {
        Address address = static_cast<Address>(operand.offset);
        unsigned const all = bytes * static_cast<unsigned>(count);
        if (space == kGlobal) {
            address += warp.get<u64>(operand.at, lane);
            return warp.may_use_global(at, lane, address, all, write)
                       ? reinterpret_cast<unsigned char*>(address)
                       : nullptr;
        }
        address += warp.get<u32>(operand.at, lane);
        if (space == kShared) {
            bool const may = warp.may_use_shared(at, lane, address, all, write);
            return may ? &warp.block->shared[address] : nullptr;
        }
        Launch const& launch = warp.block->machine->launch;
        if (address + all <= launch.program->parameter_bytes) {
            return const_cast<unsigned char*>(launch.parameters + address);
        }
        warp.block->machine->complain(at, "beyond the parameters");
        return nullptr;
    }

    void load(Warp& warp, Instruction const& at, Lanes lanes) const {
        each(lanes, [&](int i) {
            auto const* from =
                bytes_of(warp, at, at.operands[static_cast<std::size_t>(count)], i, false);
            for (int k = 0; from != nullptr && k < count; ++k, from += bytes) {
                u64 value = 0;
                std::memcpy(&value, from, bytes);
                if (sign && bytes < 8) {
                    unsigned const unused = 64 - 8 * bytes;
                    value = static_cast<u64>(static_cast<s64>(value << unused) >> unused);
                }
                Operand const& to = at.operands[static_cast<std::size_t>(k)];
                if (to.wide) warp.put(to.at, i, value);
                if (!to.wide) warp.put(to.at, i, static_cast<u32>(value));
            }
        });
    }

    void store(Warp& warp, Instruction const& at, Lanes lanes) const {
        each(lanes, [&](int i) {
            auto* to = bytes_of(warp, at, at.operands[0], i, true);
            for (int k = 1; to != nullptr && k <= count; ++k, to += bytes) {
                int const from = at.operands[static_cast<std::size_t>(k)].at;
                u64 const value = bytes == 8 ? warp.get<u64>(from, i) : warp.get<u32>(from, i);
                std::memcpy(to, &value, bytes);
            }
        });
    }
};

u32 shared_address(Warp const& warp, Operand const& operand, int lane) {
    return warp.get<u32>(operand.at, lane) + static_cast<u32>(operand.offset);
}

// In the address of another block's shared memory its rank is above these bits.
constexpr int kRankShift = 20;

void add_messages(Table& table) {
    table["mbarrier.init.shared::cta.b64"] = [](Warp& warp, Instruction const& at, Lanes lanes) {
        each(lanes, [&](int i) {
            u32 const count = warp.get<u32>(at.operands[1].at, i);
            bool const fresh =
                warp.block->boxes
                    .emplace(shared_address(warp, at.operands[0], i), Mailbox{count, count, 0, 0})
                    .second;
            if (!fresh) warp.block->machine->complain(at, "an mbarrier is opened twice");
        });
    };
    table["mbarrier.arrive.expect_tx.shared::cta.b64"] = [](Warp& warp, Instruction const& at,
                                                            Lanes lanes) {
        each(lanes, [&](int i) {
            Mailbox* const box = warp.mailbox(at, shared_address(warp, at.operands[1], i));
            if (box == nullptr) return;
            box->bytes += warp.get<u32>(at.operands[2].at, i);
            if (box->pending == 0) warp.block->machine->complain(at, "too many arrive");
            --box->pending;
            warp.block->machine->end_phase(*box);
        });
    };
    table["mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"] = [](Warp& warp,
                                                                           Instruction const& at,
                                                                           Lanes lanes) {
        each(lanes, [&](int i) {
            Mailbox const* const box = warp.mailbox(at, shared_address(warp, at.operands[1], i));
            u32 const parity = warp.get<u32>(at.operands[2].at, i) & 1;
            warp.put(at.operands[0].at, i, u32{box == nullptr || (box->phase & 1) != parity});
        });
    };
    table["mapa.shared::cluster.u32"] =
        pure([](u32 address, u32 rank) -> u32 { return rank << kRankShift | address; });
    table["st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"] =
        [](Warp& warp, Instruction const& at, Lanes lanes) {
            each(lanes, [&](int i) {
                u32 const slot = shared_address(warp, at.operands[0], i);
                u32 const box = shared_address(warp, at.operands[2], i);
                Machine& machine = *warp.block->machine;
                bool const one = slot >> kRankShift == box >> kRankShift && slot % 4 == 0;
                if (!one || slot >> kRankShift >= machine.blocks.size()) {
                    return machine.complain(at, "no block of the cluster, or two");
                }
                u32 const own = (u32{1} << kRankShift) - 1;
                machine.messages.push_back({slot >> kRankShift, slot & own, box & own,
                                            warp.get<u32>(at.operands[1].at, i)});
            });
        };
}

Table every_operation() {
    Table table;
    add_bits<u16>(table, ".b16");
    add_bits<u32>(table, ".b32");
    add_bits<u64>(table, ".b64");
    for (char const* sort : {".u", ".b"}) {
        add_whole_numbers<u16>(table, sort + std::string("16"));
        add_whole_numbers<u32>(table, sort + std::string("32"));
        add_whole_numbers<u64>(table, sort + std::string("64"));
    }
    auto const convert = [&](auto value, char const* from) {
        add_conversions<decltype(value), u16, u32, u64, s16, s32, s64>(
            table, from, {".u16", ".u32", ".u64", ".s16", ".s32", ".s64"});
    };
    convert(u8{}, ".u8");
    convert(u16{}, ".u16");
    convert(u32{}, ".u32");
    convert(u64{}, ".u64");
    convert(s16{}, ".s16");
    convert(s32{}, ".s32");
    convert(s64{}, ".s64");
    add_whole_numbers<s16>(table, ".s16");
    add_whole_numbers<s32>(table, ".s32");
    add_whole_numbers<s64>(table, ".s64");
    add_real_numbers<float>(table, ".f32");
    add_real_numbers<double>(table, ".f64");
    add_half_numbers<F16>(table, ".f16");
    add_half_numbers<BF16>(table, ".bf16");
    add_conversions(table);
    add_others(table);
    add_messages(table);
    auto const nothing = [](Warp&, Instruction const&, Lanes) {};
    table["griddepcontrol.wait"] = [](Warp& warp, Instruction const&, Lanes) {
        warp.waited = true;
    };
    table["griddepcontrol.launch_dependents"] = nothing;
    table["fence.mbarrier_init.release.cluster"] = nothing;
    table["prefetch.global.L2"] = nothing;
    return table;
}

}  // namespace

Operation const& operation_of(std::string const& name) {
    static Table table = every_operation();
    auto const known = table.find(name);
    if (known != table.end()) return known->second;
    bool const load = name.substr(0, 3) == "ld.";
    if (!load && name.substr(0, 3) != "st.") throw std::runtime_error("no operation " + name);
    auto const how = load ? &Access::load : &Access::store;
    return table[name] = [access = Access(name), how](Warp& warp, Instruction const& at,
                                                      Lanes lanes) {
        (access.*how)(warp, at, lanes);
    };
}

}  // namespace ptx
