// Random requests through the coordinator of each deployment kind, next to a small
// independent model: a dictionary of published prefixes. KV and recurrent state are
// functions of the prefix, so whatever is reused wrongly is seen in the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

uint16_t mix(uint32_t digest, int32_t token) {
    uint32_t x = digest * 31 + static_cast<uint32_t>(token) + 17;
    x ^= x >> 7;
    return static_cast<uint16_t>(x * 2654435761U >> 16);
}

/// One run of a runtime over one coordinator.
class Runtime {
  public:
    Runtime(Kind kind, uint64_t seed)
        : mKind(kind),
          mRig(kind, shape(), 6, 3, [seed](ContextCacheConfig& config) { config.weakHash = seed % 2 == 1; }),
          mRandom(seed),
          mMapping(mStore.data(), DataType::kInt32, 4) {}

    void run(int requests) {
        for (int i = 0; i < requests; ++i) {
            request();
            mRig->manager().checkInvariants();
            ASSERT_EQ(mRig->metrics().pools[0].active, 0U);
            ASSERT_EQ(mRig->metrics().pools[2].active, 0U);
            if (random(40) == 0) {
                flush(*mRig);
                mPublished.clear();
                ASSERT_EQ(mRig.freePages(), mRig->manager().pools().capacity(CacheResourceType::kBasePage));
            }
        }
        flush(*mRig);
        for (auto const& pool : mRig->metrics().pools) {
            ASSERT_EQ(pool.free, pool.capacity) << "C-71";
        }
        ASSERT_GT(mReused, 0);
    }

  private:
    static HostCacheShape shape() {
        HostCacheShape s;
        s.pages = 48;
        s.width = 12;
        return s;
    }

    struct Sequence {
        std::vector<int32_t> tokens;
        uint32_t digest = 0;  // of the committed ones
        int32_t committed = 0;
        int32_t common = 0;
    };

    int32_t random(int32_t n) { return static_cast<int32_t>(mRandom() % static_cast<uint64_t>(n)); }
    bool recurrent() const { return mKind == Kind::kHybrid || mKind == Kind::kPureRecurrent; }
    bool attention() const { return mKind != Kind::kPureRecurrent; }
    bool eagle() const { return mKind == Kind::kEagle; }

    std::vector<int32_t> prompt() {
        std::vector<int32_t> out;
        for (int32_t n = 1 + random(20), branch = 0; n > 0; --n) {
            branch = random(6) == 0 ? random(3) : branch;  // few branches: prefixes are shared
            out.push_back(branch);
        }
        return out;
    }

    void write(HostCache& cache, KVPageTable const& table, int32_t slot, int32_t position, uint16_t value) {
        int32_t const* row = table.devicePointer() + slot * 2 * shape().width;
        for (int32_t half : {0, shape().width}) {
            int32_t const page = row[half + position / 4];
            ASSERT_GE(page, 0);
            std::fill_n(cache.token(0, page, position % 4), cache.tokenElements(), value);
        }
    }
    uint16_t read(HostCache& cache, KVPageTable const& table, int32_t slot, int32_t position) {
        return *cache.token(0, table.devicePointer()[slot * 2 * shape().width + position / 4], position % 4);
    }

