// Page tables in device memory (C-76 to C-79). Behind every upload a copy of the whole
// device table is enqueued on the same stream; later it has to say what the host side
// said at the time of the upload, however many uploads followed without a wait.
#include <prefixcache/kv_page_table.hpp>

#include <memory>

#include "checks.hpp"
#include "driver.hpp"
#include "omni_cache.hpp"

namespace check {

namespace {

constexpr int32_t kBatch = 17, kWidth = 9, kPages = 512;
constexpr int kUploads = 24;
constexpr size_t kRow = 2 * kWidth, kTable = kRow * kBatch;  // entries

std::vector<int32_t> hostSide(prefixcache::KVPageTable const& table) {
    std::vector<int32_t> all;
    for (int32_t slot = 0; slot < kBatch; ++slot) {
        auto const row = table.row(slot);
        all.insert(all.end(), row.begin(), row.end());
    }
    return all;
}

void change(prefixcache::KVPageTable& table, Draw& draw) {
    if (draw.oneIn(6)) {
        // Survivors move down.
        std::vector<int32_t> mapping;
        int32_t next = 0;
        for (int32_t slot = 0; slot < kBatch; ++slot) mapping.push_back(draw.oneIn(3) ? -1 : next++);
        return table.compactRows(mapping, next);
    }
    for (int n = draw.below(4); n > 0; --n) {
        std::vector<int32_t> pages(static_cast<size_t>(draw.below(kWidth + 1)));
        for (auto& page : pages) page = draw.below(kPages);
        table.setRow(draw.below(kBatch), pages);
    }
}

void play(uint64_t seed, bool graph) {
    Draw draw(seed);
    Stream const stream(CU_STREAM_NON_BLOCKING);
    std::vector<PinnedMemory> seen;
    std::vector<std::vector<int32_t>> said;
    DeviceMemory const reader(kTable * sizeof(int32_t));
    for (int i = 0; i < kUploads; ++i) seen.emplace_back(kTable * sizeof(int32_t));
    {
        prefixcache::KVPageTable table(kBatch, kWidth, kPages);
        auto const address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(table.devicePointer()));
        std::unique_ptr<Graph> replay;
        if (graph) {
            // A kernel that keeps the table's address: one address for life.
            replay = std::make_unique<Graph>(
                stream, [&] { CHECK_CUDA(cuMemcpyDtoDAsync(reader.at(), address, reader.bytes(), stream)); });
        }
        for (int i = 0; i < kUploads; ++i) {
            change(table, draw);
            if (draw.oneIn(4)) stream.delay(driver().simulated() ? 0 : 500);
            table.upload(reinterpret_cast<cudaStream_t>(static_cast<CUstream>(stream)));
            expect(table.dirtyRows() == 0, "rows are dirty after an upload");
            said.push_back(hostSide(table));
            if (replay) {
                replay->launch(stream);
            } else {
                CHECK_CUDA(cuMemcpyDtoDAsync(reader.at(), address, reader.bytes(), stream));
            }
            CHECK_CUDA(cuMemcpyDtoHAsync(seen[static_cast<size_t>(i)].as(), reader.at(), reader.bytes(), stream));
        }
        stream.wait();
        table.checkInvariants();
        for (size_t i = 0; i < kUploads; ++i)
            expect(std::memcmp(seen[i].as(), said[i].data(), kTable * sizeof(int32_t)) == 0,
                   "the device table after upload " + std::to_string(i) + " is not the host's");
    }
}

std::string playAll(Effort const& effort, bool graph) {
    auto const start = Clock::now();
    uint64_t seed = 0;
    for (; seed < effort.seeds && seconds(start) < effort.seconds; ++seed) {
        driver().begin(seed);
        try {
            play(seed, graph);
        } catch (std::exception const& e) {
            fail("seed " + std::to_string(seed) + ": " + e.what());
        }
        auto const faults = driver().faults();
        expect(faults.empty(), "seed " + std::to_string(seed) + ": " + faults);
    }
    expect(seed > 0, "nothing was exercised");
    return std::to_string(seed) + " runs of " + std::to_string(kUploads) + " uploads";
}

std::string captureIsRefused() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    prefixcache::KVPageTable table(kBatch, kWidth, kPages);
    table.setIdentity();
    auto const upload = [&] { return library().table_upload(table.handle(), stream.raw(), nullptr); };
    Capture capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    pc_status const status = upload();
    capture.end();
    expect(status == PC_ERROR_WRONG_STATE, std::string("the upload returned ") + library().status_name(status));
    ok(upload(), "table_upload");
    stream.wait();
    return "and the capture under way stayed good";
}

}  // namespace

void pageTables(Effort const& effort) {
    run("context, raw streams: every page-table upload arrives, in order", [&] { return playAll(effort, false); });
    char const* const replay = "context, raw streams: a CUDA graph that keeps the table's address sees every upload";
    if (driver().graphs()) {
        run(replay, [&] { return playAll(effort, true); });
    } else {
        notRun(replay, "this driver has no graphs");
    }
    run("context, raw streams: an upload to a stream that is being captured is refused", [] {
        driver().begin(7);
        auto const detail = captureIsRefused();
        auto const faults = driver().faults();
        expect(faults.empty(), faults);
        return detail;
    });
}

}  // namespace check
