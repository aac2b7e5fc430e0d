// What prefixcache.h promises of pc_omni_save for rows on a device, promise by promise:
// who waits for whom, what is refused, what is given back.
#include <algorithm>
#include <numeric>
#include <sstream>
#include <thread>

#include "checks.hpp"
#include "omni_cache.hpp"

namespace check {

namespace {

constexpr unsigned kDelay = 300'000;  // microseconds; what "did not wait" is measured with
constexpr double kPrompt = 0.1;       // seconds; generous for a busy machine
constexpr int kDepth = 4;             // staging pages

/// A cache with one key, and a static buffer in front of it.
struct Rig {
    explicit Rig(int64_t tokens = 4, int64_t rowBytes = 256, uint32_t flags = 0)
        : count(tokens),
          buffer(static_cast<size_t>(tokens * rowBytes)),
          host(static_cast<size_t>(tokens * rowBytes)),
          cache((tokens + 15) / 16, 16, {{PC_OMNI_HIDDEN_KEY, rowBytes, rowBytes, PC_OMNI_JOIN_NEXT_STEP}}, kDepth,
                tokens, flags) {
        if (driver().simulated()) driver().simcuda_policy(1);  // SIMCUDA_LATE: nothing runs before somebody waits
    }
    ~Rig() { driver().cuCtxSynchronize(); }

    /// The model's work of one step: every row says `content`.
    void compute(Stream const& on, uint64_t content) {
        if (computed) filled.wait();
        computed = true;
        for (int64_t i = 0; i < count; ++i) fillRow(host.as(static_cast<size_t>(i * width())), content, cache.keys[0]);
        CHECK_CUDA(cuMemcpyHtoDAsync(buffer.at(), host.as(), host.bytes(), on));
        filled.record(on);
    }

    pc_status trySave(Stream const& on, CUdeviceptr rows, CUevent ready = nullptr) {
        std::vector<int64_t> slots;
        for (int64_t i = 0; i < count; ++i) slots.push_back(i);
        CHECK_OK(omni_step_begin(cache.handle, nullptr, 0, nullptr, 0, nullptr));
        return cache.save(on, {1}, {count}, slots, {rows}, &step, ready);
    }
    void save(Stream const& on, CUevent ready = nullptr) { ok(trySave(on, buffer.at(), ready), "omni_save"); }

    void expectRows(uint64_t saved, uint64_t content) {
        std::vector<uint8_t> got(host.bytes()), want(static_cast<size_t>(width()));
        pc_omni_read read{};
        read.key = cache.keys[0].number;
        read.count = 1;
        read.dst = got.data();
        read.dst_bytes = got.size();
        CHECK_OK(omni_materialize(cache.handle, saved, &read, 1));
        fillRow(want.data(), content, cache.keys[0]);
        for (size_t i = 0; i < static_cast<size_t>(count); ++i)
            expect(std::memcmp(&got[i * want.size()], want.data(), want.size()) == 0,
                   "row " + std::to_string(i) + " of step " + std::to_string(saved) + " is another one");
    }

