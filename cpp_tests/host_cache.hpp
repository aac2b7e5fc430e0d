// A runtime's physical cache in plain memory, for tests: KV pages and recurrent
// state that one can read, a log of what the coordinator asked for, and faults.
#ifndef PREFIXCACHE_TESTS_HOST_CACHE_HPP
#define PREFIXCACHE_TESTS_HOST_CACHE_HPP

#include <prefixcache/context_cache_coordinator.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

using namespace prefixcache;

inline cudaStream_t const kStream = reinterpret_cast<cudaStream_t>(uintptr_t{0x51});
inline cudaStream_t const kOtherStream = reinterpret_cast<cudaStream_t>(uintptr_t{0x52});

struct HostCacheShape {
    int32_t pages = 32;
    int32_t maxBatch = 4;
    int32_t width = 8;  // pages of a row
    int32_t tokensPerPage = 4;
    int32_t attentionLayers = 1;
    int32_t recurrentLayers = 0;
};

class HostCache : public HybridCacheManager {
  public:
    static constexpr int32_t kHeads = 2, kDim = 3;                            // of KV
    static constexpr int32_t kStateHeads = 2, kStateDim = 2, kStateSize = 3;  // float
    static constexpr int32_t kConvDim = 4, kConvKernel = 3;                   // half

    explicit HostCache(HostCacheShape const& wanted) : shape(wanted) {
        for (int32_t i = 0; i < shape.attentionLayers; ++i) {
            kv.emplace_back(static_cast<size_t>(2 * shape.pages * pageElements()), uint16_t{0});
        }
        for (int32_t i = 0; i < shape.recurrentLayers; ++i) {
            state.emplace_back(static_cast<size_t>(shape.maxBatch * stateElements()), 0.0F);
            conv.emplace_back(static_cast<size_t>(shape.maxBatch * convElements()), uint16_t{0});
        }
        lengths.assign(static_cast<size_t>(shape.maxBatch), -1);
    }

    int32_t tokenElements() const { return kHeads * kDim; }
    int32_t pageElements() const { return shape.tokensPerPage * tokenElements(); }
    static int32_t stateElements() { return kStateHeads * kStateDim * kStateSize; }
    static int32_t convElements() { return kConvDim * kConvKernel; }

    /// Element 0 of a token in a page of K; V is `pages` pages further.
    uint16_t* token(int32_t layer, int32_t page, int32_t index) {
        return &kv.at(static_cast<size_t>(layer))
                    .at(static_cast<size_t>(page * pageElements() + index * tokenElements()));
    }
    float* stateOf(int32_t layer, int32_t slot) {
        return &state.at(static_cast<size_t>(layer)).at(static_cast<size_t>(slot * stateElements()));
    }
    uint16_t* convOf(int32_t layer, int32_t slot) {
        return &conv.at(static_cast<size_t>(layer)).at(static_cast<size_t>(slot * convElements()));
    }

    int32_t numPages() const override { return shape.attentionLayers > 0 ? shape.pages : 0; }
    int32_t maxBatchSize() const override { return shape.maxBatch; }
    int32_t paddedCapacity() const override { return shape.width * shape.tokensPerPage; }

    std::vector<AttentionLayerBuffers> attentionLayers() const override {
        std::vector<AttentionLayerBuffers> out;
        for (auto const& layer : kv) {
            out.push_back({const_cast<uint16_t*>(layer.data()), kHeads, kDim, DataType::kHalf});
        }
        return out;
    }

    std::vector<RecurrentLayerBuffers> recurrentLayers() const override {
        std::vector<RecurrentLayerBuffers> out;
        for (size_t i = 0; i < state.size(); ++i) {
            out.push_back({const_cast<float*>(state[i].data()), const_cast<uint16_t*>(conv[i].data()), kStateHeads,
                           kStateDim, kStateSize, DataType::kFloat, kConvDim, kConvKernel, DataType::kHalf});
        }
        return out;
    }

    void resetForNewSequences(Tensor const& hostReuseLengths, cudaStream_t stream) override {
        log.push_back("reset");
        fault("reset");
        streams.push_back(stream);
        auto const count = static_cast<size_t>(hostReuseLengths.volume());
        for (size_t i = 0; i < count; ++i) {
            lengths.at(i) = hostReuseLengths.data<int32_t>()[i];
        }
        activeBatch = static_cast<int32_t>(count);
    }

