// A vanilla request's whole walk: admission, rows, publication, reuse, decode, end.
#include <gtest/gtest.h>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

/// The row that kernels see.
std::vector<int32_t> deviceRow(Rig& rig, int32_t slot) {
    int32_t const width = rig.table.maxPagesPerSeq();
    int32_t const* row = rig.table.devicePointer() + slot * 2 * width;
    return {row, row + 2 * width};
}

std::vector<int32_t> leasePages(ContextCacheCoordinator::AdmissionResult const& admitted, size_t sequence = 0) {
    return inspect(admitted.request).sequences.at(sequence).lease.basePages();
}

TEST(Vanilla, ColdPromptIsPublishedAndFoundAgain) {
    Rig rig;
    EXPECT_EQ(serve(*rig, {tokensOf(10)}), std::vector<int32_t>{0});
    auto const records = rig->manager().records();
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].fullBlockCount, 2);
    EXPECT_EQ(records[0].basePages.size(), 2U);
    EXPECT_EQ(serve(*rig, {tokensOf(10)}), std::vector<int32_t>{8});
    EXPECT_EQ(rig->metrics().hitSequences, 1U);
    EXPECT_EQ(rig->metrics().reusedTokens, 8U);
    rig->manager().checkInvariants();
}

TEST(Vanilla, C46_AFullyCachedPromptComputesItsLastPageAgain) {
    Rig rig;
    serve(*rig, {tokensOf(8)});
    auto admitted = begin(*rig, admissionOf({tokensOf(8)}));
    EXPECT_EQ(admitted.prefillStarts, std::vector<int32_t>{4});
    auto const& plan = inspect(admitted.request).admissions[0].plan;
    EXPECT_EQ(plan.kind, ReusePlanKind::kFullInputRewind);
    EXPECT_EQ(plan.matchedTokenLength, 8);
    EXPECT_EQ(plan.reason, NoReuseReason::kFullInput);
    rig->finish(admitted.request);
}

TEST(Vanilla, C90_PreparePrefillBindsRowsAndLengths) {
    Rig rig;
    serve(*rig, {tokensOf(9)});
    rig.base.log.clear();
    auto admitted = begin(*rig, admissionOf({tokensOf(9), tokensOf(5, 3)}));
    EXPECT_TRUE(rig.base.log.empty()) << "begin enqueues nothing";
    EXPECT_EQ(rig->preparePrefill(admitted.request), Status::kOk);
    EXPECT_EQ(rig.base.log, std::vector<std::string>{"reset"});
    EXPECT_EQ(rig.base.streams.back(), kStream);
    EXPECT_EQ(rig.base.lengths[0], 8);
    EXPECT_EQ(rig.base.lengths[1], 0);
    EXPECT_EQ(rig.base.lengths[2], -1) << "D-5: exactly the batch is written";
    EXPECT_EQ(rig.base.activeBatch, 2);
    for (int32_t slot = 0; slot < 2; ++slot) {
        auto const pages = leasePages(admitted, static_cast<size_t>(slot));
        auto const row = deviceRow(rig, slot);
        auto const width = static_cast<size_t>(rig.table.maxPagesPerSeq());
        for (size_t i = 0; i < width; ++i) {
            bool const live = i < pages.size();
            EXPECT_EQ(row[i], live ? pages[i] : -1);
            EXPECT_EQ(row[width + i], live ? pages[i] + rig.table.numPages() : -1);
        }
    }
    rig->finish(admitted.request);
}

TEST(Vanilla, C58_C87_IdenticalColdPromptsOfABatchKeepTheirOwnPages) {
    Rig rig;
    auto admitted = prefill(*rig, admissionOf({tokensOf(8), tokensOf(8)}));
    EXPECT_EQ(admitted.prefillStarts, (std::vector<int32_t>{0, 0}));
    EXPECT_NE(leasePages(admitted, 0), leasePages(admitted, 1));
    auto const records = rig->manager().records();
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].basePages, leasePages(admitted, 0)) << "the first committer's pages are canonical";
    rig->finish(admitted.request);
    EXPECT_EQ(rig.freePages(), 30U) << "the duplicate pages went back";
}

