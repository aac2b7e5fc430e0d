/*
 * The interface that a runtime implements over its own cache buffers, one for the
 * base model and one for an EAGLE draft. It is everything that the coordinator
 * needs of a runtime.
 */
#ifndef PREFIXCACHE_HYBRID_CACHE_MANAGER_HPP
#define PREFIXCACHE_HYBRID_CACHE_MANAGER_HPP

#include <cstdint>
#include <vector>

#include "cuda_types.hpp"
#include "tensor.hpp"

namespace prefixcache {

/// One attention layer. Page i of K is at kBase + i * tokensPerPage * kvHeads *
/// headDim elements, laid out [token][head][dim]; the V pool begins directly
/// after the last K page.
struct AttentionLayerBuffers {
    void* kBase = nullptr;
    int32_t kvHeads = 0;
    int32_t headDim = 0;
    DataType type = DataType::kHalf;
};

/// One recurrent layer: slot s of state is at stateBase + s * heads * headDim *
/// stateSize elements, slot s of convolution state at convBase + s * convDim *
/// convKernel elements.
struct RecurrentLayerBuffers {
    void* stateBase = nullptr;
    void* convBase = nullptr;
    int32_t heads = 0;
    int32_t headDim = 0;
    int32_t stateSize = 0;
    DataType stateType = DataType::kFloat;
    int32_t convDim = 0;
    int32_t convKernel = 0;
    DataType convType = DataType::kHalf;
};

/// All calls come from the thread that is inside the coordinator. What they enqueue
/// goes on the given stream. An exception breaks the step off: the request can only
/// be finished or dropped then.
class HybridCacheManager {
  public:
    virtual ~HybridCacheManager() = default;

    virtual int32_t numPages() const = 0;        ///< K pages of the pool; 0 without attention
    virtual int32_t maxBatchSize() const = 0;    ///< live slots
    virtual int32_t paddedCapacity() const = 0;  ///< tokens of a slot, a multiple of a page

    /// Attention layers. Only hybrid deployments look at them.
    virtual std::vector<AttentionLayerBuffers> attentionLayers() const { return {}; }
    /// Recurrent layers, all of one shape. Only hybrid and pure recurrent look.
    virtual std::vector<RecurrentLayerBuffers> recurrentLayers() const { return {}; }

    /// New sequences in slots 0 .. n - 1, n = hostReuseLengths.shape()[0]. Copy the
    /// n lengths (int32, pinned) to the device and make n the active batch; "all
    /// zero" selects the initial-prefill shape of an engine. The host array stays
    /// unchanged until the stream was synchronized.
    virtual void resetForNewSequences(Tensor const& hostReuseLengths, cudaStream_t stream) = 0;

    /// Move lengths, recurrent and convolution state: slot s < oldBatch goes to
    /// mapping[s], or nowhere when that is -1. Survivors keep their order and only
    /// move down, so in ascending order it can be done in place. KV pages stay.
    /// @param deviceMapping  oldBatch int32 on the device
    /// @param hostMapping    the same numbers on the host
    virtual void compactSlotState(Tensor const& deviceMapping, std::vector<int32_t> const& hostMapping,
                                  int32_t oldBatch, int32_t newBatch, cudaStream_t stream) = 0;

    /// Host side only.
    virtual void setActiveBatchSize(int32_t batchSize) = 0;
};

}  // namespace prefixcache

#endif  // PREFIXCACHE_HYBRID_CACHE_MANAGER_HPP
