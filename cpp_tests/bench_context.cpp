// Speed of the context cache through the C ABI, each figure next to its limit.
//
// Times differ between machines, so limits are multiples of something simple that is
// measured in the same run: a copy of the prompts' tokens, a memcmp of a prompt.
//
//   bench_context [--trace FILE] [--check] [--quick] [--only NAME]
//
// --check: exit 1 when a figure is over its limit.
#include <prefixcache/library.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "trace.hpp"

namespace {

using prefixcache::detail::check;
using prefixcache::detail::sized;

pc_api const& api() { return prefixcache::Library::get(); }

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool gFailed = false;
int64_t gTurns = 3'000'000'000;  // see inTurns, ns

/// One line of the report. A limit of 0 is information only.
void report(char const* name, double value, char const* unit, double limit, bool atLeast = false) {
    bool const ok = limit == 0 || (atLeast ? value >= limit : value <= limit);
    gFailed = gFailed || !ok;
    std::printf("%-58s %12.4f %-8s", name, value, unit);
    if (limit != 0) {
        std::printf(" %s %-10.4g %s", atLeast ? ">=" : "<=", limit, ok ? "ok" : "MISSED");
    }
    std::printf("\n");
    std::fflush(stdout);
}

/// The best of several rounds of a short operation, in ns each: what the operation
/// costs when nobody else wants the processor.
double best(int rounds, int inner, std::function<void()> const& body) {
    double result = 1e18;
    for (int i = 0; i < rounds; ++i) {
        int64_t const start = now();
        for (int j = 0; j < inner; ++j) {
            body();
        }
        result = std::min(result, static_cast<double>(now() - start) / inner);
    }
    return result;
}

/// Calls body for a while. What the processor does in a second changes, so what is to be
/// compared is measured in turns, and the best of a few seconds counts.
void inTurns(std::function<void()> const& body) {
    for (int64_t const end = now() + gTurns; now() < end;) {
        body();
    }
}

class Manager {
  public:
    Manager(int32_t tokensPerPage, int32_t pages, int32_t records, uint32_t flags = 0) {
        auto options = sized<pc_manager_options>();
        options.flags = flags;
        options.tokens_per_page = tokensPerPage;
        options.base_pages = pages;
        options.max_records = records;
        check(api(), api().manager_create(&options, &mHandle));
    }
    ~Manager() { api().manager_destroy(&mHandle); }
    Manager(Manager const&) = delete;
    Manager& operator=(Manager const&) = delete;

    /// Status of the acquire; the lease is 0 unless it is PC_OK.
    pc_status acquire(int32_t const* tokens, size_t count, pc_plan& plan, pc_handle& lease, int32_t* pages = nullptr,
                      uint64_t room = 0) const {
        auto sequence = sized<pc_sequence>();
        sequence.tokens = tokens;
        sequence.num_tokens = static_cast<int64_t>(count);
        plan.struct_size = sizeof(plan);
        return check(api(), api().manager_acquire(mHandle, PC_PLAN_VANILLA, PC_LOOKUP_USE_CACHE, &sequence, &plan,
                                                  pages, room, nullptr, 0, &lease));
    }
    void publish(pc_handle lease, int64_t resident) const {
        check(api(), api().manager_publish(mHandle, lease, resident, nullptr));
    }
    pc_status grow(pc_handle lease, int32_t pages) const {
        return check(api(), api().manager_grow(mHandle, lease, pages, 0, nullptr, nullptr));
    }
    void append(pc_handle lease, int32_t const* tokens, size_t count) const {
        check(api(), api().manager_append(mHandle, lease, tokens, count));
    }
    pc_status advance(pc_handle lease, int32_t const* tokens, size_t count, int64_t resident, int32_t pages) const {
        return check(
            api(), api().manager_advance(mHandle, lease, tokens, count, resident, pages, 0, nullptr, nullptr, nullptr));
    }
    void flush() const { check(api(), api().manager_flush(mHandle, nullptr)); }
    void release(pc_handle& lease) const { check(api(), api().manager_release(mHandle, &lease)); }

  private:
    pc_handle mHandle = 0;
};

std::vector<int32_t> tokensOf(size_t count, uint64_t seed) {
    std::vector<int32_t> out(count);
    for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<int32_t>(trace::splitmix64(seed * 1000003 + i) % trace::kVocabulary);
    }
    return out;
}

