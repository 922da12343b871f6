// A kernel's PTX as a list of instructions. Every operand is a register: constants have some of
// their own, and so have %tid and its like, which are filled before a thread begins.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

constexpr int kLanes = 32;
using Lanes = std::uint32_t;  // a bit for each

// 32 bits of every lane of a warp. What has 64 bits takes two.
struct Register {
    std::uint32_t lane[kLanes];
};

// Registers that every program has first.
enum Given { kThread, kBlock, kThreads, kBlocks, kRank, kNowhere, kGiven = kNowhere + 2 };

struct Operand {
    int at;                  // the first register
    bool wide{false};        // of two
    std::int64_t offset{0};  // of an address, what is added to it
};

// What the scheduler does itself, for more than the lanes of one warp are concerned.
enum class Control { kNone, kBranch, kEnd, kBarrier, kWholeWarp, kShuffle, kArrive, kWait, kPoll };

struct Warp;
struct Instruction;
using Operation = std::function<void(Warp&, Instruction const&, Lanes)>;

struct Instruction {
    std::string text;
    Control control{Control::kNone};
    Operation const* operation{nullptr};
    std::vector<Operand> operands;
    int guard{-1};  // a predicate's register
    bool negated{false};
    int target{0};
};

struct Program {
    std::string name;
    std::uint64_t parameter_bytes{8};  // a pointer, or a structure that says how many
    unsigned most_threads{1024};
    int registers{kGiven};
    std::map<std::uint64_t, int> constants;
    std::vector<Instruction> instructions;
};

// Throws std::runtime_error with the statement that is not understood.
Program read_program(std::string_view entry);  // from its name to its last brace

Operation const& operation_of(std::string const& name);

}  // namespace ptx
