/*
 * A read-only view of what a coordinator caches: records, pools, indexes. Every
 * query asks the library, so it returns values where the replaced class has references. Nothing here
 * changes a reference count or the recency of a record.
 */
#ifndef PREFIXCACHE_CONTEXT_CACHE_MANAGER_HPP
#define PREFIXCACHE_CONTEXT_CACHE_MANAGER_HPP

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "types.hpp"

namespace prefixcache {

/// One published prefix.
struct CacheRecord {
    uint64_t id = 0;  ///< from 1, never reused
    int32_t fullBlockCount = 0;
    int32_t exactLength = 0;  ///< hybrid: tokens of the checkpoint; else 0
    std::vector<int32_t> basePages;
    std::vector<int32_t> draftPages;
    int32_t recurrentSlot = -1;
    int32_t partialKvSlot = -1;
};

namespace detail {

/// A sequence with its identity in the C ABI's form; borrows the admission.
class SequenceArguments {
  public:
    explicit SequenceArguments(ContextCacheSequenceAdmission const& in) {
        fill(in.keyExtras, mExtras, mSpans);
        bind(in);
    }

    pc_sequence const* get() const noexcept { return &mSequence; }

    /// Appends media spans and fills one pc_extras.
    static void fill(BlockKeyExtras const& in, pc_extras& out, std::vector<pc_media_span>& spans) {
        out = {};
        if (in.adapter) {
            out.present |= PC_EXTRA_ADAPTER;
            out.adapter = toC(in.adapter->id);
            out.adapter_generation = in.adapter->generation;
        }
        if (in.positionDigest) {
            out.present |= PC_EXTRA_POSITION;
            out.position = toC(*in.positionDigest);
        }
        if (in.customEmbeddingDigest) {
            out.present |= PC_EXTRA_EMBEDDING;
            out.embedding = toC(*in.customEmbeddingDigest);
        }
        if (in.isolationDigest) {
            out.present |= PC_EXTRA_ISOLATION;
            out.isolation = toC(*in.isolationDigest);
        }
        for (auto const& span : in.mediaSpans) {
            pc_media_span s{};
            s.content = toC(span.content);
            s.placement = toC(span.placement);
            s.offset = span.offset;
            s.order = span.itemOrder;
            s.modality = span.modality;
            spans.push_back(s);
        }
    }

    static pc_hash128 toC(Hash128 const& h) noexcept { return pc_hash128{h.high, h.low}; }

  private:
    void bind(ContextCacheSequenceAdmission const& in) {
        mSequence = sized<pc_sequence>();
        mSequence.tokens = in.tokenIds.data();
        mSequence.num_tokens = static_cast<int64_t>(in.tokenIds.size());
        if (!in.perPositionMediaHash.empty()) {
            if (in.perPositionMediaHash.size() != in.tokenIds.size()) {
                throw std::runtime_error("prefixcache: perPositionMediaHash has " +
                                         std::to_string(in.perPositionMediaHash.size()) + " entries, expected 0 or " +
                                         std::to_string(in.tokenIds.size()) + ", one for each token");
            }
            mSequence.media = reinterpret_cast<pc_hash128 const*>(in.perPositionMediaHash.data());
        }
        mSequence.extras = &mExtras;
        mSequence.spans = mSpans.data();
        mSequence.num_spans = mSpans.size();
    }

    pc_sequence mSequence{};
    pc_extras mExtras{};
    std::vector<pc_media_span> mSpans;
};

inline ReusePlan toPlan(pc_plan const& in) {
    ReusePlan out;
    out.mode = static_cast<ReusePlanMode>(in.mode);
    out.kind = static_cast<ReusePlanKind>(in.kind);
    out.replayMode = static_cast<SpecReplayMode>(in.replay);
    out.reason = static_cast<NoReuseReason>(in.reason);
    out.matchedTokenLength = in.matched;
    out.reuseTokenLength = in.reuse;
    out.boundBasePages = in.bound_base;
    out.boundDraftPages = in.bound_draft;
    out.demandBasePages = in.demand_base;
    out.demandDraftPages = in.demand_draft;
    out.recurrentSlot = in.recurrent_slot;
    out.partialKvSlot = in.partial_slot;
    out.record = in.record;
    return out;
}

}  // namespace detail

/// What a coordinator caches, to look at.
class ContextCacheManager {
  public:
    /// The four pools. Slots are numbered per pool.
    class Pools {
      public:
        uint64_t capacity(CacheResourceType type) const { return mManager.stats().capacity[index(type)]; }
        uint64_t free(CacheResourceType type) const { return mManager.stats().free[index(type)]; }

        /// Live leases that use each slot, and resident records that list it. Counted afresh.
        std::pair<std::vector<int32_t>, std::vector<int32_t>> references(CacheResourceType type) const {
            size_t const count = capacity(type);
            std::vector<int32_t> active(count);
            std::vector<int32_t> cached(count);
            detail::check(mManager.mApi, mManager.mApi.manager_references(mManager.mHandle, static_cast<uint32_t>(type),
                                                                          0, active.data(), cached.data(), count));
            return {std::move(active), std::move(cached)};
        }
        int32_t activeReferences(CacheResourceType type, int32_t slot) const { return reference(type, slot, true); }
        int32_t cacheReferences(CacheResourceType type, int32_t slot) const { return reference(type, slot, false); }

      private:
        friend class ContextCacheManager;
        explicit Pools(ContextCacheManager const& manager) : mManager(manager) {}

        static size_t index(CacheResourceType type) {
            auto const i = static_cast<size_t>(type);
            if (i > static_cast<size_t>(CacheResourceType::kPartialKvSnapshot)) {
                throw std::runtime_error("prefixcache: type is " + std::to_string(i) + ", expected 0 to 3");
            }
            return i;
        }