// ------------------------------------------------------------------------- trace

struct TraceCase {
    int32_t page;
    int32_t pages;
    size_t requests;
    double copies;   // limit, in copies of the prompts' tokens
    double hitRate;  // limit on the public trace
};

int32_t pagesOf(int64_t tokens, int32_t page) { return static_cast<int32_t>((tokens + page - 1) / page); }

/// With small pages a host shortens victims, for the hit rate; with large ones that
/// gains nothing and costs time.
uint32_t flags(TraceCase const& c) { return c.page < 128 ? PC_SHORTEN_VICTIMS : 0; }

/// What one pass over a trace measured, ns a request.
struct Pass {
    std::vector<int64_t> copy;
    std::vector<int64_t> total;
    int64_t prompts = 0;
    int64_t reused = 0;
    size_t refused = 0;
};

/// Where the tokens of a prompt are when its request comes.
enum class Tokens {
    kInMemory,     // all prompts were read ahead, as a server has them: the caches hold none of them
    kJustWritten,  // by this core, right before: a copy never leaves its cache, a cache of prompts must
};

/// What a pass works on.
struct Prompts {
    std::vector<trace::Request> const& requests;
    std::vector<std::vector<int32_t>> ahead;  // kInMemory: the tokens of every prompt
    std::vector<int32_t> written;             // kJustWritten: of this one
    std::vector<int32_t> scratch;             // what a bare copy writes to

    std::vector<int32_t> const& of(size_t i, Tokens where) {
        if (where == Tokens::kJustWritten) {
            trace::prompt(requests[i], written);
            return written;
        }
        while (ahead.size() <= i) {
            auto const& next = requests[ahead.size()];
            trace::prompt(next, ahead.emplace_back());
        }
        return ahead[i];
    }

    /// Time of one bare copy, ns.
    int64_t copy(std::vector<int32_t> const& tokens) {
        scratch.resize(std::max(scratch.size(), tokens.size()));
        int64_t const start = now();
        std::memcpy(scratch.data(), tokens.data(), tokens.size() * sizeof(int32_t));
        asm volatile("" : : "r"(scratch.data()) : "memory");
        return now() - start;
    }
};

/// For each request: acquire its prompt, publish it, grow for the output, publish
/// the end, release. A bare copy of the prompt comes right before where that leaves
/// the tokens as they were, and of all prompts before the pass where it would not.
Pass pass(TraceCase const& c, Prompts& prompts, size_t count, Tokens where) {
    std::vector<int32_t> output;
    std::vector<int32_t> ids;
    Pass out;
    if (where == Tokens::kInMemory) {
        prompts.of(count - 1, where);  // all are written before the first is copied
        for (size_t i = 0; i < count; ++i) {
            out.copy.push_back(prompts.copy(prompts.of(i, where)));
        }
    }
    Manager manager(c.page, c.pages, 1 << 20, flags(c));
    for (size_t i = 0; i < count; ++i) {
        auto const& r = prompts.requests[i];
        auto const& tokens = prompts.of(i, where);
        output.resize(static_cast<size_t>(r.output));
        for (int32_t j = 0; j < r.output; ++j) {
            output[static_cast<size_t>(j)] = trace::outputToken(i, j);
        }
        ids.resize(std::max(ids.size(), static_cast<size_t>(pagesOf(r.input, c.page))));
        pc_plan plan{};
        pc_handle lease = 0;
        if (where == Tokens::kJustWritten) {
            out.copy.push_back(prompts.copy(tokens));
        }
        int64_t const start = now();
        if (manager.acquire(tokens.data(), tokens.size(), plan, lease, ids.data(), ids.size()) == PC_OK) {
            // Prefill end: publish, take the pages of the output. Decode end: accept it, publish.
            int32_t const more = pagesOf(int64_t{r.input} + r.output, c.page) - pagesOf(r.input, c.page);
            int64_t const resident = int64_t{r.input} + r.output - 1;  // the last token is the lookahead
            if (manager.advance(lease, nullptr, 0, r.input >= c.page ? r.input : 0, more) == PC_OK) {
                manager.advance(lease, output.data(), output.size(), resident >= c.page ? resident : 0, 0);
            }
            manager.release(lease);
        } else {
            ++out.refused;
        }
        out.total.push_back(now() - start);
        out.prompts += r.input;
        out.reused += plan.reuse;
    }
    return out;
}

