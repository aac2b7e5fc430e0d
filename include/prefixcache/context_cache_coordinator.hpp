/*
 * ContextCacheCoordinator: content-addressed reuse of KV pages and recurrent state
 * for a TensorRT-style runtime. Header-only; libprefixcache is loaded at run time.
 *
 * Use it when the runtime owns paged KV buffers and wants requests that begin with
 * the same tokens to share pages. The runtime keeps its buffers (HybridCacheManager),
 * its engines and its stream; the coordinator says which pages a row has, where a
 * prefill begins, and when pages may be reused. Order of calls for a request:
 *
 *   beginRequest -> preparePrefill -> (prefill of each suffix) ->
 *   enqueuePrefillCaptures -> (sample, synchronize) -> finalizePrefillPublication ->
 *   { prepareDecodeStep -> (decode, synchronize) -> completeDecodeStep ->
 *     [beginBatchCompaction -> (move own slot state) -> compactBatch] } -> finish
 *
 * cpp_tests/example_runtime.cpp walks through it.
 *
 * Classes, members and enumerators have the names that runtimes with a
 * ContextCacheCoordinator of their own use, so that one replaces the other by its
 * include. What such a runtime does not have is marked "An addition": friends here,
 * fields at the end of the structs.
 *
 * Errors: a broken contract (a call out of order, an argument out of range) throws
 * std::runtime_error and changes nothing. What a runtime must handle in operation is
 * a ContextCacheCoordinatorStatus. Exceptions of HybridCacheManager and of the
 * synchronizer pass through; the request can then be finished or dropped.
 *
 * Threads: one at a time, like the runtime's own request contract.
 */
#ifndef PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_HPP
#define PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_HPP

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "context_cache_arguments.hpp"
#include "context_cache_manager.hpp"
#include "cuda_types.hpp"
#include "deployment.hpp"
#include "hybrid_cache_manager.hpp"
#include "kv_page_table.hpp"
#include "tensor.hpp"
#include "types.hpp"

namespace prefixcache {

/// Physical caches of the runtime, borrowed for the life of the coordinator.
struct ContextCachePhysicalResources {
    HybridCacheManager& baseCache;
    KVPageTable& basePageTable;
    HybridCacheManager* draftCache = {};
    KVPageTable* draftPageTable = {};
};

/// Identity of a recurrent checkpoint: the first `tokenLength` tokens of its sequence.
struct HybridCheckpointKey {
    int32_t tokenLength = 0;
};

/// Snapshot slots that hold a captured checkpoint; -1: none.
struct HybridSnapshotReservation {
    int32_t recurrentSlot = -1;
    int32_t partialKvSlot = -1;
};

/// The pages that a sequence owns: shared ones first. Move-only; the pages are given
/// up by the end of the request, after its device work.
class CacheRequestLease {
  public:
    CacheRequestLease() = default;
    CacheRequestLease(std::vector<int32_t> basePages, std::vector<int32_t> draftPages)
        : mValid(true), mBasePages(std::move(basePages)), mDraftPages(std::move(draftPages)) {}
    CacheRequestLease(CacheRequestLease&& other) noexcept { *this = std::move(other); }
    CacheRequestLease& operator=(CacheRequestLease&& other) noexcept {
        mValid = std::exchange(other.mValid, false);
        mBasePages = std::exchange(other.mBasePages, {});
        mDraftPages = std::exchange(other.mDraftPages, {});
        return *this;
    }
    CacheRequestLease(CacheRequestLease const&) = delete;
    CacheRequestLease& operator=(CacheRequestLease const&) = delete;

    bool valid() const noexcept { return mValid; }
    std::vector<int32_t> const& basePages() const noexcept { return mBasePages; }
    std::vector<int32_t> const& draftPages() const noexcept { return mDraftPages; }

