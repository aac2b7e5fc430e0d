/*
 * The value types of the context cache. Enumerators have the numbers of the C ABI.
 */
#ifndef PREFIXCACHE_TYPES_HPP
#define PREFIXCACHE_TYPES_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "library.hpp"

namespace prefixcache {

/// 128 bits that the caller computed. All zero is not a usable media digest.
struct Hash128 {
    uint64_t high = 0;
    uint64_t low = 0;

    friend bool operator==(Hash128 const& a, Hash128 const& b) { return a.high == b.high && a.low == b.low; }
    friend bool operator!=(Hash128 const& a, Hash128 const& b) { return !(a == b); }
};

static_assert(sizeof(Hash128) == sizeof(pc_hash128), "arrays of digests cross the C ABI as they are");

// What each value means is said at its number in prefixcache.h.

/// Whether an admission looks for cached state.
enum class ContextCacheLookupPolicy : uint8_t { kUseCache = 0, kBypass = 1 };
/// Which ends of a sequence are published.
enum class ContextCacheCommitPolicy : uint8_t { kIncludingGeneratedTokens = 0, kPrefillOnly = 1 };
/// How a request runs.
enum class ContextCacheExecutionMode : uint8_t { kVanilla = 0, kEagle = 1 };
/// What a deployment is to the cache.
enum class ContextCacheDeploymentKind : uint8_t { kVanilla = 0, kHybrid = 1, kPureRecurrent = 2, kEagle = 3 };
/// Outcomes that a runtime handles; a broken contract throws.
enum class ContextCacheCoordinatorStatus : uint8_t { kOk = 0, kRequestFailed = 1, kPoisoned = 2 };
/// Outcome of an acquire.
enum class AcquireStatus : uint8_t { kAcquired = 0, kInsufficientCapacity = 1 };
/// The four pools.
enum class CacheResourceType : uint8_t {
    kBasePage = 0,
    kDraftPage = 1,
    kRecurrentSnapshot = 2,
    kPartialKvSnapshot = 3
};
/// What came of a plan.
enum class ReusePlanKind : uint8_t { kStandard = 0, kNoReusablePrefix = 1, kFullInputRewind = 2 };
/// By which rule a sequence is planned.
enum class ReusePlanMode : uint8_t { kVanilla = 0, kHybrid = 1, kSpec = 2 };
/// What an EAGLE sequence computes again of what is cached.
enum class SpecReplayMode : uint8_t { kNone = 0, kFullPage = 1 };
/// Which end of a sequence a publication is for.
enum class PublicationPoint : uint8_t { kPrefillEnd = 0, kDecodeEnd = 1 };

/// Why a sequence reuses nothing, or less than it might: PC_REASON_* of the C ABI.
enum class NoReuseReason : uint8_t {
    kNone = PC_REASON_NONE,
    kBypass = PC_REASON_BYPASS,
    kPromptTooShort = PC_REASON_PROMPT_TOO_SHORT,
    kExtrasUnknown = PC_REASON_EXTRAS_UNKNOWN,
    kFirstBlock = PC_REASON_FIRST_BLOCK,
    kDiverged = PC_REASON_DIVERGED,
    kFullInput = PC_REASON_FULL_INPUT,
    kMediaBoundary = PC_REASON_MEDIA_BOUNDARY,
    kNoDraft = PC_REASON_NO_DRAFT,
    kDraftShorter = PC_REASON_DRAFT_SHORTER,
    kReplay = PC_REASON_REPLAY,
    kNoCheckpoint = PC_REASON_NO_CHECKPOINT,
    kCheckpointShort = PC_REASON_CHECKPOINT_SHORT,
    kCheckpointLong = PC_REASON_CHECKPOINT_LONG,
};

inline char const* toString(NoReuseReason reason) noexcept {
    static char const* const names[] = {
        "none",        "bypass",        "prompt too short", "extras unknown", "first block",
        "diverged",    "full input",    "media boundary",   "no draft",       "draft shorter",
        "page replay", "no checkpoint", "checkpoint short", "checkpoint long"};
    auto const index = static_cast<size_t>(reason);
    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown";
}

/// A media item inside blocks. All fields and the order of spans are identity.
struct MediaSpan {
    Hash128 content;
    Hash128 placement;
    int32_t offset = 0;  ///< position inside the block
    int32_t itemOrder = 0;
    uint8_t modality = 0;
};

/// The adapter (LoRA) that computed the state. Raise the generation on a reload.
struct AdapterIdentity {
    Hash128 id;
    uint64_t generation = 0;
};

/// Identity of a sequence beyond its tokens; it applies to every block. Absent and
/// present-with-zero are different identities.
struct BlockKeyExtras {
    std::vector<MediaSpan> mediaSpans;
    std::optional<AdapterIdentity> adapter;
    std::optional<Hash128> positionDigest;
    std::optional<Hash128> customEmbeddingDigest;
    std::optional<Hash128> isolationDigest;  ///< tenant or salt
};

/// One complete logical input admitted to the cache before its executable suffix is derived.
struct ContextCacheSequenceAdmission {
    std::vector<int32_t> tokenIds;
    BlockKeyExtras keyExtras;  ///< request-wide, constant for the sequence
    /// Empty for text; else one digest a token: where one is not zero, it is the
    /// identity of that position instead of the token id.
    std::vector<Hash128> perPositionMediaHash;
};

/// One serialized runtime request. Bypass uses managed private pages but neither
/// looks up nor publishes.
struct ContextCacheBatchAdmission {
    std::vector<ContextCacheSequenceAdmission> sequences;
    ContextCacheExecutionMode executionMode = {ContextCacheExecutionMode::kVanilla};
    ContextCacheLookupPolicy lookupPolicy = {ContextCacheLookupPolicy::kUseCache};
    ContextCacheCommitPolicy commitPolicy = {ContextCacheCommitPolicy::kIncludingGeneratedTokens};
};

/// What a step did to one sequence, seen after the runtime's own synchronization.
struct ContextCacheSequenceAdvance {
    int32_t const* acceptedTokenIds = {};
    int32_t acceptedTokenCount = {};
    int32_t committedStateLength = {};  ///< leading tokens whose state is in the bound cache
};

/// Off unless `enabled`: an unconfigured cache must not come up.
struct ContextCacheConfig {
    bool enabled = false;
    int32_t maxRecords = 1024;  ///< published prefixes kept; 0 keeps none
    int64_t recurrentSnapshotBudgetBytes = 0;
    int64_t partialKvSnapshotBudgetBytes = 0;

