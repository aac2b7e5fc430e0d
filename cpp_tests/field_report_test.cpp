// Faults that users of comparable caches reported, as scenarios on the C++ class.
// publish(X): X runs cold, is finalised, finished. hit(X): where a prefill of X starts.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

constexpr int32_t kPage = 128;

HostCacheShape pagesOf128(int32_t pages = 64) {
    HostCacheShape shape;
    shape.tokensPerPage = kPage;
    shape.pages = pages;
    shape.width = 10;
    shape.maxBatch = 4;
    return shape;
}

int32_t publish(Rig& rig, ContextCacheSequenceAdmission const& s) { return serveOne(*rig, s); }

int32_t hit(Rig& rig, ContextCacheSequenceAdmission const& s, ReusePlanMode mode = ReusePlanMode::kVanilla) {
    return rig->manager().lookup(s, mode).reuseTokenLength;
}

uint64_t collisions(Rig& rig) { return rig->manager().stats().hash_collisions; }

TEST(FieldReports, EqualHashesOfDifferentPromptsShareNothing) {
    Rig rig(Kind::kVanilla, pagesOf128(), 64, 8, [](auto& config) { config.weakHash = true; });
    publish(rig, sequenceOf(tokensOf(300, 1)));
    EXPECT_EQ(publish(rig, sequenceOf(tokensOf(300, 2))), 0);
    EXPECT_GT(collisions(rig), 0U);
    auto second = tokensOf(300, 1);
    second[200] = -5;  // differs in block 2 only
    EXPECT_EQ(hit(rig, sequenceOf(second)), kPage);
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(300, 1))), 2 * kPage);
    rig->manager().checkInvariants();
}

TEST(FieldReports, AdapterNameAndSaltAreDifferentThings) {
    Rig rig(Kind::kVanilla, pagesOf128());
    Hash128 const d{1, 2};
    std::array<ContextCacheSequenceAdmission, 4> variants;
    for (auto& v : variants) {
        v = sequenceOf(tokensOf(200));
    }
    variants[1].keyExtras.adapter = AdapterIdentity{d, 0};
    variants[2].keyExtras.isolationDigest = d;
    variants[3].keyExtras.customEmbeddingDigest = d;
    for (auto const& v : variants) {
        EXPECT_EQ(publish(rig, v), 0);
    }
    for (auto const& v : variants) {
        EXPECT_EQ(hit(rig, v), kPage);
    }
}

TEST(FieldReports, AReloadedAdapterServesNothingOld) {
    Rig rig(Kind::kVanilla, pagesOf128());
    auto s = sequenceOf(tokensOf(200));
    s.keyExtras.adapter = AdapterIdentity{{5, 5}, 1};
    publish(rig, s);
    s.keyExtras.adapter->generation = 2;
    EXPECT_EQ(hit(rig, s), 0);
    EXPECT_EQ(invalidateAdapter(*rig, {5, 5}), 1U);
    EXPECT_TRUE(rig->manager().records().empty());
}

TEST(FieldReports, ASecondImageDoesNotReuseTheFirstOnes) {
    Rig rig(Kind::kVanilla, pagesOf128());
    std::vector<int32_t> tokens(270, 77);  // one placeholder id for every image
    for (int32_t i = 0; i < 10; ++i) {
        tokens[static_cast<size_t>(i)] = i;
    }
    auto const with = [&](Hash128 digest) {
        auto s = sequenceOf(tokens);
        s.perPositionMediaHash.resize(270);
        std::fill(s.perPositionMediaHash.begin() + 10, s.perPositionMediaHash.begin() + 210, digest);
        return s;
    };
    publish(rig, with({1, 1}));
    EXPECT_EQ(hit(rig, with({2, 2})), 0);
    EXPECT_EQ(hit(rig, with({1, 1})), 2 * kPage);
    EXPECT_EQ(hit(rig, sequenceOf(tokens)), 0);
}

TEST(FieldReports, TextAndMediaPairsNeverMeet) {  // D-2
    HostCacheShape shape;
    shape.tokensPerPage = 2;
    Rig rig(Kind::kVanilla, shape);
    auto a = sequenceOf({0x00030213, 777});
    a.perPositionMediaHash = {{}, {0x1122334455667788, 0x99aabbccddeeff00}};
    auto b = sequenceOf({888, static_cast<int32_t>(0x99aabbcc)});
    b.perPositionMediaHash = {{0x5566778813000302, 0xddeeff0011223344}, {}};
    publish(rig, a);
    EXPECT_EQ(rig->manager().lookup(b).matchedTokenLength, 0);
    EXPECT_EQ(rig->manager().lookup(a).matchedTokenLength, 2);
}

