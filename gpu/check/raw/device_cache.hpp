// A runtime's physical cache in device memory, reached through copies alone: what a
// token's KV and a sequence's state contain is a function of the tokens before it.
#ifndef PREFIXCACHE_CHECK_DEVICE_CACHE_HPP
#define PREFIXCACHE_CHECK_DEVICE_CACHE_HPP

#include <prefixcache/context_cache_coordinator.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "driver.hpp"
#include "report.hpp"

namespace check {

struct CacheShape {
    int32_t pages = 32, maxBatch = 4, width = 8, tokensPerPage = 4;
    int32_t attentionLayers = 2, kvHeads = 2, headDim = 8;  // half
    int32_t recurrentLayers = 2, heads = 2, stateDim = 4, stateSize = 8, convDim = 8, convKernel = 4;

    size_t tokenBytes() const { return static_cast<size_t>(2 * kvHeads * headDim); }
    size_t pageBytes() const { return tokenBytes() * static_cast<size_t>(tokensPerPage); }
    size_t stateBytes() const { return static_cast<size_t>(4 * heads * stateDim) * static_cast<size_t>(stateSize); }
    size_t convBytes() const { return static_cast<size_t>(2 * convDim * convKernel); }
    int64_t recurrentSlotBytes() const { return recurrentLayers * static_cast<int64_t>(stateBytes() + convBytes()); }
    int64_t partialSlotBytes() const { return attentionLayers * static_cast<int64_t>(2 * pageBytes()); }
};

inline void fillBytes(uint8_t* to, size_t bytes, uint64_t content) {
    for (size_t i = 0; i < bytes; i += 4) {
        auto const word = static_cast<uint32_t>(content + i * 2654435761u);
        std::memcpy(to + i, &word, 4);
    }
}

/// Host memory for copies that are under way: handed out once, taken back by a wait.
class Desk {
  public:
    Desk(Stream const& stream, size_t bytes) : mStream(stream), mMemory(bytes) {}

    /// Enqueues a copy of what `fill` writes.
    template <typename F>
    void put(CUdeviceptr to, size_t bytes, F&& fill) {
        uint8_t* const from = take(bytes);
        fill(from);
        CHECK_CUDA(cuMemcpyHtoDAsync(to, from, bytes, mStream));
    }
    /// Enqueues a read; wait() compares it with what `fill` writes.
    template <typename F>
    void expectAt(CUdeviceptr from, size_t bytes, F&& fill, std::string what) {
        uint8_t* const to = take(bytes);
        mReads.push_back({to, std::vector<uint8_t>(bytes), std::move(what)});
        fill(mReads.back().want.data());
        CHECK_CUDA(cuMemcpyDtoHAsync(to, from, bytes, mStream));
    }
    void wait() {
        mStream.wait();
        mUsed = 0;
        auto const reads = std::move(mReads);
        mReads.clear();
        for (auto const& read : reads)
            expect(std::memcmp(read.at, read.want.data(), read.want.size()) == 0, read.what + " is another one");
    }

  private:
    struct Read {
        uint8_t* at;
        std::vector<uint8_t> want;
        std::string what;
    };

    uint8_t* take(size_t bytes) {
        size_t const at = mUsed;
        mUsed += (bytes + 63) & ~size_t{63};
        expect(mUsed <= mMemory.bytes(), "the desk is full");
        return mMemory.as(at);
    }

    Stream const& mStream;
    PinnedMemory mMemory;
    size_t mUsed = 0;
    std::vector<Read> mReads;
};

class DeviceCache : public prefixcache::HybridCacheManager {
  public:
    explicit DeviceCache(CacheShape const& wanted)
        : shape(wanted), lengths(static_cast<size_t>(wanted.maxBatch) * sizeof(int32_t)) {
        for (int32_t i = 0; i < shape.attentionLayers; ++i)
            kv.emplace_back(2 * static_cast<size_t>(shape.pages) * shape.pageBytes());
        for (int32_t i = 0; i < shape.recurrentLayers; ++i) {
            state.emplace_back(static_cast<size_t>(shape.maxBatch) * shape.stateBytes());
            conv.emplace_back(static_cast<size_t>(shape.maxBatch) * shape.convBytes());
        }
    }

    int32_t numPages() const override { return shape.attentionLayers > 0 ? shape.pages : 0; }
    int32_t maxBatchSize() const override { return shape.maxBatch; }
    int32_t paddedCapacity() const override { return shape.width * shape.tokensPerPage; }

    std::vector<prefixcache::AttentionLayerBuffers> attentionLayers() const override {
        std::vector<prefixcache::AttentionLayerBuffers> out;
        for (auto const& layer : kv)
            out.push_back({layer.as<void>(), shape.kvHeads, shape.headDim, prefixcache::DataType::kHalf});
        return out;
    }
    std::vector<prefixcache::RecurrentLayerBuffers> recurrentLayers() const override {
        std::vector<prefixcache::RecurrentLayerBuffers> out;
        for (size_t i = 0; i < state.size(); ++i)
            out.push_back({state[i].as<void>(), conv[i].as<void>(), shape.heads, shape.stateDim, shape.stateSize,
                           prefixcache::DataType::kFloat, shape.convDim, shape.convKernel,
                           prefixcache::DataType::kHalf});
        return out;
    }

    void resetForNewSequences(prefixcache::Tensor const& reuse, cudaStream_t stream) override {
        activeBatch = static_cast<int32_t>(reuse.volume());
        CHECK_CUDA(cuMemcpyHtoDAsync(lengths.at(), reuse.rawPointer(),
                                     static_cast<size_t>(activeBatch) * sizeof(int32_t), of(stream)));
    }
    void compactSlotState(prefixcache::Tensor const&, std::vector<int32_t> const& mapping, int32_t oldBatch, int32_t,
                          cudaStream_t stream) override {
        if (mover) return moveSlotState(*mover, false, mapping, lengths.as<void>());
        // Survivors only move down, so one after the other in place.
        for (int32_t from = 0; from < oldBatch; ++from) {
            int32_t const to = mapping[static_cast<size_t>(from)];
            if (to < 0 || to == from) continue;
            auto const move = [&](DeviceMemory const& memory, size_t bytes) {
                CHECK_CUDA(cuMemcpyDtoDAsync(memory.at(static_cast<size_t>(to) * bytes),
                                             memory.at(static_cast<size_t>(from) * bytes), bytes, of(stream)));
            };
            move(lengths, sizeof(int32_t));
            for (auto const& layer : state) move(layer, shape.stateBytes());
            for (auto const& layer : conv) move(layer, shape.convBytes());
        }
    }
    void setActiveBatchSize(int32_t batchSize) override { activeBatch = batchSize; }

    CUdeviceptr tokenAt(size_t layer, int32_t page, int32_t index) const {
        return kv[layer].at(static_cast<size_t>(page) * shape.pageBytes() +
                            static_cast<size_t>(index) * shape.tokenBytes());
    }

    static CUstream of(cudaStream_t stream) { return reinterpret_cast<CUstream>(stream); }

    CacheShape shape;
    std::vector<DeviceMemory> kv, state, conv;
    DeviceMemory lengths;
    int32_t activeBatch = 0;
    prefixcache::ContextCacheCoordinator* mover = nullptr;  ///< its library moves slot state; null: our own copies
};

}  // namespace check

#endif  // PREFIXCACHE_CHECK_DEVICE_CACHE_HPP
