// Runs norms for the Python tests: one job after the other from standard input, each numbers of 64
// bits and a Problem (see `read_job`) and its tensors; the answer goes to standard output.
//
// Every tensor lies between guards that are compared after the launch, `misaligned` elements away
// from a 256-byte boundary. Where the memory is, driver_memory.h says: that of plugins/tests/ptx for
// the interpreter, that of plugins/tests/gpu for a GPU.

#include <driver_memory.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "rmsnorm.h"

namespace {

using namespace rmsnorm_export;

void read_bytes(void* to, std::size_t bytes) {
    if (std::fread(to, 1, bytes, stdin) != bytes) std::exit(2);
}

void write_bytes(void const* from, std::size_t bytes) { std::fwrite(from, 1, bytes, stdout); }

std::size_t size_of(Type type) {
    switch (type) {
        case Type::kF32: return 4;
        case Type::kF16:
        case Type::kBF16: return 2;
        default: return 1;
    }
}

template <typename V>
V next() {
    std::int64_t value = 0;
    if (std::fread(&value, sizeof value, 1, stdin) != 1) std::exit(0);
    return static_cast<V>(value);
}

struct Job {
    Problem problem;
    std::int64_t rows;
    Tactic tactic;
    std::size_t misaligned;
    bool has_sum;
    std::vector<std::int64_t> axes[2];  // of x and of the tables, before the last
};

Job read_job() {
    Job job{};
    if (next<std::size_t>() != sizeof job.problem) std::exit(2);
    job.rows = next<std::int64_t>();
    job.tactic = next<Tactic>();
    job.misaligned = next<std::size_t>();
    job.has_sum = next<bool>();
    settings.sm = next<int>();
    settings.compiled_for = next<int>();
    settings.most_cluster = next<int>();
    settings.context = next<int>();
    settings.schedule = next<unsigned>();
    for (auto& axes : job.axes) {
        axes.resize(next<std::size_t>());
        for (auto& size : axes) size = next<std::int64_t>();
    }
    read_bytes(&job.problem, sizeof job.problem);
    return job;
}

// The tensors of a job that can be launched; the inputs come in this order.
void run(Job const& job) {
    Problem const& problem = job.problem;
    enter_context(settings.context);
    std::size_t const row = static_cast<std::size_t>(problem.n);
    std::size_t const all = row * static_cast<std::size_t>(job.rows);
    std::size_t const x_size = size_of(problem.x);
    Kind const kind = problem.norm.kind;
    bool const skip = kind == Kind::kSkipRMSNorm;
    bool const second = skip || kind == Kind::kGatedRMSNorm;
    std::size_t const off = job.misaligned;
    Tensor x(all * x_size, off * x_size);
    Tensor other(second ? all * x_size : 0, off * x_size);
    Tensor scale(problem.has_scale ? row * size_of(problem.scale) : 0, off * size_of(problem.scale));
    Tensor bias(problem.has_bias ? row * size_of(problem.bias) : 0, off * size_of(problem.bias));
    Tensor quant_scale(problem.quantize == Quantize::kStatic ? 4 : 0, 0);
    std::size_t table = kind == Kind::kRotaryRMSNorm ? size_of(problem.table) : 0;
    for (std::int64_t const size : job.axes[1]) table *= static_cast<std::size_t>(size);
    table *= static_cast<std::size_t>(problem.table_width);
    Tensor cos(table, off * size_of(problem.table));
    Tensor sin(table, off * size_of(problem.table));
    Tensor y(all * size_of(problem.y), off * size_of(problem.y));
    Tensor sum(skip && job.has_sum ? all * x_size : 0, off * x_size);
    std::size_t const scales = problem.quantize == Quantize::kPerRow ? 4 * job.rows : 0;
    Tensor row_scale(scales, 0);

    for (Tensor* input : {&x, &other, &scale, &bias, &quant_scale, &cos, &sin}) {
        if (input->bytes() > 0) read_bytes(input->data(), input->bytes());
    }
    std::vector<Tensor*> const tensors{&x,   &other, &scale,     &bias, &cos,
                                       &sin, &y,     &sum,       &row_scale, &quant_scale};
    for (Tensor* tensor : tensors) tensor->before_launch();
    Pointers pointers;
    pointers.x = x.address();
    pointers.other = other.address();
    pointers.scale = scale.address();
    pointers.bias = bias.address();
    pointers.quant_scale = reinterpret_cast<float const*>(quant_scale.address());
    pointers.y = y.address();
    if (job.has_sum) pointers.sum = sum.address();
    pointers.row_scale = row_scale.address();
    pointers.cos = cos.address();
    pointers.sin = sin.address();
    launched = {};
    cudaError_t status = launch(problem, pointers, job.rows, job.tactic, nullptr);
    if (status == cudaSuccess) status = finish();
    bool intact = true;
    for (Tensor* tensor : tensors) {
        tensor->after_launch();
        intact = intact && tensor->guards_intact();
    }
    Launched const& how = launched;
    std::printf("%d %d %u %u %u %u %u %llu\n%s\n", static_cast<int>(status), intact ? 1 : 0,
                how.blocks, how.threads, how.cluster, how.queries, how.at_once, how.instructions,
                status == cudaSuccess ? how.kernel : cudaGetErrorString(status));
    for (Tensor* output : {&y, &sum, &row_scale}) {
        if (output->bytes() > 0) write_bytes(output->data(), output->bytes());
    }
}

}  // namespace

int main() {
    for (;;) {
        Job job = read_job();
        auto const& [of_x, of_table] = job.axes;
        char const* reason = broadcast_tables(
            job.problem, of_x.data(), static_cast<std::int32_t>(of_x.size()), of_table.data(),
            static_cast<std::int32_t>(of_table.size()));
        if (reason == nullptr) reason = refusal(job.problem);
        std::printf("%s\n", reason == nullptr ? "" : reason);
        std::fflush(stdout);  // the tensors come after the answer
        if (reason == nullptr) run(job);
        std::fflush(stdout);
    }
}
