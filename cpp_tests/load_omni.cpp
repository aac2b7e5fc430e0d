// The omni cache under load, through the C ABI: decode steps of a batch out of many live
// requests, prefix hits of those that arrive, results read a few steps late.
//
//   load_omni [--slots N] [--requests N] [--operations N]
//
// Prints a table of latencies, and the memory of a slot and of a live request beside the
// formula of docs/sizing.md. Exit 1 when memory is off by more than a tenth, when a row is
// wrong, when a step costs more because more is cached, or when the structure is broken.
#include <prefixcache/library.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "load.hpp"

namespace {

using load::now;
using load::Times;
using prefixcache::detail::check;
using prefixcache::detail::sized;

pc_api const& api() { return prefixcache::Library::get(); }

constexpr int64_t kBlock = 16;    // slots
constexpr int64_t kHidden = 256;  // bytes of a row
constexpr int64_t kDeferred = 64;
constexpr size_t kBatch = 64;  // requests of a decode step
constexpr int64_t kPromptBlocks = 8;
constexpr int64_t kAnswerBlocks = 4;   // decode steps of a request: 64
constexpr size_t kLate = 3;            // steps that are not read yet
constexpr double kRuntime = 16 << 20;  // what the Go runtime holds once it works

struct Load {
    int64_t slots;
    size_t requests;
    uint64_t operations;
};

struct Table {
    Times begin{"step_begin"};
    Times finish{"step_begin, one ends"};  // writes the deferred rows of the one
    Times decode{"save, 64 requests"};
    Times prefill{"save, prompt of 128 tokens"};
    Times read{"materialize"};
    Times hit{"materialize with a hit"};
    Times stats{"get_stats"};

    std::vector<Times const*> all() const { return {&begin, &finish, &decode, &prefill, &read, &hit, &stats}; }
    uint64_t count() const {
        uint64_t n = 0;
        for (Times const* t : all()) {
            n += t->count();
        }
        return n;
    }
};

/// One live request: its blocks, and how many of its slots have rows.
struct Request {
    uint64_t number = 0;
    int64_t blocks[kPromptBlocks + kAnswerBlocks] = {};
    int64_t tokens = 0;
    int64_t hit = 0;  // tokens, in the coming step
};

struct Step {
    uint64_t id = 0;
    int64_t rows = 0;
    int64_t hit = 0;  // rows of the prefix that the first request hits
    uint64_t hitTag = 0;
};

class Cache {
  public:
    explicit Cache(int64_t slots) {
        auto options = sized<pc_omni_options>();
        options.flags = PC_OMNI_EAGER;
        options.num_blocks = slots / kBlock;
        options.block_size = kBlock;
        options.staging_depth = kLate + 2;
        check(api(), api().omni_create(&options, &mHandle));
        mHidden = open(PC_OMNI_HIDDEN_KEY, kHidden, PC_OMNI_JOIN_NEXT_STEP);
        mDeferred = open("deferred", kDeferred, PC_OMNI_JOIN_ON_FINISH);
    }
    ~Cache() { api().omni_destroy(&mHandle); }
    Cache(Cache const&) = delete;
    Cache& operator=(Cache const&) = delete;

