// The coordinator on the simulated CUDA driver: device memory that the host cannot
// touch, streams that run late, calls that fail. What is captured, restored, uploaded
// and compacted must still be right, in order, and from memory that nobody reuses
// too early; the driver reports every access that nothing orders.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <prefixcache/context_cache_coordinator.hpp>
#include <prefixcache/metrics.hpp>

#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "simcuda.h"

namespace {

using namespace prefixcache;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

constexpr int32_t kBatch = 3, kWidth = 10, kPages = 40, kPage = 4;
constexpr int32_t kHeads = 2, kDim = 4;  // of KV: 16 bytes a token
constexpr uint64_t kTokenBytes = kHeads * kDim * 2, kPageBytes = kPage * kTokenBytes;
constexpr int32_t kStateWords = 8, kConvWords = 4;
constexpr int kLayers = 2;

/// The driver that this test is linked with is the one that the library loads.
void useThisDriver() {
    Dl_info driver;
    dladdr(reinterpret_cast<void*>(&simcuda_reset), &driver);
    setenv("PREFIXCACHE_CUDA_DRIVER", driver.dli_fname, 1);
}

std::string text(int (*report)(char*, size_t)) {
    std::array<char, 1 << 14> buffer{};
    return report(buffer.data(), buffer.size()) != 0 ? buffer.data() : "";
}

void must(CUresult result, char const* call) {
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error(std::string(call) + " failed");
    }
}

/// A runtime's cache in device memory.
class DeviceCache : public HybridCacheManager {
  public:
    DeviceCache() {
        for (auto& layer : kv) {
            must(cuMemAlloc(&layer, 2 * kPages * kPageBytes), "cuMemAlloc");
        }
        for (auto* part : {&state, &conv}) {
            for (auto& layer : *part) {
                must(cuMemAlloc(&layer, kBatch * 4 * kStateWords), "cuMemAlloc");
            }
        }
        must(cuMemAlloc(&lengths, kBatch * 4), "cuMemAlloc");
        must(cuMemAlloc(&mapping, kBatch * 4), "cuMemAlloc");
    }
    ~DeviceCache() override {
        for (auto const& part : {kv, state, conv}) {
            for (CUdeviceptr layer : part) {
                cuMemFree(layer);
            }
        }
        cuMemFree(lengths);
        cuMemFree(mapping);
    }

    int32_t numPages() const override { return kPages; }
    int32_t maxBatchSize() const override { return kBatch; }
    int32_t paddedCapacity() const override { return kWidth * kPage; }
    std::vector<AttentionLayerBuffers> attentionLayers() const override {
        std::vector<AttentionLayerBuffers> out;
        for (CUdeviceptr layer : kv) {
            out.push_back({reinterpret_cast<void*>(layer), kHeads, kDim, DataType::kHalf});
        }
        return out;
    }
    std::vector<RecurrentLayerBuffers> recurrentLayers() const override {
        std::vector<RecurrentLayerBuffers> out;
        for (size_t i = 0; i < kLayers; ++i) {
            out.push_back({reinterpret_cast<void*>(state[i]), reinterpret_cast<void*>(conv[i]), 2, 2, 2,
                           DataType::kFloat, 4, 2, DataType::kHalf});
        }
        return out;
    }
    void resetForNewSequences(Tensor const& reuse, cudaStream_t stream) override {
        must(cuMemcpyHtoDAsync(lengths, reuse.rawPointer(), static_cast<size_t>(4 * reuse.volume()),
                               reinterpret_cast<CUstream>(stream)),
             "cuMemcpyHtoDAsync");
    }
    void compactSlotState(Tensor const& deviceMapping, std::vector<int32_t> const& host, int32_t oldBatch, int32_t,
                          cudaStream_t stream) override {
        auto* s = reinterpret_cast<CUstream>(stream);
        // The device mapping is what a kernel would read: in order behind the library's copy.
        must(cuMemcpyDtoDAsync(mapping, reinterpret_cast<CUdeviceptr>(deviceMapping.rawPointer()),
                               static_cast<size_t>(4 * oldBatch), s),
             "cuMemcpyDtoDAsync");
        if (byLibrary != nullptr) {
            moveSlotState(*byLibrary, false, host, reinterpret_cast<void*>(lengths));
            return;
        }
        for (int32_t from = 0; from < oldBatch; ++from) {
            auto const to = host.at(static_cast<size_t>(from));
            if (to < 0 || to == from) {
                continue;
            }
            move(lengths, 4, from, to, s);
            for (size_t i = 0; i < kLayers; ++i) {
                move(state[i], 4 * kStateWords, from, to, s);
                move(conv[i], 4 * kConvWords, from, to, s);
            }
        }
    }
    void setActiveBatchSize(int32_t) override {}

