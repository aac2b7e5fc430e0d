// The class has exactly the members, signatures and types of the original's API page.
#include <gtest/gtest.h>

#include <type_traits>

#include "host_cache.hpp"

namespace {

using namespace prefixcache;
using C = ContextCacheCoordinator;
using Handle = C::RequestHandle;
using Impl = Handle::Impl;
using Status = ContextCacheCoordinatorStatus;

template <typename T, typename U>
constexpr bool same = std::is_same_v<T, U>;

static_assert(same<C::StreamSynchronizer, std::function<cudaError_t(cudaStream_t)>>);
static_assert(std::is_constructible_v<C, ContextCacheConfig const&, DeploymentConfig const&, ContextCacheDeploymentKind,
                                      ContextCachePhysicalResources, cudaStream_t>);
static_assert(std::is_constructible_v<C, ContextCacheConfig const&, DeploymentConfig const&, ContextCacheDeploymentKind,
                                      ContextCachePhysicalResources, cudaStream_t, C::StreamSynchronizer>);
static_assert(!std::is_copy_constructible_v<C> && !std::is_copy_assignable_v<C> && std::is_nothrow_destructible_v<C>);

using Advances = std::vector<ContextCacheSequenceAdvance>;
using Lengths = std::vector<int32_t>;
static_assert(
    same<decltype(&C::beginRequest), C::BeginRequestResult (C::*)(ContextCacheBatchAdmission const&, cudaStream_t)>);
static_assert(same<decltype(&C::preparePrefill), Status (C::*)(Handle&)>);
static_assert(same<decltype(&C::enqueuePrefillCaptures), Status (C::*)(Handle&)>);
static_assert(same<decltype(&C::finalizePrefillPublication), Status (C::*)(Handle&, Advances const&, Lengths const*)>);
static_assert(same<decltype(&C::prepareDecodeStep), Status (C::*)(Handle&)>);
static_assert(
    same<decltype(&C::completeDecodeStep), Status (C::*)(Handle&, Advances const&, Lengths const&, Lengths const*)>);
static_assert(same<decltype(&C::beginBatchCompaction), Status (C::*)(Handle&, Lengths const&, int32_t, Tensor&)>);
static_assert(same<decltype(&C::compactBatch), Status (C::*)(Handle&)>);
static_assert(same<decltype(&C::finish), Status (C::*)(Handle&)>);
static_assert(same<decltype(&C::shutdown), Status (C::*)() noexcept>);
static_assert(same<decltype(&C::metrics), ContextCacheMetrics (C::*)() const noexcept>);
static_assert(same<decltype(&C::manager), ContextCacheManager const& (C::*)() const noexcept>);

static_assert(std::is_nothrow_move_constructible_v<Handle> && !std::is_move_assignable_v<Handle>);
static_assert(!std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>);
static_assert(std::is_nothrow_destructible_v<Handle>);
static_assert(same<decltype(&Handle::valid), bool (Handle::*)() const noexcept>);

static_assert(same<decltype(C::AcquireSequenceResult::lease), std::optional<CacheRequestLease>>);
static_assert(same<decltype(C::AcquireSequenceResult::status), AcquireStatus>);
static_assert(same<decltype(C::AcquireSequenceResult::plan), ReusePlan>);
static_assert(same<decltype(C::AcquireSequenceResult::forcedCold), bool>);
static_assert(same<decltype(C::AdmissionResult::request), Handle>);
static_assert(same<decltype(C::AdmissionResult::prefillStarts), Lengths>);
static_assert(same<decltype(C::BeginRequestResult::status), Status>);
static_assert(same<decltype(C::BeginRequestResult::admission), std::optional<C::AdmissionResult>>);

static_assert(std::is_nothrow_constructible_v<Impl, C&, cudaStream_t> && !std::is_convertible_v<C&, Impl>);
static_assert(same<std::underlying_type_t<Impl::Phase>, uint8_t>);
static_assert(static_cast<int>(Impl::Phase::kAdmitted) == 0 && static_cast<int>(Impl::Phase::kExecuting) == 1 &&
              static_cast<int>(Impl::Phase::kFinishing) == 2);
static_assert(same<decltype(Impl::requestSlot), Impl::RequestSlotToken>);
static_assert(same<decltype(Impl::owner), C*>);
static_assert(same<decltype(Impl::stream), cudaStream_t>);
static_assert(same<decltype(Impl::executionMode), ContextCacheExecutionMode>);
static_assert(same<decltype(Impl::phase), Impl::Phase>);
static_assert(same<decltype(Impl::deviceWorkPending), bool>);
static_assert(same<decltype(Impl::specAwaitingFirstCompletion), bool>);
static_assert(same<decltype(Impl::pendingCompactionMapping), Lengths>);
static_assert(same<decltype(Impl::pendingCompactionBatchSize), int32_t>);
static_assert(same<decltype(Impl::pendingDeviceBatchMapping), Tensor const*>);
static_assert(same<decltype(Impl::sequences), std::vector<Impl::SequenceState>>);
static_assert(std::is_nothrow_move_constructible_v<Impl::RequestSlotToken> &&
              !std::is_move_assignable_v<Impl::RequestSlotToken> &&
              !std::is_copy_constructible_v<Impl::RequestSlotToken>);
static_assert(same<decltype(Impl::RequestSlotToken::owner), C*>);

using State = Impl::SequenceState;
static_assert(same<decltype(State::lease), CacheRequestLease>);
static_assert(same<decltype(State::tokenIds), Lengths>);
static_assert(same<decltype(State::keyExtras), BlockKeyExtras>);
static_assert(same<decltype(State::perPositionMediaHash), std::vector<Hash128>>);
static_assert(same<decltype(State::reuseTokenLength), int32_t>);
static_assert(same<decltype(State::lookupPolicy), ContextCacheLookupPolicy>);
static_assert(same<decltype(State::commitPolicy), ContextCacheCommitPolicy>);
static_assert(same<decltype(State::committedStateLength), int32_t>);
static_assert(same<decltype(State::publishedFullBlockCount), int32_t>);
static_assert(same<decltype(State::publishedExactLength), int32_t>);
static_assert(same<decltype(State::commonStateLength), int32_t>);
static_assert(same<decltype(State::frozenSpecPrefillLength), std::optional<int32_t>>);
static_assert(same<decltype(State::stagedHybridPublication), std::optional<Impl::StagedHybridPublication>>);
static_assert(same<decltype(Impl::StagedHybridPublication::checkpoint), HybridCheckpointKey>);
static_assert(same<decltype(Impl::StagedHybridPublication::snapshots), HybridSnapshotReservation>);
static_assert(same<decltype(Impl::StagedHybridPublication::point), PublicationPoint>);

static_assert(same<decltype(ContextCachePhysicalResources::baseCache), HybridCacheManager&>);
static_assert(same<decltype(ContextCachePhysicalResources::basePageTable), KVPageTable&>);
static_assert(same<decltype(ContextCachePhysicalResources::draftCache), HybridCacheManager*>);
static_assert(same<decltype(ContextCachePhysicalResources::draftPageTable), KVPageTable*>);
static_assert(same<decltype(ContextCacheSequenceAdmission::tokenIds), Lengths>);
static_assert(same<decltype(ContextCacheSequenceAdmission::keyExtras), BlockKeyExtras>);
static_assert(same<decltype(ContextCacheSequenceAdmission::perPositionMediaHash), std::vector<Hash128>>);
static_assert(same<decltype(ContextCacheBatchAdmission::sequences), std::vector<ContextCacheSequenceAdmission>>);
static_assert(same<decltype(ContextCacheSequenceAdvance::acceptedTokenIds), int32_t const*>);
static_assert(same<decltype(ContextCacheSequenceAdvance::acceptedTokenCount), int32_t>);
static_assert(same<decltype(ContextCacheSequenceAdvance::committedStateLength), int32_t>);

// Defaults that a caller can see.
TEST(OriginalInterface, Defaults) {
    EXPECT_EQ(C::BeginRequestResult{}.status, Status::kRequestFailed);
    EXPECT_FALSE(C::BeginRequestResult{}.admission.has_value());
    EXPECT_EQ(C::AcquireSequenceResult{}.status, AcquireStatus::kInsufficientCapacity);
    EXPECT_FALSE(C::AcquireSequenceResult{}.lease.has_value());
    ContextCacheConfig const config;
    EXPECT_FALSE(config.enabled);
    EXPECT_EQ(config.maxRecords, 1024);
    EXPECT_EQ(config.recurrentSnapshotBudgetBytes, 0);
    EXPECT_EQ(config.partialKvSnapshotBudgetBytes, 0);
    ContextCacheBatchAdmission const admission;
    EXPECT_EQ(admission.executionMode, ContextCacheExecutionMode::kVanilla);
    EXPECT_EQ(admission.lookupPolicy, ContextCacheLookupPolicy::kUseCache);
    EXPECT_EQ(admission.commitPolicy, ContextCacheCommitPolicy::kIncludingGeneratedTokens);
    test::Rig rig;
    Impl const impl(*rig, test::kStream);
    EXPECT_EQ(impl.pendingCompactionBatchSize, -1);
    EXPECT_EQ(impl.phase, Impl::Phase::kAdmitted);
    EXPECT_EQ(impl.pendingDeviceBatchMapping, nullptr);
}

}  // namespace
