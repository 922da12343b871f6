// What a test may set before a launch and read after it.
#pragma once

#include <cuda_runtime_api.h>

namespace shim {

struct Settings {
    int sm{90};
    int compiled_for{90};  // of an earlier architecture, translated by the driver
    int processors{4};
    int most_cluster{16};   // blocks of a cluster that the device has room for
    bool backwards{false};  // the last warp of the last block runs first
};

struct Launched {
    unsigned blocks{0};
    unsigned threads{0};
    unsigned cluster{0};
    unsigned queries{0};  // of the device and the kernel, before it
};

extern Settings settings;
extern Launched launched;  // the last launch

}  // namespace shim
