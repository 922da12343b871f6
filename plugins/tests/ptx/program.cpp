#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace ptx {

namespace {

using Text = std::string_view;

Text trimmed(Text text) {
    auto const first = text.find_first_not_of(" \t\n");
    if (first == Text::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// At commas outside of brackets.
std::vector<Text> list_of(Text text) {
    std::vector<Text> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        char const c = i < text.size() ? text[i] : ',';
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        if (c != ',' || depth > 0) continue;
        if (!trimmed(text.substr(begin, i - begin)).empty()) {
            parts.push_back(trimmed(text.substr(begin, i - begin)));
        }
        begin = i + 1;
    }
    return parts;
}

Control control_of(std::string const& name) {
    static std::map<std::string, Control> const all{
        {"bra", Control::kBranch},
        {"bra.uni", Control::kBranch},
        {"ret", Control::kEnd},
        {"bar.sync", Control::kBarrier},
        {"bar.warp.sync", Control::kWholeWarp},
        {"shfl.sync.bfly.b32", Control::kShuffle},
        {"barrier.cluster.arrive.relaxed.aligned", Control::kArrive},
        {"barrier.cluster.wait.acquire.aligned", Control::kWait},
        {"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", Control::kPoll}};
    auto const at = all.find(name);
    return at == all.end() ? Control::kNone : at->second;
}

class Reader {
public:
    Program read(Text entry) {
        std::size_t const body = entry.find('{');
        Text const head = entry.substr(0, body);
        program_.name = trimmed(head.substr(0, head.find('(')));
        if (auto const at = head.find('['); at != Text::npos) {
            program_.parameter_bytes = std::strtoull(&head[at + 1], nullptr, 10);
        }
        if (auto const at = head.find(".maxntid"); at != Text::npos) {
            program_.most_threads = static_cast<unsigned>(std::strtoul(&head[at + 8], nullptr, 10));
        }
        read_statements(entry.substr(body));
        for (auto const& [index, label] : branches_) {
            if (!labels_.count(label)) throw std::runtime_error("no label " + label);
            program_.instructions[index].target = labels_[label];
        }
        return std::move(program_);
    }

private:
    void read_statements(Text text) {
        for (std::size_t i = 0; i < text.size();) {
            char const c = text[i];
            if (c == '{') scopes_.emplace_back();
            if (c == '}') scopes_.pop_back();
            std::size_t const end = std::min(text.find_first_of(";:", i), text.find('\n', i));
            if (text.compare(i, 2, "//") == 0) {
                i = text.find('\n', i);
            } else if (std::string_view("{}; \t\n").find(c) != Text::npos) {
                ++i;
            } else if (end != Text::npos && text[end] == ':' && text[end + 1] != ':') {
                labels_[std::string(text.substr(i, end - i))] =
                    static_cast<int>(program_.instructions.size());
                i = end + 1;
            } else {
                std::size_t const stop = text.find(';', i);
                read_statement(trimmed(text.substr(i, stop - i)));
                i = stop + 1;
            }
        }
    }

    void read_statement(Text text) {
        Instruction made;
        made.text = text;
        if (text.substr(0, 4) == ".reg") return declare(text.substr(4));
        if (text.substr(0, 7) == ".pragma") return;
        if (text[0] == '@') {
            made.negated = text[1] == '!';
            std::size_t const begin = made.negated ? 2 : 1;
            std::size_t const end = text.find_first_of(" \t");
            made.guard = named(text.substr(begin, end - begin)).at;
            text = trimmed(text.substr(end));
        }
        std::size_t const end = std::min(text.find_first_of(" \t"), text.size());
        std::string name(text.substr(0, end));
        std::vector<Text> const parts = list_of(text.substr(end));
        made.control = control_of(name);
        if (made.control == Control::kBranch) {
            branches_.emplace_back(program_.instructions.size(), std::string(parts.at(0)));
        } else {
            for (Text const part : parts) add_operands(made.operands, part);
            if (name.substr(0, 4) == "mov." && made.operands.size() > 2) {
                name = (parts[0][0] == '{' ? "unpack" : "pack") + name.substr(3);
            }
            bool const alone = made.control != Control::kNone && made.control != Control::kPoll;
            if (!alone) made.operation = &operation_of(name);
        }
        program_.instructions.push_back(std::move(made));
    }

    // `.b32 %r<99>` or `.pred p, q`.
    void declare(Text text) {
        text = trimmed(text);
        std::size_t const end = text.find_first_of(" \t");
        bool const wide = text.substr(0, end).find("64") != Text::npos;
        for (Text const name : list_of(text.substr(end))) {
            std::size_t const bracket = name.find('<');
            if (bracket == Text::npos) {
                scopes_.back()[std::string(name)] = allot(wide);
                continue;
            }
            int const count = std::atoi(&name[bracket + 1]);
            for (int i = 0; i < count; ++i) {
                scopes_.back()[std::string(name.substr(0, bracket)) + std::to_string(i)] =
                    allot(wide);
            }
        }
    }

    Operand allot(bool wide) {
        int const size = wide ? 2 : 1;
        program_.registers += size;
        return {program_.registers - size, wide};
    }

    Operand constant(std::uint64_t value) {
        auto const [at, made] = program_.constants.try_emplace(value, 0);
        if (made) at->second = allot(true).at;
        return {at->second, true};
    }

    Operand named(Text name) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            auto const at = scope->find(std::string(name));
            if (at != scope->end()) return at->second;
        }
        throw std::runtime_error("no register " + std::string(name));
    }

    void add_operands(std::vector<Operand>& to, Text text) {
        if (text[0] == '{') {
            for (Text const part : list_of(text.substr(1, text.size() - 2))) add_operands(to, part);
        } else if (text[0] == '[') {
            std::size_t const plus = std::min(text.find('+'), text.size() - 1);
            add_operands(to, trimmed(text.substr(1, plus - 1)));
            to.back().offset = text[plus] == '+' ? std::atoll(&text[plus + 1]) : 0;
        } else if (auto const bar = text.find('|'); bar != Text::npos) {
            add_operands(to, text.substr(0, bar));
            add_operands(to, text.substr(bar + 1));
        } else {
            to.push_back(value_of(text));
        }
    }

    Operand value_of(Text text) {
        static std::map<Text, int> const given{{"%tid.x", kThread},         {"%ctaid.x", kBlock},
                                               {"%ntid.x", kThreads},       {"%nctaid.x", kBlocks},
                                               {"%cluster_ctarank", kRank}, {"_", kNowhere}};
        if (auto const at = given.find(text); at != given.end()) return {at->second};
        if (text[0] == '0' && text.size() > 9 &&
            std::string_view("fFdD").find(text[1]) != Text::npos) {
            return constant(std::strtoull(&text[2], nullptr, 16));
        }
        if (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) {
            return constant(std::strtoull(text.data(), nullptr, 0));
        }
        auto const is = [&](auto const& scope) { return scope.count(std::string(text)) > 0; };
        bool const declared = std::any_of(scopes_.begin(), scopes_.end(), is);
        // Of parameters and of shared memory: spaces of their own, from 0 on.
        return declared || text[0] == '%' ? named(text) : constant(0);
    }

    Program program_;
    std::vector<std::map<std::string, Operand>> scopes_;
    std::map<std::string, int> labels_;
    std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

Program read_program(std::string_view entry) { return Reader().read(entry); }

}  // namespace ptx
