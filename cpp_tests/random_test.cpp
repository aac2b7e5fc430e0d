// Random requests through the coordinator of each deployment kind: text and media, adapters
// and tenants, rejected drafts, full pools, flushes in the middle, callbacks that throw and
// synchronizations that fail. KV and recurrent state are functions of the prefix with all
// that sets it apart, so whatever is reused wrongly is seen in the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;
using Handle = ContextCacheCoordinator::RequestHandle;

uint32_t mix(uint32_t digest, uint32_t value) {
    uint32_t x = (digest ^ value) * 2654435761U;
    x ^= x >> 15;
    x *= 2246822519U;
    return x ^ x >> 13;
}

bool isMedia(Hash128 const& digest) { return digest != Hash128{}; }

/// A sequence, and what a model would have computed of it.
struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<Hash128> media;
    int32_t owner = 0;  // 1: an adapter's, 2: a tenant's
    int32_t committed = 0;
    int32_t common = 0;

    uint32_t item(int32_t position) const {
        auto const i = static_cast<size_t>(position);
        if (i < media.size() && isMedia(media[i])) {
            return mix(1, static_cast<uint32_t>(media[i].low));
        }
        return mix(2, static_cast<uint32_t>(tokens[i]));
    }

    /// Of the first n tokens.
    uint32_t digest(int32_t n) {
        if (mDigests.empty()) {
            mDigests.push_back(mix(3, static_cast<uint32_t>(owner)));
        }
        for (auto i = static_cast<int32_t>(mDigests.size()); i <= n; ++i) {
            mDigests.push_back(mix(mDigests.back(), item(i - 1)));
        }
        return mDigests[static_cast<size_t>(n)];
    }

    /// What belongs at a position; the draft's depends on the next token, too.
    uint16_t base(int32_t position) { return low(digest(position + 1)); }
    uint16_t draft(int32_t position) { return low(mix(digest(position + 2), 4)); }

  private:
    static uint16_t low(uint32_t digest) { return static_cast<uint16_t>(digest ^ digest >> 16); }

    std::vector<uint32_t> mDigests;
};

/// One run of a runtime over one coordinator, until the first failed synchronization.
class Runtime {
  public:
    Runtime(Kind kind, uint64_t seed)
        : mKind(kind),
          mRandom(seed),
          mShape(shape()),
          mRig(kind, mShape, random(3) == 0 ? random(3) : 1 + random(12), 1 + random(4),
               [this](ContextCacheConfig& config) {
                   config.weakHash = random(3) == 0;
                   config.shortenVictims = random(2) == 0;
                   config.zeroOnRelease = random(2) == 0;
                   config.originalRecency = random(3) == 0;
                   config.tenantQuota = random(4) == 0 ? 500 + random(501) : 0;
               }),
          mMapping(mStore.data(), DataType::kInt32, 4) {}

    void run(int requests) {
        for (int i = 0; i < requests && !mPoisoned; ++i) {
            request();
            ASSERT_FALSE(testing::Test::HasFailure()) << "request " << i;
            mRig->manager().checkInvariants();
            auto const m = mRig->metrics();
            ASSERT_EQ(m.standardPlans + m.noReusablePrefixPlans + m.fullInputRewindPlans, m.admittedSequences);
            ASSERT_EQ(m.committedPublications + m.existingPublications, m.publicationAttempts);
            ASSERT_EQ(m.activeRequests, mPoisoned ? 1U : 0U);
            for (auto const& pool : m.pools) {
                ASSERT_TRUE(pool.active == 0 || mPoisoned);
            }
            if (random(30) == 0) {
                random(2) == 0 ? forget() : static_cast<void>(invalidateAdapter(*mRig, {1, 1}));
            }
        }
        ASSERT_EQ(mRig->shutdown(), Status::kOk);
        flush(*mRig);
        for (auto const& pool : mRig->metrics().pools) {
            ASSERT_EQ(pool.free, pool.capacity) << "C-71";
        }
    }

