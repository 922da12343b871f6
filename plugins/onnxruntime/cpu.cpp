// The nodes of ONNX Runtime's CPU provider: rows shared out among its threads.
#include <array>
#include <cstdlib>
#include <memory>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "operator.h"
#include "work.h"

namespace rmsnorm_export::onnxruntime {
namespace {

// Elements for which wider vectors gain less than a lower clock takes.
constexpr std::size_t kShort = 16384;

// Bytes of all tensors of a call from which y passes the caches by: no longer there when it is read, it is
// written in half the time where its lines are not read first. Those of the largest cache, or what
// RMSNORM_EXPORT_STREAM says. The next reader included, a Zen 3 with 32 MiB took a twentieth to a tenth
// less so for half types, for f32 up to a third; from half as many for f32 as well, as others used the
// cache too, but on a quieter day that was slower.
std::size_t streamed_from() {
    if (const char* bytes = std::getenv("RMSNORM_EXPORT_STREAM")) {
        return std::strtoull(bytes, nullptr, 10);
    }
    std::size_t largest = 0;
#if defined(__x86_64__)
    for (const unsigned leaf : {4U, 0x8000001dU}) {  // of Intel and of AMD, in the same form
        unsigned kind = 0, lines = 0, sets = 0, more = 0;
        for (unsigned i = 0; __get_cpuid_count(leaf, i, &kind, &lines, &sets, &more); ++i) {
            if ((kind & 31U) == 0) break;
            std::size_t bytes = std::size_t{sets} + 1;
            for (const unsigned times : {lines & 4095U, lines >> 12 & 1023U, lines >> 22}) {
                bytes *= times + 1;
            }
            largest = std::max(largest, bytes);
        }
    }
#endif
    return largest ? largest : SIZE_MAX;
}

// Bytes of all tensors of a call from which they are fetched ahead. Smaller ones are still in the caches
// where the node before made them, and to fetch those again takes time: on a Zen 3 of which each core
// has 512 KiB, up to a fifth. There 9 MiB took up to a quarter less so, 6 MiB as long.
constexpr std::size_t kFetched = std::size_t{6} << 20;

// Elements from which a table of activations is worth its way into the caches.
constexpr std::size_t kLookedUp = 65536;

// That table, made when it is first needed, and kept.
template <Type x, bool sigmoid>
const float* activations() {
    static const float* const table = [] {
        Norm norm;
        norm.x = x;
        norm.sigmoid = sigmoid;
        auto* const entries = new float[std::size_t{1} << 16];
        kernels().activations(norm, entries);
        return entries;
    }();
    return table;
}
const float* activations(const Norm& norm) {
    if (norm.x == kHalf) {
        return norm.sigmoid ? activations<kHalf, true>() : activations<kHalf, false>();
    }
    return norm.sigmoid ? activations<kBfloat, true>() : activations<kBfloat, false>();
}

class CpuOperator final : public Operator {
public:
    CpuOperator(const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x)
        : Operator(api, info, kind, x) {
        for (std::size_t which = 0; which < 2; ++which) {
            Tensor& given = weights_[which] = constant(info, required() + which);
            if (!given.present) continue;
            const std::size_t n = Sizes(given.shape).elements();
            held_[which].resize(n * operand_bytes());
            kernels().operand(norm_, given.type, given.data, n,
                              which == 0 ? norm_.scale_offset : 0.0F, held_[which].data());
            given.data = held_[which].data();
        }
    }

private:
    std::size_t lane() const { return norm_.wide() ? sizeof(double) : sizeof(float); }
    std::size_t operand_bytes() const { return lane() + kBytes[kBfloat]; }

