// What a coordinator shows: records, pools, lookups, reasons; identity; invalidation;
// the deployment gate.
#include <gtest/gtest.h>
#include <prefixcache/metrics.hpp>

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "host_cache.hpp"

namespace {

using namespace test;
using Kind = ContextCacheDeploymentKind;

TEST(View, RecordsInOrderOfRecency) {
    Rig rig;
    serve(*rig, {tokensOf(4, 1)});
    serve(*rig, {tokensOf(8, 2)});
    auto records = rig->manager().records();
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0].id, 1U);
    EXPECT_EQ(records[1].id, 2U);
    serve(*rig, {tokensOf(4, 1)});
    records = rig->manager().records();
    EXPECT_EQ(records[1].id, 1U) << "publishing again refreshes";
    EXPECT_EQ(records[0].basePages.size(), 2U);
    EXPECT_EQ(rig->manager().baseIndex().size(), 3U);
    EXPECT_TRUE(rig->manager().draftIndex().empty());
}

// A query asks the library several times, and another thread may evict in between: a record is
// listed with all of its pages or not at all.
TEST(View, RecordsAreWholeBesideAThreadThatEvicts) {
    Rig rig;
    std::atomic<bool> done{false};
    std::thread evicting([&] {
        for (int32_t i = 0; i < 4000; ++i) {
            serve(*rig, {tokensOf(24, i)});  // 6 pages of 32
        }
        done = true;
    });
    auto const& view = rig->manager();
    while (!done) {
        for (auto const& record : view.records()) {
            EXPECT_EQ(record.basePages.size(), static_cast<size_t>(record.fullBlockCount)) << record.id;
            EXPECT_EQ(record.fullBlockCount, 6) << record.id;
            std::set<int32_t> const pages(record.basePages.begin(), record.basePages.end());
            EXPECT_EQ(pages.size(), 6U) << record.id;
        }
    }
    evicting.join();
}

/// The text of the exception that a call throws.
template <typename Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (std::runtime_error const& e) {
        return e.what();
    }
    return "nothing was thrown";
}

TEST(View, ALabelIsWrittenWholeOrRefused) {
    Rig rig;
    std::string const cut("a\0b", 3);
    EXPECT_NE(metricsText({{handleOf(*rig), {{"engine", "a"}}}}).find("engine=\"a\""), std::string::npos);
    EXPECT_EQ(refusal([&] {
                  metricsText({{handleOf(*rig), {}}, {handleOf(*rig), {{"engine", cut}}}});
              }),
              "prefixcache: sources[1]: the label engine has a zero byte, expected text");
    EXPECT_THROW(metricsText({{handleOf(*rig), {{cut, "a"}}}}), std::runtime_error);
}

TEST(View, C68_ReferencesFollowLeasesAndRecords) {
    Rig rig;
    serve(*rig, {tokensOf(8)});
    auto const page = rig->manager().records()[0].basePages[0];
    auto const pools = rig->manager().pools();
    EXPECT_EQ(pools.activeReferences(CacheResourceType::kBasePage, page), 0);
    EXPECT_EQ(pools.cacheReferences(CacheResourceType::kBasePage, page), 1);
    auto admitted = begin(*rig, admissionOf({tokensOf(9), tokensOf(9)}));
    EXPECT_EQ(pools.activeReferences(CacheResourceType::kBasePage, page), 2);
    auto const [active, cached] = pools.references(CacheResourceType::kBasePage);
    EXPECT_EQ(active.size(), 32U);
    EXPECT_EQ(active[static_cast<size_t>(page)], 2);
    EXPECT_EQ(cached[static_cast<size_t>(page)], 1);
    EXPECT_THROW(pools.activeReferences(CacheResourceType::kBasePage, 32), std::runtime_error);
    EXPECT_EQ(refusal([&] { pools.activeReferences(CacheResourceType::kBasePage, -1); }),
              "prefixcache: slot is -1, expected >= 0");
    auto const none = static_cast<CacheResourceType>(4);
    EXPECT_EQ(refusal([&] { pools.capacity(none); }), "prefixcache: type is 4, expected 0 to 3");
    EXPECT_EQ(refusal([&] { pools.free(none); }), "prefixcache: type is 4, expected 0 to 3");
    EXPECT_EQ(refusal([&] { pools.references(none); }), "prefixcache: type is 4, expected 0 to 3");
    rig->finish(admitted.request);
}

