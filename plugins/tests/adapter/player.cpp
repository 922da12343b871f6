// Plays TensorRT's builder and runtime to the plugin library: a command on each line of stdin, its
// answer on one line of stdout, after a tab what the plugin logged. tests/plugins/player.py speaks
// to it, and says what a field and a tensor look like.
//
// The adapter's launches come to a recorder (the linker's --wrap), so that the whole Problem, the
// addresses and the rows can be compared.
#include <NvInferRuntime.h>

#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "../../kernels/rmsnorm.h"

using namespace nvinfer1;

extern "C" void setLoggerFinder(ILoggerFinder* finder);
extern "C" IPluginCreatorInterface* const* getCreators(std::int32_t& count);

// The linker's names of the recorder and of what it stands before.
#define LAUNCH "_ZN14rmsnorm_export6launchERKNS_7ProblemERKNS_8PointersElP11CUstream_st"
cudaError_t record(rmsnorm_export::Problem const&, rmsnorm_export::Pointers const&, std::int64_t,
                   cudaStream_t) noexcept __asm__("__wrap_" LAUNCH);
cudaError_t launch_kernels(rmsnorm_export::Problem const&, rmsnorm_export::Pointers const&,
                           std::int64_t, cudaStream_t) noexcept __asm__("__real_" LAUNCH);

namespace {

std::string launched;
int answer = 0;  // of the recorder; -1: that of the kernels
std::string logged;

struct Log final : ILogger {
    void log(Severity severity, char const* message) noexcept override {
        if (severity == Severity::kERROR) logged = message;
    }
};

struct Finder final : ILoggerFinder {
    ILogger* findLogger() override { return &log; }
    Log log;
};

// Without an implementation behind it: every use of it, other than its address, would crash.
struct Expression final : IDimensionExpr {
    Expression() { mImpl = nullptr; }
};

// Knows the constant 1.
struct Constants final : apiv::VExprBuilder {
    using Size = IDimensionExpr const;
    Size* constant(std::int64_t value) override { return value == 1 ? &one : nullptr; }
    Size* operation(DimensionOperation, Size&, Size&) override { return nullptr; }
    Size* declareSizeTensor(std::int32_t, Size&, Size&) override { return nullptr; }
    Expression one;
};

struct Expressions final : IExprBuilder {
    Expressions() { mImpl = &constants; }
    Constants constants;
};

std::vector<std::string> split(std::string const& text, char at) {
    std::vector<std::string> parts;
    std::istringstream stream{text};
    for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
    return parts;
}

// name:type:length:bytes in hexadecimal, exactly as long as they are, or - for none.
struct Fields {
    explicit Fields(std::vector<std::string> const& tokens) {
        for (auto const& token : tokens) {
            auto const parts = split(token + ":", ':');
            auto const hex = parts.size() > 3 ? parts[3] : "";
            names.push_back(parts[0]);
            values.push_back(std::make_unique<char[]>(hex.size() / 2));
            for (std::size_t i = 0; hex != "-" && i + 1 < hex.size(); i += 2) {
                values.back()[i / 2] = static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
            }
            list.emplace_back(nullptr, hex == "-" ? nullptr : values.back().get(),
                              static_cast<PluginFieldType>(std::stoi(parts[1])), std::stoi(parts[2]));
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
            list[i].name = names[i] == "-" ? nullptr : names[i].c_str();
        }
    }
    std::vector<std::string> names;
    std::vector<std::unique_ptr<char[]>> values;
    std::vector<PluginField> list;
};

// type:format:sizes, the sizes joined by commas, "none" without a rank.
PluginTensorDesc tensor(std::string const& token) {
    auto const parts = split(token, ':');
    PluginTensorDesc desc{};
    desc.type = static_cast<DataType>(std::stoi(parts[0]));
    desc.format = static_cast<TensorFormat>(std::stoi(parts[1]));
    auto const sizes = parts.size() > 2 ? parts[2] : "";
    if (sizes == "none") {
        desc.dims.nbDims = -1;
        return desc;
    }
    for (auto const& size : split(sizes, ',')) desc.dims.d[desc.dims.nbDims++] = std::stoll(size);
    return desc;
}

std::string shown(PluginFieldCollection const& fields) {
    std::ostringstream text;
    for (std::int32_t i = 0; i < fields.nbFields; ++i) {
        auto const& field = fields.fields[i];
        text << field.name << ":" << static_cast<int>(field.type) << ":" << field.length << ":";
        int const size = !field.data ? 0 : field.type == PluginFieldType::kCHAR ? 1 : 4;
        for (std::int32_t b = 0; b < size * field.length; ++b) {
            char hex[3];
            std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char const*>(field.data)[b]);
            text << hex;
        }
        text << " ";
    }
    return text.str();
}

