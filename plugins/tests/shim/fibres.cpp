// The fibres behind shim.h, and the calls of the CUDA runtime that a launch makes. The blocks of a
// cluster run together, the clusters of a grid one after the other. Compiled without sanitizers: the
// memory of the kernels is touched in shim.h alone.

#include "fibres.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "shim.h"
#include "task.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace shim {

Settings settings;
Launched launched;

namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr int kWarp = 32;

struct Barrier {
    unsigned expected{0};
    unsigned arrived{0};
    unsigned generation{0};
};

struct Warp {
    Barrier barrier;
    std::uint32_t values[2][kWarp];  // of this exchange and of the one before
};

struct Block {
    std::vector<Warp> warps;
    Barrier barrier;
    unsigned index;  // in the grid
    unsigned rank;   // in the cluster
    unsigned char* shared;
};

struct Fibre {
    void* registers[5]{};
    ucontext_t entry{};
    std::unique_ptr<char[]> stack;
    unsigned thread{0};
    Block* block{nullptr};
    Barrier const* waits_at{nullptr};
    unsigned generation{0};  // of that barrier, when it began to wait
    bool entered{false};
    bool done{false};

    bool ready() const {
        return !done && (waits_at == nullptr || waits_at->generation != generation);
    }
};

using Kernel = void (*)(rmsnorm_export::Task);

// An mbarrier: a round ends when a thread has said how many words come, and all are there.
struct Box {
    Barrier rounds;
    bool expected{false};
    int missing{0};
};

struct Cluster {
    std::vector<Block> blocks;
    Barrier barrier;
    std::map<void const*, Box> boxes;
};

void* scheduler[5];
Fibre* running = nullptr;
Cluster* cluster = nullptr;
Kernel kernel = nullptr;
rmsnorm_export::Task const* argument = nullptr;

[[noreturn]] void fail(char const* what) {
    std::fprintf(stderr, "shim: %s\n", what);
    std::abort();
}

// GCC's own jumps, because swapcontext makes two system calls each way. A jump must not be in the
// function that it returns to.
[[gnu::noipa]] void jump(void** to) { __builtin_longjmp(to, 1); }

[[gnu::noipa]] void switch_registers(void** from, void** to) {
    if (__builtin_setjmp(from) == 0) jump(to);
}

[[gnu::noipa]] void enter_context(void** from, ucontext_t const* to) {
    if (__builtin_setjmp(from) == 0) setcontext(to);
}

void yield() { switch_registers(running->registers, scheduler); }

void wait(Barrier& barrier) {
    running->waits_at = &barrier;
    running->generation = barrier.generation;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        ++barrier.generation;
    } else {
        yield();
    }
}

// What a fibre does, from its first launch to its last.
void live() {
    for (;;) {
        kernel(*argument);
        running->done = true;
        yield();
    }
}

void start(Fibre& fibre, Block* block, unsigned thread) {
    fibre.thread = thread;
    fibre.block = block;
    fibre.waits_at = nullptr;
    fibre.done = false;
}

void resume(Fibre& fibre) {
    running = &fibre;
    threadIdx.x = fibre.thread;
    blockIdx.x = fibre.block->index;
    if (fibre.entered) {
        switch_registers(scheduler, fibre.registers);
    } else {
        fibre.entered = true;
        getcontext(&fibre.entry);
        fibre.entry.uc_stack.ss_sp = fibre.stack.get();
        fibre.entry.uc_stack.ss_size = kStackBytes;
        fibre.entry.uc_link = nullptr;
        makecontext(&fibre.entry, live, 0);
        enter_context(scheduler, &fibre.entry);
    }
}

// A deque, for a fibre may not move.
std::deque<Fibre>& pool(std::size_t at_least) {
    static std::deque<Fibre> fibres;
    while (fibres.size() < at_least) {
        fibres.emplace_back();
        fibres.back().stack.reset(new char[kStackBytes]);
    }
    return fibres;
}

void run_cluster(cudaLaunchConfig_t const& config, unsigned first_block, unsigned blocks) {
    unsigned const threads = config.blockDim.x;
    Cluster together;
    together.blocks.resize(blocks);
    together.barrier.expected = blocks * threads;
    cluster = &together;
    std::deque<Fibre>& fibres = pool(blocks * threads);
    for (unsigned b = 0; b < blocks; ++b) {
        Block& block = together.blocks[b];
        block.index = first_block + b;
        block.rank = b;
        block.barrier.expected = threads;
        block.warps.resize(threads / kWarp);
        for (Warp& warp : block.warps) warp.barrier.expected = kWarp;
        // Exactly as large as asked for, and full of NaN: what is read was written before.
        block.shared = static_cast<unsigned char*>(std::malloc(config.dynamicSmemBytes));
        std::memset(block.shared, 0xff, config.dynamicSmemBytes);
        for (unsigned t = 0; t < threads; ++t) {
            start(fibres[b * threads + t], &block, t);
        }
    }
    // A warp runs as far ahead of the others as barriers let it: what it then overwrites too early,
    // the others find.
    unsigned const warps = blocks * threads / kWarp;
    for (unsigned left = blocks * threads; left > 0;) {
        unsigned ran = 0;
        for (unsigned w = 0; w < warps; ++w) {
            unsigned const warp = settings.backwards ? warps - 1 - w : w;
            for (unsigned since = 0, lane = 0; since < kWarp; lane = (lane + 1) % kWarp, ++since) {
                Fibre& fibre = fibres[warp * kWarp + lane];
                if (!fibre.ready()) continue;
                resume(fibre);
                if (fibre.done) --left;
                ++ran;
                since = 0;
            }
        }
        if (ran == 0) fail("deadlock: not every thread reached a barrier");
    }
    for (Block const& block : together.blocks) std::free(block.shared);
}

}  // namespace