TEST(View, TenantsHaveQuotasAndCounters) {
    Rig rig(Kind::kVanilla, {}, 64, 8, [](ContextCacheConfig& config) {
        config.tenantQuota = 250;  // 8 of 32 pages
        config.zeroOnRelease = true;
    });
    EXPECT_TRUE(rig->manager().tenants().empty());
    Hash128 const one{1, 0};
    for (int32_t i = 0; i < 6; ++i) {
        auto s = sequenceOf(tokensOf(12, i));
        s.keyExtras.isolationDigest = one;
        serveOne(*rig, s);
    }
    serveOne(*rig, sequenceOf(tokensOf(12, 1)));  // without a key
    auto tenants = rig->manager().tenants();
    ASSERT_EQ(tenants.size(), 2U);
    auto const& first = tenants[tenants[0].present != 0 ? 0 : 1];
    EXPECT_EQ(first.isolation.high, 1U);
    EXPECT_EQ(first.leases, 6U);
    EXPECT_EQ(first.query_tokens, 72U);
    EXPECT_EQ(first.quota_pages, 8U);
    EXPECT_LE(first.pages, 8U);
    EXPECT_EQ(first.evicted_by_others, 0U);
    EXPECT_GT(first.evicted, 0U);
    rig->manager().setQuota(one, 100);
    rig->manager().setQuota(std::nullopt, 1000);
    for (auto const& t : rig->manager().tenants()) {
        EXPECT_EQ(t.quota, t.present != 0 ? 100U : 1000U);
        EXPECT_LE(t.pages, t.quota_pages);
    }
    EXPECT_THROW(rig->manager().setQuota(one, 1001), std::runtime_error);
    EXPECT_EQ(refusal([&] { rig->manager().setQuota(one, -1); }), "prefixcache: perMille is -1, expected 0 to 1000");
    rig->manager().checkInvariants();
    // A batch beyond the quota of its tenant is refused, and says so.
    ContextCacheBatchAdmission admission;
    auto s = sequenceOf(tokensOf(16, 9));
    s.keyExtras.isolationDigest = one;
    admission.sequences = {s};
    auto const result = rig->beginRequest(admission, kStream);
    EXPECT_NE(result.status, ContextCacheCoordinatorStatus::kOk);
}

TEST(View, C25_LookupChangesNothing) {
    Rig rig;
    serve(*rig, {tokensOf(8, 1)});
    serve(*rig, {tokensOf(8, 2)});
    auto const before = rig->manager().dump();
    auto const plan = rig->manager().lookup(sequenceOf(tokensOf(12, 1)));
    EXPECT_EQ(plan.matchedTokenLength, 8);
    EXPECT_EQ(plan.reuseTokenLength, 8);
    EXPECT_EQ(plan.boundBasePages, 2);
    EXPECT_EQ(plan.demandBasePages, 1);
    EXPECT_EQ(plan.reason, NoReuseReason::kDiverged);
    EXPECT_EQ(rig->manager().dump(), before);
    EXPECT_FALSE(before.empty());
}

// What a sequence found when it was admitted is what a lookup found right before.
TEST(View, AdmissionsSayWhatTheLookupSaid) {
    for (Kind const kind : {Kind::kVanilla, Kind::kHybrid, Kind::kPureRecurrent, Kind::kEagle}) {
        bool const eagle = kind == Kind::kEagle;
        auto const mode = eagle                    ? ReusePlanMode::kSpec
                          : kind == Kind::kVanilla ? ReusePlanMode::kVanilla
                                                   : ReusePlanMode::kHybrid;
        Rig rig(kind);
        for (int32_t const n : {9, 3, 9, 10, 13, 8, 21}) {
            SCOPED_TRACE(n);
            auto admission = admissionOf({tokensOf(n)});
            admission.sequences[0].perPositionMediaHash.resize(static_cast<size_t>(n));
            std::fill_n(admission.sequences[0].perPositionMediaHash.begin() + n / 2, n == 13 ? 6 : 0, Hash128{1, 1});
            admission.executionMode = eagle ? ContextCacheExecutionMode::kEagle : ContextCacheExecutionMode::kVanilla;
            auto const want = rig->manager().lookup(admission.sequences[0], mode);
            auto admitted = begin(*rig, admission);
            auto const& got = inspect(admitted.request).admissions[0].plan;
            EXPECT_EQ(got.mode, want.mode);
            EXPECT_EQ(got.kind, want.kind);
            EXPECT_EQ(got.replayMode, want.replayMode);
            EXPECT_EQ(got.reason, want.reason);
            EXPECT_EQ(got.matchedTokenLength, want.matchedTokenLength);
            EXPECT_EQ(got.reuseTokenLength, want.reuseTokenLength);
            EXPECT_EQ(got.boundBasePages, want.boundBasePages);
            EXPECT_EQ(got.boundDraftPages, want.boundDraftPages);
            EXPECT_EQ(got.demandBasePages, want.demandBasePages);
            EXPECT_EQ(got.demandDraftPages, want.demandDraftPages);
            std::vector<int32_t> const common{n};
            rig->preparePrefill(admitted.request);
            rig->enqueuePrefillCaptures(admitted.request);
            rig->finalizePrefillPublication(admitted.request, Advances({n}).list, eagle ? &common : nullptr);
            rig->finish(admitted.request);
        }
    }
}

