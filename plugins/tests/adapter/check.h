// One line of output for each check, and the count at the end.
#pragma once

#include <cstdio>
#include <string>

inline int passed = 0;
inline int failed = 0;

inline bool check(bool good, std::string const& what) {
    ++(good ? passed : failed);
    std::printf("%s %s\n", good ? "ok  " : "FAIL", what.c_str());
    std::fflush(stdout);  // the next check may be the one that crashes
    return good;
}

inline int finish() {
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
