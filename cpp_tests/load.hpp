// What the load programs share: times in buckets, the memory of the process, and a
// report that says whether every limit held.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace load {

inline int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Times of one operation, in buckets of 1/32 of a doubling: the memory it takes does
/// not depend on how many there are.
class Times {
  public:
    explicit Times(char const* name) : mName(name) {}

    void add(int64_t ns) {
        ++mCount;
        mMax = ns > mMax ? ns : mMax;
        ++mBuckets[bucket(ns)];
    }
    /// The time that a share of the operations did not exceed.
    double at(double share) const {
        auto const want = static_cast<uint64_t>(std::ceil(share * static_cast<double>(mCount)));
        uint64_t seen = 0;
        for (size_t i = 0; i < mBuckets.size(); ++i) {
            seen += mBuckets[i];
            if (seen >= want && seen > 0) {
                return std::min(upper(i), static_cast<double>(mMax));
            }
        }
        return static_cast<double>(mMax);
    }
    uint64_t count() const { return mCount; }
    char const* name() const { return mName; }

    static void head() {
        std::printf("%-28s %10s %10s %10s %10s %10s\n", "operation", "count", "p50 us", "p99 us", "p99.9 us", "max us");
    }
    void line() const {
        if (mCount > 0) {
            std::printf("%-28s %10llu %10.2f %10.2f %10.2f %10.1f\n", mName, static_cast<unsigned long long>(mCount),
                        at(0.5) / 1000, at(0.99) / 1000, at(0.999) / 1000, static_cast<double>(mMax) / 1000);
        }
    }

  private:
    static constexpr int kSteps = 32;
    static size_t bucket(int64_t ns) {
        if (ns < 2 * kSteps) {
            return static_cast<size_t>(ns < 0 ? 0 : ns);
        }
        int const shift = 63 - __builtin_clzll(static_cast<uint64_t>(ns)) - 5;
        return static_cast<size_t>(kSteps * (shift + 1) + (ns >> shift) - kSteps);
    }
    static double upper(size_t i) {
        auto const index = static_cast<int64_t>(i);
        if (index < 2 * kSteps) {
            return static_cast<double>(index);
        }
        auto const shift = index / kSteps - 1;
        return static_cast<double>((index % kSteps + kSteps + 1) << shift);
    }
    char const* mName;
    uint64_t mCount = 0;
    int64_t mMax = 0;
    std::array<uint64_t, kSteps * 60> mBuckets{};
};

/// Physical memory of the process, with what the Go runtime has not given back.
inline int64_t resident() {
    long pages = 0;
    if (FILE* f = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(f, "%*s %ld", &pages) != 1) {
            pages = 0;
        }
        std::fclose(f);
    }
    return static_cast<int64_t>(pages) * sysconf(_SC_PAGESIZE);
}

inline bool gFailed = false;

/// A measured number of bytes beside what docs/sizing.md says.
inline void compare(char const* what, double measured, double formula) {
    double const off = measured / formula - 1;
    bool const ok = std::fabs(off) <= 0.10;
    gFailed = gFailed || !ok;
    std::printf("%-40s %12.1f B measured %12.1f B by docs/sizing.md  %+6.1f %%  %s\n", what, measured, formula,
                100 * off, ok ? "ok" : "WRONG");
}

/// A figure that must not pass a limit.
inline void limit(char const* what, double value, double most) {
    bool const ok = value <= most;
    gFailed = gFailed || !ok;
    std::printf("%-72s %12.2f   <= %-8.4g %s\n", what, value, most, ok ? "ok" : "MISSED");
}

/// An operation on a large cache must not take a multiple of what it takes on a small one:
/// a linear cost would be eight times as much. Both had their operations in turns, and what
/// nine of ten operations took at least says most about the code and least about the machine.
/// A run too short to judge has shown nothing, and fails as well.
inline void growth(Times const& many, Times const& few) {
    constexpr uint64_t kEnough = 10;
    std::string const name = many.name();
    if (many.count() < kEnough || few.count() < kEnough) {
        gFailed = true;
        std::printf("p10 of %s: too few operations to judge (%llu and %llu, expected %llu); raise --operations\n",
                    name.c_str(), static_cast<unsigned long long>(many.count()),
                    static_cast<unsigned long long>(few.count()), static_cast<unsigned long long>(kEnough));
        return;
    }
    limit(("p10 of " + name + ", times that of the small cache").c_str(), many.at(0.1) / few.at(0.1), 4);
}

/// Runs a large and a small cache in turns, so that a busy machine is no growth.
template <typename Server, typename Table>
void inTurns(Server& many, Table& large, Server& few, Table& little, int64_t operations) {
    constexpr int64_t kTurns = 20;
    for (int64_t turn = 0; turn < kTurns; ++turn) {
        many.run(large, operations / kTurns);
        few.run(little, operations / kTurns);
    }
}

/// Runs something in a child, so that memory it leaves behind does not count here.
template <typename Body>
void apart(Body const& body) {
    std::fflush(stdout);
    pid_t const child = fork();
    if (child == 0) {
        body();
        std::fflush(stdout);
        _exit(gFailed ? 1 : 0);
    }
    int status = 1;
    gFailed = child < 0 || waitpid(child, &status, 0) != child || status != 0 || gFailed;
}

/// Both programs get the arguments of `make load`, so each takes the options of the other.
inline void check(int argc, char** argv) {
    static constexpr char const* kNames[] = {"--operations", "--requests", "--page", "--blocks", "--slots"};
    static constexpr char const* kUsage =
        "usage: [--operations N] [--requests N] [--page TOKENS] [--blocks N] [--slots N]\n"
        "--page and --blocks are of the context cache, --slots of the omni cache\n";
    for (int i = 1; i < argc; i += 2) {
        std::string const name = argv[i];
        if (name == "--help" || name == "-h") {
            std::fputs(kUsage, stdout);
            std::exit(0);
        }
        if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
            std::fprintf(stderr, "%s: unknown option\n%s", argv[i], kUsage);
            std::exit(2);
        }
        char* end = nullptr;
        char const* const text = i + 1 < argc ? argv[i + 1] : "";
        int64_t const value = std::strtoll(text, &end, 10);
        if (value < 1 || value > INT32_MAX || *end != '\0') {
            std::fprintf(stderr, "%s is '%s', expected a number from 1 to 2^31 - 1\n%s", argv[i], text, kUsage);
            std::exit(2);
        }
    }
}

/// The value of an option that was checked.
inline int64_t option(int argc, char** argv, char const* name, int64_t fallback) {
    for (int i = 1; i + 1 < argc; ++i) {
        if (std::strcmp(argv[i], name) == 0) {
            return std::atoll(argv[i + 1]);
        }
    }
    return fallback;
}

}  // namespace load