using Owner = std::unique_ptr<IPluginV3>;

template <typename Part>
Part& part(IPluginV3& plugin, PluginCapabilityType type) {
    return *static_cast<Part*>(plugin.getCapabilityInterface(type));
}

struct Player {
    std::map<std::string, Owner> plugins;
    std::vector<std::string> words;
    std::ostringstream out;

    IPluginV3& plugin() { return *plugins.at(words.at(1)); }
    IPluginV3OneBuild& builder() {
        return part<IPluginV3OneBuild>(plugin(), PluginCapabilityType::kBUILD);
    }
    IPluginV3OneRuntime& runtime() {
        return part<IPluginV3OneRuntime>(plugin(), PluginCapabilityType::kRUNTIME);
    }
    int number(std::size_t i) { return std::stoi(words.at(i)); }
    std::vector<std::string> from(std::size_t i) { return {words.begin() + long(i), words.end()}; }
    std::vector<PluginTensorDesc> tensors(std::size_t i) {
        std::vector<PluginTensorDesc> all;
        for (auto const& token : from(i)) all.push_back(tensor(token));
        return all;
    }
    // As many as there are, so that a look beyond the last is an error under ASan.
    std::vector<DynamicPluginTensorDesc> dynamic(std::size_t i) {
        std::vector<DynamicPluginTensorDesc> all;
        for (auto const& desc : tensors(i)) all.push_back({desc, desc.dims, desc.dims, desc.dims});
        all.shrink_to_fit();
        return all;
    }
    void keep(std::string const& name, IPluginV3* made) {
        out << (made ? "made" : "none");
        if (made) plugins[name].reset(made);
    }

    void creators() {
        std::int32_t count = 0;
        auto* const* all = getCreators(count);
        for (std::int32_t i = 0; i < count; ++i) {
            auto& creator = *static_cast<IPluginCreatorV3One*>(all[i]);
            out << creator.getPluginName() << " " << creator.getPluginNamespace() << " "
                << creator.getPluginVersion() << " " << shown(*creator.getFieldNames()) << "; ";
        }
    }
    // create PLUGIN OPERATOR LAYER FIELD..., a count in front of the fields where it is another one
    void create() {
        std::int32_t count = 0;
        auto* const* all = getCreators(count);
        Fields const fields{from(5)};
        int const length = words.at(4) == "all" ? int(fields.list.size()) : number(4);
        PluginFieldCollection const collection{length, fields.list.data()};
        for (std::int32_t i = 0; i < count; ++i) {
            auto& creator = *static_cast<IPluginCreatorV3One*>(all[i]);
            if (words.at(2) != creator.getPluginName()) continue;
            auto const* const layer = words.at(3) == "-" ? nullptr : words.at(3).c_str();
            keep(words.at(1), creator.createPlugin(layer, length < -9 ? nullptr : &collection,
                                                   TensorRTPhase::kBUILD));
        }
    }
    void describe() {
        auto& core = part<IPluginV3OneCore>(plugin(), PluginCapabilityType::kCORE);
        bool const odd = plugin().getCapabilityInterface(static_cast<PluginCapabilityType>(7));
        out << core.getPluginName() << " " << core.getPluginVersion() << " "
            << core.getPluginNamespace() << " " << core.getInterfaceInfo().kind << " "
            << builder().getInterfaceInfo().kind << " " << runtime().getInterfaceInfo().kind << " "
            << odd << " " << builder().getNbOutputs() << " " << builder().getNbTactics() << " "
            << builder().getTimingCacheID();
    }
    // types PLUGIN OUTPUTS TYPE...
    void types() {
        std::vector<DataType> in;
        for (auto const& type : from(3)) in.push_back(static_cast<DataType>(std::stoi(type)));
        std::vector<DataType> made(static_cast<std::size_t>(number(2)), DataType::kBOOL);
        out << builder().getOutputDataTypes(made.data(), number(2), in.data(), int(in.size()));
        for (auto const type : made) out << " " << static_cast<int>(type);
    }
    // shapes PLUGIN INPUTS OUTPUTS RANK: sizes by their number, . for the constant 1
    void shapes() {
        static Expression sizes[8];
        static Expressions expressions;
        DimsExprs shape{number(4), {}};
        for (int i = 0; i < number(4); ++i) shape.d[i] = &sizes[i];
        std::vector<DimsExprs> const in(static_cast<std::size_t>(number(2)), shape);
        std::vector<DimsExprs> made(static_cast<std::size_t>(number(3)));
        out << builder().getOutputShapes(in.data(), number(2), nullptr, 0, made.data(), number(3),
                                         expressions);
        for (auto const& one : made) {
            out << " ";
            for (int i = 0; i < one.nbDims; ++i) {
                bool const known = one.d[i] >= sizes && one.d[i] < sizes + 8;
                out << (known ? char('0' + (static_cast<Expression const*>(one.d[i]) - sizes)) : '.');
            }
        }
    }
    // enqueue PLUGIN INPUTS ADDRESSES TENSOR...: of `all` tensors, or of `none`, or of one
    void enqueue() {
        auto const all = tensors(4);
        auto const inputs = static_cast<std::size_t>(number(2));
        std::vector<void*> at;
        for (std::size_t i = 0; i < all.size(); ++i) {
            bool const there = words.at(3) == "all" || words.at(3) == std::to_string(i);
            at.push_back(there && all[i].dims.nbDims >= 0 ? reinterpret_cast<void*>(i + 1) : nullptr);
        }
        launched.clear();
        out << runtime().enqueue(all.data(), all.data() + inputs, at.data(), at.data() + inputs,
                                 nullptr, reinterpret_cast<cudaStream_t>(0x77))
            << launched;
    }
    // configure, shape: PLUGIN INPUTS TENSOR...
    void configure() {
        auto const all = dynamic(3);
        out << builder().configurePlugin(all.data(), number(2), all.data() + number(2),
                                         int(all.size()) - number(2));
    }
    void shape() {
        auto const all = tensors(3);
        out << runtime().onShapeChange(all.data(), number(2), all.data() + number(2),
                                       int(all.size()) - number(2));
    }

