// The context cache under load, through the C ABI: live requests that decode while others
// arrive and leave, on a cache that is full all the time.
//
//   load_context [--blocks N] [--requests N] [--operations N] [--page N]
//
// Prints a table of latencies, and the memory of a block and of a live request beside the
// formula of docs/sizing.md. Exit 1 when memory is off by more than a tenth, when an
// operation costs more because more is cached, or when the structure is broken.
#include <prefixcache/library.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "load.hpp"
#include "trace.hpp"

namespace {

using load::now;
using load::Times;
using prefixcache::detail::check;
using prefixcache::detail::sized;

pc_api const& api() { return prefixcache::Library::get(); }

struct Load {
    int32_t page;
    int64_t blocks;
    int64_t requests;
    int64_t operations;
};

class Cache {
  public:
    explicit Cache(Load const& size) : mPage(size.page) {
        auto options = sized<pc_manager_options>();
        options.tokens_per_page = size.page;
        options.base_pages = static_cast<int32_t>(size.blocks);
        options.max_records = 1 << 22;  // pages are what runs out
        check(api(), api().manager_create(&options, &mHandle));
    }
    ~Cache() { api().manager_destroy(&mHandle); }
    Cache(Cache const&) = delete;
    Cache& operator=(Cache const&) = delete;

    pc_status acquire(std::vector<int32_t> const& tokens, pc_plan& plan, pc_handle& lease) const {
        auto sequence = sized<pc_sequence>();
        sequence.tokens = tokens.data();
        sequence.num_tokens = static_cast<int64_t>(tokens.size());
        plan.struct_size = sizeof(plan);
        return check(api(), api().manager_acquire(mHandle, PC_PLAN_VANILLA, PC_LOOKUP_USE_CACHE, &sequence, &plan,
                                                  nullptr, 0, nullptr, 0, &lease));
    }
    pc_status lookup(std::vector<int32_t> const& tokens, pc_plan& plan) const {
        auto sequence = sized<pc_sequence>();
        sequence.tokens = tokens.data();
        sequence.num_tokens = static_cast<int64_t>(tokens.size());
        plan.struct_size = sizeof(plan);
        return check(api(), api().manager_lookup(mHandle, PC_PLAN_VANILLA, &sequence, &plan));
    }
    void publish(pc_handle lease, int64_t resident) const {
        check(api(), api().manager_publish(mHandle, lease, resident, nullptr));
    }
    pc_status advance(pc_handle lease, int32_t token, int64_t resident, int32_t pages) const {
        return check(api(),
                     api().manager_advance(mHandle, lease, &token, 1, resident, pages, 0, nullptr, nullptr, nullptr));
    }
    void release(pc_handle& lease) const { check(api(), api().manager_release(mHandle, &lease)); }
    pc_manager_stats stats() const {
        auto stats = sized<pc_manager_stats>();
        check(api(), api().manager_get_stats(mHandle, &stats));
        return stats;
    }
    void verify() const { check(api(), api().manager_check(mHandle)); }
    int32_t page() const { return mPage; }

  private:
    pc_handle mHandle = 0;
    int32_t mPage;
};

/// One live request.
struct Request {
    pc_handle lease = 0;
    int64_t tokens = 0;
    int64_t left = 0;  // tokens still to come
};

struct Table {
    Times acquire{"acquire"};
    Times publish{"publish (prompt)"};
    Times advance{"advance, one token"};
    Times boundary{"advance and grow"};
    Times last{"publish (answer)"};
    Times release{"release"};
    Times lookup{"lookup"};
    Times stats{"get_stats"};
    uint64_t refused = 0;

    std::vector<Times const*> all() const {
        return {&acquire, &publish, &advance, &boundary, &last, &release, &lookup, &stats};
    }
    uint64_t count() const {
        uint64_t n = 0;
        for (Times const* t : all()) {
            n += t->count();
        }
        return n;
    }
};

constexpr int kFamilies = 256;     // system prompts
constexpr int64_t kPrompt = 1024;  // tokens of a prompt on average
constexpr int64_t kAnswer = 160;

// docs/sizing.md, in bytes.
constexpr double kIds = 10;           // of a block, beside its tokens
constexpr double kRecord = 380;       // of a record and the run of blocks that it ends
constexpr double kLease = 950;        // of a live request
constexpr double kLeaseBlock = 4.5;   // of a block that it holds
constexpr double kRuntime = 8 << 20;  // the library, and what the Go runtime holds once it works

class Traffic {
  public:
    Traffic(Cache const& cache, uint64_t seed) : mCache(cache), mRandom(seed), mSeed(seed) {}

