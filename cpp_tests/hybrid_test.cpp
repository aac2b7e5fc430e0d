// Hybrid and pure recurrent models: snapshots are captured, restored and published.
#include <gtest/gtest.h>

#include <algorithm>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

/// Writes a state that only depends on `mark` into slot 0.
void fillState(HostCache& cache, int32_t slot, float mark) {
    for (int32_t layer = 0; layer < cache.shape.recurrentLayers; ++layer) {
        std::fill_n(cache.stateOf(layer, slot), HostCache::stateElements(), mark + static_cast<float>(layer));
        std::fill_n(cache.convOf(layer, slot), HostCache::convElements(), static_cast<uint16_t>(mark + 50.0F));
    }
}

bool stateIs(HostCache& cache, int32_t slot, float mark) {
    for (int32_t layer = 0; layer < cache.shape.recurrentLayers; ++layer) {
        auto const* s = cache.stateOf(layer, slot);
        auto const* c = cache.convOf(layer, slot);
        if (!std::all_of(s, s + HostCache::stateElements(),
                         [&](float v) { return v == mark + static_cast<float>(layer); }) ||
            !std::all_of(c, c + HostCache::convElements(),
                         [&](uint16_t v) { return v == static_cast<uint16_t>(mark + 50.0F); })) {
            return false;
        }
    }
    return true;
}

void fillTokens(HostCache& cache, std::vector<int32_t> const& pages, int32_t count, uint16_t mark) {
    for (int32_t t = 0; t < count; ++t) {
        int32_t const page = pages.at(static_cast<size_t>(t / cache.shape.tokensPerPage));
        for (int32_t half : {page, page + cache.shape.pages}) {
            auto* token = cache.token(0, half, t % cache.shape.tokensPerPage);
            std::fill_n(token, cache.tokenElements(), static_cast<uint16_t>(mark + t));
        }
    }
}

/// Prefill of n tokens that leaves a checkpoint behind.
void publishPrompt(Rig& rig, int32_t n, float mark, int32_t seed = 0) {
    auto admitted = begin(*rig, admissionOf({tokensOf(n, seed)}));
    rig->preparePrefill(admitted.request);
    fillState(rig.base, 0, mark);
    if (rig.base.shape.attentionLayers > 0) {
        fillTokens(rig.base, inspect(admitted.request).sequences[0].lease.basePages(), n, 100);
    }
    ASSERT_EQ(rig->enqueuePrefillCaptures(admitted.request), Status::kOk);
    fillState(rig.base, 0, -1.0F);  // later work overwrites the live state
    rig->finalizePrefillPublication(admitted.request, Advances({n}).list);
    rig->finish(admitted.request);
}

TEST(Hybrid, C80_ACheckpointComesBackByteForByte) {
    Rig rig(Kind::kHybrid);
    publishPrompt(rig, 6, 10.0F);
    ASSERT_EQ(rig->manager().records().size(), 1U);
    EXPECT_EQ(rig->manager().records()[0].exactLength, 6);

    std::fill(rig.base.kv[0].begin(), rig.base.kv[0].end(), uint16_t{0});  // only the snapshot is left
    auto admitted = begin(*rig, admissionOf({tokensOf(9)}));
    EXPECT_EQ(admitted.prefillStarts, std::vector<int32_t>{6});
    rig->preparePrefill(admitted.request);
    EXPECT_TRUE(stateIs(rig.base, 0, 10.0F));
    auto const pages = inspect(admitted.request).sequences[0].lease.basePages();
    for (int32_t half : {0, rig.base.shape.pages}) {
        EXPECT_EQ(*rig.base.token(0, pages[1] + half, 0), 104);
        EXPECT_EQ(*rig.base.token(0, pages[1] + half, 1), 105);
        EXPECT_EQ(*rig.base.token(0, pages[1] + half, 2), 0) << "only the two tokens of the tail";
    }
    EXPECT_EQ(rig->metrics().hybridRestores, 1U);
    rig->finish(admitted.request);
    rig->manager().checkInvariants();
}

