// Plays TensorRT's builder and runtime to every creator of the plugin library.
//
//     rmsnorm_adapter_tests            all checks, one line each, and `N passed, N failed`
//     rmsnorm_adapter_tests --names    one line per creator: its name and its fields
#include "check.h"
#include "fakes.h"

#include <set>

namespace {

void names() {
    std::int32_t count = 0;
    auto* const* all = getCreators(count);
    for (std::int32_t i = 0; i < count; ++i) {
        auto* const found = static_cast<nvinfer1::IPluginCreatorV3One*>(all[i]);
        std::printf("%s", found->getPluginName());
        auto const* const fields = found->getFieldNames();
        for (std::int32_t j = 0; j < fields->nbFields; ++j) {
            std::printf(" %s", fields->fields[j].name);
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count > 1 && std::string{arguments[1]} == "--names") {
        names();
        return 0;
    }
    static Log log;
    static Finder finder{log};
    setLoggerFinder(&finder);

    std::int32_t creators = 0;
    auto* const* all = getCreators(creators);
    std::set<std::string> seen;
    for (std::int32_t i = 0; i < creators; ++i) {
        auto* const found = static_cast<nvinfer1::IPluginCreatorV3One*>(all[i]);
        std::string const op = found->getPluginName();
        check(seen.insert(op).second, op + ": a name of its own");
        check(std::string{found->getPluginNamespace()} == "rmsnorm_export" &&
                  std::string{found->getPluginVersion()} == "1",
              op + ": namespace and version");
        check(std::string{found->getInterfaceInfo().kind} == "PLUGIN CREATOR_V3ONE", op + ": kind");
        bool const alias = op.find('_') != op.npos;
        for (auto const& one : cases(op)) {
            build(one, log);
            run(one, log);
            if (alias) {  // of an operator that goes through all of them
                break;
            }
        }
    }
    badFields(log);
    badBuild(log);
    badRun(log);
    return finish();
}