    /// Half of a prompt is a system prompt that others share, the rest is its own.
    void prompt() {
        auto const family = mRandom() % kFamilies;
        auto const shared = static_cast<size_t>(kPrompt / 4 + static_cast<int64_t>(family) * kPrompt / kFamilies / 2);
        auto const own = static_cast<size_t>(kPrompt / 4) + mRandom() % kPrompt / 2;
        mTokens.resize(shared + own);
        ++mPrompts;
        for (size_t i = 0; i < mTokens.size(); ++i) {
            uint64_t const key = i < shared ? family * 100003 + i : (mSeed << 48) + mPrompts * 65536 + i;
            mTokens[i] = static_cast<int32_t>(trace::splitmix64(key) % trace::kVocabulary);
        }
    }

    template <typename Call>
    auto timed(Times& times, Call const& call) {
        struct Stop {
            Times& times;
            int64_t start;
            ~Stop() { times.add(now() - start); }
        } const stop{times, now()};
        return call();
    }

    bool arrive(Request& r, Table& table) {
        prompt();
        pc_plan plan{};
        if (timed(table.acquire, [&] { return mCache.acquire(mTokens, plan, r.lease); }) != PC_OK) {
            ++table.refused;
            return false;
        }
        r.tokens = static_cast<int64_t>(mTokens.size());
        r.left = kAnswer / 2 + static_cast<int64_t>(mRandom() % kAnswer);
        timed(table.publish, [&] { mCache.publish(r.lease, r.tokens); });
        return true;
    }

    void step(Request& r, Table& table) {
        int32_t const page = mCache.page();
        if (r.left == 0) {
            timed(table.last, [&] { mCache.publish(r.lease, r.tokens - 1); });
            timed(table.release, [&] { mCache.release(r.lease); });
            arrive(r, table);
            return;
        }
        --r.left;
        ++r.tokens;
        bool const grows = r.tokens % page == 1;  // the next token has no page
        auto const token = static_cast<int32_t>(mRandom() % trace::kVocabulary);
        if (timed(grows ? table.boundary : table.advance,
                  [&] { return mCache.advance(r.lease, token, 0, grows ? 1 : 0); }) != PC_OK) {
            ++table.refused;
            --r.tokens;
            r.left = 0;
        }
        if (mRandom() % 64 == 0) {
            pc_plan plan{};
            timed(table.lookup, [&] { return mCache.lookup(mTokens, plan); });
        }
        if (mRandom() % 1024 == 0) {
            timed(table.stats, [&] { return mCache.stats(); });
        }
    }

    void run(std::vector<Request>& live, Table& table, uint64_t operations) {
        uint64_t const end = table.count() + operations;
        while (table.count() < end) {
            Request& r = live[mRandom() % live.size()];
            if (r.lease == 0) {
                arrive(r, table);
            } else {
                step(r, table);
            }
        }
    }

  private:
    Cache const& mCache;
    std::mt19937_64 mRandom;
    uint64_t mSeed;
    uint64_t mPrompts = 0;
    std::vector<int32_t> mTokens;
};

/// Requests come and go until every page is taken.
void fill(Traffic& traffic, Cache const& cache) {
    Table ignored;
    Request r;
    while (cache.stats().free[PC_RESOURCE_BASE_PAGE] > 256) {
        for (int i = 0; i < 64; ++i) {
            if (traffic.arrive(r, ignored)) {
                cache.release(r.lease);
            }
        }
    }
}

/// A cache that is full, and the requests that are live on it.
class Server {
  public:
    explicit Server(Load const& size)
        : mSize(size), mCache(size), mTraffic(mCache, 1), mLive(static_cast<size_t>(size.requests)) {
        fill(mTraffic, mCache);
        Table warm;
        run(warm, size.operations / 4);  // everything gets its final size
    }
    ~Server() {
        for (auto& r : mLive) {
            if (r.lease != 0) {
                mCache.release(r.lease);
            }
        }
    }
    Server(Server const&) = delete;
    Server& operator=(Server const&) = delete;

