// What main.cpp calls. Each reports its checks or figures by itself.
#ifndef PREFIXCACHE_CHECK_CHECKS_HPP
#define PREFIXCACHE_CHECK_CHECKS_HPP

#include <cstdint>

namespace check {

/// How long a random check goes on: until either is used up.
struct Effort {
    uint64_t seeds = 20;
    double seconds = 20;
};

void omniTraffic(Effort const& effort);      // omni_traffic.cpp
void omniContract();                         // omni_contract.cpp
void pageTables(Effort const& effort);       // page_tables.cpp
void contextRequests(Effort const& effort);  // context_requests.cpp
void copyFigures(int rounds);                // copy_figures.cpp

}  // namespace check

#endif  // PREFIXCACHE_CHECK_CHECKS_HPP
