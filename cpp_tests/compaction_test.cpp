// Batch compaction: survivors close the gaps, retired sequences let go after the
// synchronization.
#include <gtest/gtest.h>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

struct Compaction : testing::Test {
    Rig rig{Kind::kVanilla};
    std::vector<int32_t> store = std::vector<int32_t>(4, -7);
    Tensor mapping{store.data(), DataType::kInt32, 4};
};

TEST_F(Compaction, C100_MappingsAreChecked) {
    auto admitted = prefill(*rig, admissionOf({tokensOf(5, 1), tokensOf(5, 2)}));
    auto& r = admitted.request;
    auto const bad = [&](std::vector<int32_t> const& m, int32_t n) {
        EXPECT_THROW(rig->beginBatchCompaction(r, m, n, mapping), std::runtime_error);
        EXPECT_FALSE(inspect(r).deviceWorkPending) << "D-15: nothing is begun";
        EXPECT_EQ(store[0], -7);
    };
    bad({1, 0}, 2);
    bad({0, 2}, 2);
    bad({0}, 1);
    bad({0, 1, 2}, 3);
    bad({0, -1}, 2);
    bad({0, -2}, 1);
    bad({0, 1}, -1);
    Tensor tight(store.data(), DataType::kInt32, 1);
    EXPECT_THROW(rig->beginBatchCompaction(r, {0, -1}, 1, tight), std::runtime_error);
    Tensor floats(store.data(), DataType::kFloat, 4);
    EXPECT_THROW(rig->beginBatchCompaction(r, {0, -1}, 1, floats), std::runtime_error);
    EXPECT_THROW(rig->compactBatch(r), std::runtime_error) << "not begun";
    EXPECT_EQ(rig->prepareDecodeStep(r), Status::kOk) << "the request goes on";
    rig->finish(r);
}

TEST_F(Compaction, TheMappingTensorIsToldWhatItLacks) {
    auto admitted = prefill(*rig, admissionOf({tokensOf(5, 1), tokensOf(5, 2)}));
    auto const says = [&](Tensor wrong, std::string const& what) {
        EXPECT_EQ(textOf([&] {
                      rig->beginBatchCompaction(admitted.request, {0, -1}, 1, wrong);
                  }),
                  "prefixcache: beginBatchCompaction: deviceBatchMapping " + what);
    };
    says({store.data(), DataType::kInt32, 1}, "has room for 1 elements, expected at least 2");
    says({store.data(), DataType::kFloat, 4}, "has elements of DataType 2, expected kInt32 (5)");
    says({nullptr, DataType::kInt32, 4}, "has a null address, expected room for 2 elements");
    rig->finish(admitted.request);
}

TEST(Tensor, AReshapeThatIsRefusedNamesTheShape) {
    Tensor tensor(nullptr, DataType::kInt32, 3);
    EXPECT_EQ(textOf([&] {
                  tensor.reshape({2, 4});
              }),
              "prefixcache: shape is [2, 4], expected at most 3 elements, the capacity, and no negative dimension");
    EXPECT_EQ(textOf([&] { tensor.reshape({-1}); }),
              "prefixcache: shape is [-1], expected at most 3 elements, the capacity, and no negative dimension");
    EXPECT_EQ(tensor.shape(), std::vector<int64_t>{3});
}

