// Loads the plugin library through the registry of a genuine TensorRT, and goes through creation,
// serialisation and creation again for every creator.
//
//     rmsnorm_registry_tests <libnvinfer*.so or libtensorrt_rtx.so> <librmsnorm_plugin.so>
#include "check.h"
#include "fakes.h"

#include <dlfcn.h>

int main(int count, char** arguments) {
    if (count != 3) {
        std::printf("two paths are needed: a TensorRT library and the plugin library\n");
        return 2;
    }
    void* const library = ::dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    auto const get = reinterpret_cast<decltype(&getPluginRegistry)>(
        library ? ::dlsym(library, "getPluginRegistry") : nullptr);
    if (!check(get != nullptr, std::string{"a registry in "} + arguments[1])) {
        return finish();
    }
    auto* const registry = get();
    auto* const handle = registry->loadLibrary(arguments[2]);
    check(handle != nullptr, std::string{"loaded "} + arguments[2]);
    for (std::string const op : {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "QuantizedRMSNorm",
                                 "QuantizedSkipRMSNorm", "QuantizedGatedRMSNorm", "RotaryRMSNorm"}) {
        auto* const found = static_cast<nvinfer1::IPluginCreatorV3One*>(
            registry->getCreator(op.c_str(), "1", "rmsnorm_export"));
        if (!check(found != nullptr, op + ": found under its namespace")) {
            continue;
        }
        check(!registry->getCreator(op.c_str(), "1", ""), op + ": under no other");
        for (auto& one : cases(op)) {
            Owner first{
                found->createPlugin("layer", one.fields.collection(), TensorRTPhase::kBUILD)};
            if (!check(first != nullptr, one.name + ": made")) {
                continue;
            }
            auto const wanted = bytes(*runtime(first).getFieldsToSerialize());
            Owner second{found->createPlugin("layer", runtime(first).getFieldsToSerialize(),
                                             TensorRTPhase::kRUNTIME)};
            check(second && bytes(*runtime(second).getFieldsToSerialize()) == wanted &&
                      wanted == bytes(*one.fields.collection()),
                  one.name + ": the same after serialisation");
        }
    }
    if (handle) {
        registry->deregisterLibrary(handle);
        check(!registry->getCreator("RMSNorm", "1", "rmsnorm_export"), "gone after deregistering");
    }
    return finish();
}
