/*
 * Loads libprefixcache and turns its status values into C++.
 *
 * Use it directly to call the C ABI from C++ without linking to the library;
 * KVPageTable and ContextCacheCoordinator use it for you.
 *
 * Threads: any. The library is loaded once per process and never unloaded, since a
 * Go library cannot be. Load it after fork, or start workers with exec.
 */
#ifndef PREFIXCACHE_LIBRARY_HPP
#define PREFIXCACHE_LIBRARY_HPP

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "../prefixcache.h"

namespace prefixcache {

/// Finds the library and its function table. The first of these that is set wins:
/// the `path` argument, the environment variable PREFIXCACHE_LIBRARY, the loader's
/// own search for libprefixcache.so.0 (rpath, LD_LIBRARY_PATH, ldconfig).
class Library {
  public:
    /// @throws std::runtime_error with the loader's text, or when the library is
    /// older than this header. The second and later calls return the first one's
    /// library, whatever their path.
    static pc_api const& get(std::string const& path = {}) {
        static std::mutex mutex;
        static pc_api const* api = nullptr;
        std::lock_guard<std::mutex> lock(mutex);
        if (api == nullptr) {
            api = load(path);
        }
        return *api;
    }

  private:
    static pc_api const* load(std::string const& path) {
        std::string name = path;
        if (name.empty()) {
            char const* fromEnvironment = std::getenv("PREFIXCACHE_LIBRARY");
            name = fromEnvironment != nullptr && *fromEnvironment != '\0' ? fromEnvironment : "libprefixcache.so.0";
        }
        void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle == nullptr) {
            throw std::runtime_error("prefixcache: cannot load the library: " + std::string(dlerror()) +
                                     " (set PREFIXCACHE_LIBRARY to the path of libprefixcache.so)");
        }
        using GetApi = pc_api const* (*)(uint32_t);
        auto getApi = reinterpret_cast<GetApi>(dlsym(handle, "pc_get_api"));
        if (getApi == nullptr) {
            throw std::runtime_error("prefixcache: " + name + " has no pc_get_api: it is not libprefixcache");
        }
        pc_api const* table = getApi(PC_ABI_VERSION);
        if (table == nullptr || table->struct_size < sizeof(pc_api)) {
            throw std::runtime_error("prefixcache: " + name +
                                     " is older than the header this program was built with (" +
                                     std::to_string(PC_VERSION_MAJOR) + "." + std::to_string(PC_VERSION_MINOR) + ")");
        }
        return table;
    }
};

namespace detail {

/// Throws for a broken contract or a fault; outcomes (>= 0) pass.
inline pc_status check(pc_api const& api, pc_status status) {
    if (status < 0) {
        throw std::runtime_error("prefixcache: " + std::string(api.status_name(status)) + ": " + api.last_error());
    }
    return status;
}

/// A zeroed C struct with its struct_size set.
template <typename T>
T sized() {
    T value{};
    value.struct_size = sizeof(T);
    return value;
}

}  // namespace detail
}  // namespace prefixcache

#endif  // PREFIXCACHE_LIBRARY_HPP