    int64_t reused() const { return mReused; }
    int64_t faults() const { return mFaults; }

  private:
    HostCacheShape shape() {
        HostCacheShape s;
        s.tokensPerPage = 1 + random(5);
        s.pages = 12 + random(60);
        s.width = 3 + random(12);
        s.maxBatch = 1 + random(4);
        return s;
    }

    int32_t random(int32_t n) { return static_cast<int32_t>(mRandom() % static_cast<uint64_t>(n)); }
    bool recurrent() const { return mKind == Kind::kHybrid || mKind == Kind::kPureRecurrent; }
    bool attention() const { return mKind != Kind::kPureRecurrent; }

    // ----------------------------------------------- what may be found, and no more

    void forget() {
        flush(*mRig);
        mPublished.clear();
        mStale = true;  // and so is what the request under way publishes later
    }

    /// Every prefix of a published endpoint may be reused.
    void remember(Sequence& s, int32_t length) {
        for (int32_t n = 1; n <= length && !mBypass && !mStale; ++n) {
            mPublished.insert(s.digest(n));
        }
    }

    // ------------------------------------------------------------------- a model

    /// Where the device table has a position of a slot.
    uint16_t* cell(HostCache& cache, KVPageTable const& table, int32_t slot, int32_t position, bool v) {
        int32_t const row = slot * 2 * mShape.width + (v ? mShape.width : 0);
        int32_t const page = table.devicePointer()[row + position / mShape.tokensPerPage];
        if (page < 0) {
            throw std::logic_error("a position without a page");
        }
        return cache.token(0, page, position % mShape.tokensPerPage);
    }
    void write(HostCache& cache, KVPageTable const& table, int32_t slot, int32_t position, uint16_t value) {
        for (bool const v : {false, true}) {
            std::fill_n(cell(cache, table, slot, position, v), cache.tokenElements(), value);
        }
    }
    void writeBase(Sequence& s, int32_t slot, int32_t position) {
        if (attention()) {
            write(mRig.base, mRig.table, slot, position, s.base(position));
        }
        if (recurrent()) {
            uint32_t const state = s.digest(position + 1);
            std::memcpy(mRig.base.stateOf(1, slot), &state, sizeof state);
        }
    }
    uint32_t state(int32_t slot) {
        uint32_t value = 0;
        std::memcpy(&value, mRig.base.stateOf(1, slot), sizeof value);
        return value;
    }
    void ingest(Sequence& s, int32_t slot, int32_t to) {
        for (; s.common < to; ++s.common) {
            write(*mRig.draft, *mRig.draftTable, slot, s.common, s.draft(s.common));
        }
    }

    // ------------------------------------------------------------------ requests

    Sequence prompt() {
        if (!mServed.empty() && random(2) == 0) {
            return continuation(mServed[static_cast<size_t>(random(static_cast<int32_t>(mServed.size())))]);
        }
        Sequence s;
        int32_t const p = mShape.tokensPerPage;
        int32_t const n = 1 + random(std::min(3 * p + 12, mShape.width * p));
        for (int32_t branch = 0; static_cast<int32_t>(s.tokens.size()) < n;) {
            branch = random(7) == 0 ? random(3) : branch;  // few branches: prefixes are shared
            s.tokens.push_back(branch);
        }
        s.owner = std::max(0, random(5) - 2);
        if (random(3) == 0) {
            s.media.resize(static_cast<size_t>(n));
            for (int32_t items = random(3); items > 0; --items) {
                int32_t const from = random(n);
                int32_t const to = std::min(n, from + random(2 * p + 2));
                std::fill(s.media.begin() + from, s.media.begin() + to, Hash128{0, 1 + mRandom() % 2});
            }
        }
        return s;
    }

