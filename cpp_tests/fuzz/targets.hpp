// One target for each function of the table: it draws arguments, calls, and follows
// what the call did.
#ifndef PREFIXCACHE_FUZZ_TARGETS_HPP
#define PREFIXCACHE_FUZZ_TARGETS_HPP

#include <cstddef>
#include <vector>

#include "world.hpp"

namespace fuzz {

struct Target {
    char const* name;
    size_t offset;  // in pc_api
    pc_status (*call)(World&);
    bool partial = false;  // the header says that an error may leave something done
};

std::vector<Target> libraryTargets();
std::vector<Target> omniTargets();
std::vector<Target> managerTargets();
std::vector<Target> tableTargets();
std::vector<Target> contextTargets();

/// A mapping of n old slots, and how many survive.
int32_t* mapping(World& w, uint64_t n, int32_t& batch);

/// All of them, in the order of the table. Ends the process when one is missing: whoever
/// adds a function to pc_api adds its target here.
std::vector<Target> const& targets();

/// Runs one input.
void run(pc_api const& api, uint8_t const* data, size_t size);

#define TARGET(name, ...) \
    { #name, offsetof(pc_api, name), __VA_ARGS__ }

}  // namespace fuzz

#endif  // PREFIXCACHE_FUZZ_TARGETS_HPP