TEST(FieldReports, MediaRequestsMayGenerate) {  // D-1
    Rig rig(Kind::kVanilla, pagesOf128());
    auto s = sequenceOf(tokensOf(255));
    s.perPositionMediaHash.resize(255);
    s.perPositionMediaHash[100] = {3, 3};
    ContextCacheBatchAdmission admission;
    admission.sequences = {s};
    auto admitted = prefill(*rig, admission);
    ASSERT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
    rig->completeDecodeStep(admitted.request, Advances({256}, 9).list, {0});
    rig->finish(admitted.request);
    s.tokenIds.insert(s.tokenIds.end(), {7, 1});
    s.perPositionMediaHash.resize(257);
    EXPECT_EQ(hit(rig, s), 256);
}

TEST(FieldReports, AFullyCachedPromptStillRunsAToken) {
    Rig rig(Kind::kVanilla, pagesOf128());
    publish(rig, sequenceOf(tokensOf(256)));
    EXPECT_LT(publish(rig, sequenceOf(tokensOf(256))), 256);
    EXPECT_EQ(rig->metrics().existingPublications, 1U);
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(257))), 256);
}

TEST(FieldReports, ARecurrentStateIsNeverAppliedTwice) {
    Rig rig(Kind::kHybrid, pagesOf128());
    publish(rig, sequenceOf(tokensOf(130)));
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(130)), ReusePlanMode::kHybrid), 0);
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(131)), ReusePlanMode::kHybrid), 130);
    // And pages without a snapshot are no state: evicting the record ends the reuse.
    EXPECT_EQ(flush(*rig), 1U);
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(131)), ReusePlanMode::kHybrid), 0);
}

TEST(FieldReports, AnotherPromptsTailIsNeverBound) {
    Rig rig(Kind::kVanilla, pagesOf128());
    publish(rig, sequenceOf(tokensOf(200)));
    auto shared = tokensOf(130);
    shared[129] = -1;
    EXPECT_LE(hit(rig, sequenceOf(shared)), kPage);
}

TEST(FieldReports, BaseAndDraftStartAtTheSameToken) {
    Rig rig(Kind::kEagle, pagesOf128());
    publish(rig, sequenceOf(tokensOf(641)));  // vanilla: five base blocks
    ContextCacheBatchAdmission admission;
    admission.sequences = {sequenceOf(tokensOf(385))};
    admission.executionMode = ContextCacheExecutionMode::kEagle;
    auto first = begin(*rig, admission);  // three draft blocks
    rig->preparePrefill(first.request);
    std::vector<int32_t> const common{385};
    rig->finalizePrefillPublication(first.request, Advances({385}).list, &common);
    rig->finish(first.request);
    admission.sequences = {sequenceOf(tokensOf(700))};
    auto second = begin(*rig, admission);
    EXPECT_EQ(second.prefillStarts[0], 256);
    auto const& lease = inspect(second.request).sequences[0].lease;
    auto const pools = rig->manager().pools();
    for (size_t i = 0; i < lease.basePages().size(); ++i) {
        EXPECT_EQ(pools.cacheReferences(CacheResourceType::kBasePage, lease.basePages()[i]) > 0, i < 2) << "page " << i;
    }
    rig->finish(second.request);
}

TEST(FieldReports, NothingIsRegisteredBeforeItIsWritten) {
    Rig rig(Kind::kVanilla, pagesOf128());
    {
        auto admitted = begin(*rig, admissionOf({tokensOf(300)}));
        rig->preparePrefill(admitted.request);
    }
    EXPECT_TRUE(rig->manager().records().empty());
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(300))), 0);
    EXPECT_EQ(rig.freePages(), 64U);
    auto twins = prefill(*rig, admissionOf({tokensOf(300), tokensOf(300)}));
    EXPECT_EQ(twins.prefillStarts, (std::vector<int32_t>{0, 0})) << "nor within the same batch";
    EXPECT_EQ(rig->manager().records().size(), 1U);
    rig->finish(twins.request);
}

