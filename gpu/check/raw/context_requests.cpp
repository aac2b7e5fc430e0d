// Random requests through ContextCacheCoordinator on device memory: prefixes are reused,
// snapshots captured, restored and published, batches compacted, requests dropped. Every
// byte that is reused is read back through the page table and compared, and the state is
// overwritten right behind each capture.
#include <algorithm>
#include <memory>

#include "checks.hpp"
#include "device_cache.hpp"
#include "omni_cache.hpp"

namespace check {

namespace {

using namespace prefixcache;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;

/// One sequence and what a model would have computed for it.
struct Row {
    std::vector<int32_t> tokens;
    int32_t committed = 0;

    /// A number that depends on exactly the first `length` tokens.
    uint64_t code(int32_t length) {
        while (static_cast<int32_t>(codes.size()) <= length)
            codes.push_back(mix(codes.back(), static_cast<uint64_t>(tokens[codes.size() - 1])));
        return codes[static_cast<size_t>(length)];
    }

    std::vector<uint64_t> codes{0x9e37};
};

class Rig {
  public:
    Rig(uint64_t seed, Kind kind)
        : mDraw(seed),
          mStream(CU_STREAM_NON_BLOCKING),
          mDesk(mStream, 1 << 20),
          mCache(shapeFor(kind)),
          mDeviceMapping(static_cast<size_t>(mCache.shape.maxBatch) * sizeof(int32_t)),
          mTable(mCache.shape.maxBatch, mCache.shape.width, mCache.shape.pages) {
        for (auto const* memories : {&mCache.state, &mCache.conv, &mCache.kv})
            for (auto const& m : *memories) CHECK_CUDA(cuMemsetD8Async(m.at(), 0xEE, m.bytes(), mStream));
        ContextCacheConfig config;
        config.enabled = true;
        config.tokensPerPage = mCache.shape.tokensPerPage;
        config.maxRecords = 12;
        if (kind == Kind::kHybrid) {
            config.recurrentSnapshotBudgetBytes = 6 * mCache.shape.recurrentSlotBytes();
            config.partialKvSnapshotBudgetBytes = 6 * mCache.shape.partialSlotBytes();
        }
        DeploymentConfig deployment;
        deployment.base.maxBatchSize = mCache.shape.maxBatch;
        // Half of the time the library waits for the stream by itself.
        ContextCacheCoordinator::StreamSynchronizer synchronizer;
        if (mDraw.oneIn(2)) {
            synchronizer = [](cudaStream_t stream) {
                return driver().cuStreamSynchronize(DeviceCache::of(stream)) == CUDA_SUCCESS ? cudaSuccess
                                                                                             : cudaErrorUnknown;
            };
        }
        mCoordinator = std::make_unique<ContextCacheCoordinator>(
            config, deployment, kind, ContextCachePhysicalResources{mCache, mTable}, raw(), synchronizer);
        if (mDraw.oneIn(2)) mCache.mover = mCoordinator.get();
    }

    void serve() {
        ContextCacheBatchAdmission admission;
        mRows.clear();
        for (int n = 1 + mDraw.below(3); n > 0; --n) {
            Row row;
            // Prompts that are prefixes of each other: a snapshot serves only what continues it.
            int const family = mDraw.below(2), shared = 1 + mDraw.below(20), own = mDraw.oneIn(2) ? 0 : mDraw.below(6);
            for (int i = 0; i < shared; ++i) row.tokens.push_back(100 * (family + 1) + i);
            for (int i = 0; i < own; ++i) row.tokens.push_back(1000 + static_cast<int32_t>(mDraw.next() % 100000));
            ContextCacheSequenceAdmission sequence;
            sequence.tokenIds = row.tokens;
            admission.sequences.push_back(sequence);
            mRows.push_back(row);
        }
        auto begun = mCoordinator->beginRequest(admission, raw());
        if (begun.status == Status::kRequestFailed) return;
        expect(begun.status == Status::kOk, "beginRequest failed");
        auto& request = begun.admission->request;
        prefill(request, begun.admission->prefillStarts);
        for (int steps = mDraw.below(6); steps > 0 && !mRows.empty(); --steps) {
            if (mDraw.oneIn(12)) return;  // dropped: drained, and nothing more is published
            if (!decode(request, steps == 1)) break;
            if (mRows.size() > 1 && mDraw.oneIn(3)) compact(request);
        }
        expect(mCoordinator->finish(request) == Status::kOk, "finish failed");
    }