TEST(View, ReasonsSayWhyNotMore) {
    Rig rig;
    auto const reasonOf = [&](ContextCacheSequenceAdmission const& s) { return rig->manager().lookup(s).reason; };
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(8))), NoReuseReason::kExtrasUnknown);
    serve(*rig, {tokensOf(8)});
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(3))), NoReuseReason::kPromptTooShort);
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(8, 5))), NoReuseReason::kFirstBlock);
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(12))), NoReuseReason::kDiverged);
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(8))), NoReuseReason::kFullInput);
    EXPECT_EQ(reasonOf(sequenceOf(tokensOf(10))), NoReuseReason::kNone);
    auto other = sequenceOf(tokensOf(8));
    other.keyExtras.isolationDigest = Hash128{1, 2};
    EXPECT_EQ(reasonOf(other), NoReuseReason::kExtrasUnknown);
    for (int i = 0; i <= static_cast<int>(NoReuseReason::kCheckpointLong); ++i) {
        EXPECT_STRNE(toString(static_cast<NoReuseReason>(i)), "unknown");
    }
}

// C-3 to C-6, C-11: every part of the identity keeps sequences apart, and equal ones together.
TEST(View, IdentitySeparates) {
    std::vector<BlockKeyExtras> variants(9);
    variants[1].adapter = AdapterIdentity{{1, 0}, 0};
    variants[2].adapter = AdapterIdentity{{1, 0}, 1};
    variants[3].adapter = AdapterIdentity{{0, 0}, 0};
    variants[4].positionDigest = Hash128{1, 0};
    variants[5].customEmbeddingDigest = Hash128{1, 0};
    variants[6].isolationDigest = Hash128{1, 0};
    variants[7].mediaSpans = {{{1, 0}, {2, 0}, 0, 0, 1}, {{3, 0}, {4, 0}, 1, 1, 1}};
    variants[8].mediaSpans = {variants[7].mediaSpans[1], variants[7].mediaSpans[0]};
    for (size_t a = 0; a < variants.size(); ++a) {
        Rig rig;
        auto s = sequenceOf(tokensOf(9));
        s.keyExtras = variants[a];
        serveOne(*rig, s);
        for (size_t b = 0; b < variants.size(); ++b) {
            s.keyExtras = variants[b];
            EXPECT_EQ(rig->manager().lookup(s).reuseTokenLength, a == b ? 8 : 0) << a << " and " << b;
        }
    }
}

