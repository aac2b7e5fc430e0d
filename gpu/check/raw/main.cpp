// Correctness and copy speed of both caches on raw streams, without torch and without a
// kernel: the driver API is enough. Prints JSON lines; gpu_check.py makes the table.
//
//   raw_check omni|context|figures [--seeds N] [--seconds S] [--rounds N]
//
// PREFIXCACHE_LIBRARY names libprefixcache.so. Exit 1 when a check failed, 2 for a usage
// error or when there is no driver.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checks.hpp"
#include "driver.hpp"
#include "report.hpp"

int main(int argc, char** argv) {
    check::Effort effort;
    int rounds = 200;
    char const* what = argc > 1 ? argv[1] : "";
    for (int i = 2; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--seeds") == 0) effort.seeds = std::strtoull(argv[i + 1], nullptr, 10);
        if (std::strcmp(argv[i], "--seconds") == 0) effort.seconds = std::strtod(argv[i + 1], nullptr);
        if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::atoi(argv[i + 1]);
    }
    try {
        check::driver();
        if (std::strcmp(what, "omni") == 0) {
            check::omniContract();
            check::omniTraffic(effort);
        } else if (std::strcmp(what, "context") == 0) {
            check::pageTables(effort);
            check::contextRequests(effort);
        } else if (std::strcmp(what, "figures") == 0) {
            check::copyFigures(rounds);
        } else {
            std::fprintf(stderr, "usage: raw_check omni|context|figures [--seeds N] [--seconds S] [--rounds N]\n");
            return 2;
        }
    } catch (std::exception const& e) {
        std::fprintf(stderr, "raw_check: %s\n", e.what());
        return 2;
    }
    return check::anyFailed() ? 1 : 0;
}