    void begin(std::vector<uint64_t> const& finished, std::vector<pc_omni_new_request> const& arrivals) const {
        check(api(), api().omni_step_begin(mHandle, finished.data(), finished.size(), arrivals.data(), arrivals.size(),
                                           nullptr));
    }
    uint64_t save(std::vector<uint64_t> const& requests, std::vector<int64_t> const& counts,
                  std::vector<int64_t> const& slots, std::vector<uint8_t> const& rows) const {
        pc_omni_rows keys[2] = {};
        keys[0].key = mHidden;
        keys[1].key = mDeferred;
        keys[0].row_stride = kHidden;
        keys[1].row_stride = kDeferred;
        keys[0].rows = keys[1].rows = rows.data();
        auto args = sized<pc_omni_save_args>();
        args.requests = requests.data();
        args.counts = counts.data();
        args.num_requests = requests.size();
        args.slots = slots.data();
        args.num_slots = static_cast<int64_t>(slots.size());
        args.rows = keys;
        args.num_rows = 2;
        check(api(), api().omni_save(mHandle, &args));
        return args.step;
    }
    void materialize(uint64_t step, int64_t count, std::vector<uint8_t>& hidden, std::vector<uint8_t>& deferred,
                     int64_t rows) const {
        hidden.resize(static_cast<size_t>(rows * kHidden));
        deferred.resize(static_cast<size_t>(rows * kDeferred));
        pc_omni_read reads[2] = {};
        reads[0].key = mHidden;
        reads[1].key = mDeferred;
        reads[0].count = reads[1].count = count;
        reads[0].dst = hidden.data();
        reads[1].dst = deferred.data();
        reads[0].dst_bytes = hidden.size();
        reads[1].dst_bytes = deferred.size();
        check(api(), api().omni_materialize(mHandle, step, reads, 2));
    }
    pc_omni_stats stats() const {
        auto stats = sized<pc_omni_stats>();
        check(api(), api().omni_get_stats(mHandle, &stats));
        return stats;
    }
    void verify() const { check(api(), api().omni_check(mHandle)); }

  private:
    uint32_t open(char const* name, uint64_t bytes, uint32_t schedule) const {
        uint32_t key = 0;
        check(api(), api().omni_open_key(mHandle, name, std::strlen(name), bytes, 1, schedule, &key));
        return key;
    }
    pc_handle mHandle = 0;
    uint32_t mHidden = 0, mDeferred = 0;
};

/// The scheduler and the model: which blocks a request has, and rows that say whose
/// they are.
class Host {
  public:
    Host(Cache const& cache, Load const& size)
        : mCache(cache), mRandom(7), mLive(size.requests), mOwner(static_cast<size_t>(size.slots / kBlock)) {}

    /// Every block is owned once, so that all memory is in use.
    void fill() {
        Table ignored;
        for (size_t i = 0; i < mOwner.size() / kPromptBlocks + 1; ++i) {
            prefill(mLive[i % mLive.size()], ignored);
        }
    }

    void run(Table& table, uint64_t operations) {
        uint64_t const end = table.count() + operations;
        while (table.count() < end) {
            decode(table);
            // Requests of 64 steps in batches of 64: one leaves, and one arrives, a step.
            prefill(mLive[mNext++ % mLive.size()], table);
            if (mRandom() % 64 == 0) {
                int64_t const start = now();
                mCache.stats();
                table.stats.add(now() - start);
            }
        }
    }

    void drain(Table& table) {
        while (!mSteps.empty()) {
            read(table);
        }
    }
    uint64_t wrong() const { return mWrong; }
    /// Rows of live requests, which wait for their end.
    double deferredRows() const {
        double rows = 0;
        for (Request const& r : mLive) {
            rows += static_cast<double>(r.tokens);
        }
        return rows;
    }

  private:
    /// A request ends and another takes its place: half of the prompts begin with blocks
    /// that somebody else computed.
    void prefill(Request& r, Table& table) {
        mFinished.clear();
        if (r.number != 0) {
            mFinished.push_back(r.number);
        }
        r = Request{};
        r.number = ++mNumber;
        uint64_t tag = 0;
        if (mRandom() % 2 == 0) {
            auto const from = mRandom() % (mOwner.size() - 2);
            if (mOwner[from] != 0 && mOwner[from + 1] == mOwner[from]) {  // two blocks of one owner
                r.blocks[0] = static_cast<int64_t>(from);
                r.blocks[1] = static_cast<int64_t>(from + 1);
                r.hit = 2 * kBlock;
                tag = mOwner[from];
            }
        }
        for (int64_t b = r.hit / kBlock; b < kPromptBlocks + kAnswerBlocks; ++b) {
            do {
                mClock = (mClock + 1) % mOwner.size();
            } while (r.hit > 0 &&
                     (static_cast<int64_t>(mClock) == r.blocks[0] || static_cast<int64_t>(mClock) == r.blocks[1]));
            r.blocks[b] = static_cast<int64_t>(mClock);
        }
        mArrivals.assign(1, pc_omni_new_request{r.number, r.hit, r.blocks, kPromptBlocks + kAnswerBlocks});
        int64_t const start = now();
        mCache.begin(mFinished, mArrivals);
        table.finish.add(now() - start);
        mRequests.assign(1, r.number);
        mCounts.assign(1, kPromptBlocks * kBlock - r.hit);
        mSlots.clear();
        for (int64_t t = r.hit; t < kPromptBlocks * kBlock; ++t) {
            mSlots.push_back(r.blocks[t / kBlock] * kBlock + t % kBlock);
            mOwner[static_cast<size_t>(r.blocks[t / kBlock])] = r.number;
        }
        save(table.prefill, r.hit, tag, table);
        r.tokens = kPromptBlocks * kBlock;
        r.hit = 0;
    }

