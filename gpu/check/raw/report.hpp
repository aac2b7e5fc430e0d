// Results as JSON lines on stdout, which gpu_check.py collects, and the figures' timer.
#ifndef PREFIXCACHE_CHECK_REPORT_HPP
#define PREFIXCACHE_CHECK_REPORT_HPP

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace check {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

/// One check; anything thrown fails it. The function returns a detail for the table.
void run(std::string const& name, std::function<std::string()> const& body);
/// A check that this driver or machine cannot carry out.
void notRun(std::string const& name, std::string const& why);
/// A measurement beside what it is compared to, both in `unit`.
void figure(std::string const& name, double value, std::string const& unit, double reference,
            std::string const& referenceName);
/// Whether a check has failed so far.
bool anyFailed();

/// Fails the check that is running.
[[noreturn]] inline void fail(std::string const& why) { throw std::runtime_error(why); }
inline void expect(bool condition, std::string const& why) {
    if (!condition) fail(why);
}

inline double median(std::vector<double> values) {
    auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Medians of what two jobs report, taken in turn so that a busy machine disturbs both.
template <typename A, typename B>
std::pair<double, double> inTurn(int rounds, A&& ours, B&& theirs) {
    std::vector<double> a;
    std::vector<double> b;
    ours();
    theirs();
    for (int i = 0; i < rounds; ++i) {
        a.push_back(ours());
        b.push_back(theirs());
    }
    return {median(a), median(b)};
}

/// Small reproducible numbers; the same on every machine.
class Draw {
  public:
    explicit Draw(uint64_t seed) : mState(seed * 0x9e3779b97f4a7c15ULL + 1) {}
    uint64_t next() {
        mState += 0x9e3779b97f4a7c15ULL;
        uint64_t z = mState;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
    bool oneIn(int n) { return below(n) == 0; }

  private:
    uint64_t mState;
};

inline uint64_t mix(uint64_t a, uint64_t b) { return Draw(a * 0x100000001b3ULL ^ b).next(); }

}  // namespace check

#endif  // PREFIXCACHE_CHECK_REPORT_HPP