    std::string play(std::string const& line) {
        words = split(line, ' ');
        out.str("");
        logged.clear();
        auto const& command = words.at(0);
        if (command == "creators") creators();
        if (command == "create") create();
        if (command == "describe") describe();
        if (command == "fields") out << shown(*runtime().getFieldsToSerialize());
        if (command == "clone") keep(words.at(2), plugin().clone());
        if (command == "attach") keep(words.at(2), runtime().attachToContext(nullptr));
        if (command == "free") plugins.erase(words.at(1));
        if (command == "types") types();
        if (command == "shapes") shapes();
        if (command == "formats") {  // PLUGIN INPUTS OUTPUTS TENSOR..., asked of the last
            auto const all = dynamic(4);
            out << builder().supportsFormatCombination(int(all.size()) - 1, all.data(), number(2),
                                                       number(3));
        }
        if (command == "configure") configure();
        if (command == "shape") shape();
        if (command == "enqueue") enqueue();
        if (command == "answer") answer = number(1);
        return out.str() + "\t" + logged;
    }
};

}  // namespace

cudaError_t record(rmsnorm_export::Problem const& problem, rmsnorm_export::Pointers const& at,
                   std::int64_t rows, cudaStream_t stream) noexcept {
    auto const& norm = problem.norm;
    std::ostringstream text;
    auto const say = [&](char const* name, auto value) {
        text << " " << name << "=" << static_cast<double>(value);
    };
    auto const address = [&](char const* name, void const* pointer) {
        say(name, reinterpret_cast<std::uintptr_t>(pointer));
    };
#define SAY(of, name) say(#name, of.name)
    text.precision(17);
    SAY(norm, kind); SAY(norm, epsilon); SAY(norm, scale_offset); SAY(norm, epsilon_outside);
    SAY(norm, epsilon_clamp); SAY(norm, scale_before_cast); SAY(norm, round_rstd);
    SAY(norm, stash_half); SAY(norm, gate_first); SAY(norm, association); SAY(norm, activation);
    SAY(norm, partial_size); SAY(norm, group_size); SAY(norm, rotary_dim);
    SAY(norm, rotary_interleaved); SAY(problem, n); SAY(problem, inner); SAY(problem, x);
    SAY(problem, scale); SAY(problem, bias); SAY(problem, y); SAY(problem, has_scale);
    SAY(problem, has_bias); SAY(problem, quantize); SAY(problem, table); SAY(problem, table_width);
    say("rows", rows); address("stream", stream);
    for (int i = 0; i < 2; ++i) say(i ? "run_1" : "run_0", problem.runs[i]);
    for (int i = 1; i < 3; ++i) say(i > 1 ? "stride_2" : "stride_1", problem.strides[i]);
    address("at_x", at.x); address("at_other", at.other); address("at_scale", at.scale);
    address("at_bias", at.bias); address("at_quant_scale", at.quant_scale); address("at_y", at.y);
    address("at_sum", at.sum); address("at_row_scale", at.row_scale); address("at_cos", at.cos);
    address("at_sin", at.sin);
    launched += text.str();
    return answer < 0 ? launch_kernels(problem, at, rows, stream)
                      : static_cast<cudaError_t>(answer);
}

int main() {
    static Finder finder;
    setLoggerFinder(&finder);
    Player player;
    for (std::string line; std::getline(std::cin, line);) std::cout << player.play(line) << std::endl;
}