    /// Until every row that was saved is in the cache.
    void settle() const {
        while (cache.stats().pending_writes > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    int64_t width() const { return cache.keys[0].rowBytes; }

    /// Steps until the cache has opened the device and pinned all of its staging pages,
    /// which may wait for the device: a step takes a further page while nobody has consumed
    /// the ones before it.
    void warmUp(Stream const& on) {
        std::vector<uint64_t> steps;
        for (uint64_t i = 0; i < kDepth; ++i) {
            compute(on, 90 + i);
            save(on);
            steps.push_back(step);
        }
        for (uint64_t i = 0; i < kDepth; ++i) expectRows(steps[i], 90 + i);
        if (driver().simulated())
            expect(driver().simcuda_calls("cuMemHostRegister_v2") == kDepth, "not every staging page is pinned");
    }

    int64_t count;
    uint64_t step = 0;
    bool computed = false;
    DeviceMemory buffer;
    PinnedMemory host;
    Event filled;
    OmniCache cache;
};

/// A stream that is busy for 300 ms, or, simulated, until the end of the scope: there
/// the caller of a query would carry the waiting out itself.
class Busy {
  public:
    explicit Busy(Stream const& stream) : mStream(stream) {
        if (driver().simulated()) {
            driver().simcuda_hold(mStream);
        } else {
            stream.delay(kDelay);
        }
    }
    Busy(Busy const&) = delete;
    Busy& operator=(Busy const&) = delete;
    ~Busy() {
        if (driver().simulated()) driver().simcuda_release(mStream);
    }

  private:
    CUstream mStream;
};

std::string milliseconds(double s) { return std::to_string(static_cast<int>(s * 1e3 + 0.5)) + " ms"; }

/// The lines of a report that do not contain `part`.
std::string without(std::string const& report, std::string const& part) {
    std::istringstream lines(report);
    std::string left;
    for (std::string line; std::getline(lines, line);)
        if (line.find(part) == std::string::npos) left += line + '\n';
    return left;
}

/// Runs a check on a driver without history; on the simulated one, its report has to be
/// empty but for faults that the check itself commits.
void promise(std::string const& name, std::function<std::string()> const& body, char const* committed = nullptr) {
    run("omni, raw streams: " + name, [&] {
        driver().begin(7);
        auto const detail = body();
        auto const faults = committed ? without(driver().faults(), committed) : driver().faults();
        expect(faults.empty(), faults);
        return detail;
    });
}

/// Something has to be refused with this status, to change nothing, and to use no step id.
void refused(Rig& rig, Stream const& on, CUdeviceptr rows, pc_status want, CUevent ready = nullptr) {
    auto const before = rig.step;
    pc_status const got = rig.trySave(on, rows, ready);
    if (got == PC_OK) fail("it was accepted");
    expect(got == want, std::string("it was refused as ") + library().status_name(got) + " (" + library().last_error() +
                            "), expected " + library().status_name(want));
    rig.step = before;
}

std::string saveDoesNotWait() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.warmUp(stream);
    double took = 0;
    {
        Busy const busy(stream);
        rig.compute(stream, 2);
        auto const start = Clock::now();
        rig.save(stream);
        took = seconds(start);
    }
    rig.expectRows(rig.step, 2);
    expect(took < kPrompt, "save took " + milliseconds(took) + " while its stream was busy");
    return "save took " + milliseconds(took) + " while its stream was busy";
}

std::string materializeWaitsForItsStep() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.warmUp(stream);
    rig.compute(stream, 1);
    rig.save(stream);
    uint64_t const first = rig.step;
    stream.wait();
    double took = 0;
    {
        Busy const busy(stream);
        rig.compute(stream, 2);
        rig.save(stream);
        auto const start = Clock::now();
        rig.expectRows(first, 1);
        took = seconds(start);
    }
    rig.expectRows(rig.step, 2);
    expect(took < kPrompt, "reading a step took " + milliseconds(took) + " while the stream of the next step was busy");
    return milliseconds(took) + " while the stream of the next step was busy";
}

std::string producerDoesNotWait() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Stream const other(CU_STREAM_NON_BLOCKING);
    constexpr int64_t kTokens = 8192, kRow = 16384;  // 128 MiB
    Rig rig(kTokens, kRow);
    Event const a(Event::kTimed), b(Event::kTimed), c(Event::kTimed), d(Event::kTimed);
    double saved = 1e9, copied = 1e9;
    for (int i = 0; i < 2 * kDepth; ++i) {
        c.record(other);
        CHECK_CUDA(cuMemcpyDtoHAsync(rig.host.as(), rig.buffer.at(), rig.host.bytes(), other));
        d.record(other);
        d.wait();
        // The stream is kept busy until everything is enqueued: host time must not count.
        rig.settle();
        stream.delay(20'000);
        a.record(stream);
        rig.save(stream);
        b.record(stream);
        b.wait();
        CHECK_OK(omni_discard(rig.cache.handle, rig.step));
        if (i >= kDepth) {
            saved = std::min(saved, b.since(a));
            copied = std::min(copied, d.since(c));
        }
    }
    std::string const figures =
        "the stream was held for " + milliseconds(saved) + ", a copy to the host takes " + milliseconds(copied);
    expect(saved < copied / 2, figures);
    return figures;
}

std::string rowsBehindAnEvent() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Stream const producer(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.warmUp(stream);
    Event const ready;
    double took = 0;
    {
        Busy const busy(producer);
        rig.compute(producer, 5);
        ready.record(producer);
        auto const start = Clock::now();
        rig.save(stream, ready);
        took = seconds(start);
    }
    rig.expectRows(rig.step, 5);
    expect(took < kPrompt, "save took " + milliseconds(took) + " while the rows were not ready");
    return "save took " + milliseconds(took) + " while the rows were not ready";
}

std::string eventOfAGraphIsRefused() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Stream const captured(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.compute(stream, 1);
    rig.save(stream);
    rig.expectRows(1, 1);
    // The usual mistake: recorded in the forward that a graph was made of, and saved behind its replay.
    Event const former;
    {
        Capture capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
        former.record(captured);
        capture.end();
    }
    refused(rig, stream, rig.buffer.at(), PC_ERROR_WRONG_STATE, former);
    Event const event;
    {
        Capture const capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
        event.record(captured);
        refused(rig, stream, rig.buffer.at(), PC_ERROR_WRONG_STATE, event);
    }  // and the driver has failed the capture: it has no call that asks for less
    refused(rig, stream, rig.buffer.at(), PC_ERROR_WRONG_STATE, event);
    rig.compute(stream, 2);
    rig.save(stream);
    expect(rig.step == 2, "the refused saves used step ids");
    rig.expectRows(2, 2);
    return "while the capture goes on, and after it";
}

std::string wrongMemoryIsRefused() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.compute(stream, 1);
    auto const pinned = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(rig.host.as()));
    std::vector<uint8_t> const pageable(rig.host.bytes());
    auto const plain = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(pageable.data()));
    refused(rig, stream, pinned, PC_ERROR_INVALID_ARGUMENT);
    refused(rig, stream, plain, PC_ERROR_INVALID_ARGUMENT);
    rig.save(stream);
    expect(rig.step == 1, "the refused saves used step ids");
    rig.expectRows(1, 1);
    return "pinned and pageable host memory";
}