TEST(View, C7_C89_MediaDigestsStandForTokens) {
    Rig rig;
    auto s = sequenceOf(tokensOf(12));
    s.perPositionMediaHash.resize(12);
    for (size_t i = 2; i < 6; ++i) {
        s.perPositionMediaHash[i] = {9, 9};
    }
    serveOne(*rig, s);
    EXPECT_EQ(rig->metrics().mediaAwareSequences, 1U);
    s.tokenIds[3] = -1;  // the placeholder under a digest is not looked at
    s.tokenIds.push_back(1);
    s.perPositionMediaHash.resize(13);
    ContextCacheBatchAdmission admission;
    admission.sequences = {s};
    auto admitted = begin(*rig, admission);
    EXPECT_EQ(admitted.prefillStarts[0], 12);
    EXPECT_EQ(inspect(admitted.request).admissions[0].plan.skippedMediaPositions, 4) << "D-12";
    rig->finish(admitted.request);
    s.perPositionMediaHash[3] = {9, 8};
    EXPECT_EQ(rig->manager().lookup(s).reuseTokenLength, 0);

    // A hit that ends inside a run of media moves back (and never touches shared pages, D-3).
    auto cut = sequenceOf({s.tokenIds.begin(), s.tokenIds.begin() + 7});
    cut.perPositionMediaHash.assign(7, {});
    for (size_t i = 2; i < 6; ++i) {
        cut.perPositionMediaHash[i] = {9, 9};
    }
    cut.tokenIds[6] = 77;  // differs behind the media
    auto const plan = rig->manager().lookup(cut);
    EXPECT_EQ(plan.reuseTokenLength, 0);
    EXPECT_EQ(plan.reason, NoReuseReason::kMediaBoundary);
}

TEST(View, InvalidateAndFlushSparePagesInUse) {
    Rig rig;
    auto with = sequenceOf(tokensOf(9));
    with.keyExtras.adapter = AdapterIdentity{{7, 7}, 1};
    serveOne(*rig, with);
    with.keyExtras.adapter->generation = 2;
    serveOne(*rig, with);
    serve(*rig, {tokensOf(9, 4)});
    EXPECT_EQ(invalidateAdapter(*rig, {7, 7}, 1), 1U);
    EXPECT_EQ(invalidateAdapter(*rig, {7, 8}), 0U);
    EXPECT_EQ(rig->manager().records().size(), 2U);

    ContextCacheBatchAdmission admission;
    admission.sequences = {with};
    auto admitted = begin(*rig, admission);
    EXPECT_EQ(admitted.prefillStarts[0], 8);
    auto const pages = inspect(admitted.request).sequences[0].lease.basePages();
    EXPECT_EQ(invalidateAdapter(*rig, {7, 7}), 1U);
    EXPECT_EQ(inspect(admitted.request).sequences[0].lease.basePages(), pages);
    EXPECT_EQ(rig->manager().pools().activeReferences(CacheResourceType::kBasePage, pages[0]), 1);
    rig->preparePrefill(admitted.request);
    rig->finalizePrefillPublication(admitted.request, Advances({9}).list);
    EXPECT_EQ(rig->manager().records().size(), 1U) << "the stale state is not published again";
    rig->finish(admitted.request);
    EXPECT_EQ(flush(*rig), 1U);
    EXPECT_EQ(rig.freePages(), 32U);
    rig->manager().checkInvariants();
}

TEST(View, OriginalRecencyIsAChoice) {
    for (bool const original : {false, true}) {
        HostCacheShape small;
        small.pages = 8;
        small.maxBatch = 1;
        Rig rig(Kind::kVanilla, small);
        rig.coordinator.reset();
        rig.config.originalRecency = original;
        ContextCacheCoordinator c(rig.config, rig.deployment, Kind::kVanilla, {rig.base, rig.table}, kStream);
        serve(c, {tokensOf(4, 1)});
        serve(c, {tokensOf(4, 2)});
        auto admitted = begin(c, admissionOf({tokensOf(5, 1)}));  // a hit on 1, not published
        c.finish(admitted.request);
        EXPECT_EQ(c.manager().records().back().id, original ? 2U : 1U);
    }
}

TEST(View, ShorteningVictimsIsAChoice) {
    for (bool const shorten : {false, true}) {
        HostCacheShape small;
        small.pages = 9;
        small.maxBatch = 1;
        Rig rig(Kind::kVanilla, small);
        rig.coordinator.reset();
        rig.config.shortenVictims = shorten;
        ContextCacheCoordinator c(rig.config, rig.deployment, Kind::kVanilla, {rig.base, rig.table}, kStream);
        serve(c, {tokensOf(25, 1)});  // leaves 6 of 9 pages cached
        serve(c, {tokensOf(17, 2)});  // needs 5
        auto admitted = begin(c, admissionOf({tokensOf(26, 1)}));
        EXPECT_EQ(admitted.prefillStarts[0], shorten ? 12 : 0);
        c.finish(admitted.request);
    }
}