  private:
    bool mValid = false;
    std::vector<int32_t> mBasePages;
    std::vector<int32_t> mDraftPages;
};

/// Owns the host and device lifecycle around the CUDA-free ContextCacheManager.
///
/// There is no worker thread, and one request at a time. Normal publication happens
/// at points where the runtime is synchronized anyway. An abnormal exit drains the
/// stream before it gives pages back; if that fails, the whole request is quarantined
/// and the coordinator is poisoned for its life: shutdown() can still release the
/// pages once the stream is quiet, but a new coordinator is needed to serve again.
class ContextCacheCoordinator {
  public:
    /// Waits until all work on the stream is done. Called only when work may be
    /// pending. Anything but cudaSuccess poisons the coordinator.
    using StreamSynchronizer = std::function<cudaError_t(cudaStream_t)>;

    class RequestHandle;

    /// One sequence as it was admitted; see RequestHandle::Impl::admissions.
    struct AcquireSequenceResult {
        std::optional<CacheRequestLease> lease;
        AcquireStatus status = {AcquireStatus::kInsufficientCapacity};
        ReusePlan plan;
        bool forcedCold = {};
    };

    struct AdmissionResult;
    struct BeginRequestResult;

    /// The one live request. Move-only. Destroying a handle that was not finished is
    /// the abnormal exit: drain, then release; nothing more is published. From inside a
    /// callback of a step of it that takes effect when the step ends, which then throws.
    class RequestHandle {
      public:
        struct Impl;

        RequestHandle(RequestHandle&& other) noexcept;
        RequestHandle& operator=(RequestHandle&& other) = delete;
        RequestHandle(RequestHandle const&) = delete;
        RequestHandle& operator=(RequestHandle const&) = delete;
        ~RequestHandle() noexcept;

        bool valid() const noexcept;

      private:
        friend class ContextCacheCoordinator;
        explicit RequestHandle(std::unique_ptr<Impl> impl) noexcept;
        std::unique_ptr<Impl> mImpl;
    };

    /// @param deploymentKind  from validateContextCacheDeployment
    /// @param resources       outlive the coordinator
    /// @param stream          orders all device work; every request must name it
    /// @param synchronizer    empty: the library waits for the stream itself
    /// @throws std::runtime_error when anything does not fit together. Enqueues nothing.
    ContextCacheCoordinator(ContextCacheConfig const& config, DeploymentConfig const& deployment,
                            ContextCacheDeploymentKind deploymentKind, ContextCachePhysicalResources resources,
                            cudaStream_t stream, StreamSynchronizer synchronizer = {});

    /// A live or quarantined request here would leave device work on memory that is
    /// about to be freed: that terminates the process.
    ~ContextCacheCoordinator() noexcept;

    ContextCacheCoordinator(ContextCacheCoordinator const&) = delete;
    ContextCacheCoordinator& operator=(ContextCacheCoordinator const&) = delete;

    /// Looks up, pins and allocates for a whole batch, or for none of it. Enqueues nothing.
    /// kRequestFailed: a request is live, or there is no capacity now.
    BeginRequestResult beginRequest(ContextCacheBatchAdmission const& admission, cudaStream_t stream);

    /// Binds every row and resets the lengths to the reuse boundaries. Once, first.
    ContextCacheCoordinatorStatus preparePrefill(RequestHandle& request);

    /// Hybrid: reserves and captures prefill-end snapshots, before the runtime
    /// synchronizes the prefill. Other kinds: nothing.
    ContextCacheCoordinatorStatus enqueuePrefillCaptures(RequestHandle& request);

    /// After the prefill was synchronized: takes one token per sequence and publishes
    /// the prompts. EAGLE gives the lengths that base and draft have in common; its
    /// prompts are published with the next step, when the draft's prefill is known
    /// to be done.
    ContextCacheCoordinatorStatus finalizePrefillPublication(RequestHandle& request,
                                                             std::vector<ContextCacheSequenceAdvance> const& advances,
                                                             std::vector<int32_t> const* commonStateLengths = nullptr);

    /// Grows and uploads the rows that the next step needs. kRequestFailed: no pages,
    /// or a row is full; only finish makes sense then.
    ContextCacheCoordinatorStatus prepareDecodeStep(RequestHandle& request);