        int32_t reference(CacheResourceType type, int32_t slot, bool active) const {
            int32_t value = 0;
            if (slot < 0) {  // in the C ABI it is unsigned
                throw std::runtime_error("prefixcache: slot is " + std::to_string(slot) + ", expected >= 0");
            }
            detail::check(mManager.mApi, mManager.mApi.manager_references(
                                             mManager.mHandle, static_cast<uint32_t>(type), static_cast<uint64_t>(slot),
                                             active ? &value : nullptr, active ? nullptr : &value, 1));
            return value;
        }

        ContextCacheManager const& mManager;
    };

    /// Number of entries of an index.
    class Index {
      public:
        uint64_t size() const noexcept { return mSize; }
        bool empty() const noexcept { return mSize == 0; }

      private:
        friend class ContextCacheManager;
        explicit Index(uint64_t size) : mSize(size) {}
        uint64_t mSize;
    };

    /// Every resident record, least recently used first. One that another thread evicts before its
    /// pages were read is left out.
    std::vector<CacheRecord> records() const {
        uint64_t count = 0;
        detail::check(mApi, mApi.manager_records(mHandle, nullptr, 0, &count));
        std::vector<pc_record> raw(count);
        detail::check(mApi, mApi.manager_records(mHandle, raw.data(), raw.size(), &count));
        raw.resize(count < raw.size() ? count : raw.size());
        std::vector<CacheRecord> out;
        for (auto const& r : raw) {
            CacheRecord record;
            record.id = r.id;
            record.exactLength = r.exact_length;
            if (!pages(r.id, PC_BASE, record.basePages) || !pages(r.id, PC_DRAFT, record.draftPages)) {
                continue;
            }
            // It may have been shortened meanwhile.
            record.fullBlockCount = r.base_pages > 0 ? static_cast<int32_t>(record.basePages.size()) : r.blocks;
            record.recurrentSlot = r.recurrent_slot;
            record.partialKvSlot = r.partial_slot;
            out.push_back(std::move(record));
        }
        return out;
    }

    Pools pools() const { return Pools(*this); }
    Index baseIndex() const { return Index(stats().base_blocks); }    ///< distinct cached blocks
    Index draftIndex() const { return Index(stats().draft_blocks); }  ///< boundaries of all draft paths

    /// What an admission of this sequence would find now.
    ReusePlan lookup(ContextCacheSequenceAdmission const& sequence,
                     ReusePlanMode mode = ReusePlanMode::kVanilla) const {
        detail::SequenceArguments const arguments(sequence);
        auto plan = detail::sized<pc_plan>();
        detail::check(mApi, mApi.manager_lookup(mHandle, static_cast<uint32_t>(mode), arguments.get(), &plan));
        return detail::toPlan(plan);
    }

    /// Occupancy and counters, as the C ABI has them.
    pc_manager_stats stats() const {
        auto value = detail::sized<pc_manager_stats>();
        detail::check(mApi, mApi.manager_get_stats(mHandle, &value));
        return value;
    }

    /// The tenants that are known; empty unless the cache was made with tenantQuota.
    std::vector<pc_tenant> tenants() const {
        std::vector<pc_tenant> out;
        uint64_t count = 0;
        do {  // another thread may add some
            out.resize(count);
            detail::check(mApi, mApi.manager_tenants(mHandle, out.data(), out.size(), &count));
        } while (count > out.size());
        out.resize(count);
        return out;
    }

    /// The share of one tenant, in per mille of pages and records; 0: the default again.
    void setQuota(std::optional<Hash128> const& isolation, int32_t perMille) const {
        if (perMille < 0) {  // in the C ABI it is unsigned
            throw std::runtime_error("prefixcache: perMille is " + std::to_string(perMille) + ", expected 0 to 1000");
        }
        pc_hash128 const key = isolation ? detail::SequenceArguments::toC(*isolation) : pc_hash128{};
        detail::check(mApi,
                      mApi.manager_set_quota(mHandle, isolation ? &key : nullptr, static_cast<uint32_t>(perMille)));
    }

    /// @throws std::runtime_error that says which structural invariant is broken
    void checkInvariants() const { detail::check(mApi, mApi.manager_check(mHandle)); }

    /// Pools, records, tree and leases as text.
    std::string dump() const {
        uint64_t size = 0;
        detail::check(mApi, mApi.manager_dump(mHandle, nullptr, 0, &size));
        std::string text(size + 1, '\0');
        detail::check(mApi, mApi.manager_dump(mHandle, &text[0], text.size(), &size));
        text.resize(size < text.size() ? size : text.size() - 1);
        return text;
    }

    /// For the pc_manager_ queries of the C ABI. Valid as long as the coordinator.
    pc_handle handle() const noexcept { return mHandle; }

  private:
    friend class ContextCacheCoordinator;
    ContextCacheManager(pc_api const& api, pc_handle handle) : mApi(api), mHandle(handle) {}

    /// The page path of a record; false when there is no such record any more.
    bool pages(uint64_t record, uint32_t model, std::vector<int32_t>& out) const {
        uint64_t count = 0;
        do {
            out.resize(count);
            if (detail::check(mApi, mApi.manager_record_pages(mHandle, record, model, 0, out.data(), out.size(),
                                                              &count)) == PC_NOT_FOUND) {
                return false;
            }
        } while (count > out.size());
        out.resize(count);
        return true;
    }

    pc_api const& mApi;
    pc_handle mHandle;
};

}  // namespace prefixcache

#endif  // PREFIXCACHE_CONTEXT_CACHE_MANAGER_HPP