    void compactSlotState(Tensor const& deviceMapping, std::vector<int32_t> const& hostMapping, int32_t oldBatch,
                          int32_t newBatch, cudaStream_t stream) override {
        log.push_back("compact " + std::to_string(oldBatch) + "->" + std::to_string(newBatch));
        fault("compact");
        streams.push_back(stream);
        for (int32_t from = 0; from < oldBatch; ++from) {
            int32_t const to = deviceMapping.data<int32_t>()[from];
            if (to != hostMapping.at(static_cast<size_t>(from))) {
                throw std::logic_error("the device mapping is not the host's");
            }
            if (to < 0 || to == from) {
                continue;
            }
            lengths.at(static_cast<size_t>(to)) = lengths.at(static_cast<size_t>(from));
            for (int32_t layer = 0; layer < shape.recurrentLayers; ++layer) {
                std::copy_n(stateOf(layer, from), stateElements(), stateOf(layer, to));
                std::copy_n(convOf(layer, from), convElements(), convOf(layer, to));
            }
        }
    }

    void setActiveBatchSize(int32_t batchSize) override {
        log.push_back("batch " + std::to_string(batchSize));
        fault("batch");
        activeBatch = batchSize;
    }

    HostCacheShape shape;
    std::vector<std::vector<uint16_t>> kv;
    std::vector<std::vector<float>> state;
    std::vector<std::vector<uint16_t>> conv;
    std::vector<int32_t> lengths;  // the device's
    int32_t activeBatch = 0;
    std::vector<std::string> log;
    std::vector<cudaStream_t> streams;
    std::string failOn;                              // name of the call that throws
    std::function<void(std::string const&)> onCall;  // what else a test does inside a call

  private:
    void fault(std::string const& call) const {
        if (onCall) {
            onCall(call);
        }
        if (call == failOn) {
            throw std::runtime_error("injected: " + call);
        }
    }
};

/// A synchronizer whose next answers a test chooses; it counts.
struct Synchronizer {
    int calls = 0;
    cudaError_t answer = cudaSuccess;
    bool throws = false;

    ContextCacheCoordinator::StreamSynchronizer function() {
        return [this](cudaStream_t) -> cudaError_t {
            ++calls;
            if (throws) {
                throw std::runtime_error("injected: synchronizer");
            }
            return answer;
        };
    }
};

/// A coordinator with everything around it.
struct Rig {
    explicit Rig(ContextCacheDeploymentKind kind = ContextCacheDeploymentKind::kVanilla, HostCacheShape shape = {},
                 int32_t maxRecords = 64, int64_t snapshots = 8,
                 std::function<void(ContextCacheConfig&)> const& edit = {})
        : base(shapeFor(kind, shape)), table(shape.maxBatch, shape.width, shape.pages, true) {
        config.enabled = true;
        config.hostMemory = true;
        config.tokensPerPage = shape.tokensPerPage;
        config.maxRecords = maxRecords;
        deployment.base.maxBatchSize = shape.maxBatch;
        bool const recurrent =
            kind == ContextCacheDeploymentKind::kHybrid || kind == ContextCacheDeploymentKind::kPureRecurrent;
        if (recurrent) {
            config.recurrentSnapshotBudgetBytes = snapshots * recurrentBytes();
            config.partialKvSnapshotBudgetBytes = snapshots * partialBytes();
        }
        ContextCachePhysicalResources resources{base, table};
        if (kind == ContextCacheDeploymentKind::kEagle) {
            draft = std::make_unique<HostCache>(base.shape);
            draftTable = std::make_unique<KVPageTable>(shape.maxBatch, shape.width, shape.pages, true);
            resources.draftCache = draft.get();
            resources.draftPageTable = draftTable.get();
            deployment.draft.emplace();
            deployment.draft->maxBatchSize = shape.maxBatch;
            deployment.spec = SpecConfig{3, 2, 1, {0}};
        }
        if (edit) {
            edit(config);
        }
        coordinator = std::make_unique<ContextCacheCoordinator>(config, deployment, kind, resources, kStream,
                                                                synchronizer.function());
    }

    int64_t recurrentBytes() const {
        return base.shape.recurrentLayers * int64_t{4 * HostCache::stateElements() + 2 * HostCache::convElements()};
    }
    int64_t partialBytes() const { return base.shape.attentionLayers * int64_t{2 * 2} * base.pageElements(); }