    /// After the step was synchronized: takes the accepted tokens; publishes the slots
    /// that are complete.
    ContextCacheCoordinatorStatus completeDecodeStep(RequestHandle& request,
                                                     std::vector<ContextCacheSequenceAdvance> const& advances,
                                                     std::vector<int32_t> const& publishableCompletedSlots,
                                                     std::vector<int32_t> const* commonStateLengths = nullptr);

    /// Validates the mapping (-1 retires, survivors keep their order) and uploads it
    /// to the tensor, which must live unchanged until compactBatch.
    ContextCacheCoordinatorStatus beginBatchCompaction(RequestHandle& request, std::vector<int32_t> const& oldToNew,
                                                       int32_t newBatchSize, Tensor& deviceBatchMapping);

    /// Moves slot state and rows, synchronizes, lets retired sequences go.
    ContextCacheCoordinatorStatus compactBatch(RequestHandle& request);

    /// Ends a request normally, in any phase. An empty handle is fine.
    ContextCacheCoordinatorStatus finish(RequestHandle& request);

    /// Drains quarantined ownership, before physical caches are destroyed. Repeatable.
    ContextCacheCoordinatorStatus shutdown() noexcept;

    ContextCacheMetrics metrics() const noexcept;
    ContextCacheManager const& manager() const noexcept { return mManager; }

    // An addition: friends, so that the members stay those of the replaced class.

    /// State of a request as of now, for tests and diagnosis. Valid until the next
    /// call with this handle. @throws std::runtime_error for an empty handle.
    friend RequestHandle::Impl const& inspect(RequestHandle const& request);

    /// Removes every record of an adapter (all generations, or one); pages in use stay.
    friend uint64_t invalidateAdapter(ContextCacheCoordinator& coordinator, Hash128 const& adapter,
                                      std::optional<uint64_t> generation);

    /// For a HybridCacheManager::compactSlotState without a kernel: moves the state of the
    /// recurrent layers (base cache only) and the int32 lengths with ordered copies.
    friend void moveSlotState(ContextCacheCoordinator& coordinator, bool isDraft, std::vector<int32_t> const& mapping,
                              void* deviceLengths);

    /// Removes every record; pages in use stay.
    friend uint64_t flush(ContextCacheCoordinator& coordinator);

    /// The coordinator in the C ABI, for metricsText and pc_context_get_metrics. It is gone
    /// with the coordinator.
    friend pc_handle handleOf(ContextCacheCoordinator const& coordinator);

  private:
    friend struct RequestHandle::Impl;

    RequestHandle::Impl& owned(RequestHandle& request, char const* call) const;
    ContextCacheCoordinatorStatus complete(RequestHandle::Impl& impl, pc_status status, pc_work& work);
    cudaError_t synchronize(cudaStream_t stream) const;
    uint32_t carryOut(RequestHandle::Impl& impl, pc_work const& work);
    ReusePlan planOf(pc_sequence_start const& start, ContextCacheExecutionMode execution, size_t tokens) const;
    pc_advance flatten(char const* call, std::vector<ContextCacheSequenceAdvance> const& advances,
                       std::vector<int32_t> const* commonStateLengths);
    void dropped(RequestHandle::Impl& impl) noexcept;
    static RequestHandle::Impl const& refreshed(RequestHandle const& request);
    static ContextCacheManager viewOf(pc_api const& api, pc_handle context);
    static pc_handle create(pc_api const& api, ContextCacheConfig const& config, DeploymentConfig const& deployment,
                            ContextCacheDeploymentKind kind, ContextCachePhysicalResources const& resources,
                            cudaStream_t stream);

    pc_api const& mApi;
    ContextCachePhysicalResources mResources;
    ContextCacheDeploymentKind mKind;
    int32_t mTokensPerPage;
    cudaStream_t mStream;
    StreamSynchronizer mSynchronizer;
    pc_handle mContext;
    ContextCacheManager mManager;
    int32_t mActiveRequests = 0;  ///< live handles