    void decode(Table& table) {
        mRequests.clear();
        mSlots.clear();
        for (size_t i = 0; i < std::min(kBatch, mLive.size()); ++i) {
            Request& r = mLive[(mNext + i * 13) % mLive.size()];
            if (r.number == 0 || r.tokens == (kPromptBlocks + kAnswerBlocks) * kBlock ||
                std::find(mRequests.begin(), mRequests.end(), r.number) != mRequests.end()) {
                continue;
            }
            auto const block = static_cast<size_t>(r.blocks[r.tokens / kBlock]);
            mRequests.push_back(r.number);
            mSlots.push_back(static_cast<int64_t>(block) * kBlock + r.tokens % kBlock);
            mOwner[block] = 0;  // not a block that anybody may hit
            ++r.tokens;
        }
        if (mRequests.empty()) {
            return;
        }
        mCounts.assign(mRequests.size(), 1);
        int64_t const start = now();
        mCache.begin({}, {});
        table.begin.add(now() - start);
        save(table.decode, 0, 0, table);
    }

    /// Each row is the number of its request, eight bytes at a time.
    void save(Times& times, int64_t hit, uint64_t tag, Table& table) {
        mRows.resize(mSlots.size() * kHidden);
        size_t row = 0;
        for (size_t i = 0; i < mRequests.size(); ++i) {
            for (int64_t n = 0; n < mCounts[i]; ++n, ++row) {
                for (size_t at = 0; at < kHidden; at += 8) {
                    std::memcpy(&mRows[row * kHidden + at], &mRequests[i], 8);
                }
            }
        }
        int64_t const start = now();
        uint64_t const id = mCache.save(mRequests, mCounts, mSlots, mRows);
        times.add(now() - start);
        mSteps.push_back({id, static_cast<int64_t>(mSlots.size()) + hit, hit, tag});
        mSizes.push_back(static_cast<int64_t>(mRequests.size()));
        while (mSteps.size() > kLate) {
            read(table);
        }
    }

    /// Reads one of the oldest steps, and compares the hidden rows of its hit.
    void read(Table& table) {
        size_t const i = mRandom() % mSteps.size();
        Step const step = mSteps[i];
        int64_t const start = now();
        mCache.materialize(step.id, mSizes[i], mHiddenRows, mDeferredRows, step.rows);
        (step.hit > 0 ? table.hit : table.read).add(now() - start);
        for (int64_t row = 0; row < step.hit; ++row) {
            uint64_t tag = 0;
            std::memcpy(&tag, &mHiddenRows[static_cast<size_t>(row * kHidden)], 8);
            mWrong += tag != step.hitTag;
        }
        mSteps.erase(mSteps.begin() + static_cast<long>(i));
        mSizes.erase(mSizes.begin() + static_cast<long>(i));
    }