std::string capturingStreamIsRefused() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.compute(stream, 1);
    rig.save(stream);
    rig.expectRows(1, 1);
    {
        // Global, the strictest: any unsafe call of any thread would spoil it.
        Capture capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (!driver().simulated()) CHECK_CUDA(cuMemsetD8Async(rig.buffer.at(), 0, 16, stream));
        refused(rig, stream, rig.buffer.at(), PC_ERROR_WRONG_STATE);
        capture.end();
    }
    rig.compute(stream, 2);
    rig.save(stream);
    expect(rig.step == 2, "the refused save used a step id");
    rig.expectRows(2, 2);
    return "and the capture under way stayed good";
}

/// Everything here that is no call of the library is harmless to a capture.
std::string cacheBesideACapture() {
    constexpr int64_t kFew = 4, kMany = 2048, kRow = 256;  // 64 KiB is the smallest page
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Stream const captured(CU_STREAM_NON_BLOCKING);
    DeviceMemory const rows(kMany * kRow);
    CaptureElsewhere capture(captured);
    OmniCache cache(kMany / 16, 16, {{PC_OMNI_HIDDEN_KEY, kRow, kRow, PC_OMNI_JOIN_NEXT_STEP}}, kDepth, kMany);
    std::vector<int64_t> slots(kMany);
    std::iota(slots.begin(), slots.end(), int64_t{0});
    auto const save = [&](int64_t tokens, uint8_t content) {
        uint64_t step = 0;
        CHECK_CUDA(cuMemsetD8Async(rows.at(), content, rows.bytes(), stream));
        CHECK_OK(omni_step_begin(cache.handle, nullptr, 0, nullptr, 0, nullptr));
        ok(cache.save(stream, {1}, {tokens}, {slots.begin(), slots.begin() + tokens}, {rows.at()}, &step), "omni_save");
        return step;
    };
    auto const read = [&](uint64_t step, int64_t tokens, uint8_t content) {
        std::vector<uint8_t> got(static_cast<size_t>(tokens * kRow));
        pc_omni_read to{};
        to.key = cache.keys[0].number;
        to.count = 1;
        to.dst = got.data();
        to.dst_bytes = got.size();
        CHECK_OK(omni_materialize(cache.handle, step, &to, 1));
        expect(static_cast<size_t>(std::count(got.begin(), got.end(), content)) == got.size(),
               "rows of step " + std::to_string(step) + " are others");
    };
    uint64_t const first = save(kFew, 1);   // opens the device, and pins a page
    uint64_t const second = save(kFew, 2);  // pins a further one
    read(first, kFew, 1);
    uint64_t const third = save(kMany, 3);  // a larger page, and larger frozen memory
    read(second, kFew, 2);
    read(third, kMany, 3);
    CHECK_OK(omni_destroy(&cache.handle));
    capture.end();
    return "it was opened, grew and was destroyed";
}

