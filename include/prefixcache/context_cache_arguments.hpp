/*
 * What a coordinator is given, in the form of the C ABI. Included by
 * context_cache_coordinator.hpp.
 */
#ifndef PREFIXCACHE_CONTEXT_CACHE_ARGUMENTS_HPP
#define PREFIXCACHE_CONTEXT_CACHE_ARGUMENTS_HPP

#include <cstdint>
#include <vector>

#include "context_cache_manager.hpp"
#include "cuda_types.hpp"
#include "hybrid_cache_manager.hpp"
#include "kv_page_table.hpp"
#include "types.hpp"

namespace prefixcache {

namespace detail {

/// The layers of one cache in the C ABI's form.
struct ResourceArguments {
    std::vector<pc_attention_layer> attention;
    std::vector<pc_recurrent_layer> recurrent;

    pc_cache_resources fill(HybridCacheManager const* cache, KVPageTable const* table, bool layers) {
        pc_cache_resources out{};
        out.table = table != nullptr ? table->handle() : 0;
        if (cache == nullptr) {
            return out;
        }
        out.num_pages = cache->numPages();
        out.max_batch = cache->maxBatchSize();
        out.capacity_tokens = cache->paddedCapacity();
        if (!layers) {
            return out;
        }
        for (auto const& layer : cache->attentionLayers()) {
            pc_attention_layer a{};
            a.k_address = address(layer.kBase);
            a.kv_heads = layer.kvHeads;
            a.head_dim = layer.headDim;
            a.type = static_cast<uint32_t>(layer.type);
            attention.push_back(a);
        }
        for (auto const& layer : cache->recurrentLayers()) {
            pc_recurrent_layer r{};
            r.state_address = address(layer.stateBase);
            r.conv_address = address(layer.convBase);
            r.heads = layer.heads;
            r.head_dim = layer.headDim;
            r.state_size = layer.stateSize;
            r.state_type = static_cast<uint32_t>(layer.stateType);
            r.conv_dim = layer.convDim;
            r.conv_kernel = layer.convKernel;
            r.conv_type = static_cast<uint32_t>(layer.convType);
            recurrent.push_back(r);
        }
        out.attention = attention.data();
        out.num_attention = attention.size();
        out.recurrent = recurrent.data();
        out.num_recurrent = recurrent.size();
        return out;
    }

    static uint64_t address(void const* p) noexcept { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(p)); }
};

/// A batch as flat arrays; borrows the admission. A single sequence, the common case, is
/// passed where it lies.
class AdmissionArguments {
  public:
    /// tokens and offsets are room that is kept from one call to the next.
    AdmissionArguments(ContextCacheBatchAdmission const& admission, cudaStream_t stream, std::vector<int32_t>& tokens,
                       std::vector<int64_t>& offsets)
        : mExtras(admission.sequences.size()) {
        size_t const count = admission.sequences.size();
        mAdmission.num_sequences = static_cast<uint32_t>(count);
        mAdmission.execution = static_cast<uint32_t>(admission.executionMode);
        mAdmission.lookup = static_cast<uint32_t>(admission.lookupPolicy);
        mAdmission.commit = static_cast<uint32_t>(admission.commitPolicy);
        mAdmission.stream = ResourceArguments::address(stream);
        tokens.clear();
        offsets.assign(1, 0);
        bool anyExtras = false;
        for (size_t i = 0; i < count; ++i) {
            auto const& sequence = admission.sequences[i];
            if (count > 1) {
                tokens.insert(tokens.end(), sequence.tokenIds.begin(), sequence.tokenIds.end());
            }
            offsets.push_back(offsets.back() + static_cast<int64_t>(sequence.tokenIds.size()));
            for (auto const& digest : sequence.perPositionMediaHash) {
                mMedia.push_back(SequenceArguments::toC(digest));
            }
            mMediaOffsets.push_back(static_cast<int64_t>(mMedia.size()));
            SequenceArguments::fill(sequence.keyExtras, mExtras[i], mSpans);
            mSpanOffsets.push_back(static_cast<int64_t>(mSpans.size()));
            anyExtras = anyExtras || mExtras[i].present != 0;
        }
        mAdmission.tokens = count == 1 ? admission.sequences.front().tokenIds.data() : tokens.data();
        mAdmission.token_offsets = offsets.data();
        if (!mMedia.empty()) {
            mAdmission.media = mMedia.data();
            mAdmission.media_offsets = mMediaOffsets.data();
        }
        if (anyExtras) {
            mAdmission.extras = mExtras.data();
        }
        if (!mSpans.empty()) {
            mAdmission.spans = mSpans.data();
            mAdmission.span_offsets = mSpanOffsets.data();
        }
    }

    AdmissionArguments(AdmissionArguments const&) = delete;
    AdmissionArguments& operator=(AdmissionArguments const&) = delete;

    pc_admission const* get() const noexcept { return &mAdmission; }

  private:
    pc_admission mAdmission = sized<pc_admission>();
    std::vector<pc_hash128> mMedia;
    std::vector<int64_t> mMediaOffsets{0};
    std::vector<pc_extras> mExtras;
    std::vector<pc_media_span> mSpans;
    std::vector<int64_t> mSpanOffsets{0};
};

}  // namespace detail
}  // namespace prefixcache

#endif  // PREFIXCACHE_CONTEXT_CACHE_ARGUMENTS_HPP