TEST(Vanilla, DecodeGrowsRowsAndPublishesAtTheEnd) {
    Rig rig;
    auto admitted = prefill(*rig, admissionOf({tokensOf(7)}));
    auto& request = admitted.request;
    EXPECT_EQ(leasePages(admitted).size(), 2U);
    int32_t committed = 7;
    for (int step = 0; step < 6; ++step) {
        EXPECT_EQ(rig->prepareDecodeStep(request), Status::kOk);
        EXPECT_GE(static_cast<int32_t>(leasePages(admitted).size()) * 4, committed + 1);
        ++committed;
        bool const last = step == 5;
        EXPECT_EQ(rig->completeDecodeStep(request, Advances({committed}, 500 + step).list,
                                          last ? std::vector<int32_t>{0} : std::vector<int32_t>{}),
                  Status::kOk);
        auto const& state = inspect(request).sequences[0];
        EXPECT_EQ(state.committedStateLength, committed);
        EXPECT_EQ(static_cast<int32_t>(state.tokenIds.size()), committed + 1) << "C-96: one lookahead token";
    }
    EXPECT_EQ(deviceRow(rig, 0)[3], leasePages(admitted)[3]) << "grown pages reached the device row";
    EXPECT_EQ(rig.synchronizer.calls, 0);
    rig->finish(request);
    EXPECT_FALSE(request.valid());
    auto const records = rig->manager().records();
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records.back().fullBlockCount, 3) << "13 committed tokens are 3 blocks (C-98)";
    // The generated tokens are part of the prefix of the next turn (C-12).
    auto next = tokensOf(7);
    for (int32_t t : {7, 500, 501, 502, 503, 504, 9, 9}) {
        next.push_back(t);
    }
    EXPECT_EQ(serve(*rig, {next}), std::vector<int32_t>{12});
}

TEST(Vanilla, PoliciesBypassAndPrefillOnly) {
    Rig rig;
    serve(*rig, {tokensOf(9)});
    auto bypass = admissionOf({tokensOf(9)});
    bypass.lookupPolicy = ContextCacheLookupPolicy::kBypass;
    auto admitted = prefill(*rig, bypass);
    EXPECT_EQ(admitted.prefillStarts, std::vector<int32_t>{0});
    EXPECT_EQ(inspect(admitted.request).admissions[0].plan.reason, NoReuseReason::kBypass);
    rig->finish(admitted.request);
    EXPECT_EQ(rig->metrics().publishedEndpoints, 1U) << "bypass neither looks up nor publishes";
    EXPECT_EQ(rig->metrics().lookupBypassSequences, 1U);

    auto prefillOnly = admissionOf({tokensOf(7, 2)});
    prefillOnly.commitPolicy = ContextCacheCommitPolicy::kPrefillOnly;
    auto second = prefill(*rig, prefillOnly);
    ASSERT_EQ(rig->prepareDecodeStep(second.request), Status::kOk);
    rig->completeDecodeStep(second.request, Advances({8}).list, {0});
    rig->finish(second.request);
    EXPECT_EQ(rig->manager().records().back().fullBlockCount, 1) << "nothing was published at the decode end";
}

TEST(Vanilla, C81_OneRequestAtATime) {
    Rig rig;
    auto first = begin(*rig, admissionOf({tokensOf(4)}));
    auto second = rig->beginRequest(admissionOf({tokensOf(4)}), kStream);
    EXPECT_EQ(second.status, Status::kRequestFailed);
    EXPECT_FALSE(second.admission.has_value());
    rig->finish(first.request);
    EXPECT_EQ(rig->beginRequest(admissionOf({tokensOf(4)}), kStream).status, Status::kOk);
}

TEST(Vanilla, C85_BrokenAdmissionsThrowAndLeaveNothing) {
    Rig rig;
    auto const throws = [&](ContextCacheBatchAdmission const& a, cudaStream_t stream = kStream) {
        EXPECT_THROW(rig->beginRequest(a, stream), std::runtime_error);
        EXPECT_EQ(rig.freePages(), 32U);
        rig->manager().checkInvariants();
    };
    throws(admissionOf({tokensOf(4)}), kOtherStream);
    throws(admissionOf({}));
    throws(admissionOf({tokensOf(4), {}}));
    throws(admissionOf(std::vector<std::vector<int32_t>>(5, tokensOf(4))));
    throws(admissionOf({tokensOf(33)}));  // nine pages, a row has eight
    auto eagle = admissionOf({tokensOf(4)});
    eagle.executionMode = ContextCacheExecutionMode::kEagle;
    throws(eagle);
    auto media = admissionOf({tokensOf(4)});
    media.sequences[0].perPositionMediaHash.resize(3);  // D-1
    throws(media);
    EXPECT_EQ(rig->metrics().admittedSequences, 0U);
    EXPECT_EQ(serve(*rig, {tokensOf(4)}), std::vector<int32_t>{0});
}