    void end() {
        mCoordinator->manager().checkInvariants();
        mTable.checkInvariants();
        auto const metrics = mCoordinator->metrics();
        reused = metrics.reusedTokens;
        restores = metrics.hybridRestores;
        expect(mCoordinator->shutdown() == Status::kOk, "shutdown failed");
        mStream.wait();
    }

    uint64_t reused = 0, restores = 0;

  private:
    static CacheShape shapeFor(Kind kind) {
        CacheShape shape;
        if (kind == Kind::kVanilla) shape.recurrentLayers = 0;
        return shape;
    }

    cudaStream_t raw() const { return reinterpret_cast<cudaStream_t>(static_cast<CUstream>(mStream)); }

    void prefill(ContextCacheCoordinator::RequestHandle& request, std::vector<int32_t> const& starts) {
        expect(mCoordinator->preparePrefill(request) == Status::kOk, "preparePrefill failed");
        for (size_t slot = 0; slot < mRows.size(); ++slot) {
            mRows[slot].committed = starts[slot];
            expectTable(static_cast<int32_t>(slot));
            expectKv(static_cast<int32_t>(slot), starts[slot]);
            expectState(static_cast<int32_t>(slot), starts[slot]);
        }
        mDesk.wait();
        if (mDraw.oneIn(3)) mStream.delay(driver().simulated() ? 0 : 500);
        std::vector<int32_t> tokens(mRows.size());
        std::vector<ContextCacheSequenceAdvance> advances;
        for (size_t slot = 0; slot < mRows.size(); ++slot) {
            Row& row = mRows[slot];
            auto const n = static_cast<int32_t>(row.tokens.size());
            compute(static_cast<int32_t>(slot), n);
            tokens[slot] = 5000 + mDraw.below(5);
            advances.push_back({&tokens[slot], 1, n});
        }
        expect(mCoordinator->enqueuePrefillCaptures(request) == Status::kOk, "enqueuePrefillCaptures failed");
        for (auto const* memories : {&mCache.state, &mCache.conv})  // the next forward comes at once
            for (auto const& m : *memories) CHECK_CUDA(cuMemsetD8Async(m.at(), 0xEE, m.bytes(), mStream));
        mDesk.wait();
        expect(mCoordinator->finalizePrefillPublication(request, advances) == Status::kOk, "finalize failed");
        for (size_t slot = 0; slot < mRows.size(); ++slot) mRows[slot].tokens.push_back(tokens[slot]);
    }

    bool decode(ContextCacheCoordinator::RequestHandle& request, bool last) {
        Status const prepared = mCoordinator->prepareDecodeStep(request);
        if (prepared == Status::kRequestFailed) return false;
        expect(prepared == Status::kOk, "prepareDecodeStep failed");
        std::vector<int32_t> tokens(mRows.size()), done;
        std::vector<ContextCacheSequenceAdvance> advances;
        for (size_t slot = 0; slot < mRows.size(); ++slot) {
            Row& row = mRows[slot];
            compute(static_cast<int32_t>(slot), row.committed + 1);
            tokens[slot] = 5000 + mDraw.below(5);
            advances.push_back({&tokens[slot], 1, row.committed});
            if (last) done.push_back(static_cast<int32_t>(slot));
        }
        mDesk.wait();
        expect(mCoordinator->completeDecodeStep(request, advances, done) == Status::kOk, "completeDecodeStep failed");
        for (size_t slot = 0; slot < mRows.size(); ++slot) mRows[slot].tokens.push_back(tokens[slot]);
        return true;
    }

    void compact(ContextCacheCoordinator::RequestHandle& request) {
        std::vector<int32_t> mapping;
        std::vector<Row> kept;
        for (auto const& row : mRows) {
            bool const stays = mDraw.oneIn(2);
            mapping.push_back(stays ? static_cast<int32_t>(kept.size()) : -1);
            if (stays) kept.push_back(row);
        }
        if (kept.empty()) return;
        Tensor device(mDeviceMapping.as<int32_t>(), DataType::kInt32, mCache.shape.maxBatch);
        auto const batch = static_cast<int32_t>(kept.size());
        expect(mCoordinator->beginBatchCompaction(request, mapping, batch, device) == Status::kOk, "begin compaction");
        mDesk.expectAt(
            mDeviceMapping.at(), mapping.size() * sizeof(int32_t),
            [&](uint8_t* want) { std::memcpy(want, mapping.data(), mapping.size() * sizeof(int32_t)); },
            "the mapping on the device");
        mDesk.wait();
        expect(mCoordinator->compactBatch(request) == Status::kOk, "compactBatch failed");
        expect(mCache.activeBatch == batch, "the active batch was not set");
        mRows = std::move(kept);
        for (int32_t slot = 0; slot < batch; ++slot) {
            expectTable(slot);
            expectKv(slot, mRows[static_cast<size_t>(slot)].committed);
            expectState(slot, mRows[static_cast<size_t>(slot)].committed);
        }
        mDesk.wait();
    }

