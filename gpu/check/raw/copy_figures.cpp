// What the library's copies cost beside the plain driver calls that move as many bytes:
// page-table uploads, snapshots, and the rows of a step on their way to the host. Each
// pair is taken in turn, and medians are reported; nothing here passes or fails.
#include <cstdio>
#include <numeric>
#include <thread>

#include "checks.hpp"
#include "device_cache.hpp"
#include "omni_cache.hpp"

namespace check {

namespace {

using namespace prefixcache;

/// Host seconds of a call.
template <typename F>
double timed(F&& call) {
    auto const start = Clock::now();
    call();
    return seconds(start);
}

std::string mebibytes(size_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}

/// Device seconds of what a call enqueues. The stream is kept busy meanwhile, so that the
/// host's time between two copies does not count.
template <typename F>
double onDevice(Stream const& stream, F&& call) {
    Event const start(Event::kTimed), stop(Event::kTimed);
    stream.delay(3000);
    start.record(stream);
    call();
    stop.record(stream);
    stop.wait();
    return stop.since(start);
}

void uploads(int rounds) {
    constexpr int32_t kBatch = 256, kWidth = 256, kPages = kBatch * kWidth;
    Stream const stream(CU_STREAM_NON_BLOCKING);
    KVPageTable table(kBatch, kWidth, kPages);
    size_t const rowBytes = 2 * kWidth * sizeof(int32_t);
    PinnedMemory const host(kBatch * rowBytes);
    DeviceMemory const plain(kBatch * rowBytes);
    std::memset(host.as(), 0, host.bytes());
    auto const raw = reinterpret_cast<cudaStream_t>(static_cast<CUstream>(stream));
    table.upload(raw);
    stream.wait();
    int32_t page = 0;
    for (int32_t dirty : {1, 16, kBatch}) {
        auto const change = [&] {
            std::vector<int32_t> pages(kWidth);
            for (int32_t i = 0; i < dirty; ++i) {
                std::iota(pages.begin(), pages.end(), page = (page + 1) % (kPages - kWidth));
                table.setRow(i * (kBatch / dirty), pages);
            }
        };
        size_t const bytes = static_cast<size_t>(dirty) * rowBytes;
        auto const ours = [&] { table.upload(raw); };
        auto const theirs = [&] { CHECK_CUDA(cuMemcpyHtoDAsync(plain.at(), host.as(), bytes, stream)); };
        auto const name = "page table upload, " + std::to_string(dirty) + " of 256 rows of 2 KiB, ";
        std::string const reference = "one cuMemcpyAsync of as many bytes";
        auto const [a, b] = inTurn(
            rounds,
            [&] {
                change();
                double const s = timed(ours);
                stream.wait();
                return s;
            },
            [&] {
                double const s = timed(theirs);
                stream.wait();
                return s;
            });
        figure(name + "host time", a * 1e6, "us", b * 1e6, reference);
        auto const [c, d] = inTurn(
            std::min(rounds, 30),
            [&] {
                change();
                return onDevice(stream, ours);
            },
            [&] { return onDevice(stream, theirs); });
        figure(name + "device time", c * 1e6, "us", d * 1e6, reference);
    }
}

void snapshots(int rounds) {
    using Status = ContextCacheCoordinatorStatus;
    CacheShape shape;
    shape.pages = 64;
    shape.tokensPerPage = 128;
    shape.attentionLayers = 8;
    shape.kvHeads = 8;
    shape.headDim = 128;
    shape.recurrentLayers = 24;
    shape.heads = 32;
    shape.stateDim = 128;
    shape.stateSize = 64;
    shape.convDim = 4096;
    shape.convKernel = 4;
    constexpr int32_t kPrompt = 192;  // a page and a half
    Stream const stream(CU_STREAM_NON_BLOCKING);
    DeviceCache cache(shape);
    KVPageTable table(shape.maxBatch, shape.width, shape.pages);
    size_t const bytes =
        static_cast<size_t>(shape.recurrentSlotBytes() + shape.partialSlotBytes() / shape.tokensPerPage * 64);
    DeviceMemory const from(bytes), to(bytes);
    ContextCacheConfig config;
    config.enabled = true;
    config.recurrentSnapshotBudgetBytes = 4 * shape.recurrentSlotBytes();
    config.partialKvSnapshotBudgetBytes = 4 * shape.partialSlotBytes();
    DeploymentConfig deployment;
    deployment.base.maxBatchSize = shape.maxBatch;
    auto const raw = reinterpret_cast<cudaStream_t>(static_cast<CUstream>(stream));
    ContextCacheCoordinator coordinator(config, deployment, ContextCacheDeploymentKind::kHybrid, {cache, table}, raw);
    int32_t salt = 0;
    std::vector<double> captureHost, restoreHost;

    auto const begin = [&](int32_t tokens) {
        ContextCacheBatchAdmission admission;
        admission.sequences.resize(1);
        for (int32_t i = 0; i < tokens; ++i) admission.sequences[0].tokenIds.push_back(salt * 1000 + i);
        auto begun = coordinator.beginRequest(admission, raw);
        expect(begun.status == Status::kOk, "beginRequest failed");
        return std::move(*begun.admission);
    };
    // A cold request whose capture is timed; its snapshot is what restore() finds.
    auto const capture = [&] {
        ++salt;
        auto admitted = begin(kPrompt);
        coordinator.preparePrefill(admitted.request);
        stream.wait();
        double host = 0;
        double const device =
            onDevice(stream, [&] { host = timed([&] { coordinator.enqueuePrefillCaptures(admitted.request); }); });
        captureHost.push_back(host);
        int32_t const token = 7;
        coordinator.finalizePrefillPublication(admitted.request, {{&token, 1, kPrompt}});
        coordinator.finish(admitted.request);
        return device;
    };
    auto const restore = [&] {
        capture();
        auto admitted = begin(kPrompt + 10);
        expect(admitted.prefillStarts[0] == kPrompt, "the snapshot was not found");
        double host = 0;
        double const device =
            onDevice(stream, [&] { host = timed([&] { coordinator.preparePrefill(admitted.request); }); });
        restoreHost.push_back(host);
        coordinator.finish(admitted.request);
        return device;
    };
    auto const copy = [&] {
        return onDevice(stream, [&] { CHECK_CUDA(cuMemcpyDtoDAsync(to.at(), from.at(), bytes, stream)); });
    };
    std::string const reference = "one cuMemcpyAsync of as many bytes";
    std::string const size = " of a snapshot (" + mebibytes(bytes) + ", 24 recurrent and 8 attention layers), ";
    int const few = std::min(rounds, 20);
    auto const [a, b] = inTurn(few, capture, copy);
    auto const [c, d] = inTurn(few, restore, copy);
    std::vector<double> copyHost;
    for (int i = 0; i < few; ++i) {
        copyHost.push_back(timed([&] { CHECK_CUDA(cuMemcpyDtoDAsync(to.at(), from.at(), bytes, stream)); }));
        stream.wait();
    }
    figure("capture" + size + "device time", a * 1e6, "us", b * 1e6, reference);
    figure("capture" + size + "host time", median(captureHost) * 1e6, "us", median(copyHost) * 1e6, reference);
    figure("restore" + size + "device time", c * 1e6, "us", d * 1e6, reference);
    figure("restore" + size + "host time", median(restoreHost) * 1e6, "us", median(copyHost) * 1e6, reference);
    coordinator.shutdown();
}

/// Steps of two keys: from the save to rows in the result, and the host time of the save.
void steps(int rounds) {
    constexpr int64_t kRow = 4096;
    Stream const stream(CU_STREAM_NON_BLOCKING);
    for (int64_t tokens : {int64_t{256}, int64_t{8192}}) {
        int64_t const perRequest = tokens / 256;
        size_t const bytes = static_cast<size_t>(2 * tokens * kRow);
        OmniCache cache(
            (tokens + 15) / 16, 16,
            {{PC_OMNI_HIDDEN_KEY, kRow, kRow, PC_OMNI_JOIN_NEXT_STEP}, {"mm", kRow, kRow, PC_OMNI_JOIN_NEXT_STEP}}, 4,
            tokens);
        DeviceMemory const rows(bytes), frozen(bytes);
        PinnedMemory const landing(bytes);
        std::vector<uint8_t> result(bytes);
        std::vector<uint64_t> requests(256);
        std::vector<int64_t> counts(256, perRequest), slots(static_cast<size_t>(tokens));
        std::iota(requests.begin(), requests.end(), uint64_t{1});
        std::iota(slots.begin(), slots.end(), int64_t{0});
        Event const marked(Event::kAsTheLibrarys), landed(Event::kAsTheLibrarys);
        Stream const copies(CU_STREAM_NON_BLOCKING);
        auto const save = [&] {
            uint64_t step = 0;
            CHECK_OK(omni_step_begin(cache.handle, nullptr, 0, nullptr, 0, nullptr));
            ok(cache.save(stream, requests, counts, slots, {rows.at(), rows.at(bytes / 2)}, &step), "omni_save");
            return step;
        };
        auto const materialize = [&](uint64_t step) {
            pc_omni_read reads[2] = {};
            for (size_t k = 0; k < 2; ++k) {
                reads[k].key = cache.keys[k].number;
                reads[k].count = 256;
                reads[k].dst = result.data() + k * bytes / 2;
                reads[k].dst_bytes = bytes / 2;
            }
            CHECK_OK(omni_materialize(cache.handle, step, reads, 2));
        };
        auto const settle = [&] {
            while (cache.stats().pending_writes > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        };
        // The driver calls of one save, and no more.
        auto const bare = [&] {
            for (size_t k = 0; k < 2; ++k)
                CHECK_CUDA(cuMemcpyDtoDAsync(frozen.at(k * bytes / 2), rows.at(k * bytes / 2), bytes / 2, stream));
            marked.record(stream);
            CHECK_CUDA(cuStreamWaitEvent(copies, marked, 0));
            CHECK_CUDA(cuMemcpyDtoHAsync(landing.as(), frozen.at(), bytes, copies));
            landed.record(copies);
        };
        std::string const name = "step of 256 requests, " + std::to_string(perRequest) + " tokens each, two keys (" +
                                 mebibytes(bytes) + "), ";
        int const n = tokens > 1000 ? std::min(rounds, 30) : rounds;
        for (int i = 0; i < 5; ++i) {  // staging is pinned, the mirror touched
            materialize(save());
            settle();
        }
        std::vector<double> saves, calls;
        auto const [ours, theirs] = inTurn(
            n,
            [&] {
                auto const start = Clock::now();
                uint64_t const step = save();
                saves.push_back(seconds(start));
                materialize(step);
                double const all = seconds(start);
                settle();
                return all;
            },
            [&] {
                auto const start = Clock::now();
                bare();
                calls.push_back(seconds(start));
                landed.wait();
                return seconds(start);
            });
        figure(name + "host time of the save", median(saves) * 1e6, "us", median(calls) * 1e6,
               "its driver calls alone");
        auto const gigabytes = static_cast<double>(bytes) / 1e9;
        figure(name + "save until the rows are in the result", gigabytes / ours, "GB/s", gigabytes / theirs,
               "freeze and pinned copy to the host alone");
        if (perRequest == 1) continue;
        // What the library does not do: a copy for each run, straight to where it belongs.
        size_t const run = static_cast<size_t>(perRequest * kRow);
        auto const [staged, straight] = inTurn(
            n,
            [&] {
                auto const start = Clock::now();
                CHECK_OK(omni_discard(cache.handle, save()));
                settle();
                return seconds(start);
            },
            [&] {
                auto const start = Clock::now();
                for (size_t k = 0; k < 2; ++k)
                    CHECK_CUDA(cuMemcpyDtoDAsync(frozen.at(k * bytes / 2), rows.at(k * bytes / 2), bytes / 2, stream));
                marked.record(stream);
                CHECK_CUDA(cuStreamWaitEvent(copies, marked, 0));
                for (size_t at = 0; at < bytes; at += run)
                    CHECK_CUDA(cuMemcpyDtoHAsync(landing.as(at), frozen.at(at), run, copies));
                landed.record(copies);
                landed.wait();
                return seconds(start);
            });
        figure(name + "save until the rows are in the cache", gigabytes / staged, "GB/s", gigabytes / straight,
               "freeze and a pinned copy of each run of " + std::to_string(run >> 10) + " KiB");
    }
}

/// The host time of saves that pin memory first, while their stream is busy for 100 ms: as
/// much or more would mean that pinning waits for the device.
void pinning(int rounds) {
    constexpr int64_t kRow = 4096, kFew = 256, kMany = 8192;
    constexpr int kPages = 4;
    Stream const stream(CU_STREAM_NON_BLOCKING);
    DeviceMemory const rows(kMany * kRow);
    std::vector<int64_t> slots(kMany);
    std::iota(slots.begin(), slots.end(), int64_t{0});
    std::vector<double> further, larger, pinned;
    for (int round = 0; round < rounds; ++round) {
        OmniCache cache(kMany / 16, 16, {{PC_OMNI_HIDDEN_KEY, kRow, kRow, PC_OMNI_JOIN_NEXT_STEP}}, kPages, kMany);
        std::vector<uint64_t> open;
        auto const save = [&](int64_t tokens) {
            uint64_t step = 0;
            CHECK_OK(omni_step_begin(cache.handle, nullptr, 0, nullptr, 0, nullptr));
            ok(cache.save(stream, {1}, {tokens}, {slots.begin(), slots.begin() + tokens}, {rows.at()}, &step),
               "omni_save");
            open.push_back(step);
        };
        auto const settle = [&] {
            while (cache.stats().pending_writes > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        };
        auto const whileBusy = [&] {
            settle();
            stream.delay(100'000);
            return timed([&] { save(kMany); });
        };
        auto const consumeAll = [&] {
            for (uint64_t const step : open) CHECK_OK(omni_discard(cache.handle, step));
            open.clear();
            settle();
        };
        // A step takes the first page that nobody needs, so pages are pinned one by one
        // while nobody consumes their steps.
        save(kFew);
        save(kMany);
        for (int i = 2; i < kPages; ++i) further.push_back(whileBusy());
        consumeAll();
        larger.push_back(whileBusy());
        for (int i = 1; i < kPages; ++i) pinned.push_back(whileBusy());
        consumeAll();
    }
    std::string const name = "save of " + mebibytes(kMany * kRow) + " behind 100 ms of work, ";
    double const reference = median(pinned) * 1e6;
    std::string const same = "the same save with every page pinned";
    figure(name + "pins a further staging page, host time", median(further) * 1e6, "us", reference, same);
    figure(name + "pins a larger staging page, host time", median(larger) * 1e6, "us", reference, same);
}

}  // namespace

void copyFigures(int rounds) {
    driver().begin(1);
    run("figures: page tables", [&] {
        uploads(rounds);
        return std::string();
    });
    run("figures: snapshots", [&] {
        snapshots(rounds);
        return std::string();
    });
    run("figures: rows", [&] {
        steps(rounds);
        return std::string();
    });
    run("figures: pinning", [&] {
        pinning(std::min(rounds, 3));
        return std::string();
    });
}

}  // namespace check
