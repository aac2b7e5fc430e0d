// KVPageTable: C-72 to C-79 through the C++ class.
#include <gtest/gtest.h>

#include "host_cache.hpp"

namespace {

using namespace test;

int32_t const kWidth = 4;

struct PageTable : testing::Test {
    KVPageTable table{3, kWidth, 16, true};

    int32_t* deviceRow(int32_t slot) { return table.devicePointer() + slot * 2 * kWidth; }
};

TEST(PageTableConstruction, ArgumentsAreChecked) {
    for (auto const& [batch, width, pages] :
         {std::tuple{0, 4, 16}, {3, 0, 16}, {3, 4, 0}, {-1, 4, 16}, {3, 4, INT32_MAX / 2 + 1}}) {
        EXPECT_THROW(KVPageTable(batch, width, pages, true), std::runtime_error);
    }
}

TEST_F(PageTable, C79_FirstUploadTransfersEverything) {
    std::fill_n(table.devicePointer(), 3 * 2 * kWidth, 99);
    EXPECT_EQ(table.dirtyRows(), 3);
    EXPECT_TRUE(table.upload(kStream));
    EXPECT_EQ(std::count(table.devicePointer(), table.devicePointer() + 3 * 2 * kWidth, -1), 3 * 2 * kWidth);
    EXPECT_FALSE(table.upload(kStream)) << "C-76: nothing is dirty";
}

TEST_F(PageTable, C77_OnlyDirtyRowsTravel) {
    table.upload(kStream);
    int32_t* const address = table.devicePointer();
    *deviceRow(1) = 77;  // a mark in a clean row
    table.setRow(2, {5, 6});
    EXPECT_TRUE(table.upload(kStream));
    EXPECT_EQ(*deviceRow(1), 77);
    EXPECT_EQ(deviceRow(2)[0], 5);
    EXPECT_EQ(deviceRow(2)[kWidth + 1], 6 + 16);
    EXPECT_EQ(table.devicePointer(), address) << "one address for life";
    table.setRow(2, {5, 6});
    EXPECT_FALSE(table.upload(kStream)) << "C-73: an unchanged row stays clean";
}

TEST_F(PageTable, C78_BackToBackUploads) {
    for (int32_t i = 0; i < 10; ++i) {
        table.setRow(0, {i});
        EXPECT_TRUE(table.upload(kStream));
        EXPECT_EQ(*deviceRow(0), i);
    }
}

TEST_F(PageTable, C72_UpdatesAreAllOrNothing) {
    table.setRow(0, {1, 2, 3});
    auto const before = table.row(0);
    using Updates = std::vector<KVPageTable::RowUpdate>;
    for (auto const& updates :
         {Updates{{0, {4}}, {3, {1}}}, Updates{{0, {4}}, {-1, {1}}}, Updates{{0, {4}}, {1, {16}}},
          Updates{{0, {4}}, {1, {-1}}}, Updates{{0, {4}}, {0, {5}}}, Updates{{0, {4}}, {1, {1, 2, 3, 4, 5}}}}) {
        EXPECT_THROW(table.setRows(updates), std::runtime_error);
        EXPECT_EQ(table.row(0), before);
    }
    table.setRows({});
    table.setRow(0, {});
    EXPECT_EQ(table.row(0), std::vector<int32_t>(2 * kWidth, -1)) << "count 0 clears the row";
    EXPECT_THROW(table.row(3), std::runtime_error);
}

TEST_F(PageTable, Identity) {
    EXPECT_FALSE(table.isIdentity());
    table.setIdentity();
    EXPECT_TRUE(table.isIdentity());
    EXPECT_EQ(table.row(2)[0], 8);
    EXPECT_EQ(table.row(2)[kWidth], 8 + 16);
    table.upload(kStream);
    table.setRow(0, {0, 1, 2, 3});
    EXPECT_FALSE(table.isIdentity()) << "even if the ids happen to be the identity";
    EXPECT_EQ(table.dirtyRows(), 0);
    KVPageTable tight(3, kWidth, 11, true);
    EXPECT_THROW(tight.setIdentity(), std::runtime_error);
}

TEST_F(PageTable, C74_C75_CompactRows) {
    table.setRows({{0, {1}}, {1, {2, 3}}, {2, {4}}});
    for (auto const& [mapping, batch] : {std::pair{std::vector<int32_t>{0, 0, 1}, 2},
                                         {{0, 2, 1}, 2},
                                         {{0, -1, -1}, 2},
                                         {{0, 1, 2, 3}, 4},
                                         {{-2, 0, 1}, 2}}) {
        EXPECT_THROW(table.compactRows(mapping, batch), std::runtime_error);
    }
    table.compactRows({1, 0}, 2);  // permutations are legal here, and rows beyond the mapping go
    EXPECT_EQ(table.row(0)[1], 3);
    EXPECT_EQ(table.row(1)[0], 1);
    EXPECT_EQ(table.row(2)[0], -1);
    table.checkInvariants();
}

TEST(PageTableOwnership, ACoordinatorsTableIsNotChangedUnderItsRequests) {
    Rig rig;
    auto admitted = begin(*rig, admissionOf({tokensOf(4)}));
    EXPECT_THROW(rig.table.setIdentity(), std::runtime_error);
    EXPECT_THROW(rig.table.setRow(0, {1}), std::runtime_error);
    EXPECT_THROW(rig.table.upload(kStream), std::runtime_error);
    rig->finish(admitted.request);
    rig.table.setRow(0, {1});
    EXPECT_THROW(ContextCacheCoordinator(rig.config, rig.deployment, ContextCacheDeploymentKind::kVanilla,
                                         {rig.base, rig.table}, kStream),
                 std::runtime_error)
        << "one coordinator for each table";
}

// Against its contract a runtime lets the table go first: its coordinator works on.
TEST(PageTableOwnership, ATableThatGoesFirstIsKeptForItsCoordinator) {
    HostCacheShape const shape;
    HostCache cache(shape);
    ContextCacheConfig config;
    config.enabled = config.hostMemory = true;
    config.tokensPerPage = shape.tokensPerPage;
    DeploymentConfig deployment;
    deployment.base.maxBatchSize = shape.maxBatch;
    auto table = std::make_unique<KVPageTable>(shape.maxBatch, shape.width, shape.pages, true);
    ContextCacheCoordinator coordinator(config, deployment, ContextCacheDeploymentKind::kVanilla,
                                        ContextCachePhysicalResources{cache, *table}, kStream);
    auto admitted = prefill(coordinator, admissionOf({tokensOf(5)}));
    table.reset();
    for (int32_t committed = 6; committed < 12; ++committed) {
        ASSERT_EQ(coordinator.prepareDecodeStep(admitted.request), ContextCacheCoordinatorStatus::kOk);
        coordinator.completeDecodeStep(admitted.request, Advances({committed}).list, {});
    }
    coordinator.finish(admitted.request);
    EXPECT_EQ(serve(coordinator, {tokensOf(5)}), std::vector<int32_t>{4});
}

}  // namespace
