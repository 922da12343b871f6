// Sets of plugin fields that own their values, and the cases that every test goes through.
#pragma once

#include <NvInferRuntime.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

class Fields {
  public:
    template <typename T>
    Fields& set(char const* name, PluginFieldType type, std::vector<T> const& values) {
        auto const* const bytes = reinterpret_cast<char const*>(values.data());
        return put({name,
                    type,
                    {bytes, bytes + values.size() * sizeof(T)},
                    static_cast<std::int32_t>(values.size())});
    }
    Fields& real(char const* name, float value) {
        return set<float>(name, PluginFieldType::kFLOAT32, {value});
    }
    Fields& integer(char const* name, std::int32_t value) {
        return set<std::int32_t>(name, PluginFieldType::kINT32, {value});
    }
    // As the parser passes it: with the NUL.
    Fields& text(char const* name, char const* value) {
        return set<char>(name, PluginFieldType::kCHAR, {value, value + std::strlen(value) + 1});
    }
    Fields& remove(std::string const& name) {
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            if (entries_[i].name == name) {
                entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        return *this;
    }
    // Valid until the next change.
    PluginFieldCollection const* collection() {
        list_.clear();
        for (auto const& entry : entries_) {
            list_.emplace_back(entry.name.c_str(), entry.bytes.data(), entry.type, entry.length);
        }
        collection_ = {static_cast<std::int32_t>(list_.size()), list_.data()};
        return &collection_;
    }

  private:
    struct Entry {
        std::string name;
        PluginFieldType type;
        std::vector<char> bytes;
        std::int32_t length;
    };
    Fields& put(Entry entry) {
        for (auto& old : entries_) {
            if (old.name == entry.name) {
                old = std::move(entry);
                return *this;
            }
        }
        entries_.push_back(std::move(entry));
        return *this;
    }
    std::vector<Entry> entries_;
    std::vector<PluginField> list_;
    PluginFieldCollection collection_{};
};

// The ordinary attributes of an operator; the order is that of the schema.
inline Fields ordinary(std::string const& op) {
    Fields fields;
    fields.real("epsilon", 1e-6F).integer("axis", -1).integer("stash_type", 1);
    fields.integer("scale_before_cast", 0).real("scale_offset", 0).integer("epsilon_outside", 0);
    fields.integer("partial_size", 0).integer("group_size", 0).integer("round_rstd", 0);
    fields.integer("association", 0).integer("epsilon_clamp", 0).integer("last_axis", -1);
    if (op.find("Gated") != op.npos) {
        fields.text("activation", "silu").integer("gate_first", 0);
    }
    if (op.find("Rotary") != op.npos) {
        fields.integer("rotary_dim", 0).integer("rotary_interleaved", 0);
    }
    if (op.find("Quantized") != op.npos) {
        fields.text("quantize", "fp8");
    }
    return fields;
}

struct Case {
    std::string name;
    std::string op;
    Fields fields;
    int stash_type = 1;
    int axis = -1;
    std::string quantize{};
    bool needs_scale = false;
    int last_axis = -1;
    int width = 64;  // of cos and sin

    bool other() const { return op.find("Skip") != op.npos || op.find("Gated") != op.npos; }
    bool rotary() const { return op.find("Rotary") != op.npos; }
    bool skip() const { return op.find("Skip") != op.npos; }
    bool fixed() const { return quantize == "fp8" || quantize == "int8"; }
    bool perRow() const { return !quantize.empty() && !fixed(); }
    int outputs() const { return 1 + skip() + perRow(); }
    int inputs(int weights) const { return 1 + other() + 2 * rotary() + weights + fixed(); }
};

// Every operator with every attribute away from its default at least once.
inline std::vector<Case> cases(std::string const& op) {
    std::vector<Case> all;
    auto const add = [&](char const* name, Fields fields, int stash = 1, int axis = -1) {
        all.push_back({op + " " + name, op, std::move(fields), stash, axis,
                       op.find("Quantized") != op.npos ? "fp8" : "", false});
    };
    add("ordinary", ordinary(op));
    add("scale_before_cast", ordinary(op).integer("scale_before_cast", 1));
    add("scale_offset", ordinary(op).real("scale_offset", 1));
    all.back().needs_scale = true;
    add("epsilon_outside", ordinary(op).integer("epsilon_outside", 1).real("epsilon", 0));
    add("round_rstd", ordinary(op).integer("round_rstd", 1));
    add("float16 stash", ordinary(op).integer("stash_type", 10).integer("association", 2), 10);
    add("bfloat16 stash",
        ordinary(op).integer("stash_type", 16).integer("association", 1).integer("round_rstd", 1),
        16);
    add("epsilon_clamp", ordinary(op).integer("epsilon_clamp", 1).real("epsilon", 1e-3F));
    if (op.find("Rotary") != op.npos) {
        add("part", ordinary(op).integer("rotary_dim", 32));
        all.back().width = 16;
        add("interleaved", ordinary(op).integer("rotary_interleaved", 1));
        return all;
    }
    add("partial", ordinary(op).integer("partial_size", 16));
    add("group", ordinary(op).integer("group_size", 16));
    add("two axes", ordinary(op).integer("axis", -2), 1, -2);
    add("channels", ordinary(op).integer("axis", -2).integer("last_axis", -2), 1, -2);
    all.back().last_axis = -2;
    if (op.find("Gated") != op.npos) {
        add("sigmoid", ordinary(op).text("activation", "sigmoid"));
        add("gate_first", ordinary(op).integer("gate_first", 1));
    }
    if (op.find("Quantized") != op.npos) {
        for (auto const* how : {"int8", "fp8_per_row", "int8_per_row"}) {
            add(how, ordinary(op).text("quantize", how));
            all.back().quantize = how;
        }
    }
    return all;
}
