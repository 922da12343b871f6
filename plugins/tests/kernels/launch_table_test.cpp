// Every row length that a kernel of whole vectors can get, on every architecture: threads that cover
// the row, in shared memory that is there. Prints what is wrong; says nothing when nothing is.

#include "launch_table.h"

#include <cstdio>
#include <initializer_list>

namespace {

using namespace rmsnorm_export;

// The choice needs nothing but its arguments: it can be made while compiling.
static_assert(choose(256, 1, 90, 16).lanes == 8);
static_assert(choose(64 * kKilobyte, 1, 90, 16).cluster == 8);
static_assert(choose_hot(512, 16).lanes == 16);
static_assert(choose_hot(4 * kKilobyte, 16).lanes == 128);
static_assert(choose_hot(8 * kKilobyte, 16).lanes == 128);
static_assert(choose_hot(128 * kKilobyte, 16).cluster == 16);
static_assert(choose_hot(33 * kKilobyte, 1).threads == 0);
static_assert(choose_rotary(kKilobyte, true).lanes == 32);
static_assert(choose_rotary(160, false).rows == 1);
static_assert(choose_rotary(kKilobyte + 32, true).threads == 0);

constexpr std::int64_t kLongest = 4 * 1024 * kKilobyte;  // kMaxRow of f32

int wrong = 0;

// Shared memory that a block may ask for (CUDA C++ Programming Guide, compute capabilities).
int shared_of(int sm) {
    if (sm >= 90 && sm < 120) return 227 * 1024;
    return sm == 75 ? 64 * 1024 : sm == 80 || sm == 87 ? 163 * 1024 : 99 * 1024;
}

void test(bool hot, int inputs, int sm, int most) {
    Choice before{};
    for (std::int64_t bytes = 16; bytes <= kLongest; bytes += 16) {
        auto const must = [&](bool holds, char const* what) {
            if (holds || ++wrong >= 20) return;
            std::printf("%s%s: %lld bytes, %d inputs, sm_%d\n", hot ? "hot, " : "", what,
                        static_cast<long long>(bytes), inputs, sm);
        };
        Choice const choice = hot ? choose_hot(bytes, most) : choose(bytes, inputs, sm, most);
        if (hot && choice.threads == 0) {
            must(bytes > most * 32 * kKilobyte, "a row that fits");
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
            must(choice.vectors == 2 || choice.vectors == 4, "no such kernel");
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
        for (int const variant : {0, 1, 2, 3}) {
            for (int most = most_cluster(sm); most > 0; most /= most == 16 ? 2 : 8) {
                test(variant & 1, 1 + (variant >> 1), sm, most);
            }
        }
    }
    return wrong == 0 ? 0 : 1;
}