TEST(FieldReports, ThousandsOfRequestsLeakNothing) {
    HostCacheShape shape;
    shape.maxBatch = 1;
    Rig rig(Kind::kVanilla, shape);
    std::mt19937_64 random(1);
    for (int i = 0; i < 3000; ++i) {
        serve(*rig, {tokensOf(1 + static_cast<int32_t>(random() % 30), static_cast<int32_t>(random() % 12))});
        auto const m = rig->metrics();
        ASSERT_EQ(m.pools[0].free + rig->manager().baseIndex().size(), m.pools[0].capacity);
        ASSERT_EQ(m.pools[0].active, 0U);
    }
}

TEST(FieldReports, PagesInUseSurviveTheEvictionOfTheirRecord) {
    HostCacheShape shape;
    shape.pages = 12;
    shape.maxBatch = 2;
    shape.width = 6;
    Rig rig(Kind::kVanilla, shape, 1);
    serve(*rig, {tokensOf(8, 1)});
    auto admitted = begin(*rig, admissionOf({tokensOf(9, 1), tokensOf(20, 2)}));  // needs what is left
    auto const held = inspect(admitted.request).sequences[0].lease.basePages();
    rig->preparePrefill(admitted.request);
    rig->finalizePrefillPublication(admitted.request, Advances({9, 20}).list);
    EXPECT_EQ(rig->manager().records().size(), 1U) << "the first record went";
    auto const other = inspect(admitted.request).sequences[1].lease.basePages();
    for (int32_t page : held) {
        EXPECT_EQ(std::count(other.begin(), other.end(), page), 0);
        EXPECT_EQ(rig->manager().pools().activeReferences(CacheResourceType::kBasePage, page), 1);
    }
    rig->finish(admitted.request);
    rig->manager().checkInvariants();
}

TEST(FieldReports, AnEvictedPrefixIsNotFoundUnderItsOldName) {
    HostCacheShape shape;
    shape.pages = 8;
    shape.maxBatch = 1;
    Rig rig(Kind::kVanilla, shape, 1);
    publish(rig, sequenceOf(tokensOf(9, 1)));
    publish(rig, sequenceOf(tokensOf(9, 2)));
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(9, 1))), 0);
    EXPECT_EQ(hit(rig, sequenceOf(tokensOf(9, 2))), 8);
}

TEST(FieldReports, BypassUsesManagedPagesAndPublishesNothing) {
    Rig rig(Kind::kVanilla, pagesOf128());
    publish(rig, sequenceOf(tokensOf(300)));
    auto admission = admissionOf({tokensOf(300)});
    admission.lookupPolicy = ContextCacheLookupPolicy::kBypass;
    auto admitted = prefill(*rig, admission);
    EXPECT_EQ(admitted.prefillStarts[0], 0);
    EXPECT_EQ(inspect(admitted.request).sequences[0].lease.basePages().size(), 3U);
    rig->finish(admitted.request);
    EXPECT_EQ(rig->metrics().publishedEndpoints, 1U);
}

HostCacheShape pagesOf(int32_t tokens, int32_t pages = 64) {
    HostCacheShape shape;
    shape.tokensPerPage = tokens;
    shape.pages = pages;
    shape.width = 12;
    return shape;
}

/// n equal placeholders, some of them an image's.
ContextCacheSequenceAdmission imageIn(int32_t n, int32_t from, int32_t to, Hash128 digest) {
    auto s = sequenceOf(std::vector<int32_t>(static_cast<size_t>(n), 5));
    s.perPositionMediaHash.resize(static_cast<size_t>(n));
    std::fill(s.perPositionMediaHash.begin() + from, s.perPositionMediaHash.begin() + to, digest);
    return s;
}

TEST(FieldReports, AnImageAcrossABoundaryIsReusedWholeOrNotAtAll) {
    Rig rig(Kind::kVanilla, pagesOf(4));
    Hash128 const cat{1, 1};
    Hash128 const dog{1, 2};
    publish(rig, imageIn(13, 2, 6, cat));
    EXPECT_EQ(hit(rig, imageIn(13, 2, 6, cat)), 12);
    EXPECT_EQ(hit(rig, imageIn(13, 2, 6, dog)), 0);
    EXPECT_EQ(hit(rig, imageIn(13, 0, 0, {})), 0);
    EXPECT_EQ(hit(rig, imageIn(6, 2, 6, cat)), 0) << "ends inside: 4 would split it";
    EXPECT_EQ(hit(rig, imageIn(8, 2, 6, cat)), 0) << "the last page is computed again, and 4 would split it";
    EXPECT_EQ(hit(rig, imageIn(13, 2, 7, cat)), 0) << "one position longer: the second block differs";
    EXPECT_EQ(hit(rig, imageIn(13, 3, 7, cat)), 0) << "one position later";
    EXPECT_EQ(hit(rig, imageIn(13, 2, 4, cat)), 4) << "ends at the boundary";
}

