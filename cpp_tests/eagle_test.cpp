// EAGLE: base and draft pages in step, prompts frozen until the draft caught up.
#include <gtest/gtest.h>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

ContextCacheBatchAdmission eagleAdmission(std::vector<std::vector<int32_t>> const& prompts) {
    auto admission = admissionOf(prompts);
    admission.executionMode = ContextCacheExecutionMode::kEagle;
    return admission;
}

/// Prefill up to the frozen prompt.
ContextCacheCoordinator::AdmissionResult freeze(Rig& rig, int32_t n, int32_t seed = 0) {
    auto admitted = begin(*rig, eagleAdmission({tokensOf(n, seed)}));
    rig->preparePrefill(admitted.request);
    rig->enqueuePrefillCaptures(admitted.request);
    std::vector<int32_t> const common{n};
    EXPECT_EQ(rig->finalizePrefillPublication(admitted.request, Advances({n}).list, &common), Status::kOk);
    return admitted;
}

TEST(Eagle, BothTablesAreBound) {
    Rig rig(Kind::kEagle);
    auto admitted = begin(*rig, eagleAdmission({tokensOf(6)}));
    rig->preparePrefill(admitted.request);
    auto const& lease = inspect(admitted.request).sequences[0].lease;
    EXPECT_EQ(rig.table.row(0)[0], lease.basePages()[0]);
    EXPECT_EQ(rig.draftTable->row(0)[1], lease.draftPages()[1]);
    EXPECT_EQ(rig.base.log, std::vector<std::string>{"reset"});
    EXPECT_EQ(rig.draft->log, std::vector<std::string>{"reset"});
    rig->finish(admitted.request);
}

// One request from the prompt to its end, with pages of 4.
TEST(Eagle, C93_PromptIsPublishedOneRoundLate) {
    Rig rig(Kind::kEagle);
    auto admitted = freeze(rig, 7);
    auto& r = admitted.request;
    EXPECT_TRUE(inspect(r).specAwaitingFirstCompletion);
    EXPECT_TRUE(inspect(r).deviceWorkPending) << "the draft's prefill is in flight";
    EXPECT_EQ(inspect(r).sequences[0].frozenSpecPrefillLength, 7);
    EXPECT_TRUE(rig->manager().records().empty());

    ASSERT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    std::vector<int32_t> const tokens{1, 2};
    std::vector<int32_t> common{7};
    EXPECT_EQ(rig->completeDecodeStep(r, {{tokens.data(), 2, 9}}, {}, &common), Status::kOk);
    ASSERT_EQ(rig->manager().records().size(), 1U);
    EXPECT_EQ(rig->manager().records()[0].fullBlockCount, 1);
    EXPECT_EQ(rig->manager().records()[0].draftPages.size(), 1U);
    EXPECT_FALSE(inspect(r).specAwaitingFirstCompletion);

    ASSERT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    common = {9};
    EXPECT_EQ(rig->completeDecodeStep(r, {{tokens.data(), 2, 11}}, {0}, &common), Status::kOk);
    EXPECT_EQ(rig->manager().records().back().fullBlockCount, 2) << "floor(9 / 4) at the common length";
    EXPECT_EQ(rig->finish(r), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, 0);
    EXPECT_EQ(rig->metrics().specPairPublications, 2U);
    rig->manager().checkInvariants();
}

TEST(Eagle, C48_OnePageIsReplayed) {
    Rig rig(Kind::kEagle);
    auto first = freeze(rig, 9);
    EXPECT_EQ(rig->finish(first.request), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, 1) << "finish waits for the draft's prefill, then publishes";
    ASSERT_EQ(rig->manager().records().size(), 1U);
    auto second = begin(*rig, eagleAdmission({tokensOf(9)}));
    EXPECT_EQ(second.prefillStarts, std::vector<int32_t>{4});
    EXPECT_EQ(inspect(second.request).admissions[0].plan.reason, NoReuseReason::kReplay);
    EXPECT_EQ(rig->metrics().specFullPageReplays, 1U);
    rig->finish(second.request);
}