    // Scratch of beginRequest and of the advances.
    std::vector<int32_t> mTokens;
    std::vector<int64_t> mOffsets;
    std::vector<int32_t> mCommitted;
};

struct ContextCacheCoordinator::AdmissionResult {
    RequestHandle request;
    std::vector<int32_t> prefillStarts;  ///< token at which the prefill of each sequence begins
};

struct ContextCacheCoordinator::BeginRequestResult {
    ContextCacheCoordinatorStatus status = {ContextCacheCoordinatorStatus::kRequestFailed};
    std::optional<AdmissionResult> admission;
};

/// The state of a request. The library holds the authoritative one; inspect() reads
/// it into this mirror.
struct ContextCacheCoordinator::RequestHandle::Impl {
    enum class Phase : uint8_t { kAdmitted = 0, kExecuting = 1, kFinishing = 2 };

    /// Counts as the coordinator's active request until it is destroyed.
    struct RequestSlotToken {
        explicit RequestSlotToken(ContextCacheCoordinator& coordinator) noexcept : owner(&coordinator) {
            ++owner->mActiveRequests;
        }
        RequestSlotToken(RequestSlotToken&& other) noexcept : owner(std::exchange(other.owner, nullptr)) {}
        RequestSlotToken& operator=(RequestSlotToken&&) = delete;
        RequestSlotToken(RequestSlotToken const&) = delete;
        RequestSlotToken& operator=(RequestSlotToken const&) = delete;
        ~RequestSlotToken() noexcept {
            if (owner != nullptr) {
                --owner->mActiveRequests;
            }
        }

        ContextCacheCoordinator* owner = {};
    };

    /// A capture that is enqueued and not published yet.
    struct StagedHybridPublication {
        HybridCheckpointKey checkpoint;
        HybridSnapshotReservation snapshots;
        PublicationPoint point = {};
    };

    struct SequenceState {
        CacheRequestLease lease;
        std::vector<int32_t> tokenIds;  ///< prompt and accepted tokens
        BlockKeyExtras keyExtras;
        std::vector<Hash128> perPositionMediaHash;
        int32_t reuseTokenLength = {};
        ContextCacheLookupPolicy lookupPolicy = {ContextCacheLookupPolicy::kUseCache};
        ContextCacheCommitPolicy commitPolicy = {ContextCacheCommitPolicy::kIncludingGeneratedTokens};
        int32_t committedStateLength = {};
        int32_t publishedFullBlockCount = {};
        int32_t publishedExactLength = {};
        int32_t commonStateLength = {};
        std::optional<int32_t> frozenSpecPrefillLength;
        std::optional<StagedHybridPublication> stagedHybridPublication;
    };

    explicit Impl(ContextCacheCoordinator& coordinator, cudaStream_t requestStream) noexcept
        : requestSlot(coordinator), owner(&coordinator), stream(requestStream) {}

    /// Declared before sequences, so that its destructor clears the admission flag
    /// only after every lease is gone.
    RequestSlotToken requestSlot;
    ContextCacheCoordinator* owner = {};
    cudaStream_t stream = {};
    ContextCacheExecutionMode executionMode = {ContextCacheExecutionMode::kVanilla};
    Phase phase = {Phase::kAdmitted};
    bool deviceWorkPending = {};
    bool specAwaitingFirstCompletion = {};
    std::vector<int32_t> pendingCompactionMapping;
    int32_t pendingCompactionBatchSize = {-1};
    Tensor const* pendingDeviceBatchMapping = {};
    std::vector<SequenceState> sequences;

    // An addition.

    /// What each sequence found when it was admitted, and why it was not more: the plan without
    /// the record and its snapshots. The leases are in `sequences`.
    std::vector<AcquireSequenceResult> admissions;
    pc_handle handle = 0;

  private:
    friend class ContextCacheCoordinator;
    friend class RequestHandle;

    void refresh();
    void refreshSequence(size_t index);
    void retire();  ///< drops the sequences that the compaction retired

    bool inStep = false;    ///< between the first call of a step and its last report
    bool orphaned = false;  ///< the handle was destroyed meanwhile
};

}  // namespace prefixcache

#include "context_cache_coordinator_impl.hpp"

#endif  // PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_HPP