    // ------------------------------------------------------------------ device memory

    /// What the model leaves behind once `length` tokens of a slot are computed.
    void compute(int32_t slot, int32_t length) {
        Row& row = mRows[static_cast<size_t>(slot)];
        auto const& shape = mCache.shape;
        pages(slot, row.committed, length,
              [&](CUdeviceptr at, size_t bytes, auto const& fill, auto const&) { mDesk.put(at, bytes, fill); });
        for (size_t layer = 0; layer < mCache.state.size(); ++layer) {
            auto const at = static_cast<size_t>(slot);
            mDesk.put(mCache.state[layer].at(at * shape.stateBytes()), shape.stateBytes(),
                      [&](uint8_t* to) { fillBytes(to, shape.stateBytes(), mix(row.code(length), 100 + layer)); });
            mDesk.put(mCache.conv[layer].at(at * shape.convBytes()), shape.convBytes(),
                      [&](uint8_t* to) { fillBytes(to, shape.convBytes(), mix(row.code(length), 200 + layer)); });
        }
        mDesk.put(mCache.lengths.at(static_cast<size_t>(slot) * sizeof(int32_t)), sizeof(int32_t),
                  [&](uint8_t* to) { std::memcpy(to, &length, sizeof length); });
        row.committed = length;
    }

    void expectTable(int32_t slot) {
        auto const ids = mTable.row(slot);
        size_t const bytes = ids.size() * sizeof(int32_t);
        auto const base = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(mTable.devicePointer()));
        mDesk.expectAt(
            base + static_cast<size_t>(slot) * bytes, bytes,
            [&](uint8_t* want) { std::memcpy(want, ids.data(), bytes); },
            "row " + std::to_string(slot) + " of the device table");
    }

    void expectKv(int32_t slot, int32_t length) {
        pages(slot, 0, length, [&](CUdeviceptr at, size_t bytes, auto const& fill, auto const& name) {
            mDesk.expectAt(at, bytes, fill, name());
        });
    }

    void expectState(int32_t slot, int32_t length) {
        auto const& shape = mCache.shape;
        Row& row = mRows[static_cast<size_t>(slot)];
        auto const at = static_cast<size_t>(slot);
        for (size_t layer = 0; layer < mCache.state.size(); ++layer) {
            auto const content = [&](uint8_t* want, size_t bytes, uint64_t salt) {
                if (length > 0) {
                    fillBytes(want, bytes, mix(row.code(length), salt + layer));
                } else {
                    std::memset(want, 0, bytes);  // a cold sequence begins with zeros
                }
            };
            auto const name = "of slot " + std::to_string(slot) + " at " + std::to_string(length) + " tokens";
            mDesk.expectAt(
                mCache.state[layer].at(at * shape.stateBytes()), shape.stateBytes(),
                [&](uint8_t* want) { content(want, shape.stateBytes(), 100); }, "the state " + name);
            mDesk.expectAt(
                mCache.conv[layer].at(at * shape.convBytes()), shape.convBytes(),
                [&](uint8_t* want) { content(want, shape.convBytes(), 200); }, "the convolution state " + name);
        }
        mDesk.expectAt(
            mCache.lengths.at(at * sizeof(int32_t)), sizeof(int32_t),
            [&](uint8_t* want) { std::memcpy(want, &length, sizeof length); },
            "the length of slot " + std::to_string(slot));
    }