    /// "Computes" one position of a sequence in a slot.
    void compute(Sequence& s, int32_t slot) {
        s.digest = mix(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
        if (attention()) {
            write(mRig.base, mRig.table, slot, s.committed, static_cast<uint16_t>(s.digest));
        }
        if (eagle()) {
            write(*mRig.draft, *mRig.draftTable, slot, s.committed, static_cast<uint16_t>(s.digest + 1));
        }
        if (recurrent()) {
            mRig.base.stateOf(1, slot)[2] = static_cast<float>(s.digest);
        }
        ++s.committed;
    }

    void request() {
        ContextCacheBatchAdmission admission;
        std::vector<Sequence> batch(static_cast<size_t>(1 + random(3)));
        for (auto& s : batch) {
            s.tokens = prompt();
            ContextCacheSequenceAdmission in;
            in.tokenIds = s.tokens;
            admission.sequences.push_back(in);
        }
        bool const bypass = random(10) == 0;
        admission.executionMode = eagle() ? ContextCacheExecutionMode::kEagle : ContextCacheExecutionMode::kVanilla;
        admission.lookupPolicy = bypass ? ContextCacheLookupPolicy::kBypass : ContextCacheLookupPolicy::kUseCache;
        auto admitted = begin(*mRig, admission);
        auto& r = admitted.request;
        if (random(12) == 0) {
            return;  // dropped at once
        }
        ASSERT_EQ(mRig->preparePrefill(r), Status::kOk);
        for (size_t i = 0; i < batch.size(); ++i) {
            prefill(batch[i], static_cast<int32_t>(i), admitted.prefillStarts[i], bypass);
        }
        if (random(12) == 0) {
            return;  // dropped in the prefill
        }
        mRig->enqueuePrefillCaptures(r);
        std::vector<ContextCacheSequenceAdvance> advances;
        std::vector<int32_t> common;
        for (auto& s : batch) {
            s.common = s.committed;
            common.push_back(s.common);
            s.tokens.push_back(random(3));
        }
        for (auto& s : batch) {
            advances.push_back({&s.tokens.back(), 1, s.committed});
        }
        ASSERT_EQ(mRig->finalizePrefillPublication(r, advances, eagle() ? &common : nullptr), Status::kOk);
        if (!bypass) {
            for (auto const& s : batch) {
                remember(s, s.committed);
            }
        }
        decode(r, batch, bypass);
    }

    void prefill(Sequence& s, int32_t slot, int32_t start, bool bypass) {
        ASSERT_LT(start, static_cast<int32_t>(s.tokens.size())) << "C-44";
        if (bypass) {
            ASSERT_EQ(start, 0);
        }
        if (start > 0) {  // the model knows that somebody published this prefix
            auto const known = std::vector<int32_t>(s.tokens.begin(), s.tokens.begin() + start);
            ASSERT_TRUE(mPublished.count(known) == 1) << "reuse of a prefix that nobody published";
        }
        mReused += start;
        for (; s.committed < start; ++s.committed) {
            s.digest = mix(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
            if (attention()) {
                ASSERT_EQ(read(mRig.base, mRig.table, slot, s.committed), static_cast<uint16_t>(s.digest));
            }
            if (eagle()) {
                ASSERT_EQ(read(*mRig.draft, *mRig.draftTable, slot, s.committed), static_cast<uint16_t>(s.digest + 1));
            }
        }
        if (recurrent()) {
            ASSERT_EQ(mRig.base.stateOf(1, slot)[2], start > 0 ? static_cast<float>(s.digest) : 0.0F);
        }
        ASSERT_EQ(mRig.base.lengths[static_cast<size_t>(slot)], start);
        while (s.committed < static_cast<int32_t>(s.tokens.size())) {
            compute(s, slot);
        }
    }

    /// Every prefix of a published endpoint may be reused.
    void remember(Sequence const& s, int32_t length) {
        for (int32_t n = 1; n <= length; ++n) {
            mPublished.insert({s.tokens.begin(), s.tokens.begin() + n});
        }
    }

    void decode(ContextCacheCoordinator::RequestHandle& r, std::vector<Sequence>& batch, bool bypass) {
        for (int32_t steps = random(12); steps > 0 && !batch.empty(); --steps) {
            if (random(4) == 0) {
                compact(r, batch);
                continue;
            }
            if (mRig->prepareDecodeStep(r) != Status::kOk) {
                break;  // a row is full
            }
            std::vector<ContextCacheSequenceAdvance> advances;
            std::vector<int32_t> common;
            std::vector<int32_t> publish;
            for (size_t i = 0; i < batch.size(); ++i) {
                auto& s = batch[i];
                s.common = s.committed;  // the draft is one round behind
                compute(s, static_cast<int32_t>(i));
                s.tokens.push_back(random(3));
                common.push_back(s.common);
                if (random(3) == 0) {
                    publish.push_back(static_cast<int32_t>(i));
                    if (!bypass) {
                        remember(s, s.committed);
                    }
                }
            }
            for (auto& s : batch) {
                advances.push_back({&s.tokens.back(), 1, s.committed});
            }
            ASSERT_EQ(mRig->completeDecodeStep(r, advances, publish, eagle() ? &common : nullptr), Status::kOk);
        }
        if (random(4) != 0) {
            ASSERT_EQ(mRig->finish(r), Status::kOk);
        }
    }

    void compact(ContextCacheCoordinator::RequestHandle& r, std::vector<Sequence>& batch) {
        std::vector<int32_t> mapping;
        std::vector<Sequence> kept;
        for (auto& s : batch) {
            bool const stays = random(3) != 0;
            mapping.push_back(stays ? static_cast<int32_t>(kept.size()) : -1);
            if (stays) {
                kept.push_back(std::move(s));
            }
        }
        ASSERT_EQ(mRig->beginBatchCompaction(r, mapping, static_cast<int32_t>(kept.size()), mMapping), Status::kOk);
        ASSERT_EQ(mRig->compactBatch(r), Status::kOk);
        batch = std::move(kept);
        for (size_t i = 0; i < batch.size() && recurrent(); ++i) {
            ASSERT_EQ(mRig.base.stateOf(1, static_cast<int32_t>(i))[2], static_cast<float>(batch[i].digest));
        }
    }

    Kind mKind;
    Rig mRig;
    std::mt19937_64 mRandom;
    std::vector<int32_t> mStore = std::vector<int32_t>(4);
    Tensor mMapping;
    std::set<std::vector<int32_t>> mPublished;
    int64_t mReused = 0;
};

class RandomRuntime : public testing::TestWithParam<Kind> {};

TEST_P(RandomRuntime, ReusesNothingWrong) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
        SCOPED_TRACE(seed);
        Runtime(GetParam(), seed).run(300);
        if (HasFatalFailure()) {
            return;
        }
    }
}

std::string nameOf(testing::TestParamInfo<Kind> const& kind) {
    char const* const names[] = {"Vanilla", "Hybrid", "PureRecurrent", "Eagle"};
    return names[static_cast<size_t>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, RandomRuntime,
                         testing::Values(Kind::kVanilla, Kind::kHybrid, Kind::kPureRecurrent, Kind::kEagle), nameOf);

}  // namespace