    /// The next turn of a conversation: what was computed, or less of it, and then more.
    Sequence continuation(Sequence const& served) {
        Sequence s;
        s.owner = served.owner;
        int32_t const most = mShape.width * mShape.tokensPerPage - 1;
        int32_t const keep = std::min(most, random(3) == 0 ? random(served.committed) : served.committed);
        s.tokens.assign(served.tokens.begin(), served.tokens.begin() + keep);
        for (int32_t more = 1 + random(std::min(6, most + 1 - keep)); more > 0; --more) {
            s.tokens.push_back(random(3));
        }
        if (!served.media.empty()) {
            s.media = served.media;
            s.media.resize(s.tokens.size());
            if (random(4) == 0) {
                s.media.back() = {0, 1};
            }
        }
        return s;
    }

    static ContextCacheSequenceAdmission admissionOf(Sequence const& s) {
        ContextCacheSequenceAdmission in;
        in.tokenIds = s.tokens;
        in.perPositionMediaHash = s.media;
        if (s.owner == 1) {
            in.keyExtras.adapter = AdapterIdentity{{1, 1}, 0};
        } else if (s.owner == 2) {
            in.keyExtras.isolationDigest = Hash128{1, 1};
        }
        return in;
    }

    void request() {
        std::vector<Sequence> batch(static_cast<size_t>(1 + random(mShape.maxBatch)));
        ContextCacheBatchAdmission admission;
        for (auto& s : batch) {
            s = prompt();
            admission.sequences.push_back(admissionOf(s));
        }
        mEagle = mKind == Kind::kEagle && random(5) != 0;
        mBypass = random(10) == 0;
        mStale = false;
        mPrefillOnly = random(4) == 0;
        admission.executionMode = mEagle ? ContextCacheExecutionMode::kEagle : ContextCacheExecutionMode::kVanilla;
        admission.lookupPolicy = mBypass ? ContextCacheLookupPolicy::kBypass : ContextCacheLookupPolicy::kUseCache;
        admission.commitPolicy =
            mPrefillOnly ? ContextCacheCommitPolicy::kPrefillOnly : ContextCacheCommitPolicy::kIncludingGeneratedTokens;
        auto const before = mRig->metrics();
        auto result = mRig->beginRequest(admission, kStream);
        if (result.status != Status::kOk) {
            auto const after = mRig->metrics();
            ASSERT_EQ(result.status, Status::kRequestFailed);
            ASSERT_EQ(after.admittedSequences, before.admittedSequences) << "D-13";
            ASSERT_EQ(after.currentRecords, before.currentRecords);
            ASSERT_EQ(after.pools[0].free, before.pools[0].free);
            return;
        }
        walk(result.admission->request, batch, result.admission->prefillStarts);
    }

    /// Ends early now and then: the handle is dropped wherever the request is.
    void walk(Handle& r, std::vector<Sequence>& batch, std::vector<int32_t> const& starts) {
        if (random(12) == 0 || !step(r, mRig.base, "reset", [&] { return mRig->preparePrefill(r); })) {
            return;
        }
        for (size_t i = 0; i < batch.size(); ++i) {
            prefill(batch[i], static_cast<int32_t>(i), starts[i]);
        }
        if (random(12) == 0) {
            return;
        }
        mRig->enqueuePrefillCaptures(r);
        if (random(15) == 0) {
            return;
        }
        if (random(15) == 0) {
            forget();
        }
        std::vector<int32_t> common;
        for (auto& s : batch) {
            s.tokens.push_back(random(3));
            common.push_back(s.committed);
        }
        std::vector<ContextCacheSequenceAdvance> advances;
        for (auto const& s : batch) {
            advances.push_back({&s.tokens.back(), 1, s.committed});
        }
        ASSERT_EQ(mRig->finalizePrefillPublication(r, advances, mEagle ? &common : nullptr), Status::kOk);
        for (size_t i = 0; i < batch.size(); ++i) {
            remember(batch[i], batch[i].committed);
            if (mEagle) {
                ingest(batch[i], static_cast<int32_t>(i), batch[i].committed);
            }
        }
        for (int32_t steps = random(10); steps > 0 && !batch.empty(); --steps) {
            if (!(random(4) == 0 ? compact(r, batch) : decode(r, batch))) {
                return;
            }
        }
        for (auto const& s : batch) {
            mServed.push_back(s);
            if (mServed.size() > 12) {
                mServed.erase(mServed.begin());
            }
        }
        if (random(4) != 0) {
            step(r, mRig.base, "", [&] { return mRig->finish(r); });
        }
    }

