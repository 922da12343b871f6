// A plugin library without TensorRT's headers, with one fault chosen by BUG.
//
// The classes repeat the order of the virtual functions of IPluginCreatorV3One, IPluginV3 and its
// capabilities, which is all that a registry sees. Every field that is given is kept as it is, so the
// plugin accepts what a real one has to refuse. NAMES are the fields of the creator NAME.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

enum {
    kNone, kRefuseAll, kLoseField, kNoClone, kOneMoreOutput, kCrash, kNoTimingId, kOtherNamespace,
    kOtherFields, kAttachedDiffers, kHang, kAbort, kExit, kNoCreator, kOtherKind,
};

struct Info { char const* kind; std::int32_t major, minor; };
struct Field { char const* name; void const* data; std::int32_t type, length; };
struct Fields { std::int32_t count; Field const* fields; };

struct Versioned {
    virtual std::int32_t language() const noexcept { return 0; }
    virtual Info info() const noexcept = 0;
    virtual ~Versioned() noexcept = default;
};

struct Core : Versioned {
    Info info() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual char const* name() const noexcept { return NAME; }
    virtual char const* version() const noexcept { return "1"; }
    virtual char const* space() const noexcept { return "rmsnorm_export"; }
};

struct Build : Versioned {
    Info info() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 2}; }
    virtual std::int32_t configure(void*, int, void*, int) noexcept { return 0; }
    virtual std::int32_t types(void*, int, void*, int) const noexcept { return 0; }
    virtual std::int32_t shapes(void*, int, void*, int, void*, int, void*) noexcept { return 0; }
    virtual bool formats(int, void*, int, int) noexcept { return true; }
    virtual std::int32_t outputs() const noexcept { return OUTPUTS + (BUG == kOneMoreOutput); }
    virtual std::size_t workspace(void*, int, void*, int) const noexcept { return 0; }
    virtual std::int32_t tactics(std::int32_t*, std::int32_t) noexcept { return 0; }
    virtual std::int32_t count() noexcept { return 0; }
    virtual char const* timing() noexcept { return BUG == kNoTimingId ? nullptr : "id"; }
    virtual std::int32_t limit() noexcept { return 100; }
    virtual char const* metadata() noexcept { return nullptr; }
    virtual std::int32_t aliased(std::int32_t) noexcept { return -1; }
};

struct Plugin;

struct Runtime : Versioned {
    explicit Runtime(Plugin& owner) : owner{owner} {}
    Info info() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual std::int32_t tactic(std::int32_t) noexcept { return 0; }
    virtual std::int32_t change(void*, int, void*, int) noexcept { return 0; }
    virtual std::int32_t enqueue(void*, void*, void*, void*, void*, void*) noexcept { return 0; }
    virtual void* attach(void*) noexcept;
    virtual Fields const* serialize() noexcept;
    Plugin& owner;
};

struct Kept { std::string name; std::int32_t type; std::int32_t length; std::string data; };

std::size_t sizeOf(std::int32_t type) { return type == 6 ? 1 : 4; }

struct Plugin : Versioned {
    explicit Plugin(std::vector<Kept> const& values) : values{values} {}
    Info info() const noexcept override { return {"PLUGIN_V3", 1, 0}; }
    virtual void* capability(std::int32_t type) noexcept {
        void* const all[] = {&core, &build, &runtime};
        return all[type];
    }
    virtual void* clone() noexcept { return BUG == kNoClone ? nullptr : new Plugin{values}; }

    std::vector<Kept> values;
    std::vector<Field> list;
    Fields fields{};
    Core core;
    Build build;
    Runtime runtime{*this};
};

void* Runtime::attach(void*) noexcept {
    auto values = owner.values;
    if (BUG == kAttachedDiffers && !values.empty()) {
        values[0].data[0] ^= 1;
    }
    return new Plugin{values};
}

Fields const* Runtime::serialize() noexcept {
    owner.list.clear();
    for (auto const& value : owner.values) {
        if (BUG != kLoseField || value.name != "axis") {
            owner.list.push_back({value.name.c_str(), value.data.data(), value.type, value.length});
        } else {
            static std::int32_t const other = 0;
            owner.list.push_back({"axis", &other, 5, 1});
        }
    }
    owner.fields = {static_cast<std::int32_t>(owner.list.size()), owner.list.data()};
    return &owner.fields;
}

struct Creator : Versioned {
    Info info() const noexcept override {
        return {BUG == kOtherKind ? "PLUGIN CREATOR_V2" : "PLUGIN CREATOR_V3ONE", 1, 0};
    }
    virtual void* create(char const*, Fields const* given, std::int32_t) noexcept {
        if (BUG == kRefuseAll) {
            return nullptr;
        }
        if (BUG == kCrash) {
            std::raise(11);
        }
        std::vector<Kept> values;
        for (std::int32_t i = 0; i < given->count; ++i) {
            auto const& f = given->fields[i];
            auto const size = sizeOf(f.type) * static_cast<std::size_t>(f.length);
            values.push_back({f.name, f.type, f.length,
                              f.data ? std::string(static_cast<char const*>(f.data), size) : ""});
        }
        return new Plugin{values};
    }
    virtual Fields const* names() noexcept {
        static char const* const all[] = {NAMES};
        static std::vector<Field> list;
        list.clear();
        for (auto const* name : all) {
            list.push_back({name, nullptr, 1, 1});
        }
        static Fields fields;
        fields = {static_cast<std::int32_t>(list.size()) - (BUG == kOtherFields), list.data()};
        return &fields;
    }
    virtual char const* name() const noexcept { return NAME; }
    virtual char const* version() const noexcept { return "1"; }
    virtual char const* space() const noexcept {
        return BUG == kOtherNamespace ? "elsewhere" : "rmsnorm_export";
    }
};

extern "C" void setLoggerFinder(void*) {}
extern "C" void* const* getCreators(std::int32_t& count) {
    if (BUG == kHang) {
        for (;;) {
        }
    }
    if (BUG == kAbort) {
        std::abort();
    }
    if (BUG == kExit) {
        std::exit(3);
    }
    static Creator creator;
    static void* list[] = {&creator};
    count = BUG != kNoCreator;
    return list;
}
