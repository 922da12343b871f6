// What a test may set before a launch and read after it.
#pragma once

namespace ptx {

struct Settings {
    int sm{90};
    int compiled_for{90};  // of an earlier architecture, translated by the driver
    int most_cluster{16};  // blocks of a cluster that the device has room for
    int context{0};        // of that device
    unsigned schedule{1};  // which warps run first, and when messages arrive
};

struct Launched {
    unsigned blocks{0};
    unsigned threads{0};
    unsigned cluster{0};
    unsigned queries{0};                 // of the device and the kernel, before it
    unsigned at_once{0};                 // blocks of an SM, or clusters, as the runtime said
    unsigned long long instructions{0};  // of warps
    char const* kernel{""};
};

inline Settings settings;
inline Launched launched;  // the last launch

}  // namespace ptx