TEST_F(Compaction, C101_C102_OrderAndRelease) {
    auto admitted = prefill(*rig, admissionOf({tokensOf(5, 1), tokensOf(6, 2), tokensOf(7, 3)}));
    auto& r = admitted.request;
    auto const kept = inspect(r).sequences[2].lease.basePages();
    auto const free = rig.freePages();
    rig.base.log.clear();
    ASSERT_EQ(rig->beginBatchCompaction(r, {0, -1, 1}, 2, mapping), Status::kOk);
    EXPECT_EQ(mapping.shape(), std::vector<int64_t>{3});
    EXPECT_EQ(std::vector<int32_t>(store.begin(), store.begin() + 3), (std::vector<int32_t>{0, -1, 1}));
    EXPECT_EQ(inspect(r).pendingCompactionBatchSize, 2);
    EXPECT_EQ(inspect(r).pendingDeviceBatchMapping, &mapping);
    EXPECT_TRUE(rig.base.log.empty());
    EXPECT_THROW(rig->prepareDecodeStep(r), std::runtime_error);
    EXPECT_THROW(rig->completeDecodeStep(r, Advances({6, 7, 8}).list, {}), std::runtime_error) << "D-16";

    EXPECT_EQ(rig->compactBatch(r), Status::kOk);
    EXPECT_EQ(rig.base.log, (std::vector<std::string>{"compact 3->2", "batch 2"}));
    EXPECT_EQ(rig.synchronizer.calls, 1);
    EXPECT_EQ(rig.base.lengths[1], rig.base.lengths[2]);
    EXPECT_EQ(rig.base.activeBatch, 2);
    ASSERT_EQ(inspect(r).sequences.size(), 2U);
    EXPECT_EQ(inspect(r).sequences[1].lease.basePages(), kept) << "C-75: pages are not copied";
    EXPECT_EQ(inspect(r).sequences[1].tokenIds[0], 3000);
    EXPECT_EQ(rig.table.row(1)[0], kept[0]);
    EXPECT_EQ(rig.table.row(2)[0], -1);
    EXPECT_EQ(rig.freePages(), free + 1) << "the unpublished page of the retired sequence";
    EXPECT_EQ(rig->prepareDecodeStep(r), Status::kOk);
    EXPECT_EQ(rig->completeDecodeStep(r, Advances({6, 8}).list, {0, 1}), Status::kOk);
    rig->finish(r);
    rig->manager().checkInvariants();
}

TEST_F(Compaction, ToNothingEndsTheWork) {
    auto admitted = prefill(*rig, admissionOf({tokensOf(5)}));
    rig->beginBatchCompaction(admitted.request, {-1}, 0, mapping);
    EXPECT_EQ(rig->compactBatch(admitted.request), Status::kOk);
    EXPECT_THROW(rig->prepareDecodeStep(admitted.request), std::runtime_error);
    EXPECT_EQ(rig->finish(admitted.request), Status::kOk);
}

TEST_F(Compaction, AFailedSynchronizationKeepsRetiredPagesToo) {
    auto admitted = prefill(*rig, admissionOf({tokensOf(5, 1), tokensOf(5, 2)}));
    auto const active = rig->metrics().pools[0].active;
    rig->beginBatchCompaction(admitted.request, {-1, 0}, 1, mapping);
    rig.synchronizer.answer = cudaErrorUnknown;
    EXPECT_EQ(rig->compactBatch(admitted.request), Status::kPoisoned);
    EXPECT_FALSE(admitted.request.valid());
    EXPECT_EQ(rig->metrics().pools[0].active, active);
    rig.synchronizer.answer = cudaSuccess;
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(rig->metrics().pools[0].active, 0U);
}

TEST(HybridCompaction, RecurrentStateMovesWithItsSlot) {
    Rig rig(Kind::kHybrid);
    auto admitted = prefill(*rig, admissionOf({tokensOf(5, 1), tokensOf(5, 2)}));
    rig.base.stateOf(1, 1)[0] = 42.0F;
    rig.base.convOf(0, 1)[3] = 43;
    std::vector<int32_t> store(2);
    Tensor mapping(store.data(), DataType::kInt32, 2);
    rig->beginBatchCompaction(admitted.request, {-1, 0}, 1, mapping);
    rig->compactBatch(admitted.request);
    EXPECT_EQ(rig.base.stateOf(1, 0)[0], 42.0F);
    EXPECT_EQ(rig.base.convOf(0, 0)[3], 43);
    rig->finish(admitted.request);
}

}  // namespace