    void prefill(Sequence& s, int32_t slot, int32_t start) {
        auto const n = static_cast<int32_t>(s.tokens.size());
        ASSERT_LT(start, n) << "C-44";
        ASSERT_TRUE(start == 0 || !mBypass);
        ASSERT_TRUE(start == 0 || mPublished.count(s.digest(start)) == 1) << "reuse of what nobody published";
        auto const at = static_cast<size_t>(start);
        if (start > 0 && at < s.media.size()) {
            ASSERT_FALSE(isMedia(s.media[at - 1]) && isMedia(s.media[at])) << "C-89";
        }
        for (int32_t i = 0; i < start; ++i) {
            for (bool const v : {false, true}) {
                ASSERT_TRUE(!attention() || *cell(mRig.base, mRig.table, slot, i, v) == s.base(i)) << i;
                ASSERT_TRUE(!mEagle || *cell(*mRig.draft, *mRig.draftTable, slot, i, v) == s.draft(i)) << i;
            }
        }
        ASSERT_TRUE(!recurrent() || state(slot) == (start > 0 ? s.digest(start) : 0)) << start;
        ASSERT_EQ(mRig.base.lengths[static_cast<size_t>(slot)], start);
        mReused += start;
        s.common = start;
        for (s.committed = start; s.committed < n; ++s.committed) {
            writeBase(s, slot, s.committed);
        }
    }

    /// False: the request has ended.
    bool decode(Handle& r, std::vector<Sequence>& batch) {
        if (mRig->prepareDecodeStep(r) != Status::kOk || random(25) == 0) {
            return false;  // no pages, a full row; or dropped
        }
        if (random(20) == 0) {
            forget();
        }
        std::vector<ContextCacheSequenceAdvance> advances;
        std::vector<int32_t> common;
        std::vector<int32_t> publish;
        for (size_t i = 0; i < batch.size(); ++i) {
            auto& s = batch[i];
            auto const slot = static_cast<int32_t>(i);
            int32_t const accepted = mEagle ? 1 + random(3) : 1;
            if (mEagle) {
                ingest(s, slot, s.committed);  // the draft is one round behind
                reject(s, slot);
            }
            for (int32_t k = 0; k < accepted; ++k) {
                s.tokens.push_back(random(3));
                writeBase(s, slot, s.committed++);
            }
            common.push_back(s.common);
            if (random(3) == 0) {
                publish.push_back(slot);
            }
            advances.push_back(
                {s.tokens.data() + s.tokens.size() - static_cast<size_t>(accepted), accepted, s.committed});
        }
        std::shuffle(publish.begin(), publish.end(), mRandom);
        bool const done = step(r, mRig.base, "", [&] {
            return mRig->completeDecodeStep(r, advances, publish, mEagle ? &common : nullptr);
        });
        for (int32_t const i : publish) {
            if (done && !mPrefillOnly) {
                auto& s = batch[static_cast<size_t>(i)];
                remember(s, mEagle ? s.common : s.committed);
            }
        }
        return done;
    }

    /// What the candidates of a round leave behind where none of them is accepted.
    void reject(Sequence const& s, int32_t slot) {
        for (int32_t i = 0; i < 3; ++i) {
            write(mRig.base, mRig.table, slot, s.committed + i, 0xDEAD);
        }
        for (int32_t i = 0; i < 2; ++i) {
            write(*mRig.draft, *mRig.draftTable, slot, s.common + i, 0xBEEF);
        }
    }