namespace {

Box& box_at(void const* at) {
    auto const found = cluster->boxes.find(at);
    if (found == cluster->boxes.end()) fail("a mailbox is used before it is open");
    return found->second;
}

void change(Box& box, int missing) {
    box.missing += missing;
    if (!box.expected || box.missing != 0) return;
    box.expected = false;
    ++box.rounds.generation;
}

}  // namespace

void open_box(void* box) {
    if (!cluster->boxes.emplace(box, Box{}).second) fail("a mailbox is opened twice");
}

void expect_words(void* box, int words) {
    Box& there = box_at(box);
    if (there.expected) fail("two rounds of a mailbox at once");
    there.expected = true;
    change(there, words);
}

void* place_of(void* own, unsigned rank) {
    std::ptrdiff_t const offset = static_cast<unsigned char*>(own) - running->block->shared;
    return cluster->blocks.at(rank).shared + offset;
}

void word_came(void* box) { change(box_at(box), -1); }

void wait_for_box(void* box, unsigned parity) {
    Barrier const& rounds = box_at(box).rounds;
    if (rounds.generation % 2 != parity) return;
    running->waits_at = &rounds;
    running->generation = rounds.generation;
    yield();
}

void sync_block() { wait(running->block->barrier); }
void sync_cluster() { wait(cluster->barrier); }
unsigned char* shared_bytes() { return running->block->shared; }
unsigned cluster_rank() { return running->block->rank; }

std::uint32_t exchange(std::uint32_t value, int partner_mask) {
    unsigned const thread = running->thread;
    Warp& warp = running->block->warps[thread / kWarp];
    unsigned const lane = thread % kWarp;
    // Who writes here again has passed the next exchange, and so has every reader this one.
    std::uint32_t* const values = warp.values[warp.barrier.generation % 2];
    values[lane] = value;
    wait(warp.barrier);
    return values[lane ^ static_cast<unsigned>(partner_mask)];
}

}  // namespace shim

extern "C" {

// What was found out about a device is kept, so other settings are another device.
cudaError_t cudaGetDevice(int* device) {
    shim::Settings const& now = shim::settings;
    *device = now.sm + 1000 * (now.compiled_for + 1000 * now.most_cluster);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    ++shim::launched.queries;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = shim::settings.sm / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = shim::settings.sm % 10; break;
        case cudaDevAttrMultiProcessorCount: *value = shim::settings.processors; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(rmsnorm_export::most_shared(shim::settings.sm));
            break;
        default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const*, int threads,
                                                          std::size_t shared) {
    ++shim::launched.queries;
    // The system keeps a kilobyte of each block.
    auto const room = static_cast<std::size_t>(rmsnorm_export::most_shared(shim::settings.sm)) + 1024;
    *blocks = std::min(2048 / threads, static_cast<int>(room / (shared + 1024)));
    return cudaSuccess;
}

// Of a config whose grid is one cluster.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void const* entry,
                                           cudaLaunchConfig_t const* config) {
    cudaError_t const status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        clusters, entry, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes);
    int const blocks = *clusters * shim::settings.processors;
    int const wanted = static_cast<int>(config->gridDim.x);
    *clusters = wanted <= shim::settings.most_cluster ? blocks / wanted : 0;
    return status;
}

char const* cudaGetErrorString(cudaError_t) { return "of the shim"; }

cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) {
    ++shim::launched.queries;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const*) {
    ++shim::launched.queries;
    attributes->ptxVersion = shim::settings.compiled_for;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* function,
                                void** arguments) {
    unsigned blocks = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        cudaLaunchAttribute const& given = config->attrs[i];
        if (given.id == cudaLaunchAttributeClusterDimension) blocks = given.val.clusterDim.x;
    }
    if (config->blockDim.x == 0 || config->blockDim.x % shim::kWarp != 0 ||
        config->blockDim.x > 1024 || config->gridDim.x == 0 || config->gridDim.x % blocks != 0) {
        return cudaErrorInvalidConfiguration;
    }
    shim::launched = {config->gridDim.x, config->blockDim.x, blocks, shim::launched.queries};
    blockDim = config->blockDim;
    gridDim = config->gridDim;
    shim::kernel = reinterpret_cast<shim::Kernel>(const_cast<void*>(function));
    shim::argument = static_cast<rmsnorm_export::Task const*>(arguments[0]);
    for (unsigned first = 0; first < config->gridDim.x; first += blocks) {
        shim::run_cluster(*config, first, blocks);
    }
    return cudaSuccess;
}

}  // extern "C"
