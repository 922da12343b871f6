// Every row length that the fast kernels can get, on every architecture: a kernel that exists, with
// threads that cover the row. Prints what is wrong; says nothing when nothing is.

#include "launch_table.h"

#include <cstdio>
#include <initializer_list>

namespace {

using namespace rmsnorm_export;

// The choice needs nothing but its arguments: it can be made while compiling.
static_assert(choose(256, 1, 90, 16, false).lanes == 4);
static_assert(choose(256, 1, 90, 16, true).lanes == 16);
static_assert(choose(8 * kKilobyte, 1, 80, 1, false).threads == 128);
static_assert(choose(64 * kKilobyte, 1, 90, 16, false).cluster == 2);
static_assert(choose(64 * kKilobyte, 1, 90, 1, false).cluster == 1);

static_assert(choose_hot(496, 1, 90, 16, false).vectors == 4);
static_assert(choose_hot(512, 1, 90, 16, false).lanes == 4);
static_assert(choose_hot(8 * kKilobyte, 1, 90, 16, false).threads == 64);
static_assert(choose_hot(16 * kKilobyte, 1, 90, 16, false).cluster == 1);
static_assert(choose_hot(32 * kKilobyte, 1, 90, 16, false).threads == 128);
static_assert(choose_hot(128 * kKilobyte, 1, 90, 16, false).cluster == 8);
static_assert(choose_hot(512 * kKilobyte, 2, 90, 16, false).threads == 256);
static_assert(choose_hot(128 * kKilobyte, 1, 89, 1, false).threads == 0);

constexpr std::int64_t kLongest = 4 * 1024 * kKilobyte;  // kMaxRow of f32
constexpr int kArchitectures[] = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

static_assert(choose_rotary(256, false).lanes == 8);
static_assert(choose_rotary(kKilobyte, false).lanes == 32);
static_assert(choose_rotary(160, true).rows == 1);
static_assert(choose_rotary(kKilobyte + 32, false).threads == 0);

int wrong = 0;

void require(bool holds, char const* what, std::int64_t bytes, int inputs, int sm, bool latency) {
    if (holds) return;
    ++wrong;
    if (wrong < 20) {
        std::printf("%s: %lld bytes, %d inputs, sm_%d%s\n", what, static_cast<long long>(bytes),
                    inputs, sm, latency ? ", low latency" : "");
    }
}

// Shared memory that a block may ask for (CUDA C++ Programming Guide, compute capabilities).
int shared_of(int sm) {
    switch (sm) {
        case 75: return 64 * 1024;
        case 80:
        case 87: return 163 * 1024;
        case 90:
        case 100:
        case 103:
        case 110: return 227 * 1024;
        default: return 99 * 1024;
    }
}

void test(int inputs, int sm, int most, bool latency) {
    Choice before{};
    for (std::int64_t bytes = 16; bytes <= kLongest; bytes += 16) {
        auto const must = [&](bool holds, char const* what) {
            require(holds, what, bytes, inputs, sm, latency);
        };
        Choice const choice = choose(bytes, inputs, sm, most, latency);
        std::int64_t const vectors = bytes / 16;
        must(choice.threads % 32 == 0 && choice.threads >= 32 && choice.threads <= 512, "threads");
        bool const shuffles = (choice.lanes & (choice.lanes - 1)) == 0 && choice.lanes <= 32;
        must(shuffles || (choice.lanes % 32 == 0 && choice.lanes == choice.threads), "lanes");
        must(choice.threads % choice.lanes == 0, "part of a row in a block");
        must(1024 + 16 * choice.staged <= shared_of(sm), "shared memory");
        if (inputs * bytes <= kShortBytes) {
            must(choice.cluster == 1, "a cluster for a short row");
            must(choice.staged == vectors * (choice.threads / choice.lanes), "stage");
        } else {
            std::int64_t const slice = (vectors + choice.cluster - 1) / choice.cluster;
            must(choice.cluster == 1 || (sm >= 90 && sm < 120), "no clusters here");
            must((choice.cluster & (choice.cluster - 1)) == 0 && choice.cluster <= most, "cluster");
            must(choice.staged <= slice, "stage longer than its slice");
        }
        if (bytes > 16) {
            must(choice.cluster >= before.cluster, "smaller cluster for a longer row");
            must(choice.lanes >= before.lanes || latency, "fewer lanes");
        }
        before = choice;
    }
}

// The kernels of the usual norms.
void test_hot(int inputs, int sm, int most, bool latency) {
    Choice before{};
    for (std::int64_t bytes = 16; bytes <= kLongest; bytes += 16) {
        auto const must = [&](bool holds, char const* what) {
            require(holds, what, bytes, inputs, sm, latency);
        };
        Choice const choice = choose_hot(bytes, inputs, sm, most, latency);
        bool const clusters = sm >= 90 && sm < 120;
        if (choice.threads == 0) {
            // 64 KB in registers, and the scale and a second input in shared memory.
            std::int64_t const stage = (shared_of(sm) - 1024) / inputs / 4608 * 4096;
            must(bytes > most * (stage < kHotSlice ? stage : kHotSlice), "a row that fits");
            continue;
        }
        std::int64_t const slice = (bytes / 16 + choice.cluster - 1) / choice.cluster;
        must(choice.vectors == 4 || choice.vectors == 8, "no such kernel");
        must(choice.vectors * std::int64_t{choice.lanes} >= slice, "row not covered");
        bool const shuffles = (choice.lanes & (choice.lanes - 1)) == 0 && choice.lanes <= 32;
        must(shuffles || (choice.lanes % 32 == 0 && choice.lanes == choice.threads), "lanes");
        must(choice.threads % 32 == 0 && choice.threads <= kHotThreads, "threads");
        must(choice.threads % choice.lanes == 0, "part of a row in a block");
        must(choice.cluster == 1 || (clusters && choice.vectors == 8), "no clusters here");
        must(choice.cluster == 1 || choice.lanes == choice.threads, "two slices in a block");
        must((choice.cluster & (choice.cluster - 1)) == 0 && choice.cluster <= most, "cluster");
        must(choice.staged == (choice.vectors == 8 ? inputs * kStagePitch * choice.threads : 0), "stage");
        must(1024 + 16 * choice.staged <= shared_of(sm), "shared memory");
        if (bytes > 16) {
            must(choice.cluster >= before.cluster, "smaller cluster for a longer row");
            must(choice.vectors >= before.vectors, "fewer vectors");
        }
        before = choice;
    }
}

}  // namespace

int main() {
    for (int const sm : kArchitectures) {
        for (int const inputs : {1, 2}) {
            for (bool const latency : {false, true}) {
                for (int most = most_cluster(sm); most > 0; most /= most == 16 ? 2 : 8) {
                    test(inputs, sm, most, latency);
                    test_hot(inputs, sm, most, latency);
                }
            }
        }
    }
    return wrong == 0 ? 0 : 1;
}