std::string foreignStreamIsRefused() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig;
    rig.compute(stream, 1);
    rig.save(stream);
    CUcontext foreign = nullptr;
    CHECK_CUDA(cuCtxCreate(&foreign, 0, 0));
    std::string why;
    {
        Stream const theirs(CU_STREAM_NON_BLOCKING);
        CHECK_CUDA(cuCtxSetCurrent(driver().context()));
        try {
            refused(rig, theirs, rig.buffer.at(), PC_ERROR_INVALID_ARGUMENT);
        } catch (std::exception const& e) {
            why = e.what();
        }
        CHECK_CUDA(cuCtxSetCurrent(foreign));
    }
    if (driver().cuCtxDestroy_v2) driver().cuCtxDestroy_v2(foreign);
    CHECK_CUDA(cuCtxSetCurrent(driver().context()));
    expect(why.empty(), why);
    rig.expectRows(1, 1);
    return "";
}

std::string eagerWaits() {
    Stream const stream(CU_STREAM_NON_BLOCKING);
    Rig rig(4, 256, PC_OMNI_EAGER);
    stream.delay(20'000);
    rig.compute(stream, 3);
    rig.save(stream);
    pc_omni_slot_state state{};
    int64_t const slot = 2;
    std::vector<uint8_t> row(256), want(256);
    CHECK_OK(omni_inspect(rig.cache.handle, rig.cache.keys[0].number, &slot, 1, &state, row.data(), row.size()));
    fillRow(want.data(), 3, rig.cache.keys[0]);
    expect(state.state == PC_OMNI_COMMITTED && row == want, "the rows are not in the cache when save returns");
    rig.expectRows(rig.step, 3);
    return "";
}

std::string memoryIsGivenBack() {
    constexpr int64_t kTokens = 4096, kRow = 16384;  // 64 MiB
    auto const freeBytes = [] {
        size_t now = 0, total = 0;
        CHECK_CUDA(cuMemGetInfo_v2(&now, &total));
        return now;
    };
    auto const cycle = [] {
        Stream const stream(CU_STREAM_NON_BLOCKING);
        Rig rig(kTokens, kRow);
        rig.save(stream);
        CHECK_OK(omni_discard(rig.cache.handle, rig.step));
        stream.wait();
    };
    cycle();
    size_t const before = freeBytes();
    for (int i = 0; i < 3; ++i) cycle();
    size_t const after = freeBytes();
    size_t const lost = before > after ? (before - after) >> 20 : 0;
    expect(lost < 64, std::to_string(lost) + " MiB of device memory are gone after three caches of 64 MiB steps");
    return std::to_string(lost) + " MiB less after three caches";
}

}  // namespace

void omniContract() {
    promise("save does not wait for the producer", saveDoesNotWait);
    promise("materialize waits for its own step only", materializeWaitsForItsStep);
    promise("rows of another stream, behind an event", rowsBehindAnEvent);
    promise("host memory given as device rows is refused", wrongMemoryIsRefused);
    promise("a stream that is being captured is refused", capturingStreamIsRefused);
    promise("a cache comes and goes beside a capture of another thread", cacheBesideACapture);
    promise("an event that was recorded into a graph is refused", eventOfAGraphIsRefused, "cuEventRecord on stream");
    promise("a stream of another context is refused", foreignStreamIsRefused);
    promise("eager: the rows are in the cache when save returns", eagerWaits);
    char const* const stalls = "the producer's stream does not wait for the copy to the host";
    char const* const leaks = "device memory comes back";
    if (driver().simulated()) {
        notRun(std::string("omni, raw streams: ") + stalls, "the simulated driver has no time of its own");
        notRun(std::string("omni, raw streams: ") + leaks, "the simulated driver reports leaks by itself");
    } else {
        promise(stalls, producerDoesNotWait);
        promise(leaks, memoryIsGivenBack);
    }
}

}  // namespace check
