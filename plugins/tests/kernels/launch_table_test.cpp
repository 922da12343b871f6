// Every row length that a kernel of whole vectors can get, on every architecture: threads that cover
// the row, in shared memory that is there. Prints what is wrong; says nothing when nothing is.

#include "launch_table.h"

#include <cstdio>
#include <initializer_list>

namespace {

using namespace rmsnorm_export;

// The choice needs nothing but its arguments: it can be made while compiling.
static_assert(choose(256, 1, 90, 16, false).lanes == 4);
static_assert(choose(256, 1, 90, 16, true).lanes == 16);
static_assert(choose(64 * kKilobyte, 1, 90, 16, false).cluster == 2);
static_assert(choose_hot(512, 1, 90, 16, false).lanes == 4);
static_assert(choose_hot(128 * kKilobyte, 1, 90, 16, false).cluster == 8);
static_assert(choose_hot(128 * kKilobyte, 1, 89, 1, false).threads == 0);
static_assert(choose_rotary(kKilobyte, false).lanes == 32);
static_assert(choose_rotary(160, true).rows == 1);
static_assert(choose_rotary(kKilobyte + 32, false).threads == 0);

constexpr std::int64_t kLongest = 4 * 1024 * kKilobyte;  // kMaxRow of f32

int wrong = 0;

// Shared memory that a block may ask for (CUDA C++ Programming Guide, compute capabilities).
int shared_of(int sm) {
    if (sm >= 90 && sm < 120) return 227 * 1024;
    return sm == 75 ? 64 * 1024 : sm == 80 || sm == 87 ? 163 * 1024 : 99 * 1024;
}

void test(bool hot, int inputs, int sm, int most, bool latency) {
    Choice before{};
    for (std::int64_t bytes = 16; bytes <= kLongest; bytes += 16) {
        auto const must = [&](bool holds, char const* what) {
            if (holds || ++wrong >= 20) return;
            std::printf("%s%s: %lld bytes, %d inputs, sm_%d%s\n", hot ? "hot, " : "", what,
                        static_cast<long long>(bytes), inputs, sm, latency ? ", latency" : "");
        };
        Choice const choice = hot ? choose_hot(bytes, inputs, sm, most, latency)
                                  : choose(bytes, inputs, sm, most, latency);
        if (hot && choice.threads == 0) {
            // 64 KB in registers, and the scale and a second input in shared memory.
            std::int64_t const stage = (shared_of(sm) - 1024) / inputs / 4608 * 4096;
            must(bytes > most * (stage < kHotSlice ? stage : kHotSlice), "a row that fits");
            continue;
        }
        std::int64_t const slice = (bytes / 16 + choice.cluster - 1) / choice.cluster;
        int const teams = choice.threads / choice.lanes;
        bool const shuffles = (choice.lanes & (choice.lanes - 1)) == 0 && choice.lanes <= 32;
        must(choice.threads % 32 == 0 && choice.threads >= 32 && choice.threads <= 512, "threads");
        must(shuffles || (choice.lanes % 32 == 0 && teams == 1), "lanes");
        must(choice.threads % choice.lanes == 0, "part of a row in a block");
        must((choice.cluster & (choice.cluster - 1)) == 0 && choice.cluster <= most, "cluster");
        must(choice.cluster == 1 || (sm >= 90 && sm < 120), "no clusters here");
        must(choice.cluster == 1 || teams == 1, "two slices in a block");
        must(1024 + 16 * choice.staged <= shared_of(sm), "shared memory");
        must(choice.cluster >= before.cluster, "smaller cluster for a longer row");
        if (hot) {
            must(choice.vectors == 4 || (choice.vectors == 8 && choice.staged > 0), "no such kernel");
            must(choice.vectors * std::int64_t{choice.lanes} >= slice, "row not covered");
            must(choice.vectors >= before.vectors, "fewer vectors");
        } else {
            bool const little = inputs * bytes <= kShortBytes;
            must(choice.staged <= slice * teams, "stage longer than its rows");
            must(!little || (choice.cluster == 1 && choice.staged == slice * teams), "short row");
        }
        before = choice;
    }
}

}  // namespace

int main() {
    for (int const sm : {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121}) {
        for (int const variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
            for (int most = most_cluster(sm); most > 0; most /= most == 16 ? 2 : 8) {
                test(variant & 1, 1 + (variant >> 1 & 1), sm, most, variant & 4);
            }
        }
    }
    return wrong == 0 ? 0 : 1;
}
