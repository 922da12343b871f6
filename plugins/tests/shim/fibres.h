// What a test may set before a launch and read after it.
#pragma once

#include <cuda_runtime_api.h>

namespace shim {

struct Settings {
    int sm{90};
    int processors{4};
    bool clusters{true};    // whether the device has room for one
    bool backwards{false};  // the last warp of the last block runs first
};

struct Launched {
    unsigned blocks{0};
    unsigned threads{0};
    unsigned cluster{0};
    unsigned shared_bytes{0};
};

extern Settings settings;
extern Launched launched;  // the last launch

}  // namespace shim