// ----------------------------------------------------------- deployment

DeploymentConfig plain() {
    DeploymentConfig d;
    d.base.maxBatchSize = 2;
    d.base.capacityTokens = 512;
    d.base.numPages = 8;
    d.base.layers = {LayerKind::kAttention, LayerKind::kStateless, LayerKind::kSlidingWindow};
    d.base.kvLayers = {{8, 128}, {8, 128}};
    d.base.hiddenSize = 64;
    return d;
}

DeploymentConfig eagle() {
    auto d = plain();
    d.speculativeMode = SpeculativeMode::kEagle;
    d.base.isSpecBase = true;
    d.draft = plain().base;
    d.draft->isEagle = true;
    d.draft->baseHiddenSize = 128;
    d.spec = SpecConfig{4, 3, 2, {0, 2}};
    return d;
}

TEST(Deployment, Kinds) {
    auto d = plain();
    EXPECT_EQ(validateContextCacheDeployment(d), Kind::kVanilla);
    d.base.layers.push_back(LayerKind::kRecurrent);
    d.base.numRecurrentLayers = 1;
    d.base.recurrent = {2, 3, 4, DataType::kFloat, 5, 6, DataType::kHalf};
    EXPECT_EQ(validateContextCacheDeployment(d), Kind::kHybrid);
    d.base.layers = {LayerKind::kRecurrent};
    d.base.kvLayers.clear();
    EXPECT_EQ(validateContextCacheDeployment(d), Kind::kPureRecurrent);
    EXPECT_EQ(validateContextCacheDeployment(eagle()), Kind::kEagle);
}

TEST(Deployment, EverythingElseIsRefused) {
    auto const refused = [](DeploymentConfig d, auto&& spoil) {
        spoil(d);
        EXPECT_THROW(validateContextCacheDeployment(d), std::runtime_error);
    };
    refused(plain(), [](auto& d) { d.hasDiffusionBackbone = true; });
    refused(plain(), [](auto& d) { d.hasBidirectionalVision = true; });
    refused(plain(), [](auto& d) { d.base.kvType = DataType::kFp8; });
    refused(plain(), [](auto& d) { d.base.kvLayers.pop_back(); });
    refused(plain(), [](auto& d) { d.base.numPages = 7; });
    refused(plain(), [](auto& d) { d.base.numPages = int64_t{INT32_MAX} / 2 + 1; });
    refused(plain(), [](auto& d) { d.base.layers.clear(), d.base.kvLayers.clear(); });
    refused(plain(), [](auto& d) { d.base.kvDonors = {-1}; });
    refused(plain(), [](auto& d) { d.base.kvDonors = {0, -1}; });
    refused(plain(), [](auto& d) { d.base.kvDonors = {1, 0}; });
    refused(plain(), [](auto& d) { d.base.kvDonors = {-1, 2}; });
    refused(plain(), [](auto& d) { d.base.isSpecBase = true; });
    refused(plain(), [](auto& d) { d.draft = d.base; });
    refused(plain(), [](auto& d) { d.spec = SpecConfig{1, 1, 1, {}}; });
    refused(plain(), [](auto& d) { d.spec.emplace(); });  // given, if all zero
    refused(plain(), [](auto& d) { d.base.numRecurrentLayers = -1; });
    refused(plain(), [](auto& d) { d.speculativeMode = SpeculativeMode::kOther; });
    refused(plain(), [](auto& d) { d.base.layers.push_back(LayerKind::kRecurrent), d.base.numRecurrentLayers = 1; });
    refused(eagle(), [](auto& d) { d.draft.reset(); });
    refused(eagle(), [](auto& d) { d.spec.reset(); });
    refused(eagle(), [](auto& d) { d.base.isSpecBase = false; });
    refused(eagle(), [](auto& d) { d.draft->isEagle = false; });
    refused(eagle(), [](auto& d) { d.draft->kvDonors = {-1, 0}; });
    refused(eagle(), [](auto& d) { d.draft->baseHiddenSize = 64; });
    refused(eagle(), [](auto& d) { d.spec->conditioningLayers = {}; });
    refused(eagle(), [](auto& d) { d.spec->conditioningLayers = {0, 0}; });
    refused(eagle(), [](auto& d) { d.spec->conditioningLayers = {0, 3}; });
}

}  // namespace