TEST(Eagle, C49_BaseOnlyStateIsNotUsed) {
    Rig rig(Kind::kEagle);
    serve(*rig, {tokensOf(9)});  // a vanilla request publishes base pages only
    auto admitted = begin(*rig, eagleAdmission({tokensOf(9)}));
    EXPECT_EQ(admitted.prefillStarts, std::vector<int32_t>{0});
    EXPECT_EQ(inspect(admitted.request).admissions[0].plan.reason, NoReuseReason::kNoDraft);
    rig->finish(admitted.request);
}

TEST(Eagle, C86_VanillaRequestsUseTheBaseSideAlone) {
    Rig rig(Kind::kEagle);
    auto first = freeze(rig, 9);
    rig->finish(first.request);
    rig.draft->log.clear();
    auto const before = rig.draftTable->row(0);
    EXPECT_EQ(serve(*rig, {tokensOf(9)}), std::vector<int32_t>{8});
    EXPECT_TRUE(rig.draft->log.empty());
    EXPECT_EQ(rig.draftTable->row(0), before);
}

TEST(Eagle, CommonLengthsAreChecked) {
    Rig rig(Kind::kEagle);
    auto admitted = begin(*rig, eagleAdmission({tokensOf(7)}));
    auto& r = admitted.request;
    rig->preparePrefill(r);
    std::vector<int32_t> common{6};
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({7}).list), std::runtime_error);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({7}).list, &common), std::runtime_error);
    common = {7, 7};
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({7}).list, &common), std::runtime_error);
    common = {7};
    EXPECT_EQ(rig->finalizePrefillPublication(r, Advances({7}).list, &common), Status::kOk) << "D-14: repeatable";
    rig->prepareDecodeStep(r);
    common = {9};
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({8}).list, {}, &common), std::runtime_error);
    common = {6};
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({8}).list, {}, &common), std::runtime_error);
    common = {7};
    EXPECT_EQ(rig->completeDecodeStep(r, Advances({8}).list, {}, &common), Status::kOk);
    rig->finish(r);
}

TEST(Eagle, RowsGrowByVerifySizeAndDraftReach) {
    Rig rig(Kind::kEagle);  // verify 3, draft 2 x 1
    auto admitted = freeze(rig, 6);
    EXPECT_EQ(inspect(admitted.request).sequences[0].lease.basePages().size(), 2U);
    ASSERT_EQ(rig->prepareDecodeStep(admitted.request), Status::kOk);
    auto const& lease = inspect(admitted.request).sequences[0].lease;
    EXPECT_EQ(lease.basePages().size(), 3U) << "6 + 3 tokens";
    EXPECT_EQ(lease.draftPages().size(), 2U) << "6 + 2 tokens";
    rig->finish(admitted.request);
}

TEST(Eagle, FinishWithAFailedSynchronizationPoisons) {
    Rig rig(Kind::kEagle);
    auto admitted = freeze(rig, 7);
    rig.synchronizer.answer = cudaErrorUnknown;
    EXPECT_EQ(rig->finish(admitted.request), Status::kPoisoned);
    EXPECT_FALSE(admitted.request.valid());
    EXPECT_TRUE(rig->metrics().poisoned);
    rig.synchronizer.answer = cudaSuccess;
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(rig.freePages(CacheResourceType::kDraftPage), 32U);
}

TEST(Eagle, CompactionSettlesTheDraftFirst) {
    Rig rig(Kind::kEagle);
    auto admitted = begin(*rig, eagleAdmission({tokensOf(7, 1), tokensOf(7, 2)}));
    auto& r = admitted.request;
    rig->preparePrefill(r);
    std::vector<int32_t> const common{7, 7};
    rig->finalizePrefillPublication(r, Advances({7, 7}).list, &common);
    std::vector<int32_t> store(4);
    Tensor mapping(store.data(), DataType::kInt32, 4);
    EXPECT_EQ(rig->beginBatchCompaction(r, {-1, 0}, 1, mapping), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, 1);
    EXPECT_EQ(rig->manager().records().size(), 2U) << "frozen prompts were published";
    EXPECT_EQ(rig->compactBatch(r), Status::kOk);
    EXPECT_EQ(rig.draft->log.back(), "batch 1");
    EXPECT_EQ(rig.synchronizer.calls, 2);
    EXPECT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    rig->finish(r);
    rig->manager().checkInvariants();
}

}  // namespace