    /// Calls `use` for the tokens [first, last) of a slot, page by page, for K and V of
    /// every layer.
    template <typename F>
    void pages(int32_t slot, int32_t first, int32_t last, F&& use) {
        auto const& shape = mCache.shape;
        Row& row = mRows[static_cast<size_t>(slot)];
        auto const ids = mTable.row(slot);
        for (int32_t at = first; at < last;) {
            int32_t const inPage = at % shape.tokensPerPage, page = at / shape.tokensPerPage;
            int32_t const n = std::min(shape.tokensPerPage - inPage, last - at);
            for (int32_t half = 0; half < 2; ++half) {
                int32_t const id = ids[static_cast<size_t>(half * shape.width + page)];
                expect(id >= 0, "slot " + std::to_string(slot) + " has no page for token " + std::to_string(at));
                for (size_t layer = 0; layer < mCache.kv.size(); ++layer) {
                    auto const salt = layer * 2 + static_cast<size_t>(half);
                    auto const fill = [&](uint8_t* to) {
                        for (int32_t i = 0; i < n; ++i)
                            fillBytes(to + static_cast<size_t>(i) * shape.tokenBytes(), shape.tokenBytes(),
                                      mix(row.code(at + i + 1), salt));
                    };
                    auto const name = [&] {
                        return std::string(half ? "V" : "K") + " of slot " + std::to_string(slot) + ", token " +
                               std::to_string(at);
                    };
                    use(mCache.tokenAt(layer, id, inPage), static_cast<size_t>(n) * shape.tokenBytes(), fill, name);
                }
            }
            at += n;
        }
    }

    Draw mDraw;
    Stream mStream;
    Desk mDesk;
    DeviceCache mCache;
    DeviceMemory mDeviceMapping;
    KVPageTable mTable;
    std::unique_ptr<ContextCacheCoordinator> mCoordinator;  // goes first
    std::vector<Row> mRows;
};

std::string playAll(Effort const& effort, Kind kind) {
    auto const start = Clock::now();
    uint64_t seed = 0, reused = 0, restores = 0;
    for (; seed < effort.seeds && seconds(start) < effort.seconds; ++seed) {
        driver().begin(seed);
        try {
            Rig rig(seed, kind);
            for (int i = 0; i < 30; ++i) rig.serve();
            rig.end();
            reused += rig.reused;
            restores += rig.restores;
        } catch (std::exception const& e) {
            fail("seed " + std::to_string(seed) + ": " + e.what());
        }
        auto const faults = driver().faults();
        expect(faults.empty(), "seed " + std::to_string(seed) + ": " + faults);
    }
    expect(seed > 0 && reused > 0, "nothing was exercised");
    expect(kind != Kind::kHybrid || restores > 0, "no snapshot was restored");
    return std::to_string(seed) + " runs of 30 requests, " + std::to_string(reused) + " tokens reused" +
           (kind == Kind::kHybrid ? ", " + std::to_string(restores) + " snapshots restored" : "");
}

/// Everything here that is no call of the library is harmless to a capture.
std::string comesAndGoesBesideACapture() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Stream const captured(CU_STREAM_NON_BLOCKING);
    DeviceCache cache{CacheShape{}};
    auto const& shape = cache.shape;
    auto const raw = reinterpret_cast<cudaStream_t>(static_cast<CUstream>(stream));
    CaptureElsewhere capture(captured);
    {
        KVPageTable table(shape.maxBatch, shape.width, shape.pages);
        table.setIdentity();
        table.upload(raw);
        ContextCacheConfig config;
        config.enabled = true;
        config.tokensPerPage = shape.tokensPerPage;
        config.recurrentSnapshotBudgetBytes = 6 * shape.recurrentSlotBytes();
        config.partialKvSnapshotBudgetBytes = 6 * shape.partialSlotBytes();
        DeploymentConfig deployment;
        deployment.base.maxBatchSize = shape.maxBatch;
        ContextCacheCoordinator coordinator(config, deployment, Kind::kHybrid, {cache, table}, raw);
        expect(coordinator.shutdown() == Status::kOk, "shutdown failed");
    }
    capture.end();
    return "made, used and given back";
}

}  // namespace

void contextRequests(Effort const& effort) {
    run("context, raw streams: a page table and a coordinator come and go beside a capture of another thread", [] {
        driver().begin(7);
        auto const detail = comesAndGoesBesideACapture();
        auto const faults = driver().faults();
        expect(faults.empty(), faults);
        return detail;
    });
    run("context, raw streams: random requests, every reused byte read back (vanilla)",
        [&] { return playAll(effort, Kind::kVanilla); });
    run("context, raw streams: random requests, every reused byte read back (hybrid)",
        [&] { return playAll(effort, Kind::kHybrid); });
}

}  // namespace check