    void run(OrtKernelContext* context, const Call& call) const override {
        Norm without_scale;
        const bool changed = norm_.association && !call.scale->present;
        if (changed) {
            without_scale = norm_;
            without_scale.association = 0;
        }
        const Norm& norm = changed ? without_scale : norm_;
        Rows rows;
        rows.norm = &norm;
        rows.x = call.x.data;
        rows.second = call.second.data;
        rows.y = call.y;
        rows.sum = call.sum;
        // Of these, kernels of any vectors give the same but for the order of a sum in f64.
        const bool alike = norm.kind <= Kind::kSkipRMSNorm && norm.x == kFloat && norm.stash == kFloat;
        const Kernels& kernels = onnxruntime::kernels(alike && call.elements <= kShort);
        const std::size_t n = call.n;
        std::unique_ptr<char[]> held[3];
        const auto operand = [&](const Tensor& tensor, float offset, int which) -> const void* {
            if (!tensor.present || weights_[which].present) return tensor.data;
            const Type lanes = norm.wide() ? kDouble : kFloat;
            if (tensor.type == lanes && norm.product() == lanes && offset == 0) return tensor.data;
            held[which].reset(new char[n * operand_bytes()]);
            kernels.operand(norm, tensor.type, tensor.data, n, offset, held[which].get());
            return held[which].get();
        };
        rows.factor = operand(*call.scale, norm.scale_offset, 0);
        rows.bias = operand(*call.bias, 0.0F, 1);
        rows.segment = norm.group_size ? static_cast<std::size_t>(norm.group_size) : n;
        rows.summed = norm.partial_size ? static_cast<std::size_t>(norm.partial_size) : rows.segment;
        rows.per_row = norm.group_size ? n / rows.segment : 1;
        rows.segments = call.rows * rows.per_row;

        const bool rotary = norm.kind == Kind::kRotaryRMSNorm;
        const Tables tables = rotary ? turning(call) : Tables();
        const bool coded = norm.codes != Codes::kNone;
        const auto* step = static_cast<const float*>(call.step.data);
        const Encoder encoder{norm, kernels,
                              coded ? static_cast<std::size_t>(call.x.shape.end()[-1]) : 1,
                              step ? *step : 1.0F, static_cast<std::uint8_t*>(call.y), call.scales};
        static const std::size_t large = streamed_from();
        const bool read_again = rotary || coded || call.inner > 1;
        const std::size_t tensors = 2 + (rows.second != nullptr) + (rows.sum != nullptr);
        const std::size_t bytes = tensors * call.elements * kBytes[norm.x];
        rows.fetched = bytes >= std::min(kFetched, large);
        rows.streamed = !read_again && bytes >= large;
        const bool looked_up = norm.stash == kFloat && kernels.looked_up >> norm.x & 1U;
        if (looked_up && norm.kind == Kind::kGatedRMSNorm && call.elements >= kLookedUp) {
            rows.activations = activations(norm);
        }
        // Rows that lie apart are not those of the codes: the norm is kept whole in between.
        if (coded && call.inner > 1) held[2].reset(new char[call.elements * kBytes[norm.x]]);
        if (held[2]) rows.y = held[2].get();
        Work work(kernels, rows, call.inner, kBytes[norm.x], lane(),
                  rotary ? &tables : nullptr, coded && !held[2] ? &encoder : nullptr);
        in_parallel(context, work, work.tasks());
        if (held[2]) encoder.apply(held[2].get(), 0, call.elements / encoder.row);
        if (work.failed) refuse("there is no memory for a row", "free some memory");
    }

    void fill_ones(OrtKernelContext*, float* scales, std::size_t count) const override {
        std::fill_n(scales, count, 1.0F);
    }

    void in_parallel(OrtKernelContext* context, Work& work, std::size_t tasks) const {
        if (tasks == 1) return work.task(0);
        const auto task = [](void* data, std::size_t i) { static_cast<Work*>(data)->task(i); };
        check(api_.KernelContext_ParallelFor(context, task, tasks, 0, &work));
    }

    Tables turning(const Call& call) const {
        const Sizes x(call.x.shape), table(call.cos.shape);
        Tables made({x.first, x.last - 1}, {table.first, table.last - 1});
        made.cos = static_cast<const char*>(call.cos.data);
        made.sin = static_cast<const char*>(call.sin.data);
        made.row_bytes = call.width * kBytes[call.cos.type];
        made.turn = {norm_.x, call.cos.type, call.turned, call.width != call.turned,
                     norm_.rotary_interleaved};
        return made;
    }

    std::vector<char> held_[2];  // constant weights, in lanes
};

}  // namespace

const Kernels& kernels(bool small) {
    static const std::array<const Kernels*, 2> chosen = [] {
        const Kernels* usable[] = {kAvx512, kAvx2, kNeon, kPortable};
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))) {
            usable[0] = nullptr;
        }
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi"))) {
            usable[0] = usable[1] = nullptr;
        }
#endif
        const char* wanted = std::getenv("RMSNORM_EXPORT_ISA");
        const Kernels *first = nullptr, *second = nullptr;
        for (const Kernels* each : usable) {
            if (!each) continue;
            if (wanted && each->name == std::string(wanted)) return std::array{each, each};
            if (!first) first = each;
            if (!second && each != kAvx512) second = each;
        }
        return std::array{first, second};
    }();
    return *chosen[small];
}

Provider cpu() {
    return {nullptr, {kFloat, kHalf, kBfloat, kDouble},
            [](const OrtApi* api, const OrtKernelInfo* info, Kind kind, Type x) -> Operator* {
                return new CpuOperator(api, info, kind, x);
            }};
}

}  // namespace rmsnorm_export::onnxruntime
