// Runs a kernel with the semantics of the PTX ISA: threads of their own, warps that diverge and
// meet again, barriers of a block and of a cluster, mbarriers, copies and messages that arrive late
// and in any order. It complains of what a GPU would do silently: races in shared memory, two
// threads that write one byte, accesses beyond a tensor or before griddepcontrol.wait, lanes that
// are missing.
//
// It shows nothing of ptxas, of the weak memory model, or of speed.
#pragma once

#include <cstring>
#include <random>
#include <set>

#include "program.h"

namespace ptx {

using Address = std::uint64_t;

// A tensor that kernels may touch, and which thread has written a byte in this launch. Where none
// is known every address is taken for right, unless AddressSanitizer knows better.
struct Tensor {
    Address begin;
    std::vector<std::uint32_t> writers;
};
inline std::map<Address, Tensor> tensors;  // by their end

struct Launch {
    Program const* program;
    unsigned char const* parameters;
    unsigned blocks, threads, cluster, shared_bytes;
    bool waits;  // for its predecessor: from sm_90 on
    unsigned seed;
};

// Runs it; the number of instructions of warps. What was wrong is added to the complaints.
std::uint64_t run(Launch const& launch, std::set<std::string>& complaints);

// An mbarrier: a phase ends when all have arrived and all bytes are there.
struct Mailbox {
    std::uint32_t expected, pending, phase;
    std::int64_t bytes;
};

// 32 bits that are on their way to another block.
struct Message {
    unsigned block;
    std::uint32_t slot, box, word;
};

// A copy to shared memory that is still under way.
struct Copy {
    int lane;
    std::uint32_t to;
    Address from;
};

// Who has read or written a word of shared memory since the last barrier.
struct Users {
    std::uint32_t epoch, writer, reader;
};
constexpr std::uint32_t kMany = ~0U;

struct Machine;

struct Block {
    Machine* machine{nullptr};
    unsigned rank{0};
    std::vector<unsigned char> shared;
    std::vector<Users> users;
    std::uint32_t epoch{1};
    std::map<std::uint32_t, Mailbox> boxes;
    unsigned warps{0}, left{0}, arrived{0};
};

enum class State { kReady, kAtBarrier, kAtCluster, kDone };

struct Warp {
    Block* block{nullptr};
    int first_thread{0};
    Register* registers{nullptr};
    Lanes alive{~0U};
    int at[kLanes]{};  // the next instruction of each
    State state{State::kReady};
    std::uint32_t epoch{0};  // of the block, when it began to wait
    unsigned round{0};       // of the cluster, when it arrived
    bool arrived{false};
    bool waited{false};  // for the predecessor
    std::vector<Copy> copies;

    template <typename V>
    V get(int at, int lane) const {
        std::uint32_t const words[2] = {registers[at].lane[lane],
                                        registers[at + (sizeof(V) > 4)].lane[lane]};
        V value;
        std::memcpy(&value, words, sizeof value);
        return value;
    }
    template <typename V>
    void put(int at, int lane, V value) {
        std::uint32_t words[2]{};
        std::memcpy(words, &value, sizeof value);
        registers[at].lane[lane] = words[0];
        if constexpr (sizeof(V) > 4) registers[at + 1].lane[lane] = words[1];
    }
    Lanes true_lanes(int at) const {
        Lanes lanes = 0;
        for (int i = 0; i < kLanes; ++i) lanes |= Lanes{registers[at].lane[i] != 0} << i;
        return lanes;
    }

    // Whether the lane may use these bytes; complains where it may not.
    bool may_use_shared(Instruction const& at, int lane, Address address, unsigned bytes,
                        bool write);
    bool may_use_global(Instruction const& at, int lane, Address address, unsigned bytes,
                        bool write);
    Mailbox* mailbox(Instruction const& at, Address address);
};

// The blocks of a cluster, which run together.
struct Machine {
    Launch const& launch;
    std::set<std::string>& complaints;
    std::mt19937& random;
    std::vector<Block> blocks{};
    std::vector<Warp> warps{};
    std::vector<Message> messages{};
    unsigned arrived{0}, round{0}, first_block{0};
    std::uint64_t instructions{0};

    void complain(Instruction const& at, char const* what);
    void end_phase(Mailbox& box);
    void run();

private:
    void deliver(std::size_t which);
    void run(Warp& warp, int budget);
    bool control(Warp& warp, Instruction const& at, int place, Lanes all, Lanes lanes);
    void wake(Warp& warp);
    Warp* next_warp();
};

}  // namespace ptx