    static HostCacheShape shapeFor(ContextCacheDeploymentKind kind, HostCacheShape shape) {
        if (kind == ContextCacheDeploymentKind::kHybrid) {
            shape.recurrentLayers = 2;
        } else if (kind == ContextCacheDeploymentKind::kPureRecurrent) {
            shape.recurrentLayers = 2;
            shape.attentionLayers = 0;
        }
        return shape;
    }

    ContextCacheCoordinator& operator*() { return *coordinator; }
    ContextCacheCoordinator* operator->() { return coordinator.get(); }

    uint64_t freePages(CacheResourceType type = CacheResourceType::kBasePage) const {
        return coordinator->manager().pools().free(type);
    }

    HostCache base;
    KVPageTable table;
    std::unique_ptr<HostCache> draft;
    std::unique_ptr<KVPageTable> draftTable;
    Synchronizer synchronizer;
    ContextCacheConfig config;
    DeploymentConfig deployment;
    std::unique_ptr<ContextCacheCoordinator> coordinator;  // last: it goes first
};

/// The text of what a call throws; empty when it does not.
template <typename Call>
std::string textOf(Call const& call) {
    try {
        call();
    } catch (std::runtime_error const& e) {
        return e.what();
    }
    return {};
}

/// n tokens that begin like any other sequence of the same seed.
inline std::vector<int32_t> tokensOf(int32_t n, int32_t seed = 0) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < n; ++i) {
        out.push_back(seed * 1000 + i);
    }
    return out;
}

inline ContextCacheSequenceAdmission sequenceOf(std::vector<int32_t> tokens) {
    ContextCacheSequenceAdmission s;
    s.tokenIds = std::move(tokens);
    return s;
}

inline ContextCacheBatchAdmission admissionOf(std::vector<std::vector<int32_t>> const& prompts) {
    ContextCacheBatchAdmission admission;
    for (auto const& prompt : prompts) {
        admission.sequences.push_back(sequenceOf(prompt));
    }
    return admission;
}

/// Advances by one token for each sequence, given the committed lengths.
struct Advances {
    explicit Advances(std::vector<int32_t> const& committed, int32_t token = 7) : tokens(committed.size(), token) {
        for (size_t i = 0; i < committed.size(); ++i) {
            list.push_back({&tokens[i], 1, committed[i]});
        }
    }
    std::vector<int32_t> tokens;
    std::vector<ContextCacheSequenceAdvance> list;
};

/// Begin that must succeed.
inline ContextCacheCoordinator::AdmissionResult begin(ContextCacheCoordinator& c,
                                                      ContextCacheBatchAdmission const& admission) {
    auto result = c.beginRequest(admission, kStream);
    if (result.status != ContextCacheCoordinatorStatus::kOk) {
        throw std::runtime_error("begin failed");
    }
    return std::move(*result.admission);
}

/// Admission and prefill of a batch, up to the published prompt; not for EAGLE.
inline ContextCacheCoordinator::AdmissionResult prefill(ContextCacheCoordinator& c,
                                                        ContextCacheBatchAdmission const& admission) {
    auto admitted = begin(c, admission);
    c.preparePrefill(admitted.request);
    c.enqueuePrefillCaptures(admitted.request);
    std::vector<int32_t> committed;
    for (auto const& sequence : admission.sequences) {
        committed.push_back(static_cast<int32_t>(sequence.tokenIds.size()));
    }
    c.finalizePrefillPublication(admitted.request, Advances(committed).list);
    return admitted;
}

/// A whole request that ends after its prompt was published.
inline std::vector<int32_t> serve(ContextCacheCoordinator& c, std::vector<std::vector<int32_t>> const& prompts) {
    auto admitted = prefill(c, admissionOf(prompts));
    c.finish(admitted.request);
    return admitted.prefillStarts;
}

/// The same for one sequence with more than tokens; where its prefill started.
inline int32_t serveOne(ContextCacheCoordinator& c, ContextCacheSequenceAdmission const& s) {
    ContextCacheBatchAdmission admission;
    admission.sequences = {s};
    auto admitted = prefill(c, admission);
    c.finish(admitted.request);
    return admitted.prefillStarts[0];
}

}  // namespace test

#endif  // PREFIXCACHE_TESTS_HOST_CACHE_HPP