    Cache const& mCache;
    std::mt19937_64 mRandom;
    std::vector<Request> mLive;
    std::vector<uint64_t> mOwner;  // request whose prompt fills a block, 0: none
    size_t mClock = 0, mNext = 0;
    uint64_t mNumber = 0, mWrong = 0;
    std::vector<Step> mSteps;
    std::vector<int64_t> mSizes;  // requests of each step
    std::vector<uint64_t> mFinished, mRequests;
    std::vector<pc_omni_new_request> mArrivals;
    std::vector<int64_t> mCounts, mSlots;
    std::vector<uint8_t> mRows, mHiddenRows, mDeferredRows;
};

/// A cache whose every slot has had rows, and the requests that are live on it.
class Server {
  public:
    explicit Server(Load const& size) : mSize(size), mCache(size.slots), mHost(mCache, size) {
        mHost.fill();
        mHost.fill();  // the deferred rows of the first time are in the cache now
        Table warm;
        mHost.run(warm, size.operations / 4);  // everything gets its final size
    }

    void run(Table& table, uint64_t operations) { mHost.run(table, operations); }

    void verify(Table& table) {
        mHost.drain(table);
        mCache.verify();
        load::limit("wrong rows", static_cast<double>(mHost.wrong()), 0);
    }

    void report(Table const& table) const {
        auto const stats = mCache.stats();
        std::printf(
            "\n%lld slots of %lld and %lld bytes, %zu requests, %llu operations, %llu hit tokens, %llu bytes copied "
            "aside\n",
            static_cast<long long>(mSize.slots), static_cast<long long>(kHidden), static_cast<long long>(kDeferred),
            mSize.requests, static_cast<unsigned long long>(table.count()),
            static_cast<unsigned long long>(stats.hit_tokens), static_cast<unsigned long long>(stats.preserved_bytes));
        Times::head();
        for (Times const* t : table.all()) {
            t->line();
        }
    }

    /// docs/sizing.md, for these two keys.
    double formula() const {
        auto const slots = static_cast<double>(mSize.slots);
        double const hidden = slots * (kHidden + 8) + slots / kBlock * 8;
        double const deferred = slots * (kDeferred + 8 + 4) + slots / kBlock * 8;
        return hidden + deferred + mHost.deferredRows() * (kDeferred + 24) + kRuntime;
    }

  private:
    Load mSize;
    Cache mCache;
    Host mHost;
};

/// What a request costs that has no rows: an entry of a table.
void requests() {
    constexpr size_t kMany = 200000;
    Cache cache(1 << 12);
    int64_t const before = load::resident();
    std::vector<pc_omni_new_request> arrivals(1000);
    for (uint64_t i = 0; i < kMany; i += arrivals.size()) {
        for (size_t j = 0; j < arrivals.size(); ++j) {
            arrivals[j] = {i + j + 1, 0, nullptr, 0};
        }
        cache.begin({}, arrivals);
    }
    load::limit("bytes of a live request without rows", static_cast<double>(load::resident() - before) / kMany, 200);
}

}  // namespace

int main(int argc, char** argv) {
    load::check(argc, argv);
    Load full{};
    full.slots = load::option(argc, argv, "--slots", 1000000) / kBlock * kBlock;
    full.requests = static_cast<size_t>(load::option(argc, argv, "--requests", 1000));
    full.operations = static_cast<uint64_t>(load::option(argc, argv, "--operations", 10000000));
    load::apart([] { requests(); });
    int64_t const before = load::resident();
    Server many(full);  // the library comes with it
    Table table;
    many.run(table, full.operations - full.operations / 4);
    auto const taken = static_cast<double>(load::resident() - before);
    many.verify(table);
    many.report(table);
    auto const slots = static_cast<double>(full.slots);
    load::compare("memory of a slot, both keys", taken / slots, many.formula() / slots);

    Load small = full;
    small.slots /= 8;
    small.requests = std::max(full.requests / 8, 2 * kBatch - 3);  // their slots have to fit
    small.operations /= 4;
    Server few(small);
    Table large, little;
    load::inTurns(many, large, few, little, small.operations);
    many.verify(large);
    few.verify(little);
    few.report(little);
    for (size_t i = 0; i < large.all().size(); ++i) {
        load::growth(*large.all()[i], *little.all()[i]);
    }
    return load::gFailed ? 1 : 0;
}