TEST(Hybrid, ColdSequencesBeginWithZeroState) {
    Rig rig(Kind::kHybrid);
    fillState(rig.base, 0, 3.0F);
    fillState(rig.base, 1, 3.0F);
    auto admitted = begin(*rig, admissionOf({tokensOf(5)}));
    rig->preparePrefill(admitted.request);
    EXPECT_EQ(rig.base.stateOf(0, 0)[0], 0.0F);
    EXPECT_TRUE(stateIs(rig.base, 1, 3.0F)) << "other slots are left alone";
    rig->finish(admitted.request);
}

TEST(Hybrid, C47_OnlyAStrictlyShorterCheckpointHelps) {
    Rig rig(Kind::kHybrid);
    publishPrompt(rig, 6, 1.0F);
    auto same = begin(*rig, admissionOf({tokensOf(6)}));
    EXPECT_EQ(same.prefillStarts, std::vector<int32_t>{0});
    EXPECT_EQ(inspect(same.request).admissions[0].plan.reason, NoReuseReason::kCheckpointLong);
    rig->finish(same.request);
}

TEST(Hybrid, C91_WithoutAFreeSnapshotTheRequestGoesOn) {
    Rig rig(Kind::kHybrid, {}, 64, 1);
    auto admitted = prefill(*rig, admissionOf({tokensOf(6, 1), tokensOf(6, 2)}));
    EXPECT_EQ(rig->metrics().hybridSnapshotPressureSkips, 1U);
    EXPECT_EQ(rig->manager().records().size(), 1U);
    rig->finish(admitted.request);
}

TEST(Hybrid, C97_DecodeEndCaptureSynchronizesOnce) {
    Rig rig(Kind::kHybrid);
    auto admitted = prefill(*rig, admissionOf({tokensOf(6, 1), tokensOf(7, 2)}));
    auto& r = admitted.request;
    ASSERT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, 0);
    EXPECT_EQ(rig->completeDecodeStep(r, Advances({7, 8}).list, {0, 1}), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, 1);
    EXPECT_EQ(rig->metrics().hybridCaptureSynchronizations, 1U);
    EXPECT_EQ(rig->manager().records().size(), 4U);
    rig->finish(r);
    rig->manager().checkInvariants();
    EXPECT_EQ(rig->metrics().pools[2].active, 0U) << "C-62: retired after publication";
}

TEST(Hybrid, AFailedCaptureSynchronizationPoisons) {
    Rig rig(Kind::kHybrid);
    auto admitted = prefill(*rig, admissionOf({tokensOf(6)}));
    rig->prepareDecodeStep(admitted.request);
    rig.synchronizer.answer = cudaErrorUnknown;
    EXPECT_EQ(rig->completeDecodeStep(admitted.request, Advances({7}).list, {0}), Status::kPoisoned);
    EXPECT_FALSE(admitted.request.valid());
    EXPECT_EQ(rig->beginRequest(admissionOf({tokensOf(4)}), kStream).status, Status::kPoisoned);
    EXPECT_EQ(rig->shutdown(), Status::kPoisoned);
    rig.synchronizer.answer = cudaSuccess;
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(rig->beginRequest(admissionOf({tokensOf(4)}), kStream).status, Status::kPoisoned) << "D-7: for good";
}

TEST(PureRecurrent, HasNoPagesAndResumesExactly) {
    Rig rig(Kind::kPureRecurrent);
    publishPrompt(rig, 7, 20.0F);
    auto admitted = begin(*rig, admissionOf({tokensOf(8)}));
    EXPECT_EQ(admitted.prefillStarts, std::vector<int32_t>{7});
    EXPECT_TRUE(inspect(admitted.request).sequences[0].lease.basePages().empty());
    rig->preparePrefill(admitted.request);
    EXPECT_TRUE(stateIs(rig.base, 0, 20.0F));
    rig->finalizePrefillPublication(admitted.request, Advances({8}).list);
    EXPECT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
    EXPECT_EQ(rig->completeDecodeStep(admitted.request, Advances({9}).list, {0}), Status::kOk);
    rig->finish(admitted.request);
    rig->manager().checkInvariants();
}

}  // namespace