/// Several passes; of each request the fastest counts, so that other work on the
/// machine does not.
void replay(TraceCase const& c, Prompts& prompts, bool isPublic, int passes) {
    size_t const count = std::min(c.requests, prompts.requests.size());
    auto const mean = [&](std::vector<int64_t> const& v) {
        return static_cast<double>(std::accumulate(v.begin(), v.end(), int64_t{0})) / static_cast<double>(count) / 1000;
    };
    std::printf("\ntrace, %d-token pages, %d pages, %zu requests, %s, best of %d passes\n", c.page, c.pages, count,
                flags(c) ? "PC_SHORTEN_VICTIMS" : "no flags", passes);
    for (auto const where : {Tokens::kInMemory, Tokens::kJustWritten}) {
        Pass fastest = pass(c, prompts, count, where);
        for (int i = 1; i < passes; ++i) {
            Pass const next = pass(c, prompts, count, where);
            for (size_t j = 0; j < count; ++j) {
                fastest.copy[j] = std::min(fastest.copy[j], next.copy[j]);
                fastest.total[j] = std::min(fastest.total[j], next.total[j]);
            }
        }
        double const copy = mean(fastest.copy);
        double const each = mean(fastest.total);
        if (where == Tokens::kInMemory) {
            double const rate = static_cast<double>(fastest.reused) / static_cast<double>(fastest.prompts);
            report("  hit rate, in prompt tokens", rate, "", isPublic ? c.hitRate : 0, true);
            report("  requests refused", static_cast<double>(fastest.refused), "", 0);
            std::printf("  the prompts are in memory, read ahead\n");
        } else {
            std::printf("  for comparison: each prompt was just written, and a copy of it stays in the core's cache\n");
        }
        report("    one copy of the prompt's tokens", copy, "us", 0);
        report("    total of a request", each, "us", 0);
        bool const judged = isPublic && where == Tokens::kInMemory;
        report("    total of a request, in copies", each / copy, "x", judged ? c.copies : 0);
    }
}

// ------------------------------------------------------------------- one request

/// A 32 768-token request that is cached whole, pages of 32.
void cachedAcquire(bool scattered) {
    constexpr size_t kTokens = 32768;
    constexpr int32_t kPage = 32;
    Manager manager(kPage, 8192, 1024);
    if (scattered) {  // the free list in a random order
        std::vector<pc_handle> leases(8192);
        int32_t const token = 1;
        pc_plan plan{};
        for (auto& lease : leases) {
            manager.acquire(&token, 1, plan, lease);
        }
        std::mt19937_64 random(1);
        std::shuffle(leases.begin(), leases.end(), random);
        for (auto& lease : leases) {
            manager.release(lease);
        }
    }
    auto const tokens = tokensOf(kTokens + 1, 1);
    auto const twin = tokens;
    std::vector<int32_t> ids(kTokens / kPage + 1);
    pc_plan plan{};
    pc_handle lease = 0;
    manager.acquire(tokens.data(), tokens.size(), plan, lease);
    manager.publish(lease, kTokens);
    manager.release(lease);
    volatile int sink = 0;
    double compare = 1e18;
    double acquire = 1e18;
    inTurns([&] {
        compare = std::min(compare,
                           best(200, 5, [&] { sink = sink + std::memcmp(tokens.data(), twin.data(), kTokens * 4); }));
        for (int i = 0; i < 300; ++i) {
            int64_t const start = now();
            manager.acquire(tokens.data(), tokens.size(), plan, lease, ids.data(), ids.size());
            acquire = std::min(acquire, static_cast<double>(now() - start));
            manager.release(lease);
        }
    });
    if (plan.reuse != static_cast<int32_t>(kTokens)) {
        throw std::runtime_error("bench: the request was not cached");
    }
    std::printf("\n32 768 tokens in 32-token pages, all cached, page ids %s\n", scattered ? "scattered" : "in order");
    report("  memcmp of its tokens", compare / 1000, "us", 0);
    report("  acquire", acquire / 1000, "us", 0);
    report("  acquire, in memcmps", acquire / compare, "x", scattered ? 5 : 2);
}