    void run(Table& table, int64_t operations) { mTraffic.run(mLive, table, static_cast<uint64_t>(operations)); }

    void report(Table const& table) const {
        mCache.verify();
        auto const stats = mCache.stats();
        std::printf(
            "\n%lld blocks of %d tokens, %lld requests, %llu operations (%llu refused), %llu records, %llu evicted\n",
            static_cast<long long>(mSize.blocks), mSize.page, static_cast<long long>(mSize.requests),
            static_cast<unsigned long long>(table.count()), static_cast<unsigned long long>(table.refused),
            static_cast<unsigned long long>(stats.records), static_cast<unsigned long long>(stats.evicted_records));
        Times::head();
        for (Times const* t : table.all()) {
            t->line();
        }
    }

    /// docs/sizing.md.
    double formula() const {
        double bytes = static_cast<double>(mSize.blocks) * (4 * mSize.page + kIds) +
                       static_cast<double>(mCache.stats().records) * kRecord + kRuntime;
        for (auto const& r : mLive) {
            if (r.lease != 0) {
                bytes += kLease + kLeaseBlock * std::ceil(static_cast<double>(r.tokens) / mSize.page);
            }
        }
        return bytes;
    }

  private:
    Load mSize;
    Cache mCache;
    Traffic mTraffic;
    std::vector<Request> mLive;
};

/// What a live request costs: many at once on one long prompt that is cached.
void requests(int32_t page) {
    constexpr int64_t kBlocks = 4096;
    constexpr size_t kMany = 2000;
    Cache cache(Load{page, 16384, 0, 0});
    std::vector<int32_t> tokens(static_cast<size_t>(kBlocks * page + 1));
    for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = static_cast<int32_t>(trace::splitmix64(i) % trace::kVocabulary);
    }
    pc_plan plan{};
    std::vector<pc_handle> leases(kMany);
    std::fill(leases.begin(), leases.end(), 1);  // ours is not measured
    cache.acquire(tokens, plan, leases[0]);
    cache.publish(leases[0], kBlocks * page);
    int64_t const before = load::resident();
    for (size_t i = 1; i < kMany; ++i) {
        if (cache.acquire(tokens, plan, leases[i]) != PC_OK || plan.reuse != kBlocks * page) {
            std::printf("request %zu reuses %d tokens\n", i, plan.reuse);
            load::gFailed = true;
        }
    }
    load::compare("memory of a live request of 4096 blocks",
                  static_cast<double>(load::resident() - before) / (kMany - 1), kLease + kLeaseBlock * (kBlocks + 1));
    for (auto& lease : leases) {
        cache.release(lease);
    }
}

}  // namespace

int main(int argc, char** argv) {
    load::check(argc, argv);
    Load full{};
    full.page = static_cast<int32_t>(load::option(argc, argv, "--page", 16));
    full.blocks = load::option(argc, argv, "--blocks", 1000000);
    full.requests = load::option(argc, argv, "--requests", 1000);
    full.operations = load::option(argc, argv, "--operations", 10000000);
    // In a process of its own, before this one has the library.
    load::apart([&] { requests(full.page); });
    int64_t const before = load::resident();
    Server many(full);  // the library comes with it
    Table table;
    many.run(table, full.operations - full.operations / 4);
    auto const taken = static_cast<double>(load::resident() - before);
    many.report(table);
    auto const blocks = static_cast<double>(full.blocks);
    load::compare("memory of a block, everything included", taken / blocks, many.formula() / blocks);

    Load small = full;
    small.blocks = std::max<int64_t>(full.blocks / 8, full.requests * 100);
    small.operations /= 4;
    Server few(small);
    Table large, little;
    load::inTurns(many, large, few, little, small.operations);
    few.report(little);
    for (size_t i = 0; i < large.all().size(); ++i) {
        load::growth(*large.all()[i], *little.all()[i]);
    }
    return load::gFailed ? 1 : 0;
}