    // An addition (context_cache_coordinator.hpp says to what).
    int32_t tokensPerPage = 128;
    int32_t futureDependencyTokens =
        1;                         ///< EAGLE: following tokens that a position's draft state depends on; no effect yet
    bool originalRecency = false;  ///< a vanilla hit does not refresh its record, as in the replaced class
    bool shortenVictims = false;   ///< an eviction takes no more of a record than it needs
    bool weakHash = false;         ///< tests: every lookup collides
    bool hostMemory = false;       ///< addresses are plain host memory, also where there is a GPU
    std::string libraryPath;       ///< empty: see Library
    int32_t tenantQuota = 0;       ///< per mille of pages and records for one isolation key; 0: not counted
    bool zeroOnRelease = false;    ///< clear tokens once nothing can find them
};

/// What a lookup found and what the sequence still needed.
struct ReusePlan {
    ReusePlanMode mode = {ReusePlanMode::kVanilla};
    ReusePlanKind kind = {ReusePlanKind::kStandard};
    SpecReplayMode replayMode = {SpecReplayMode::kNone};
    NoReuseReason reason = {NoReuseReason::kNone};
    int32_t matchedTokenLength = 0;  ///< before a page is dropped
    int32_t reuseTokenLength = 0;    ///< execution starts here
    int32_t boundBasePages = 0;
    int32_t boundDraftPages = 0;
    int32_t demandBasePages = 0;
    int32_t demandDraftPages = 0;
    int32_t recurrentSlot = -1;
    int32_t partialKvSlot = -1;
    int32_t skippedMediaPositions = 0;  ///< media positions before the start: skip as many encoder outputs
    uint64_t record = 0;
};

/// Counters since creation; occupancy as of the call. See pc_context_metrics.
struct ContextCacheMetrics {
    struct Pool {
        uint64_t capacity = 0;
        uint64_t free = 0;
        uint64_t active = 0;     ///< used by requests
        uint64_t reclaimed = 0;  ///< freed by evictions so far
    };

    uint64_t admittedSequences = 0;
    uint64_t hitSequences = 0;
    uint64_t mediaAwareSequences = 0;
    uint64_t lookupBypassSequences = 0;
    uint64_t forcedColdSequences = 0;
    uint64_t standardPlans = 0;
    uint64_t noReusablePrefixPlans = 0;
    uint64_t fullInputRewindPlans = 0;
    uint64_t matchedTokens = 0;
    uint64_t reusedTokens = 0;
    uint64_t skippedMediaPositions = 0;
    uint64_t publicationAttempts = 0;
    uint64_t committedPublications = 0;
    uint64_t existingPublications = 0;
    uint64_t publishedEndpoints = 0;
    uint64_t hybridRestores = 0;
    uint64_t hybridSnapshotPressureSkips = 0;
    uint64_t hybridCaptureSynchronizations = 0;
    uint64_t specFullPageReplays = 0;
    uint64_t specPairPublications = 0;
    uint64_t planningNanoseconds = 0;
    uint64_t quarantinedRequests = 0;
    uint64_t evictedRecords = 0;
    uint64_t currentRecords = 0;
    uint64_t activeRequests = 0;
    bool poisoned = false;
    std::array<Pool, 4> pools{};  ///< by CacheResourceType
};

}  // namespace prefixcache

#endif  // PREFIXCACHE_TYPES_HPP
