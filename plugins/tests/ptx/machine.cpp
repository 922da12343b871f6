#include "machine.h"

#include <algorithm>

extern "C" void* __asan_region_is_poisoned(void* begin, std::size_t bytes) __attribute__((weak));

namespace ptx {

namespace {

constexpr std::uint64_t kTooMany = 20'000'000;  // instructions of a cluster: it spins

void set(Warp& warp, Lanes lanes, int place) {
    for (int i = 0; i < kLanes; ++i) {
        if (lanes >> i & 1) warp.at[i] = place;
    }
}

}  // namespace

void Machine::complain(Instruction const& at, char const* what) {
    complaints.insert(std::string(what) + ": " + at.text + " in " + launch.program->name);
}

bool Warp::may_use_shared(Instruction const& at, int lane, Address address, unsigned bytes,
                          bool write) {
    Machine& machine = *block->machine;
    if (address % bytes != 0) machine.complain(at, "misaligned in shared memory");
    if (address + bytes > block->shared.size()) {
        machine.complain(at, "beyond shared memory");
        return false;
    }
    auto const me = static_cast<std::uint32_t>(first_thread + lane + 1);
    for (Address word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
        Users& users = block->users[word];
        if (users.epoch != block->epoch) users = {block->epoch, 0, 0};
        bool const written = users.writer != 0 && users.writer != me;
        bool const read = users.reader != 0 && users.reader != me;
        if (written || (write && read)) machine.complain(at, "a race in shared memory");
        if (write) users.writer = me;
        if (!write) users.reader = read ? kMany : me;
    }
    return true;
}

bool Warp::may_use_global(Instruction const& at, int lane, Address address, unsigned bytes,
                          bool write) {
    Machine& machine = *block->machine;
    if (address % bytes != 0) machine.complain(at, "misaligned in global memory");
    if (!waited) machine.complain(at, "global memory before griddepcontrol.wait");
    auto const tensor = tensors.upper_bound(address);
    bool const known = tensor != tensors.end() && address >= tensor->second.begin &&
                       address + bytes <= tensor->first;
    if (!known) {
        bool const wrong = !tensors.empty() ||
                           (__asan_region_is_poisoned != nullptr &&
                            __asan_region_is_poisoned(reinterpret_cast<void*>(address), bytes));
        if (wrong) machine.complain(at, "beyond every tensor");
        return !wrong;
    }
    auto const me = (machine.first_block + block->rank) * machine.launch.threads +
                    static_cast<std::uint32_t>(first_thread + lane + 1);
    for (unsigned i = 0; i < bytes; ++i) {
        std::uint32_t& writer = tensor->second.writers[address - tensor->second.begin + i];
        if (writer != 0 && writer != me) {
            machine.complain(at, "another thread has written this byte");
        }
        if (write) writer = me;
    }
    return true;
}

Mailbox* Warp::mailbox(Instruction const& at, Address address) {
    auto const box = block->boxes.find(static_cast<std::uint32_t>(address));
    if (box != block->boxes.end()) return &box->second;
    block->machine->complain(at, "no mbarrier is open here");
    return nullptr;
}

void Machine::end_phase(Mailbox& box) {
    if (box.pending != 0 || box.bytes != 0) return;
    ++box.phase;
    box.pending = box.expected;
}

void Machine::deliver(std::size_t which) {
    Message const message = messages[which];
    messages[which] = messages.back();
    messages.pop_back();
    Block& to = blocks.at(message.block);
    auto const box = to.boxes.find(message.box);
    if (to.left == 0 || box == to.boxes.end() || message.slot + 4 > to.shared.size()) {
        complaints.insert("a message to a block that has ended, or to no mbarrier, in " +
                          launch.program->name);
        return;
    }
    std::memcpy(&to.shared[message.slot], &message.word, 4);
    box->second.bytes -= 4;
    end_phase(box->second);
}

// Runs an instruction that concerns more than the lanes of this warp: `lanes` of `all` that are at
// the same place. False when the warp has to wait.
bool Machine::control(Warp& warp, Instruction const& at, int place, Lanes all, Lanes lanes) {
    set(warp, all, place + 1);
    bool const whole = lanes == warp.alive;
    switch (at.control) {
        case Control::kBranch: set(warp, lanes, at.target); return true;
        case Control::kEnd: warp.alive &= ~lanes; return true;
        case Control::kPoll: (*at.operation)(warp, at, lanes); return false;
        case Control::kShuffle: {
            if (!whole || lanes != ~0U) complain(at, "not by all lanes");
            Register const from = warp.registers[at.operands[2].at];
            for (int i = 0; i < kLanes; ++i) {
                auto const distance = warp.get<std::uint32_t>(at.operands[3].at, i);
                warp.put(at.operands[0].at, i, from.lane[(i ^ distance) % kLanes]);
            }
            return true;
        }
        case Control::kBarrier: {
            if (lanes != ~0U) complain(at, "not by all lanes");
            Block& block = *warp.block;
            warp.epoch = block.epoch;
            if (++block.arrived < block.warps) {
                warp.state = State::kAtBarrier;
                return false;
            }
            block.arrived = 0;
            ++block.epoch;
            return true;
        }
        case Control::kArrive:
            if (lanes != ~0U || warp.arrived) complain(at, "not by all lanes, or twice");
            warp.arrived = true;
            warp.round = round;
            if (++arrived == warps.size()) {
                arrived = 0;
                ++round;
            }
            return true;
        case Control::kWait:
            if (lanes != ~0U || !warp.arrived) complain(at, "not by all lanes, or before arriving");
            warp.arrived = false;
            if (warp.round == round) warp.state = State::kAtCluster;
            return warp.round != round;
        default:
            if (lanes != ~0U) complain(at, "not by all lanes");
            return true;
    }
}

// Up to `budget` instructions: those of the lanes that are farthest behind, until they meet others.
void Machine::run(Warp& warp, int budget) {
    auto const& code = launch.program->instructions;
    while (budget > 0 && warp.alive != 0) {
        int place = static_cast<int>(code.size());
        int meeting = place;
        for (int i = 0; i < kLanes; ++i) {
            if (!(warp.alive >> i & 1) || warp.at[i] == place) continue;
            if (warp.at[i] < place) {
                meeting = place;
                place = warp.at[i];
            } else {
                meeting = std::min(meeting, warp.at[i]);
            }
        }
        Lanes all = 0;
        for (int i = 0; i < kLanes; ++i) {
            if (warp.alive >> i & 1 && warp.at[i] == place) all |= Lanes{1} << i;
        }
        for (bool straight = true; straight && place < meeting; ++place) {
            if (static_cast<std::size_t>(place) >= code.size()) {
                complaints.insert("the end is passed in " + launch.program->name);
                warp.alive = 0;
                break;
            }
            Instruction const& at = code[static_cast<std::size_t>(place)];
            Lanes lanes = all;
            if (at.guard >= 0) {
                lanes &= at.negated ? ~warp.true_lanes(at.guard) : warp.true_lanes(at.guard);
            }
            ++instructions;
            straight = --budget > 0;
            if (at.control == Control::kNone) {
                if (lanes != 0) (*at.operation)(warp, at, lanes);
            } else if (lanes != 0) {
                if (!control(warp, at, place, all, lanes)) return;
                bool const on = at.control != Control::kBranch && at.control != Control::kEnd;
                straight = straight && on;
                if (!on) break;
            }
            if (!straight || place + 1 >= meeting) set(warp, all, place + 1);
        }
    }
    if (warp.alive == 0) {
        warp.state = State::kDone;
        --warp.block->left;
    }
}

void Machine::wake(Warp& warp) {
    bool const block_met = warp.state == State::kAtBarrier && warp.epoch != warp.block->epoch;
    bool const cluster_met = warp.state == State::kAtCluster && warp.round != round;
    if (block_met || cluster_met) warp.state = State::kReady;
}

// One that can run, any of them.
Warp* Machine::next_warp() {
    std::size_t const start = random() % warps.size();
    for (std::size_t i = 0; i < warps.size(); ++i) {
        Warp& warp = warps[(start + i) % warps.size()];
        wake(warp);
        if (warp.state == State::kReady) return &warp;
    }
    return nullptr;
}

void Machine::run() {
    auto const done = [](Block const& block) { return block.left == 0; };
    while (!std::all_of(blocks.begin(), blocks.end(), done)) {
        while (!messages.empty() && random() % 2 == 0) deliver(random() % messages.size());
        Warp* const warp = next_warp();
        if (warp != nullptr) {
            int const budgets[] = {40, 400, 5000, 5000};
            run(*warp, 1 + static_cast<int>(random() % budgets[random() % 4]));
        } else if (!messages.empty()) {
            deliver(random() % messages.size());
        } else {
            complaints.insert("every warp waits in " + launch.program->name);
            return;
        }
        if (instructions > kTooMany) {
            complaints.insert("no end comes in " + launch.program->name);
            return;
        }
    }
    while (!messages.empty()) deliver(0);
}

namespace {

// What a warp has before its first instruction: constants, its place, and elsewhere a NaN.
void fill(Register* registers, Program const& program, Launch const& launch) {
    for (int i = 0; i < program.registers; ++i) {
        for (auto& word : registers[i].lane) word = 0x7fc12345;
    }
    auto const every = [&](int at, std::uint32_t value) {
        for (auto& word : registers[at].lane) word = value;
    };
    every(kThreads, launch.threads);
    every(kBlocks, launch.blocks);
    for (auto const& [value, at] : program.constants) {
        every(at, static_cast<std::uint32_t>(value));
        every(at + 1, static_cast<std::uint32_t>(value >> 32));
    }
}

void start(Machine& machine, std::vector<Register>& memory) {
    Launch const& launch = machine.launch;
    auto const warps = launch.threads / kLanes;
    machine.blocks.reserve(launch.cluster);
    for (unsigned rank = 0; rank < launch.cluster; ++rank) {
        Block& block = machine.blocks.emplace_back();
        block.machine = &machine;
        block.rank = rank;
        block.shared.assign(launch.shared_bytes, 0xff);
        block.users.resize(launch.shared_bytes / 4 + 1);
        block.warps = block.left = warps;
    }
    for (unsigned i = 0; i < launch.cluster * warps; ++i) {
        Warp& warp = machine.warps.emplace_back();
        warp.block = &machine.blocks[i / warps];
        warp.first_thread = static_cast<int>(i % warps) * kLanes;
        warp.registers = &memory[i * static_cast<std::size_t>(launch.program->registers)];
        warp.waited = !launch.waits;
        for (int lane = 0; lane < kLanes; ++lane) {
            warp.put(kThread, lane, warp.first_thread + lane);
            warp.put(kBlock, lane, machine.first_block + warp.block->rank);
            warp.put(kRank, lane, warp.block->rank);
        }
    }
}

}  // namespace

std::uint64_t run(Launch const& launch, std::set<std::string>& complaints) {
    Program const& program = *launch.program;
    if (launch.threads > program.most_threads || launch.threads % kLanes != 0) {
        complaints.insert("threads that the kernel was not compiled for: " + program.name);
        return 0;
    }
    for (auto& [end, tensor] : tensors) {
        std::fill(tensor.writers.begin(), tensor.writers.end(), 0);
    }
    std::mt19937 random(launch.seed);
    std::vector<Register> memory(static_cast<std::size_t>(program.registers) * launch.cluster *
                                 (launch.threads / kLanes));
    for (std::size_t i = 0; i < memory.size(); i += static_cast<std::size_t>(program.registers)) {
        fill(&memory[i], program, launch);
    }
    std::vector<unsigned> order(launch.blocks / launch.cluster);
    for (unsigned i = 0; i < order.size(); ++i) order[i] = i * launch.cluster;
    std::shuffle(order.begin(), order.end(), random);
    std::uint64_t instructions = 0;
    for (unsigned const first : order) {
        if (!complaints.empty()) break;
        Machine machine{launch, complaints, random};
        machine.first_block = first;
        start(machine, memory);
        machine.run();
        instructions += machine.instructions;
    }
    return instructions;
}

}  // namespace ptx