TEST(Vanilla, D13_ARefusedBatchCountsNothing) {
    HostCacheShape small;
    small.pages = 32;
    Rig rig(Kind::kVanilla, small);
    auto held = begin(*rig, admissionOf({tokensOf(32, 1), tokensOf(32, 2), tokensOf(32, 3), tokensOf(32, 4)}));
    auto const before = rig->metrics();
    EXPECT_EQ(rig->beginRequest(admissionOf({tokensOf(4, 9)}), kStream).status, Status::kRequestFailed);
    EXPECT_EQ(rig->metrics().admittedSequences, before.admittedSequences);
    EXPECT_EQ(rig->metrics().noReusablePrefixPlans, before.noReusablePrefixPlans);
    rig->finish(held.request);
}

TEST(Vanilla, C94_AFullRowFailsTheStepAndOnlyFinishIsLeft) {
    Rig rig;
    auto admitted = prefill(*rig, admissionOf({tokensOf(32)}));
    EXPECT_EQ(rig->prepareDecodeStep(admitted.request), Status::kRequestFailed);
    EXPECT_EQ(inspect(admitted.request).phase, ContextCacheCoordinator::RequestHandle::Impl::Phase::kFinishing);
    EXPECT_THROW(rig->prepareDecodeStep(admitted.request), std::runtime_error);
    EXPECT_THROW(rig->preparePrefill(admitted.request), std::runtime_error);
    EXPECT_EQ(rig->finish(admitted.request), Status::kOk);
}

TEST(Vanilla, D16_CallsOutOfOrderThrowWithoutEffect) {
    Rig rig;
    std::vector<int32_t> store(4);
    Tensor mapping(store.data(), DataType::kInt32, 4);
    auto admitted = begin(*rig, admissionOf({tokensOf(5)}));
    auto& r = admitted.request;
    EXPECT_THROW(rig->enqueuePrefillCaptures(r), std::runtime_error);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({5}).list), std::runtime_error);
    EXPECT_THROW(rig->prepareDecodeStep(r), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6}).list, {}), std::runtime_error);
    EXPECT_THROW(rig->beginBatchCompaction(r, {0}, 1, mapping), std::runtime_error);
    EXPECT_THROW(rig->compactBatch(r), std::runtime_error);
    rig->preparePrefill(r);
    EXPECT_THROW(rig->preparePrefill(r), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6}).list, {}), std::runtime_error);
    rig->enqueuePrefillCaptures(r);
    rig->finalizePrefillPublication(r, Advances({5}).list);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({6}).list), std::runtime_error);
    EXPECT_THROW(rig->enqueuePrefillCaptures(r), std::runtime_error);
    EXPECT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    EXPECT_THROW(rig->prepareDecodeStep(r), std::runtime_error);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({6}).list), std::runtime_error);
    EXPECT_EQ(rig->completeDecodeStep(r, Advances({6}).list, {0}), Status::kOk);
    EXPECT_EQ(rig->finish(r), Status::kOk);
    EXPECT_EQ(rig->metrics().publicationAttempts, 1U);
}

TEST(Vanilla, C92_C95_D6_D14_BadAdvancesThrowAndCanBeRepeated) {
    Rig rig;
    auto admitted = begin(*rig, admissionOf({tokensOf(5), tokensOf(6, 2)}));
    auto& r = admitted.request;
    rig->preparePrefill(r);
    std::vector<int32_t> const common{5, 6};
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({5}).list), std::runtime_error);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({5, 5}).list), std::runtime_error);
    EXPECT_THROW(rig->finalizePrefillPublication(r, Advances({5, 6}).list, &common), std::runtime_error);
    auto null = Advances({5, 6});
    null.list[1].acceptedTokenIds = nullptr;
    EXPECT_THROW(rig->finalizePrefillPublication(r, null.list), std::runtime_error);
    auto two = Advances({5, 6});
    two.list[0].acceptedTokenCount = 0;
    EXPECT_THROW(rig->finalizePrefillPublication(r, two.list), std::runtime_error);
    EXPECT_EQ(inspect(r).sequences[0].tokenIds.size(), 5U);
    EXPECT_EQ(rig->finalizePrefillPublication(r, Advances({5, 6}).list), Status::kOk);

    rig->prepareDecodeStep(r);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6, 8}).list, {}), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6, 7}).list, {2}), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6, 7}).list, {-1}), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6, 7}).list, {1, 1}), std::runtime_error);
    EXPECT_EQ(inspect(r).sequences[1].committedStateLength, 6) << "nothing advanced";
    EXPECT_EQ(rig->completeDecodeStep(r, Advances({6, 7}).list, {1}), Status::kOk);
    rig->finish(r);
}