    std::array<CUdeviceptr, kLayers> kv{}, state{}, conv{};
    CUdeviceptr lengths = 0;
    ContextCacheCoordinator* byLibrary = nullptr;  // moves the slots, where it is set
    CUdeviceptr mapping = 0;                       // copy of the mapping that a "kernel" saw

  private:
    static void move(CUdeviceptr base, uint64_t bytes, int32_t from, int32_t to, CUstream s) {
        must(cuMemcpyDtoDAsync(base + static_cast<uint64_t>(to) * bytes, base + static_cast<uint64_t>(from) * bytes,
                               bytes, s),
             "cuMemcpyDtoDAsync");
    }
};

struct Sequence {
    std::vector<int32_t> tokens;
    uint32_t digest = 0;  // of the committed ones
    int32_t committed = 0;
};

uint32_t mix(uint32_t digest, int32_t token) {
    return (digest ^ static_cast<uint32_t>(token + 1)) * 2654435761U + 0x9E37U;
}

/// The context that cuda.h calls would create for a runtime, one stream, one mapping.
struct Device {
    explicit Device(uint64_t seed) {
        simcuda_reset(seed);
        must(cuInit(0), "cuInit");
        CUcontext context = nullptr;
        must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        must(cuMemAlloc(&mapping, kBatch * 4), "cuMemAlloc");
    }
    ~Device() {
        cuMemFree(mapping);
        simcuda_step(1 << 20);
        cuStreamDestroy(stream);
    }
    CUstream stream = nullptr;
    CUdeviceptr mapping = 0;
};

class Runtime {
  public:
    explicit Runtime(uint64_t seed, cudaStream_t instead = nullptr,
                     ContextCacheCoordinator::StreamSynchronizer synchronizer = {})
        : mRandom(seed), mDevice(seed), mInstead(instead), mTable(kBatch, kWidth, kPages) {
        ContextCacheConfig config;
        config.enabled = true;
        config.tokensPerPage = kPage;
        config.maxRecords = 8;
        config.recurrentSnapshotBudgetBytes = 5 * kLayers * (4 * kStateWords + 4 * kConvWords);
        config.partialKvSnapshotBudgetBytes = 5 * kLayers * 2 * static_cast<int64_t>(kPageBytes);
        DeploymentConfig deployment;
        deployment.base.maxBatchSize = kBatch;
        coordinator = std::make_unique<ContextCacheCoordinator>(config, deployment, Kind::kHybrid,
                                                                ContextCachePhysicalResources{cache, mTable}, stream(),
                                                                std::move(synchronizer));
    }

    cudaStream_t stream() const {
        return mInstead != nullptr ? mInstead : reinterpret_cast<cudaStream_t>(mDevice.stream);
    }
    int32_t random(int32_t n) { return static_cast<int32_t>(mRandom() % static_cast<uint64_t>(n)); }

    void synchronize() { must(cuStreamSynchronize(reinterpret_cast<CUstream>(stream())), "cuStreamSynchronize"); }

    /// Device words as they are now.
    uint32_t peek(CUdeviceptr address) {
        uint32_t value = 0;
        EXPECT_TRUE(simcuda_peek(address, &value, 4));
        return value;
    }

    CUdeviceptr token(size_t layer, bool v, Sequence const&, int32_t slot, int32_t position) {
        auto const row = mTable.row(slot);
        auto const page = row.at(static_cast<size_t>(position / kPage + (v ? kWidth : 0)));
        return cache.kv[layer] + static_cast<uint64_t>(page) * kPageBytes +
               static_cast<uint64_t>(position % kPage) * kTokenBytes;
    }