/// What a decode step costs at a context of `context` tokens, pages of 32.
class Decoding {
  public:
    explicit Decoding(size_t context)
        : mContext(static_cast<int64_t>(context)),
          mManager(kPage, static_cast<int32_t>(context / kPage + 512), 1024),  // recycled from the third round on
          mTokens(tokensOf(context, 2)),
          mBlock(tokensOf(kPage, 3)) {}

    double existing = 1e18;  // publish what is covered, ns
    double block = 1e18;     // append, publish and grow by one block, ns

    void round() {
        pc_plan plan{};
        pc_handle lease = 0;
        mManager.acquire(mTokens.data(), mTokens.size(), plan, lease);
        mManager.publish(lease, mContext);
        existing = std::min(existing, best(20, 50, [&] { mManager.publish(lease, mContext); }));
        mManager.grow(lease, 1);  // each step publishes a block and takes the next page
        int64_t resident = mContext;
        block = std::min(block, best(1, 200, [&] {
                             resident += kPage;
                             mManager.advance(lease, mBlock.data(), mBlock.size(), resident, 1);
                         }));
        mManager.release(lease);
        mManager.flush();
    }

  private:
    static constexpr int32_t kPage = 32;

    int64_t mContext;
    Manager mManager;
    std::vector<int32_t> mTokens;
    std::vector<int32_t> mBlock;
};

void decode() {
    Decoding small(32768);
    Decoding large(131072);
    inTurns([&] {
        small.round();
        large.round();
    });
    std::printf("\none sequence in 32-token pages\n");
    report("  publish an endpoint it already covers", small.existing, "ns", 200);
    report("  append, publish and grow by one block at 32 768 tokens", small.block, "ns", 400);
    report("  the same at 131 072 tokens", large.block, "ns", 0);
    report("  131 072 against 32 768 tokens", large.block / small.block, "x", 1.5);
}

/// 1 024 records of 800 pages, all of them in use: nothing can be evicted.
void infeasible() {
    constexpr int32_t kPage = 4;
    constexpr int32_t kPages = 800;
    constexpr int32_t kRecords = 1024;
    Manager manager(kPage, kRecords * (kPages + 1), 2 * kRecords);
    pc_plan plan{};
    std::vector<pc_handle> leases(kRecords);
    for (int32_t i = 0; i < kRecords; ++i) {
        auto const tokens = tokensOf(kPages * kPage + 1, 100 + static_cast<uint64_t>(i));
        auto& lease = leases[static_cast<size_t>(i)];
        check(api(), manager.acquire(tokens.data(), tokens.size(), plan, lease));
        manager.publish(lease, kPages * kPage);
    }
    auto const cold = tokensOf(kPages * kPage, 99);
    pc_handle none = 0;
    bool wrong = false;
    double const plans = best(
        50, 20, [&] { wrong = wrong || manager.acquire(cold.data(), cold.size(), plan, none) != PC_REQUEST_FAILED; });
    if (wrong) {
        throw std::runtime_error("bench: the demand was feasible");
    }
    std::printf("\n1 024 records of 800 pages, all in use\n");
    report("  infeasible acquire of 800 pages", plans / 1000, "us", 2);
    Manager small(kPage, 4, 4);
    double const never =
        best(50, 20, [&] { wrong = wrong || small.acquire(cold.data(), 5 * kPage, plan, none) != PC_REQUEST_FAILED; });
    if (wrong) {
        throw std::runtime_error("bench: 5 pages were had from a pool of 4");
    }
    report("  acquire of 5 pages from a pool of 4", never / 1000, "us", 1);
    for (auto& lease : leases) {
        manager.release(lease);
    }
}

// ------------------------------------------------------------------------- tails

struct Samples {
    char const* name;
    std::vector<int32_t> values;

    void add(int64_t start) { values.push_back(static_cast<int32_t>(std::min<int64_t>(now() - start, INT32_MAX))); }
};

