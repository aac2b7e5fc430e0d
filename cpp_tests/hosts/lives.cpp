// One thread: a plain walk, many short lives, two copies, and fork.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "host.hpp"
#include "work.hpp"

long residentKiB() {
    long size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

namespace {

/// Nothing of the library may outlive the process: no file, no shared memory.
void leavesNoFiles() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("/dev/shm") != std::string::npos || line.find("/memfd:") != std::string::npos ||
            line.find("/SYSV") != std::string::npos) {
            broken("walk", ("memory with a name: " + line).c_str());
        }
    }
}

}  // namespace

void walk(int rounds) {
    Context context(api());
    Omni eager(api()), threaded(api(), false);
    for (int i = 0; i < rounds; ++i) {
        context.round(i % 5);
        eager.round(static_cast<uint8_t>(i));
        threaded.round(static_cast<uint8_t>(i));
    }
    must(api(), api().omni_check(eager.handle), "omni_check");
    must(api(), api().omni_check(threaded.handle), "omni_check");
    leavesNoFiles();
    void* data = nullptr;
    pc_handle buffer = 0;
    must(api(), api().buffer_acquire(1 << 20, &data, &buffer), "buffer_acquire");
    std::memset(data, 1, 1 << 20);
    must(api(), api().buffer_release(buffer), "buffer_release");
}

namespace {

/// `all` is done in tenths; resident memory may not go on growing after the second.
template <typename F>
void flat(char const* what, int all, F one) {
    long before = 0;
    for (int i = 0; i < all; ++i) {
        if (i == all / 5) {
            before = residentKiB();
        }
        one(i);
    }
    long const grown = residentKiB() - before;
    std::printf("%s: %d, %ld KiB more\n", what, all, grown);
    if (grown > 6 << 10) {
        broken(what, ("resident memory grew by " + std::to_string(grown) + " KiB").c_str());
    }
}

}  // namespace

void slip() {
    char* name = new char[8]();
    name[0] = 'a';
    uint32_t key = 0;
    Omni omni(api());
    must(api(), api().omni_open_key(omni.handle, name, 64, 8, 1, 0, &key), "open_key");
    delete[] name;
}

void lifecycle(int rounds) {
    flat("omni caches, eager", rounds, [](int i) { Omni(api()).round(static_cast<uint8_t>(i)); });
    flat("omni caches, threaded", rounds / 4, [](int i) { Omni(api(), false).round(static_cast<uint8_t>(i)); });
    flat("context caches", rounds, [](int i) { Context(api()).round(i % 5); });
}

void threadLives(int threads) {
    Context context(api());
    flat("threads", threads, [&](int i) {
        std::thread([&] {
            context.lease(i % 5);
            if (api().omni_check(1) != PC_ERROR_BAD_HANDLE || *api().last_error() == 0) {
                broken("thread", "no error text");
            }
        }).join();
    });
}

void errors(int threads, int calls) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
        all.emplace_back([t, calls] {
            char expected[32];
            for (int i = 0; i < calls; ++i) {
                unsigned const handle = 1U + 64U * static_cast<unsigned>(i % 1000) + static_cast<unsigned>(t);
                std::snprintf(expected, sizeof expected, "0x%x is stale", handle);
                if (api().omni_check(handle) != PC_ERROR_BAD_HANDLE ||
                    std::strstr(api().last_error(), expected) == nullptr) {
                    broken("errors", api().last_error());
                }
            }
        });
    }
    for (auto& x : all) {
        x.join();
    }
}

namespace {

pc_api const& copyAt(std::string const& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        broken("dlopen", dlerror());
    }
    return *reinterpret_cast<pc_api const* (*)(uint32_t)>(dlsym(library, "pc_get_api"))(PC_ABI_VERSION);
}

}  // namespace

void copies(std::string const& first, std::string const& second) {
    pc_api const &one = copyAt(first), &two = copyAt(second);
    if (&one == &two) {
        broken("copies", "the loader gave one library twice");
    }
    Context c1(one), c2(two);
    Omni o1(one), o2(two);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                (t % 2 == 0 ? c1 : c2).lease(i % 5);
                if (t < 2) {
                    (t == 0 ? o1 : o2).round(static_cast<uint8_t>(i));
                }
            }
        });
    }
    for (auto& t : threads) {
        t.join();
    }
    auto stats = sized<pc_manager_stats>();
    if (one.manager_get_stats(c2.manager, &stats) != PC_ERROR_BAD_HANDLE ||
        two.omni_check(o1.handle) != PC_ERROR_BAD_HANDLE) {
        broken("copies", "a handle of one copy means something to the other");
    }
}

namespace {

/// Runs `child` in a child of fork; its exit status must be 0.
template <typename F>
void inChild(F child) {
    pid_t const pid = fork();
    if (pid == 0) {
        alarm(100);
        child();
        std::exit(0);  // with every handler and destructor
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        broken("fork", ("the child ended with status " + std::to_string(status)).c_str());
    }
}

template <typename... A>
void refused(pc_status (*f)(A...), char const* name) {
    if (f(A{}...) != PC_ERROR_FORKED || std::strstr(api().last_error(), "spawn") == nullptr) {
        broken(name, "expected PC_ERROR_FORKED in a child of fork");
    }
}
template <typename R, typename... A>
void refused(R (*)(A...), char const*) {}  // gives text: works in a child

}  // namespace

void forks() {
#ifndef HOST_LINKED
    inChild([] { walk(2); });  // before the library is loaded: the child loads its own
#endif
    walk(2);
    Context context(api());
    Omni omni(api(), false);
    // Every function of the table, with nothing for arguments: none may reach Go.
    inChild([] {
#define REFUSED(name) refused(api().name, #name);
#include "functions.inc"  // made from the header by CMake
#undef REFUSED
    });
    // From a crowd: one thread forks while others are inside calls.
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 400; ++i) {
                context.lease((i + t) % 5);
            }
        });
    }
    for (int i = 0; i < 8; ++i) {
        inChild([&] {
            if (api().omni_check(omni.handle) != PC_ERROR_FORKED) {
                broken("fork", "a child of a busy parent got through");
            }
        });
        omni.round(static_cast<uint8_t>(i));
    }
    for (auto& t : threads) {
        t.join();
    }
    pid_t const pid = vfork();  // what posix_spawn and subprocess do
    if (pid == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(1);
    }
    int status = -1;
    if (waitpid(pid, &status, 0) != pid || status != 0 || std::system("true") != 0) {
        broken("fork", "a child that becomes another program failed");
    }
    walk(2);
}