    /// Enqueues the computation of one position: KV of both halves, recurrent state.
    void compute(Sequence& s, int32_t slot) {
        s.digest = mix(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
        for (size_t layer = 0; layer < kLayers; ++layer) {
            auto const value = s.digest + static_cast<uint32_t>(layer);
            for (bool v : {false, true}) {
                must(simcuda_launch(mDevice.stream, token(layer, v, s, slot, s.committed), kTokenBytes / 4,
                                    value + (v ? 7 : 0)),
                     "launch");
            }
            must(simcuda_launch(mDevice.stream, cache.state[layer] + static_cast<uint64_t>(slot) * 4 * kStateWords,
                                kStateWords, value),
                 "launch");
            must(simcuda_launch(mDevice.stream, cache.conv[layer] + static_cast<uint64_t>(slot) * 4 * kConvWords,
                                kConvWords, value + 3),
                 "launch");
        }
        ++s.committed;
    }

    /// The device holds what a prefill of the whole prefix would have left.
    void checkReused(Sequence& s, int32_t slot, int32_t start) {
        for (; s.committed < start; ++s.committed) {
            s.digest = mix(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
            for (size_t layer = 0; layer < kLayers; ++layer) {
                for (bool v : {false, true}) {
                    ASSERT_EQ(peek(token(layer, v, s, slot, s.committed)),
                              s.digest + static_cast<uint32_t>(layer) + (v ? 7 : 0))
                        << "position " << s.committed << " of " << start;
                }
            }
        }
        checkState(s, slot);
        ASSERT_EQ(peek(cache.lengths + static_cast<uint64_t>(slot) * 4), static_cast<uint32_t>(start));
    }

    void checkState(Sequence const& s, int32_t slot) {
        for (size_t layer = 0; layer < kLayers; ++layer) {
            auto const value = s.committed > 0 ? s.digest + static_cast<uint32_t>(layer) : 0;
            for (uint32_t w : {0U, 7U}) {
                ASSERT_EQ(peek(cache.state[layer] + static_cast<uint64_t>(slot) * 4 * kStateWords + 4 * w),
                          s.committed > 0 ? value + w : 0U);
            }
            ASSERT_EQ(peek(cache.conv[layer] + static_cast<uint64_t>(slot) * 4 * kConvWords),
                      s.committed > 0 ? value + 3 : 0U);
        }
    }

    /// One request; returns at any point, with the handle dropped.
    void request() {
        std::vector<Sequence> batch(static_cast<size_t>(1 + random(kBatch)));
        ContextCacheBatchAdmission admission;
        for (auto& s : batch) {
            for (int32_t n = 1 + random(16), branch = 0; n > 0; --n) {
                branch = random(8) == 0 ? random(3) : branch;
                s.tokens.push_back(branch);
            }
            admission.sequences.emplace_back();
            admission.sequences.back().tokenIds = s.tokens;
        }
        auto begun = coordinator->beginRequest(admission, stream());
        ASSERT_EQ(begun.status, Status::kOk);
        auto& r = begun.admission->request;
        coordinator->preparePrefill(r);
        if (random(2) == 0) {
            synchronize();  // so that the restored state can be looked at; the other half runs on
        }
        for (size_t i = 0; i < batch.size(); ++i) {
            auto& s = batch[i];
            auto const slot = static_cast<int32_t>(i);
            auto const start = begun.admission->prefillStarts[i];
            reused += start;
            if (simcuda_queued() == 0) {
                checkReused(s, slot, start);
            }
            for (; s.committed < start; ++s.committed) {
                s.digest = mix(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
            }
            while (s.committed < static_cast<int32_t>(s.tokens.size())) {
                compute(s, slot);
            }
        }
        if (random(10) == 0) {
            return;
        }
        coordinator->enqueuePrefillCaptures(r);
        synchronize();
        coordinator->finalizePrefillPublication(r, accept(batch));
        decode(r, batch);
    }

    std::vector<ContextCacheSequenceAdvance> accept(std::vector<Sequence>& batch) {
        std::vector<ContextCacheSequenceAdvance> out;
        for (auto& s : batch) {
            s.tokens.push_back(random(3));
        }
        for (auto& s : batch) {
            out.push_back({&s.tokens.back(), 1, s.committed});
        }
        return out;
    }

    void decode(ContextCacheCoordinator::RequestHandle& r, std::vector<Sequence>& batch) {
        for (int32_t steps = random(8); steps > 0 && !batch.empty(); --steps) {
            if (random(4) == 0) {
                compact(r, batch);
                continue;
            }
            if (coordinator->prepareDecodeStep(r) != Status::kOk) {
                break;
            }
            std::vector<int32_t> publish;
            for (size_t i = 0; i < batch.size(); ++i) {
                compute(batch[i], static_cast<int32_t>(i));
                if (random(3) == 0) {
                    publish.push_back(static_cast<int32_t>(i));
                }
            }
            synchronize();
            expectOk(coordinator->completeDecodeStep(r, accept(batch), publish));
        }
        if (random(4) != 0) {
            expectOk(coordinator->finish(r));
        }
    }

    /// Poisoned is an answer only where calls of the driver fail.
    void expectOk(Status status) {
        if (faults && status == Status::kPoisoned) {
            throw std::runtime_error("poisoned");
        }
        EXPECT_EQ(status, Status::kOk);
    }

    void compact(ContextCacheCoordinator::RequestHandle& r, std::vector<Sequence>& batch) {
        std::vector<int32_t> map;
        std::vector<Sequence> kept;
        for (auto& s : batch) {
            map.push_back(random(3) != 0 ? static_cast<int32_t>(kept.size()) : -1);
            if (map.back() >= 0) {
                kept.push_back(std::move(s));
            }
        }
        Tensor tensor(reinterpret_cast<void*>(mDevice.mapping), DataType::kInt32, kBatch);
        expectOk(coordinator->beginBatchCompaction(r, map, static_cast<int32_t>(kept.size()), tensor));
        expectOk(coordinator->compactBatch(r));
        batch = std::move(kept);
        for (size_t i = 0; i < map.size(); ++i) {
            ASSERT_EQ(peek(cache.mapping + 4 * i), static_cast<uint32_t>(map[i]));
        }
        for (size_t i = 0; i < batch.size(); ++i) {
            checkState(batch[i], static_cast<int32_t>(i));
        }
    }

    /// Every pool is free once nothing is cached.
    /// Of the device: whatever the driver was asked for is also what the metrics say.
    void checkMetrics() const {
        auto metrics = detail::sized<pc_context_metrics>();
        pc_api const& api = Library::get();
        ASSERT_EQ(api.context_get_metrics(handleOf(*coordinator), &metrics), PC_OK);
        uint64_t const table = 4 * kBatch * 2 * kWidth;
        uint64_t const payloads = 4 * 3 * kBatch;  // lengths, slots and mapping of the one request
        EXPECT_EQ(metrics.pinned_bytes, table + payloads);
        EXPECT_GT(metrics.uploaded_bytes, table);
        EXPECT_EQ(metrics.uploaded_bytes % (table / kBatch), 0U) << "whole rows";
        EXPECT_GT(metrics.captured_bytes, 0U);
        EXPECT_GT(metrics.upload_waits, 0U);
        EXPECT_GT(metrics.upload_wait_nanoseconds, 0U);
        EXPECT_GT(metrics.snapshot_bytes, 0U);
        auto const page = metricsText({{handleOf(*coordinator), {{"seed", "a\"b"}}}});
        EXPECT_NE(page.find("prefixcache_pinned_bytes{cache=\"context\",seed=\"a\\\"b\"} " +
                            std::to_string(metrics.pinned_bytes) + "\n"),
                  std::string::npos);
    }

    void checkTheEnd() {
        coordinator->manager().checkInvariants();
        flush(*coordinator);
        for (auto const& pool : coordinator->metrics().pools) {
            EXPECT_EQ(pool.free, pool.capacity);
        }
    }

    std::mt19937_64 mRandom;
    Device mDevice;
    cudaStream_t mInstead;  // of the device's
    DeviceCache cache;
    KVPageTable mTable;
    std::unique_ptr<ContextCacheCoordinator> coordinator;
    int64_t reused = 0;
    bool faults = false;
};

/// Orders of work that a test goes through; GPU_SEEDS sets it for a longer run.
uint64_t seeds(uint64_t usual) {
    char const* wanted = std::getenv("GPU_SEEDS");
    return wanted ? std::strtoull(wanted, nullptr, 10) : usual;
}

struct DeviceCoordinator : testing::Test {
    DeviceCoordinator() { useThisDriver(); }
};

TEST_F(DeviceCoordinator, LateAndOutOfOrderWorkReusesNothingWrong) {
    int64_t reused = 0;
    for (uint64_t seed = 0, end = seeds(600); seed < end && !HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        {
            Runtime runtime(seed);
            runtime.cache.byLibrary = seed % 2 == 0 ? runtime.coordinator.get() : nullptr;
            simcuda_policy(static_cast<int>(seed % 3));
            for (int i = 0; i < 25 && !HasFailure(); ++i) {
                runtime.request();
            }
            runtime.checkMetrics();
            runtime.checkTheEnd();
            reused += runtime.reused;
            EXPECT_EQ(simcuda_pageable(), 0U) << "every copy goes through pinned memory";
        }
        EXPECT_EQ(text(simcuda_report), "");
        EXPECT_EQ(text(simcuda_leaks), "");
    }
    EXPECT_GT(reused, 1000);
}

// Any driver call may fail. The call that hits it throws or poisons; the request ends,
// nothing is leaked, nothing is released under running work.
TEST_F(DeviceCoordinator, EveryFailureOfTheDriverIsSurvived) {
    int hit = 0;
    int poisoned = 0;
    for (uint64_t seed = 0, end = seeds(400); seed < end && !HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        {
            Runtime runtime(seed);
            for (int i = 0; i < 4; ++i) {
                runtime.request();
            }
            runtime.faults = true;
            int const kind = seed % 2 == 0 ? SIMCUDA_ENQUEUE : SIMCUDA_WAIT;
            simcuda_fail_nth(kind, static_cast<int>(1 + seed / 2), CUDA_ERROR_LAUNCH_FAILED);
            try {
                for (int i = 0; i < 6 && simcuda_armed() != 0; ++i) {
                    runtime.request();
                    if (runtime.coordinator->metrics().poisoned) {
                        break;
                    }
                }
            } catch (std::runtime_error const&) {
                ++hit;
            }
            simcuda_fail_nth(SIMCUDA_ANY, 0, CUDA_SUCCESS);
            poisoned += runtime.coordinator->metrics().poisoned ? 1 : 0;
            EXPECT_EQ(runtime.coordinator->shutdown(), Status::kOk);
            runtime.synchronize();
            runtime.checkTheEnd();
        }
        EXPECT_EQ(text(simcuda_report), "");
        EXPECT_EQ(text(simcuda_leaks), "");
    }
    EXPECT_GT(hit, 10);
    EXPECT_GT(poisoned, 0);
}

/// A request of one sequence through the C interface, and what each of its steps answers.
struct OneRequest {
    explicit OneRequest(Runtime& of) : runtime(of), api(Library::get()) {
        tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        auto admission = detail::sized<pc_admission>();
        std::array<int64_t, 2> const cuts{0, 9};
        admission.num_sequences = 1;
        admission.tokens = tokens.data();
        admission.token_offsets = cuts.data();
        admission.stream = reinterpret_cast<uint64_t>(runtime.stream());
        auto start = pc_sequence_start{};
        EXPECT_EQ(api.context_begin(context(), &admission, &start, &request), PC_OK) << api.last_error();
    }
    pc_handle context() const { return handleOf(*runtime.coordinator); }

    /// Carries a step out, with whatever work it hands out; the first refusal is the answer.
    template <typename Step>
    pc_status run(Step step) {
        auto work = detail::sized<pc_work>();
        pc_status status = step(&work);
        while (status == PC_OK && work.count > 0) {
            for (uint32_t i = 0; i < work.count; ++i) {
                if (work.items[i].op == PC_WORK_SYNCHRONIZE) {
                    EXPECT_EQ(api.context_synchronize(context()), PC_OK) << api.last_error();
                }
            }
            status = api.context_report(context(), request, PC_WORK_DONE, &work);
        }
        return status;
    }
    pc_status preparePrefill() {
        return run([&](pc_work* work) { return api.context_prepare_prefill(context(), request, work); });
    }
    pc_status capture() {
        return run([&](pc_work* work) { return api.context_capture_prefill(context(), request, work); });
    }
    /// One accepted token, behind so many that are committed.
    template <typename Step>
    pc_status advance(int32_t committed, Step step) {
        std::array<int64_t, 2> const cuts{0, 1};
        std::array<int32_t, 1> const token{7}, lengths{committed};
        auto accepted = detail::sized<pc_advance>();
        accepted.num_sequences = 1;
        accepted.tokens = token.data();
        accepted.token_offsets = cuts.data();
        accepted.committed = lengths.data();
        return run([&](pc_work* work) { return step(context(), request, &accepted, work); });
    }
    pc_status finalize() { return advance(9, api.context_finalize_prefill); }
    pc_status prepareDecode() {
        return run([&](pc_work* work) { return api.context_prepare_decode(context(), request, 0, 0, work); });
    }
    pc_status completeDecode() { return advance(10, api.context_complete_decode); }
    pc_status moveSlots() {
        std::array<int32_t, 2> const map{-1, 0};
        return api.context_move_slots(context(), PC_BASE, map.data(), map.size(), runtime.cache.lengths);
    }
    pc_status finish() {
        return run([&](pc_work* work) { return api.context_finish(context(), request, work); });
    }

    Runtime& runtime;
    pc_api const& api;
    std::vector<int32_t> tokens;
    pc_handle request = 0;
};

// A step on a stream that is being captured, or on a thread with another context, is
// refused before anything changed: it can be tried again, and ends well.
TEST_F(DeviceCoordinator, AStepThatCannotBeEnqueuedChangesNothing) {
    simcuda_reset(1);
    {
        Runtime runtime(1);
        OneRequest r(runtime);
        CUcontext own = nullptr;
        CUcontext other = nullptr;
        must(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
        must(cuCtxCreate(&other, 0, 0), "cuCtxCreate");
        must(cuCtxSetCurrent(own), "cuCtxSetCurrent");
        auto* const stream = reinterpret_cast<CUstream>(runtime.stream());
        using Step = pc_status (OneRequest::*)();
        for (Step step : {&OneRequest::preparePrefill, &OneRequest::capture, &OneRequest::finalize,
                          &OneRequest::prepareDecode, &OneRequest::completeDecode, &OneRequest::moveSlots}) {
            runtime.synchronize();
            bool const enqueues = step != &OneRequest::finalize;
            if (enqueues) {
                simcuda_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
                EXPECT_EQ((r.*step)(), PC_ERROR_WRONG_STATE);
                EXPECT_NE(std::string(r.api.last_error()).find("captured"), std::string::npos) << r.api.last_error();
                EXPECT_EQ(simcuda_end_capture(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "the capture is still good";
                must(cuCtxSetCurrent(other), "cuCtxSetCurrent");
                EXPECT_EQ((r.*step)(), PC_ERROR_INVALID_ARGUMENT);
                EXPECT_NE(std::string(r.api.last_error()).find("context"), std::string::npos) << r.api.last_error();
                must(cuCtxSetCurrent(own), "cuCtxSetCurrent");
            }
            ASSERT_EQ((r.*step)(), PC_OK) << r.api.last_error();
        }
        EXPECT_EQ(r.finish(), PC_OK) << r.api.last_error();
        runtime.checkTheEnd();
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// A synchronisation of a stream that is being captured is not tried: the driver would end
// that capture. Nothing is known to be wrong with the device then, so nothing is poisoned.
TEST_F(DeviceCoordinator, ASynchronisationThatCannotBeTriedPoisonsNothing) {
    simcuda_reset(1);
    {
        Runtime runtime(1);
        std::vector<Sequence> batch(1);
        batch[0].tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        ContextCacheBatchAdmission admission;
        admission.sequences.emplace_back();
        admission.sequences.back().tokenIds = batch[0].tokens;
        auto begun = runtime.coordinator->beginRequest(admission, runtime.stream());
        ASSERT_EQ(begun.status, Status::kOk);
        auto& request = begun.admission->request;
        runtime.coordinator->preparePrefill(request);
        auto* const stream = reinterpret_cast<CUstream>(runtime.stream());
        simcuda_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        EXPECT_EQ(Library::get().context_synchronize(handleOf(*runtime.coordinator)), PC_ERROR_WRONG_STATE);
        EXPECT_THROW(runtime.coordinator->finish(request), std::runtime_error);
        EXPECT_EQ(simcuda_end_capture(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "the capture is still good";
        EXPECT_FALSE(runtime.coordinator->metrics().poisoned);
        if (request.valid()) {
            EXPECT_EQ(runtime.coordinator->finish(request), Status::kOk);
        }
        EXPECT_EQ(runtime.coordinator->metrics().quarantinedRequests, 0U);
        runtime.checkTheEnd();
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// Each thread has a per-thread stream of its own. The first that works on it goes on: a
// step, a wait or an end of another thread would be of another stream, and is refused.
TEST_F(DeviceCoordinator, AStreamOfEachThreadBelongsToTheThreadThatWorksOnIt) {
    simcuda_reset(1);
    {
        Runtime runtime(1, reinterpret_cast<cudaStream_t>(CU_STREAM_PER_THREAD));
        simcuda_policy(SIMCUDA_LATE);
        CUcontext own = nullptr;
        must(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
        OneRequest r(runtime);
        auto const elsewhere = [&](auto const& body) {
            std::thread([&] {
                must(cuCtxSetCurrent(own), "cuCtxSetCurrent");
                body();
            }).join();
        };
        elsewhere([&] {  // created here, worked on there
            ASSERT_EQ(r.preparePrefill(), PC_OK) << r.api.last_error();
            EXPECT_GT(simcuda_queued(), 0U);
            auto const refused = [&](pc_status status) {
                EXPECT_EQ(status, PC_ERROR_INVALID_ARGUMENT);
                EXPECT_NE(std::string(r.api.last_error()).find("thread"), std::string::npos) << r.api.last_error();
            };
            elsewhere([&] {
                refused(r.capture());
                refused(r.moveSlots());
                refused(r.finish());
                refused(r.api.context_synchronize(r.context()));
                refused(r.api.context_abandon(r.context(), r.request, 1));
            });
            EXPECT_GT(simcuda_queued(), 0U);
            EXPECT_EQ(r.capture(), PC_OK) << r.api.last_error();
            EXPECT_EQ(r.finish(), PC_OK) << r.api.last_error();
            EXPECT_EQ(simcuda_queued(), 0U);
        });
        OneRequest next(runtime);  // no request was live: any thread may begin with the work
        EXPECT_EQ(next.preparePrefill(), PC_OK) << next.api.last_error();
        EXPECT_EQ(next.finish(), PC_OK) << next.api.last_error();
        runtime.checkTheEnd();
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// A handle that is dropped elsewhere, beside a synchronizer that waits for the stream of whoever calls
// it: the request is not lost, but kept until the coordinator is shut down.
TEST_F(DeviceCoordinator, AHandleDroppedByAThreadWithAnotherStreamIsQuarantined) {
    simcuda_reset(1);
    {
        auto* const each = reinterpret_cast<cudaStream_t>(CU_STREAM_PER_THREAD);
        auto const waits = [](cudaStream_t s) {
            return cuStreamSynchronize(reinterpret_cast<CUstream>(s)) == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown;
        };
        Runtime runtime(1, each, waits);
        simcuda_policy(SIMCUDA_LATE);
        CUcontext own = nullptr;
        must(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
        ContextCacheBatchAdmission admission;
        admission.sequences.resize(1);
        admission.sequences[0].tokenIds.assign(9, 1);
        auto begun = runtime.coordinator->beginRequest(admission, each);
        ASSERT_EQ(begun.status, Status::kOk);
        EXPECT_EQ(runtime.coordinator->preparePrefill(begun.admission->request), Status::kOk);
        EXPECT_GT(simcuda_queued(), 0U);
        std::thread([&] {
            must(cuCtxSetCurrent(own), "cuCtxSetCurrent");
            auto const dropped = std::move(begun.admission->request);
        }).join();
        EXPECT_GT(simcuda_queued(), 0U) << "what this thread enqueued nobody has waited for";
        EXPECT_TRUE(runtime.coordinator->metrics().poisoned);
        EXPECT_EQ(runtime.coordinator->metrics().quarantinedRequests, 1U);
        EXPECT_EQ(runtime.coordinator->shutdown(), Status::kOk);
        EXPECT_EQ(simcuda_queued(), 0U);
        runtime.checkTheEnd();
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// Moving slots takes lengths on the device only, and says so before it moves any.
TEST_F(DeviceCoordinator, MoveSlotsRefusesLengthsOfTheHost) {
    simcuda_reset(1);
    Runtime runtime(1);
    pc_api const& api = Library::get();
    std::array<int32_t, kBatch> host{};
    std::array<int32_t, 2> const map{-1, 0};
    auto const before = simcuda_calls("cuMemcpyDtoDAsync_v2");
    EXPECT_EQ(api.context_move_slots(handleOf(*runtime.coordinator), PC_BASE, map.data(), 2,
                                     reinterpret_cast<uint64_t>(host.data())),
              PC_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(api.last_error()).find("lengths"), std::string::npos) << api.last_error();
    EXPECT_EQ(simcuda_calls("cuMemcpyDtoDAsync_v2"), before);
}

// A host address for the batch mapping is refused before anything of the compaction began.
TEST_F(DeviceCoordinator, CompactionRefusesAMappingOfTheHost) {
    simcuda_reset(1);
    {
        Runtime runtime(1);
        OneRequest r(runtime);
        ASSERT_EQ(r.preparePrefill(), PC_OK);
        ASSERT_EQ(r.capture(), PC_OK);
        ASSERT_EQ(r.finalize(), PC_OK);
        std::array<int32_t, 1> const keep{0};
        std::array<int32_t, kBatch> host{};
        auto work = detail::sized<pc_work>();
        auto info = [&] {
            auto out = detail::sized<pc_request_info>();
            EXPECT_EQ(r.api.context_get_request(r.context(), r.request, &out), PC_OK);
            return out;
        };
        auto const before = info();
        EXPECT_EQ(r.api.context_begin_compaction(r.context(), r.request, keep.data(), 1, 1,
                                                 reinterpret_cast<uint64_t>(host.data()), &work),
                  PC_ERROR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(r.api.last_error()).find("device_mapping"), std::string::npos) << r.api.last_error();
        EXPECT_EQ(info().phase, before.phase);
        EXPECT_EQ(info().pending, before.pending);
        EXPECT_EQ(r.prepareDecode(), PC_OK) << r.api.last_error();
        EXPECT_EQ(r.finish(), PC_OK) << r.api.last_error();
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// A page table of another context cannot be reached from the coordinator's stream.
TEST_F(DeviceCoordinator, ATableOfAnotherContextIsRefused) {
    simcuda_reset(1);
    {
        Runtime runtime(1);
        runtime.coordinator.reset();
        CUcontext own = nullptr;
        CUcontext other = nullptr;
        must(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
        must(cuCtxCreate(&other, 0, 0), "cuCtxCreate");
        KVPageTable table(kBatch, kWidth, kPages);
        must(cuCtxSetCurrent(own), "cuCtxSetCurrent");
        ContextCacheConfig config;
        config.enabled = true;
        config.tokensPerPage = kPage;
        DeploymentConfig deployment;
        deployment.base.maxBatchSize = kBatch;
        try {
            ContextCacheCoordinator refused(config, deployment, Kind::kVanilla, {runtime.cache, table},
                                            runtime.stream());
            ADD_FAILURE() << "expected a refusal";
        } catch (std::exception const& e) {
            EXPECT_NE(std::string(e.what()).find("context"), std::string::npos) << e.what();
        }
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

// Whichever driver call of a destroy fails once, nothing is left behind.
TEST_F(DeviceCoordinator, DestroyGivesEverythingBackWhateverFails) {
    int failures = 0;
    for (int n = 1; n < 40 && !HasFailure(); ++n) {
        SCOPED_TRACE(n);
        {
            Runtime runtime(static_cast<uint64_t>(n));
            runtime.request();
            EXPECT_EQ(runtime.coordinator->shutdown(), Status::kOk);
            runtime.synchronize();
            simcuda_fail_nth(SIMCUDA_ANY, n, CUDA_ERROR_OUT_OF_MEMORY);
            runtime.coordinator.reset();
            failures += simcuda_armed() == 0 ? 1 : 0;
            simcuda_fail_nth(SIMCUDA_ANY, 0, CUDA_SUCCESS);
        }
        EXPECT_EQ(text(simcuda_report), "");
        EXPECT_EQ(text(simcuda_leaks), "");
    }
    EXPECT_GT(failures, 10);
}

// C-78: a runtime that uploads a table itself may do so on another stream, whose copy a
// synchronisation of the coordinator's stream says nothing about.
TEST_F(DeviceCoordinator, C78_AnUploadOnAnotherStreamIsWaitedFor) {
    simcuda_reset(1);
    {
        Runtime runtime(1);
        simcuda_policy(SIMCUDA_LATE);
        CUstream other = nullptr;
        must(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        pc_api const& api = Library::get();
        auto request = [&] {
            OneRequest r(runtime);
            EXPECT_EQ(r.preparePrefill(), PC_OK) << api.last_error();
            EXPECT_EQ(r.finish(), PC_OK) << api.last_error();
        };
        auto uploads = [] { return simcuda_calls("cuMemcpyHtoDAsync_v2"); };
        request();
        // The row that the next request will have is there already, so that it uploads
        // nothing, and waits for nothing, and only synchronises its own stream.
        std::array<int32_t, 1> const slot{0};
        std::array<int32_t, 3> const pages{3, 4, 5};
        std::array<int64_t, 2> const cuts{0, 3};
        auto const table = runtime.mTable.handle();
        EXPECT_EQ(api.table_set_rows(table, slot.data(), 1, pages.data(), cuts.data()), PC_OK) << api.last_error();
        EXPECT_EQ(api.table_upload(table, reinterpret_cast<uint64_t>(other), nullptr), PC_OK);
        auto const before = uploads();
        request();
        EXPECT_EQ(uploads(), before);
        request();
        EXPECT_EQ(uploads(), before + 1);
        must(cuStreamSynchronize(other), "cuStreamSynchronize");
        must(cuStreamDestroy(other), "cuStreamDestroy");
    }
    EXPECT_EQ(text(simcuda_report), "");
    EXPECT_EQ(text(simcuda_leaks), "");
}

TEST_F(DeviceCoordinator, BuffersThatAreNotOnTheDeviceAreRefused) {
    simcuda_reset(1);
    Runtime runtime(1);
    runtime.coordinator.reset();
    struct HostBuffers : DeviceCache {
        std::vector<RecurrentLayerBuffers> recurrentLayers() const override {
            auto out = DeviceCache::recurrentLayers();
            out[1].stateBase = const_cast<uint32_t*>(host.data());
            return out;
        }
        std::array<uint32_t, 64> host{};
    } cache;
    ContextCacheConfig config;
    config.enabled = true;
    config.tokensPerPage = kPage;
    config.recurrentSnapshotBudgetBytes = config.partialKvSnapshotBudgetBytes = 1 << 16;
    DeploymentConfig deployment;
    deployment.base.maxBatchSize = kBatch;
    EXPECT_THROW(ContextCacheCoordinator(config, deployment, Kind::kHybrid, {cache, runtime.mTable}, runtime.stream()),
                 std::runtime_error);
    config.hostMemory = true;  // the table is on the device
    EXPECT_THROW(ContextCacheCoordinator(config, deployment, Kind::kHybrid, {cache, runtime.mTable}, runtime.stream()),
                 std::runtime_error);
}

}  // namespace