TEST(FieldReports, AnImageInTheTailIsPartOfTheBlockThatDecodingFills) {
    Rig rig(Kind::kVanilla, pagesOf(4));
    auto s = imageIn(6, 4, 6, {7, 7});
    ContextCacheBatchAdmission admission;
    admission.sequences = {s};
    auto admitted = prefill(*rig, admission);
    for (int32_t committed = 7; committed <= 8; ++committed) {
        ASSERT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
        rig->completeDecodeStep(admitted.request, Advances({committed}, 8).list, {0});
    }
    rig->finish(admitted.request);
    s.tokenIds.insert(s.tokenIds.end(), {7, 8, 9});
    s.perPositionMediaHash.resize(9);
    EXPECT_EQ(hit(rig, s), 8);
    s.perPositionMediaHash[5] = {7, 8};
    EXPECT_EQ(hit(rig, s), 4);
}

TEST(FieldReports, PromptsOfEveryLengthLeaveATokenToRun) {
    for (int32_t const p : {1, 2, 7}) {
        Rig rig(Kind::kVanilla, pagesOf(p));
        for (int32_t n = 1; n <= 12 * p; ++n) {
            flush(*rig);
            EXPECT_EQ(publish(rig, sequenceOf(tokensOf(n))), 0);
            EXPECT_EQ(publish(rig, sequenceOf(tokensOf(n))), (n - 1) / p * p);
            EXPECT_EQ(hit(rig, sequenceOf(tokensOf(n + 1))), n / p * p);
            ASSERT_EQ(rig->metrics().pools[0].active, 0U);
        }
        EXPECT_THROW(publish(rig, sequenceOf(tokensOf(12 * p + 1))), std::runtime_error) << "longer than a row";
        EXPECT_THROW(publish(rig, sequenceOf({})), std::runtime_error);
        rig->manager().checkInvariants();
    }
}

TEST(FieldReports, ForksOfOnePromptShareItAndNothingElse) {  // n > 1 samples
    Rig rig(Kind::kVanilla, pagesOf(4));
    auto admitted = prefill(*rig, admissionOf({tokensOf(10), tokensOf(10), tokensOf(10), tokensOf(10)}));
    std::vector<int32_t> const samples{100, 101, 102, 100};  // the last one like the first
    for (int32_t committed = 11; committed <= 17; ++committed) {
        ASSERT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
        std::vector<ContextCacheSequenceAdvance> advances;
        for (auto const& token : samples) {
            advances.push_back({&token, 1, committed});
        }
        std::vector<int32_t> const done = committed == 17 ? std::vector<int32_t>{3, 1, 0, 2} : std::vector<int32_t>{};
        rig->completeDecodeStep(admitted.request, advances, done);
    }
    rig->finish(admitted.request);
    for (int32_t const sample : {100, 101, 102}) {
        auto tokens = tokensOf(10);
        tokens.push_back(7);
        tokens.insert(tokens.end(), 7, sample);
        EXPECT_EQ(hit(rig, sequenceOf(tokens)), 16);
    }
    EXPECT_EQ(rig->manager().records().size(), 4U) << "the prompt, and three ends";
    EXPECT_EQ(rig.freePages(), 64U - 2 - 3 * 2) << "two blocks shared, two of each end";
}

TEST(FieldReports, APreemptedRequestResumesFromWhatItComputed) {
    Rig rig(Kind::kVanilla, pagesOf(4));
    auto tokens = tokensOf(8);
    tokens.push_back(7);
    auto admitted = prefill(*rig, admissionOf({tokensOf(8)}));
    for (int32_t committed = 9; committed <= 13; ++committed) {
        tokens.push_back(50 + committed);
        ASSERT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
        rig->completeDecodeStep(admitted.request, Advances({committed}, 50 + committed).list,
                                committed == 13 ? std::vector<int32_t>{0} : std::vector<int32_t>{});
    }
    rig->finish(admitted.request);
    EXPECT_EQ(begin(*rig, admissionOf({tokens})).prefillStarts[0], 12) << "and preempted again at once";
    EXPECT_EQ(hit(rig, sequenceOf(tokens)), 12);
    EXPECT_EQ(rig->metrics().pools[0].active, 0U);
}