TEST(Vanilla, TextsNameTheCallTheArgumentAndItsValue) {
    Rig rig(Kind::kVanilla);
    auto admitted = begin(*rig, admissionOf({tokensOf(5, 1), tokensOf(5, 2)}));
    rig->preparePrefill(admitted.request);
    int32_t const token = 7;
    EXPECT_EQ(
        textOf([&] {
            rig->finalizePrefillPublication(admitted.request, {{&token, 1, 5}, {nullptr, 1, 5}});
        }),
        "prefixcache: finalizePrefillPublication: advances[1].acceptedTokenIds is null with acceptedTokenCount 1, "
        "expected an array");
    EXPECT_EQ(textOf([&] {
                  rig->completeDecodeStep(admitted.request, {{&token, -1, 5}}, {});
              }),
              "prefixcache: completeDecodeStep: advances[0].acceptedTokenCount is -1, expected >= 0");
    std::vector<int32_t> const common{5};
    EXPECT_EQ(textOf([&] {
                  rig->finalizePrefillPublication(admitted.request, {{&token, 1, 5}, {&token, 1, 5}}, &common);
              }),
              "prefixcache: finalizePrefillPublication: commonStateLengths has 1 entries, expected one for each of 2 "
              "advances");
    rig->finish(admitted.request);
    auto config = rig.config;
    config.tenantQuota = -1;
    EXPECT_EQ(textOf([&] {
                  ContextCacheCoordinator(config, rig.deployment, Kind::kVanilla, {rig.base, rig.table}, kStream);
              }),
              "prefixcache: config.tenantQuota is -1, expected 0 to 1000 per mille");
}

TEST(Vanilla, C13_1_ConstructionChecksEverything) {
    auto const fails = [](auto&& spoil) {
        Rig good;
        good.coordinator.reset();
        auto config = good.config;
        auto deployment = good.deployment;
        auto kind = Kind::kVanilla;
        spoil(config, deployment, kind, good);
        ContextCachePhysicalResources resources{good.base, good.table};
        EXPECT_THROW(ContextCacheCoordinator(config, deployment, kind, resources, kStream), std::runtime_error);
        ContextCacheCoordinator again(good.config, good.deployment, Kind::kVanilla, resources, kStream);
        EXPECT_EQ(serve(again, {tokensOf(4)}), std::vector<int32_t>{0}) << "the table is free again";
    };
    fails([](auto& config, auto&, auto&, auto&) { config.enabled = false; });
    fails([](auto& config, auto&, auto&, auto&) { config.maxRecords = -1; });
    fails([](auto& config, auto&, auto&, auto&) { config.tokensPerPage = 5; });
    fails([](auto&, auto& deployment, auto&, auto&) { deployment.base.maxBatchSize = 3; });
    fails([](auto&, auto&, auto& kind, auto&) { kind = Kind::kEagle; });
    fails([](auto&, auto&, auto& kind, auto&) { kind = Kind::kHybrid; });
}

TEST(Vanilla, NothingIsKeptWithRecordLimitZero) {
    Rig rig(Kind::kVanilla, {}, 0);
    serve(*rig, {tokensOf(8)});
    EXPECT_EQ(serve(*rig, {tokensOf(9)}), std::vector<int32_t>{0});
    EXPECT_EQ(rig->metrics().currentRecords, 0U);
    EXPECT_EQ(rig->metrics().committedPublications, 2U);
    EXPECT_EQ(rig.freePages(), 32U);
}

TEST(Vanilla, PressureEvictsTheLeastRecentRecord) {
    HostCacheShape small;
    small.pages = 8;
    small.maxBatch = 1;
    Rig rig(Kind::kVanilla, small);
    serve(*rig, {tokensOf(8, 1)});
    serve(*rig, {tokensOf(8, 2)});
    serve(*rig, {tokensOf(9, 1)});  // refreshes 1
    serve(*rig, {tokensOf(20, 3)});
    EXPECT_EQ(serve(*rig, {tokensOf(9, 2)}), std::vector<int32_t>{0}) << "2 was the least recent";
    EXPECT_GE(rig->metrics().evictedRecords, 1U);
    rig->manager().checkInvariants();
}

TEST(Vanilla, DefaultSynchronizerWaitsThroughTheLibrary) {
    Rig rig;
    rig.coordinator.reset();
    ContextCacheCoordinator c(rig.config, rig.deployment, Kind::kVanilla, {rig.base, rig.table}, kStream);
    auto admitted = begin(c, admissionOf({tokensOf(4)}));
    c.preparePrefill(admitted.request);
    EXPECT_EQ(c.finish(admitted.request), Status::kOk);
}

TEST(Vanilla, PagesOf128TokensByDefault) {
    HostCacheShape shape;
    shape.tokensPerPage = 128;
    Rig rig(Kind::kVanilla, shape);
    EXPECT_EQ(ContextCacheConfig{}.tokensPerPage, 128);
    serve(*rig, {tokensOf(300)});
    EXPECT_EQ(serve(*rig, {tokensOf(300)}), std::vector<int32_t>{256});
}

}  // namespace
