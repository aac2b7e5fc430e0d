// Random requests on an omni cache whose rows are in device memory. The model's output
// buffers are static and are overwritten right behind every save, in the order of the
// producer's stream; steps change streams; prefixes are shared, finish, are given away
// and come back. Every row that is handed out is compared with what its token says.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "checks.hpp"
#include "omni_cache.hpp"

namespace check {

namespace {

constexpr int kBlock = 4, kBlocks = 24, kFamilies = 2, kMaxTokens = 64, kDepth = 4, kBanks = 4;

struct Request {
    uint64_t id = 0;
    std::vector<uint64_t> tokens;  // contents; two tokens with one content have equal rows
    std::vector<int64_t> blocks;
    int computed = 0, announcedHit = 0;
};

/// One saved step that nobody has consumed.
struct Open {
    uint64_t step = 0;
    std::vector<std::vector<uint64_t>> rows;  // of each request of the batch: hit, then new
};

class Traffic {
  public:
    Traffic(uint64_t seed, bool graph)
        : mDraw(seed),
          mCache(kBlocks, kBlock,
                 {{PC_OMNI_HIDDEN_KEY, 256, 256, PC_OMNI_JOIN_NEXT_STEP},
                  {"strided", 48, 64, PC_OMNI_JOIN_NEXT_STEP},
                  {"deferred", 32, 32, PC_OMNI_JOIN_ON_FINISH}},
                 kDepth, kMaxTokens),
          mHolders(kBlocks) {
        for (int64_t b = 0; b < kBlocks; ++b) mFree.push_back(b);
        mStreams.emplace_back(static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
        mStreams.emplace_back(static_cast<unsigned>(CU_STREAM_DEFAULT));
        if (!graph) {
            mStreams.emplace_back(static_cast<CUstream>(nullptr));
            mStreams.emplace_back(CU_STREAM_PER_THREAD);
        }
        for (auto const& key : mCache.keys) {
            auto const bytes = static_cast<size_t>(key.stride * kMaxTokens);
            mStatic.emplace_back(bytes);
            mInput.emplace_back(bytes);
        }
        for (int i = 0; i < kBanks; ++i) {
            size_t bytes = 0;
            for (auto const& key : mCache.keys) bytes += static_cast<size_t>(key.stride * kMaxTokens);
            mBanks.emplace_back(bytes);
            mBankRead.emplace_back();
        }
        if (graph) {
            // The model of one step: static input to static output, always all rows.
            mGraph = std::make_unique<Graph>(mStreams[0], [this] {
                for (size_t k = 0; k < mStatic.size(); ++k)
                    CHECK_CUDA(cuMemcpyDtoDAsync(mStatic[k].at(), mInput[k].at(), mStatic[k].bytes(), mStreams[0]));
            });
        }
    }

    void run(int steps) {
        for (int i = 0; i < steps; ++i) {
            step();
            while (!mOpen.empty() && (mOpen.size() == kDepth || mDraw.oneIn(2))) consume();
        }
        while (!mOpen.empty()) consume();
        for (auto const& r : mLive) mGone.push_back(r.id);
        CHECK_OK(omni_step_begin(mCache.handle, mGone.data(), mGone.size(), nullptr, 0, nullptr));
        CHECK_OK(omni_check(mCache.handle));
        auto const stats = mCache.stats();
        expect(stats.failed_writes == 0, "writes failed: " + std::to_string(stats.failed_writes));
        expect(stats.unconsumed_steps == 0 && stats.pending_reads == 0, "steps or reads are left over");
        hits = stats.hits;
        rows = stats.rows_saved;
        CHECK_OK(omni_shutdown(mCache.handle));
        for (auto const& s : mStreams) s.wait();
    }

    uint64_t hits = 0, rows = 0;

  private:
    /// Schedules a batch, computes it on some stream, saves, and overwrites the outputs.
    void step() {
        mBatch.clear();
        mCounts.clear();
        mSlots.clear();
        mFresh.clear();
        std::vector<uint64_t> content;
        Open open;
        for (size_t i = 0; i < mLive.size();) {
            if (mDraw.oneIn(25)) {
                leave(i);  // an abort
            } else {
                ++i;
            }
        }
        arrive();
        for (size_t i = 0; i < mLive.size(); ++i) {
            Request& r = mLive[i];
            bool const isNew = r.announcedHit >= 0;
            if (!isNew && mDraw.oneIn(8)) continue;
            int n = std::min<int>(1 + mDraw.below(8), static_cast<int>(r.tokens.size()) - r.computed);
            while (n > 0 && static_cast<int>(r.blocks.size()) * kBlock < r.computed + n && !mFree.empty()) take(r);
            n = std::min(n, static_cast<int>(r.blocks.size()) * kBlock - r.computed);
            if (n <= 0 && !isNew) continue;
            mBatch.push_back(r.id);
            mCounts.push_back(std::max(n, 0));
            open.rows.emplace_back(r.tokens.begin(), r.tokens.begin() + (isNew ? r.announcedHit : 0));
            r.announcedHit = -1;
            for (int p = r.computed; p < r.computed + n; ++p) {
                mSlots.push_back(r.blocks[static_cast<size_t>(p / kBlock)] * kBlock + p % kBlock);
                content.push_back(r.tokens[static_cast<size_t>(p)]);
                open.rows.back().push_back(content.back());
            }
            r.computed += std::max(n, 0);
            offer(r);
        }
        for (auto const& b : mFresh) mCached.insert(b);  // may be hit from the next step on
        if (mBatch.empty()) return;
        Stream const& stream = mStreams[static_cast<size_t>(mDraw.below(static_cast<int>(mStreams.size())))];
        compute(stream, content);
        std::vector<CUdeviceptr> at;
        for (auto const& m : mStatic) at.push_back(m.at());
        ok(mCache.save(stream, mBatch, mCounts, mSlots, at, &open.step), "omni_save");
        // The next forward comes at once.
        for (auto const& m : mStatic) CHECK_CUDA(cuMemsetD8Async(m.at(), 0xEE, m.bytes(), stream));
        mLast.record(stream);
        mOpen.push_back(std::move(open));
        for (size_t i = 0; i < mLive.size();) {
            if (mLive[i].computed == static_cast<int>(mLive[i].tokens.size())) {
                leave(i);
            } else {
                ++i;
            }
        }
    }

    /// Rows of the step into the static buffers, late and in the order of the stream.
    void compute(Stream const& stream, std::vector<uint64_t> const& content) {
        auto const bank = static_cast<size_t>(mSteps++ % kBanks);
        if (mSteps > kBanks) mBankRead[bank].wait();
        // What an earlier step's stream does with the buffers comes first.
        if (mSteps > 1) CHECK_CUDA(cuStreamWaitEvent(stream, mLast, 0));
        if (mDraw.oneIn(3)) stream.delay(static_cast<unsigned>(mDraw.below(driver().simulated() ? 1 : 1500)));
        size_t offset = 0;
        for (size_t k = 0; k < mCache.keys.size(); ++k) {
            auto const& key = mCache.keys[k];
            for (size_t i = 0; i < content.size(); ++i)
                fillRow(mBanks[bank].as(offset + i * static_cast<size_t>(key.stride)), content[i], key);
            size_t const bytes = content.size() * static_cast<size_t>(key.stride);
            auto const& to = mGraph ? mInput[k] : mStatic[k];
            if (bytes > 0) CHECK_CUDA(cuMemcpyHtoDAsync(to.at(), mBanks[bank].as(offset), bytes, stream));
            offset += mStatic[k].bytes();
        }
        mBankRead[bank].record(stream);
        if (mGraph) mGraph->launch(stream);
    }

    /// Materializes or discards one open step, on this thread or on one that never used CUDA.
    void consume() {
        auto const which = mDraw.below(static_cast<int>(mOpen.size()));
        Open const open = std::move(mOpen[static_cast<size_t>(which)]);
        mOpen.erase(mOpen.begin() + which);
        if (mDraw.oneIn(10)) return CHECK_OK(omni_discard(mCache.handle, open.step));
        auto const batch = static_cast<int>(open.rows.size());
        int const first = mDraw.oneIn(3) ? mDraw.below(batch) : 0;
        int const count = first > 0 ? 1 + mDraw.below(batch - first) : batch;
        std::vector<uint64_t> content;
        for (int i = first; i < first + count; ++i) {
            auto const& of = open.rows[static_cast<size_t>(i)];
            content.insert(content.end(), of.begin(), of.end());
        }
        std::vector<std::vector<uint8_t>> results;
        std::vector<pc_omni_read> reads;
        for (auto const& key : mCache.keys) {
            results.emplace_back(std::max<size_t>(1, content.size() * static_cast<size_t>(key.rowBytes)),
                                 uint8_t{0x77});
            pc_omni_read read{};
            read.key = key.number;
            read.first = first;
            read.count = count;
            read.dst = results.back().data();
            read.dst_bytes = content.size() * static_cast<uint64_t>(key.rowBytes);
            reads.push_back(read);
        }
        std::string error;
        auto const read = [&] {
            if (library().omni_materialize(mCache.handle, open.step, reads.data(), reads.size()) != PC_OK)
                error = library().last_error();
        };
        if (mDraw.oneIn(2)) {
            read();
        } else {
            std::thread(read).join();
        }
        expect(error.empty(), "materialize(step " + std::to_string(open.step) + "): " + error);
        std::vector<uint8_t> want(256);
        for (size_t k = 0; k < results.size(); ++k) {
            auto const width = static_cast<size_t>(mCache.keys[k].rowBytes);
            for (size_t i = 0; i < content.size(); ++i) {
                fillRow(want.data(), content[i], mCache.keys[k]);
                if (std::memcmp(&results[k][i * width], want.data(), width) != 0)
                    fail("step " + std::to_string(open.step) + ", key " + mCache.keys[k].name + ", row " +
                         std::to_string(i) + " of " + std::to_string(content.size()) + " is another one");
            }
        }
    }

    // ---------------------------------------------------------------- scheduler

    void arrive() {
        std::vector<pc_omni_new_request> arrivals;
        size_t const before = mLive.size();
        while (mLive.size() < 6 && mDraw.oneIn(2)) {
            Request r;
            r.id = ++mIds;
            auto const family = static_cast<uint64_t>(mDraw.below(kFamilies));
            int const shared = kBlock * mDraw.below(5), own = 1 + mDraw.below(10);
            for (int i = 0; i < shared; ++i) r.tokens.push_back(mix(family, static_cast<uint64_t>(i)));
            for (int i = 0; i < own; ++i) r.tokens.push_back(mix(1000 + r.id, static_cast<uint64_t>(i)));
            for (int i = 0; i < shared / kBlock; ++i) {
                auto const found = mCached.find({family, i});
                if (found == mCached.end()) break;
                if (mHolders[static_cast<size_t>(found->second)]++ == 0)
                    mFree.erase(std::find(mFree.begin(), mFree.end(), found->second));
                r.blocks.push_back(found->second);
            }
            r.computed = r.announcedHit = static_cast<int>(r.blocks.size()) * kBlock;
            r.blocks.reserve(64);  // the announcement points into it
            mFamilyOf[r.id] = {family, shared / kBlock};
            mLive.push_back(std::move(r));
        }
        for (size_t i = before; i < mLive.size(); ++i) {
            Request const& r = mLive[i];
            pc_omni_new_request a{};
            a.request = r.id;
            a.hit_tokens = r.announcedHit;
            a.blocks = r.blocks.data();
            a.num_blocks = static_cast<int64_t>(r.blocks.size());
            arrivals.push_back(a);
        }
        CHECK_OK(omni_step_begin(mCache.handle, mGone.data(), mGone.size(), arrivals.data(), arrivals.size(), nullptr));
        mGone.clear();
    }

    void take(Request& r) {
        int64_t const block = mFree.front();
        mFree.pop_front();
        for (auto it = mCached.begin(); it != mCached.end();) it = it->second == block ? mCached.erase(it) : ++it;
        mHolders[static_cast<size_t>(block)] = 1;
        r.blocks.push_back(block);
    }

    /// Full blocks of a family's prefix can be found by others.
    void offer(Request const& r) {
        auto const [family, shared] = mFamilyOf[r.id];
        for (int i = 0; i < std::min(shared, r.computed / kBlock); ++i)
            if (!mCached.count({family, i})) mFresh[{family, i}] = r.blocks[static_cast<size_t>(i)];
    }

    /// The blocks are free now; the cache hears of it with the next step.
    void leave(size_t index) {
        for (auto it = mLive[index].blocks.rbegin(); it != mLive[index].blocks.rend(); ++it)
            if (--mHolders[static_cast<size_t>(*it)] == 0) mFree.push_back(*it);
        mGone.push_back(mLive[index].id);
        mLive.erase(mLive.begin() + static_cast<std::ptrdiff_t>(index));
    }

    using FamilyBlock = std::pair<uint64_t, int>;

    Draw mDraw;
    // Memory and streams are declared first: they go after the cache that uses them.
    std::vector<Stream> mStreams;
    std::vector<DeviceMemory> mStatic, mInput;
    std::vector<PinnedMemory> mBanks;
    std::vector<Event> mBankRead;
    Event mLast;
    std::unique_ptr<Graph> mGraph;
    OmniCache mCache;

    std::deque<int64_t> mFree;  // least recently used first
    std::vector<int> mHolders;
    std::map<FamilyBlock, int64_t> mCached, mFresh;
    std::map<uint64_t, FamilyBlock> mFamilyOf;
    std::vector<Request> mLive;
    std::vector<uint64_t> mGone;
    uint64_t mIds = 0;
    int mSteps = 0;

    std::vector<uint64_t> mBatch;
    std::vector<int64_t> mCounts, mSlots;
    std::vector<Open> mOpen;
};

std::string play(Effort const& effort, bool graph) {
    auto const start = Clock::now();
    uint64_t seed = 0, hits = 0, rows = 0;
    for (; seed < effort.seeds && seconds(start) < effort.seconds; ++seed) {
        driver().begin(seed);
        try {
            Traffic traffic(seed, graph);
            traffic.run(60);
            hits += traffic.hits;
            rows += traffic.rows;
        } catch (std::exception const& e) {
            fail("seed " + std::to_string(seed) + ": " + e.what());
        }
        auto const faults = driver().faults();
        expect(faults.empty(), "seed " + std::to_string(seed) + ": " + faults);
    }
    expect(seed > 0 && hits > 0, "nothing was exercised");
    return std::to_string(seed) + " runs of 60 steps, " + std::to_string(rows) + " rows, " + std::to_string(hits) +
           " hits";
}

}  // namespace

void omniTraffic(Effort const& effort) {
    run("omni, raw streams: random requests, static buffers overwritten behind each save",
        [&] { return play(effort, false); });
    char const* const replay = "omni, raw streams: the same with CUDA-graph replay";
    if (driver().graphs()) {
        run(replay, [&] { return play(effort, true); });
    } else {
        notRun(replay, "this driver has no graphs");
    }
}

}  // namespace check