TEST(FieldReports, TwinsPublishOneSnapshotAndBothMayResumeFromIt) {
    for (Kind const kind : {Kind::kHybrid, Kind::kPureRecurrent}) {
        for (int32_t const n : {8, 9}) {
            Rig rig(kind);
            serve(*rig, {tokensOf(n), tokensOf(n), tokensOf(n)});
            EXPECT_EQ(rig->metrics().existingPublications, 2U);
            EXPECT_EQ(rig.freePages(CacheResourceType::kRecurrentSnapshot), 7U);
            int32_t const slot = rig->manager().records().at(0).recurrentSlot;
            auto twins = begin(*rig, admissionOf({tokensOf(n + 2), tokensOf(n + 3)}));
            EXPECT_EQ(twins.prefillStarts, (std::vector<int32_t>{n, n}));
            EXPECT_EQ(rig->manager().pools().activeReferences(CacheResourceType::kRecurrentSnapshot, slot), 2);
            flush(*rig);  // what is to be restored stays
            rig->preparePrefill(twins.request);
            rig->enqueuePrefillCaptures(twins.request);
            rig->finalizePrefillPublication(twins.request, Advances({n + 2, n + 3}).list);
            rig->finish(twins.request);
            EXPECT_EQ(rig->metrics().hybridRestores, 2U);
            EXPECT_EQ(rig.freePages(CacheResourceType::kRecurrentSnapshot), 8U) << "from before the flush: not kept";
            rig->manager().checkInvariants();
        }
    }
}

/// A request of 9 tokens and one decoded, with a flush before its step number `at`.
void flushedWalk(Rig& rig, bool eagle, int at) {
    auto admission = admissionOf({tokensOf(9)});
    admission.executionMode = eagle ? ContextCacheExecutionMode::kEagle : ContextCacheExecutionMode::kVanilla;
    std::vector<int32_t> const common{9};
    auto const* const lengths = eagle ? &common : nullptr;
    auto admitted = begin(*rig, admission);
    auto& r = admitted.request;
    std::vector<std::function<void()>> const steps{
        [&] { rig->preparePrefill(r); },
        [&] { rig->enqueuePrefillCaptures(r); },
        [&] { rig->finalizePrefillPublication(r, Advances({9}).list, lengths); },
        [&] { rig->prepareDecodeStep(r); },
        [&] { rig->completeDecodeStep(r, Advances({10}).list, {0}, lengths); },
        [&] { rig->finish(r); },
        [] {},
    };
    for (int i = 0; i < 7; ++i) {
        if (i == at) {
            flush(*rig);
            rig->manager().checkInvariants();
        }
        steps[static_cast<size_t>(i)]();
    }
}

TEST(FieldReports, AFlushInEveryPhaseForgetsWhatIsUnderWay) {
    for (Kind const kind : {Kind::kVanilla, Kind::kHybrid, Kind::kPureRecurrent, Kind::kEagle}) {
        bool const eagle = kind == Kind::kEagle;
        auto const mode = eagle                    ? ReusePlanMode::kSpec
                          : kind == Kind::kVanilla ? ReusePlanMode::kVanilla
                                                   : ReusePlanMode::kHybrid;
        for (int at = 0; at < 7; ++at) {
            Rig rig(kind);
            flushedWalk(rig, eagle, -1);
            flushedWalk(rig, eagle, at);  // hits what the first one left
            EXPECT_TRUE(rig->manager().records().empty()) << "before step " << at;
            for (auto const& pool : rig->metrics().pools) {
                EXPECT_EQ(pool.free, pool.capacity);
            }
            EXPECT_EQ(rig->manager().lookup(sequenceOf(tokensOf(10)), mode).matchedTokenLength, 0);
            flushedWalk(rig, eagle, -1);
            EXPECT_GT(rig->manager().lookup(sequenceOf(tokensOf(10)), mode).matchedTokenLength, 0) << "as ever";
        }
    }
}

}  // namespace
