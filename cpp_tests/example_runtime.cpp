// A runtime in about a hundred lines: what to implement, what to call, in what order.
// It "computes" KV on the host; put your engine where the comments say so.
//
//   g++ -std=c++17 example_runtime.cpp $(pkg-config --cflags prefixcache) -ldl
//   PREFIXCACHE_LIBRARY=/path/to/libprefixcache.so ./a.out
#include <prefixcache/context_cache_coordinator.hpp>

#include <cstdio>
#include <vector>

using namespace prefixcache;

namespace {

constexpr int32_t kMaxBatch = 4;      // slots that decode together
constexpr int32_t kMaxTokens = 1024;  // of one sequence, a multiple of a page
constexpr int32_t kPageTokens = 128;
constexpr int32_t kPages = 64;  // of the K pool: at least kMaxBatch * kMaxTokens / kPageTokens

// 1. Your cache buffers behind the interface. An attention-only runtime needs the
//    three numbers, a way to set the lengths, and a way to move them.
class MyCache : public HybridCacheManager {
  public:
    int32_t numPages() const override { return kPages; }
    int32_t maxBatchSize() const override { return kMaxBatch; }
    int32_t paddedCapacity() const override { return kMaxTokens; }

    void resetForNewSequences(Tensor const& reuse, cudaStream_t) override {
        // cudaMemcpyAsync(deviceLengths, reuse.rawPointer(), 4 * reuse.volume(), ..., stream)
        mLengths.assign(reuse.data<int32_t>(), reuse.data<int32_t>() + reuse.volume());
    }
    void compactSlotState(Tensor const&, std::vector<int32_t> const& mapping, int32_t, int32_t newBatch,
                          cudaStream_t) override {
        // Your kernel; survivors only move down, so ascending order works in place.
        for (size_t old = 0; old < mapping.size(); ++old) {
            if (mapping[old] >= 0) {
                mLengths[static_cast<size_t>(mapping[old])] = mLengths[old];
            }
        }
        mLengths.resize(static_cast<size_t>(newBatch));
    }
    void setActiveBatchSize(int32_t) override {}  // tell your engine

  private:
    std::vector<int32_t> mLengths;
};

ContextCacheSequenceAdvance advanceBy(int32_t const& token, int32_t committed) { return {&token, 1, committed}; }

}  // namespace

int main() {
    cudaStream_t const stream = nullptr;  // the stream of your engine

    // 2. One table and one cache per model, then the coordinator. Your attention
    //    kernels read table.devicePointer(): [slot][K, V][page] -> page id.
    MyCache cache;
    KVPageTable table(kMaxBatch, kMaxTokens / kPageTokens, kPages);
    ContextCacheConfig config;
    config.enabled = true;
    DeploymentConfig deployment;  // as your engine states its model
    deployment.base.maxBatchSize = kMaxBatch;
    deployment.base.capacityTokens = kMaxTokens;
    deployment.base.numPages = kPages;
    deployment.base.layers.assign(32, LayerKind::kAttention);
    deployment.base.kvLayers.assign(32, {8, 128});
    auto const kind = validateContextCacheDeployment(deployment);  // throws, and says why, when it is not served
    ContextCacheCoordinator coordinator(config, deployment, kind, {cache, table}, stream);

    // Two users share a system prompt; the second request finds it.
    std::vector<int32_t> const system(300, 42);
    for (int32_t user = 0; user < 2; ++user) {
        // 3. Admission: the whole prompt. The answer says where the prefill starts.
        ContextCacheBatchAdmission admission;
        admission.sequences.resize(1);
        auto& prompt = admission.sequences[0].tokenIds;
        prompt = system;
        prompt.insert(prompt.end(), 20, 100 + user);
        auto begun = coordinator.beginRequest(admission, stream);
        if (begun.status != ContextCacheCoordinatorStatus::kOk) {
            return std::puts("busy, or no capacity: try again later"), 1;
        }
        auto& request = begun.admission->request;  // dropping it on any error is safe
        auto committed = static_cast<int32_t>(prompt.size());
        std::printf("user %d: %d of %d prompt tokens are cached\n", user, begun.admission->prefillStarts[0], committed);

        // 4. Prefill: rows are bound, then your engine computes the suffix.
        coordinator.preparePrefill(request);
        // engine.prefill(tokens from prefillStarts[i] on, stream)
        coordinator.enqueuePrefillCaptures(request);
        // sample; cudaStreamSynchronize(stream)
        int32_t token = 7;
        coordinator.finalizePrefillPublication(request, {advanceBy(token, committed)});

        // 5. Decode: make room, compute, tell what was accepted.
        for (int32_t step = 0; step < 100; ++step) {
            if (coordinator.prepareDecodeStep(request) != ContextCacheCoordinatorStatus::kOk) {
                break;  // the row is full, or no pages are left: end the request
            }
            // engine.decode(stream); sample; cudaStreamSynchronize(stream)
            token = 1000 + step;
            bool const done = step == 99;
            coordinator.completeDecodeStep(request, {advanceBy(token, ++committed)},
                                           done ? std::vector<int32_t>{0} : std::vector<int32_t>{});
        }

        // 6. The end. Without it, the handle's destructor drains and publishes nothing.
        coordinator.finish(request);
    }
    auto const metrics = coordinator.metrics();
    std::printf("%llu tokens saved, %llu records\n", static_cast<unsigned long long>(metrics.reusedTokens),
                static_cast<unsigned long long>(metrics.currentRecords));
    return coordinator.shutdown() == ContextCacheCoordinatorStatus::kOk && metrics.reusedTokens == 256 ? 0 : 1;
}