/// A million operations with eviction all the time; each request does the same
/// amount of work, so that the tail of an operation is not its size.
void tails(int64_t operations) {
    constexpr int32_t kPage = 16;
    Manager manager(kPage, 4096, 1024);
    Samples samples[] = {{"acquire", {}}, {"publish", {}}, {"grow", {}}, {"append", {}}, {"release", {}}};
    for (auto& s : samples) {
        s.values.reserve(static_cast<size_t>(operations / 4));
    }
    std::mt19937_64 random(7);
    auto tokens = tokensOf(40 * kPage, 5);
    auto const output = tokensOf(kPage, 6);
    pc_plan plan{};
    for (int64_t done = 0; done < operations; done += 6) {
        tokens[8 * kPage] = static_cast<int32_t>(random() % 200);  // one of 200 continuations of a shared start
        tokens[20 * kPage] = static_cast<int32_t>(random() % 4);
        pc_handle lease = 0;
        int64_t start = now();
        manager.acquire(tokens.data(), tokens.size(), plan, lease);
        samples[0].add(start);
        start = now();
        manager.publish(lease, static_cast<int64_t>(tokens.size()));
        samples[1].add(start);
        start = now();
        manager.grow(lease, 1);
        samples[2].add(start);
        start = now();
        manager.append(lease, output.data(), output.size());
        samples[3].add(start);
        start = now();
        manager.publish(lease, static_cast<int64_t>(tokens.size() + output.size()));
        samples[1].add(start);
        start = now();
        manager.release(lease);
        samples[4].add(start);
    }
    std::printf("\n%lld operations under eviction, ns\n", static_cast<long long>(operations));
    for (auto& s : samples) {
        std::sort(s.values.begin(), s.values.end());
        double const median = s.values[s.values.size() / 2];
        double const tail = s.values[s.values.size() - 1 - s.values.size() / 1000];
        std::string const name = std::string("  ") + s.name + ": p50 " + std::to_string(static_cast<int>(median)) +
                                 ", p99.9 " + std::to_string(static_cast<int>(tail)) + ", p99.9 in medians";
        report(name.c_str(), tail / median, "x", 20);
    }
}

constexpr char const* kUsage = R"(usage: bench_context [options]

  --trace FILE  JSON lines with input_length, output_length and hash_ids (default: one that is generated)
  --check       exit with 1 when a goal was missed
  --quick       fewer passes; figures vary more
  --only PART   one of trace, acquire, decode, infeasible, tails)";

int refuse(std::string const& what) {
    std::fprintf(stderr, "bench_context: %s\n%s\n", what.c_str(), kUsage);
    return 2;
}

}  // namespace

int main(int argc, char** argv) try {
    std::string path;
    std::string only;
    bool checked = false;
    bool quick = false;
    for (int i = 1; i < argc; ++i) {
        std::string const option = argv[i];
        if (option == "--help" || option == "-h") {
            std::puts(kUsage);
            return 0;
        }
        if ((option == "--trace" || option == "--only") && i + 1 == argc) {
            return refuse(option + ": expected a value behind it");
        }
        if (option == "--trace") {
            path = argv[++i];
        } else if (option == "--only") {
            only = argv[++i];
        } else if (option == "--check") {
            checked = true;
        } else if (option == "--quick") {
            quick = true;
            gTurns = 200'000'000;
        } else {
            return refuse(option + ": no such option");
        }
    }
    std::vector<std::string> const parts{"trace", "acquire", "decode", "infeasible", "tails"};
    if (!only.empty() && std::find(parts.begin(), parts.end(), only) == parts.end()) {
        return refuse("--only is '" + only + "', expected a part");
    }
    auto const wanted = [&](char const* name) { return only.empty() || only == name; };
    if (wanted("trace")) {
        bool const isPublic = !path.empty();
        size_t const everything = SIZE_MAX;
        int const passes = quick ? 2 : 6;
        auto const requests =
            isPublic ? trace::read(path, quick ? 4000 : everything) : trace::generate(quick ? 1000 : 4000);
        Prompts prompts{requests, {}, {}, {}};
        replay({128, 24000, 4000, 4, 0.136}, prompts, isPublic, passes);
        replay({32, 96000, 4000, 5, 0.1355}, prompts, isPublic, passes);
        replay({16, 192000, 4000, 7, 0.1355}, prompts, isPublic, passes);
        if (!quick && isPublic) {
            replay({128, 100000, everything, 4, 0.3157}, prompts, isPublic, passes);
        }
    }
    if (wanted("acquire")) {
        cachedAcquire(false);
        cachedAcquire(true);
    }
    if (wanted("decode")) {
        decode();
    }
    if (wanted("infeasible")) {
        infeasible();
    }
    if (wanted("tails")) {
        tails(quick ? 120000 : 1000000);
    }
    return checked && gFailed ? 1 : 0;
} catch (std::exception const& e) {
    std::fprintf(stderr, "bench_context: %s\n", e.what());
    return 1;
}
