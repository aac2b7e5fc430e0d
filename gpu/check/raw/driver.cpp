#include "driver.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace check {

namespace {

#define CHECK_STRING_(x) #x
#define CHECK_STRING(x) CHECK_STRING_(x)

template <typename F>
void find(void* library, char const* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
}

std::string lines(int (*list)(char*, size_t)) {
    std::string text(1 << 14, '\0');
    if (list(&text[0], text.size()) == 0) return "";
    text.resize(text.find('\0'));
    return text;
}

void sleepFor(void* microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(microseconds)));
}

}  // namespace

Driver& driver() {
    static Driver instance;
    return instance;
}

Driver::Driver() {
    char const* path = std::getenv("PREFIXCACHE_CUDA_DRIVER");
    path = path && *path ? path : "libcuda.so.1";
    void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
#define CHECK_FIND(name)                           \
    find(library, CHECK_STRING(name), this->name); \
    if (!this->name) throw std::runtime_error(std::string(path) + " lacks " + CHECK_STRING(name));
    CHECK_DRIVER_CALLS(CHECK_FIND)
#undef CHECK_FIND
#define CHECK_FIND(name) find(library, #name, name);
    CHECK_FIND(cuCtxDestroy_v2)
    CHECK_FIND(cuMemGetInfo_v2)
    CHECK_FIND(cuStreamBeginCapture_v2)
    CHECK_FIND(cuStreamEndCapture)
    CHECK_FIND(cuGraphInstantiateWithFlags)
    CHECK_FIND(cuGraphLaunch)
    CHECK_FIND(cuGraphExecDestroy)
    CHECK_FIND(cuGraphDestroy)
    CHECK_FIND(simcuda_reset)
    CHECK_FIND(simcuda_policy)
    CHECK_FIND(simcuda_report)
    CHECK_FIND(simcuda_leaks)
    CHECK_FIND(simcuda_step)
    CHECK_FIND(simcuda_hold)
    CHECK_FIND(simcuda_release)
    CHECK_FIND(simcuda_capture)
    CHECK_FIND(simcuda_end_capture)
    CHECK_FIND(simcuda_calls)
#undef CHECK_FIND
    must(cuInit(0), "cuInit");
    int count = 0;
    must(cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (count == 0) throw std::runtime_error("no CUDA device");
    must(cuDevicePrimaryCtxRetain(&mContext, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(mContext), "cuCtxSetCurrent");
}

std::string Driver::deviceName() const {
    char name[256] = "";
    must(cuDeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
    return name;
}

void Driver::must(CUresult result, char const* what) const {
    if (result == CUDA_SUCCESS) return;
    char const* name = nullptr;
    cuGetErrorName(result, &name);
    throw std::runtime_error(std::string(what) + ": " + (name ? name : "CUresult " + std::to_string(result)));
}

void Driver::begin(uint64_t seed) {
    if (simulated()) simcuda_reset(seed);
    must(cuCtxSetCurrent(mContext), "cuCtxSetCurrent");
}

std::string Driver::faults() const {
    if (!simulated()) return "";
    simcuda_step(1 << 20);
    return lines(simcuda_report) + lines(simcuda_leaks);
}

// A host function, so that it needs no kernel and also goes into graphs.
void Stream::delay(unsigned microseconds) const {
    CHECK_CUDA(cuLaunchHostFunc(mHandle, sleepFor, reinterpret_cast<void*>(static_cast<uintptr_t>(microseconds))));
}

Capture::Capture(Stream const& stream, CUstreamCaptureMode mode) : mStream(stream) {
    if (driver().simulated()) {
        driver().simcuda_capture(mStream, mode);
    } else {
        CHECK_CUDA(cuStreamBeginCapture_v2(mStream, mode));
    }
}

Capture::~Capture() {
    if (!mUnderWay) return;
    try {
        end();
    } catch (std::exception const&) {  // the check has failed already, or has spoiled it on purpose
    }
}

void Capture::end() {
    mUnderWay = false;
    auto const& d = driver();
    if (d.simulated()) {
        if (d.simcuda_end_capture(mStream) != CU_STREAM_CAPTURE_STATUS_ACTIVE)
            throw std::runtime_error("the capture was spoiled");
        return;
    }
    CUgraph graph = nullptr;
    CUresult const ended = d.cuStreamEndCapture(mStream, &graph);
    if (graph) d.cuGraphDestroy(graph);
    d.must(ended, "the capture was spoiled: cuStreamEndCapture");
}

CaptureElsewhere::CaptureElsewhere(Stream const& stream) {
    std::promise<void> begun;
    auto const underWay = begun.get_future();
    auto body = [&stream, enough = mEnough.get_future()](std::promise<void> promise) {
        CHECK_CUDA(cuCtxSetCurrent(driver().context()));
        Capture capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        promise.set_value();
        enough.wait();
        capture.end();
    };
    mEnded = std::async(std::launch::async, std::move(body), std::move(begun));
    underWay.wait();  // also for a thread that could not begin, of which end() tells
}

CaptureElsewhere::~CaptureElsewhere() {
    if (mEnded.valid()) mEnough.set_value();  // and the future waits for the thread
}

void CaptureElsewhere::end() {
    mEnough.set_value();
    mEnded.get();
}

}  // namespace check