    bool compact(Handle& r, std::vector<Sequence>& batch) {
        std::vector<int32_t> mapping;
        std::vector<Sequence> kept;
        for (auto const& s : batch) {
            bool const stays = random(3) != 0;
            mapping.push_back(stays ? static_cast<int32_t>(kept.size()) : -1);
            if (stays) {
                kept.push_back(s);
            }
        }
        auto const n = static_cast<int32_t>(kept.size());
        if (!step(r, mRig.base, "", [&] { return mRig->beginBatchCompaction(r, mapping, n, mMapping); })) {
            return false;
        }
        auto& cache = mRig.draft && random(2) == 0 ? *mRig.draft : mRig.base;
        char const* const call = random(2) == 0 ? "compact" : "batch";
        if (!step(r, cache, call, [&] { return mRig->compactBatch(r); })) {
            return false;
        }
        batch = std::move(kept);
        for (size_t i = 0; i < batch.size() && recurrent(); ++i) {
            EXPECT_EQ(state(static_cast<int32_t>(i)), batch[i].digest(batch[i].committed));
        }
        return true;
    }

    /// A call in which, now and then, a callback throws or a synchronization fails.
    template <typename Call>
    bool step(Handle& r, HostCache& cache, std::string const& callback, Call call) {
        int32_t const fault = random(40);
        cache.failOn = fault == 0 ? callback : "";
        mRig.synchronizer.throws = fault == 1;
        mRig.synchronizer.answer = random(300) == 0 ? cudaErrorUnknown : cudaSuccess;
        Status status = Status::kOk;
        bool broken = false;
        try {
            status = call();
        } catch (std::runtime_error const& e) {
            EXPECT_NE(std::strstr(e.what(), "injected"), nullptr) << e.what();
            broken = true;
        }
        cache.failOn.clear();
        mRig.synchronizer.throws = false;
        mRig.synchronizer.answer = cudaSuccess;
        mFaults += broken ? 1 : 0;
        if (status == Status::kPoisoned) {
            EXPECT_FALSE(r.valid());
            EXPECT_TRUE(mRig->metrics().poisoned);
            mPoisoned = true;
        } else if (broken && random(2) == 0) {
            EXPECT_EQ(mRig->finish(r), Status::kOk);
        }
        return !broken && status == Status::kOk;
    }

    Kind mKind;
    std::mt19937_64 mRandom;
    HostCacheShape mShape;
    Rig mRig;
    std::vector<int32_t> mStore = std::vector<int32_t>(4);
    Tensor mMapping;
    std::vector<Sequence> mServed;
    std::set<uint32_t> mPublished;
    bool mEagle = false;
    bool mBypass = false;
    bool mPrefillOnly = false;
    bool mStale = false;
    bool mPoisoned = false;
    int64_t mReused = 0;
    int64_t mFaults = 0;
};

class RandomRuntime : public testing::TestWithParam<Kind> {};

TEST_P(RandomRuntime, ReusesNothingWrong) {
    int64_t reused = 0;
    int64_t faults = 0;
    for (uint64_t seed = 0; seed < 24; ++seed) {
        SCOPED_TRACE(seed);
        Runtime runtime(GetParam(), seed);
        runtime.run(150);
        if (HasFailure()) {
            return;
        }
        reused += runtime.reused();
        faults += runtime.faults();
    }
    EXPECT_GT(reused, 500);
    EXPECT_GT(faults, 50);
}

std::string nameOf(testing::TestParamInfo<Kind> const& kind) {
    char const* const names[] = {"Vanilla", "Hybrid", "PureRecurrent", "Eagle"};
    return names[static_cast<size_t>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, RandomRuntime,
                         testing::Values(Kind::kVanilla, Kind::kHybrid, Kind::kPureRecurrent, Kind::kEagle), nameOf);

}  // namespace
