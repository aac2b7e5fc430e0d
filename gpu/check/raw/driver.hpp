// The CUDA driver API, opened at run time as the library itself does it, so that one
// program runs on a GPU and on the simulated driver of cpp_tests/simcuda. Failed calls
// throw, with the CUDA error name.
#ifndef PREFIXCACHE_CHECK_DRIVER_HPP
#define PREFIXCACHE_CHECK_DRIVER_HPP

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <utility>

namespace check {

// Names that have versions are macros in cuda.h; they are expanded before they are
// made into members and strings.
#define CHECK_DRIVER_CALLS(CALL)    \
    CALL(cuInit)                    \
    CALL(cuDriverGetVersion)        \
    CALL(cuGetErrorName)            \
    CALL(cuDeviceGetCount)          \
    CALL(cuDeviceGetName)           \
    CALL(cuDevicePrimaryCtxRetain)  \
    CALL(cuDevicePrimaryCtxRelease) \
    CALL(cuCtxCreate)               \
    CALL(cuCtxPopCurrent)           \
    CALL(cuCtxSetCurrent)           \
    CALL(cuCtxSynchronize)          \
    CALL(cuStreamCreate)            \
    CALL(cuStreamDestroy)           \
    CALL(cuStreamSynchronize)       \
    CALL(cuStreamWaitEvent)         \
    CALL(cuStreamIsCapturing)       \
    CALL(cuLaunchHostFunc)          \
    CALL(cuEventCreate)             \
    CALL(cuEventDestroy)            \
    CALL(cuEventRecord)             \
    CALL(cuEventSynchronize)        \
    CALL(cuEventElapsedTime)        \
    CALL(cuMemAlloc)                \
    CALL(cuMemFree)                 \
    CALL(cuMemHostAlloc)            \
    CALL(cuMemFreeHost)             \
    CALL(cuMemcpyHtoDAsync)         \
    CALL(cuMemcpyDtoHAsync)         \
    CALL(cuMemcpyDtoDAsync)         \
    CALL(cuMemsetD8Async)

// Calls that a driver may lack: the simulated one has no graphs, and a GPU driver no
// simulation.
struct OptionalCalls {
    CUresult (*cuCtxDestroy_v2)(CUcontext) = nullptr;
    CUresult (*cuMemGetInfo_v2)(size_t*, size_t*) = nullptr;
    CUresult (*cuStreamBeginCapture_v2)(CUstream, CUstreamCaptureMode) = nullptr;
    CUresult (*cuStreamEndCapture)(CUstream, CUgraph*) = nullptr;
    CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec*, CUgraph, unsigned long long) = nullptr;
    CUresult (*cuGraphLaunch)(CUgraphExec, CUstream) = nullptr;
    CUresult (*cuGraphExecDestroy)(CUgraphExec) = nullptr;
    CUresult (*cuGraphDestroy)(CUgraph) = nullptr;

    void (*simcuda_reset)(uint64_t) = nullptr;
    void (*simcuda_policy)(int) = nullptr;
    int (*simcuda_report)(char*, size_t) = nullptr;
    int (*simcuda_leaks)(char*, size_t) = nullptr;
    int (*simcuda_step)(int) = nullptr;
    void (*simcuda_hold)(CUstream) = nullptr;
    void (*simcuda_release)(CUstream) = nullptr;
    void (*simcuda_capture)(CUstream, CUstreamCaptureMode) = nullptr;
    CUstreamCaptureStatus (*simcuda_end_capture)(CUstream) = nullptr;
    uint64_t (*simcuda_calls)(char const*) = nullptr;
};

/// Opens $PREFIXCACHE_CUDA_DRIVER, else libcuda.so.1, and device 0's primary context.
class Driver : public OptionalCalls {
  public:
    Driver();
    Driver(Driver const&) = delete;
    Driver& operator=(Driver const&) = delete;

#define CHECK_MEMBER(name) decltype(&::name) name = nullptr;
    CHECK_DRIVER_CALLS(CHECK_MEMBER)
#undef CHECK_MEMBER

    bool simulated() const { return simcuda_reset != nullptr; }
    bool graphs() const { return cuStreamBeginCapture_v2 && cuGraphInstantiateWithFlags && cuGraphLaunch; }
    CUcontext context() const { return mContext; }
    std::string deviceName() const;

    /// @throws std::runtime_error "what: CUDA_ERROR_..."
    void must(CUresult result, char const* what) const;

    /// Simulated: forgets the former seed, makes the context current anew.
    void begin(uint64_t seed);
    /// Simulated: faults and leaks since begin, one a line; on a GPU always "".
    std::string faults() const;

  private:
    CUcontext mContext = nullptr;
};

/// What every file of this program works on.
Driver& driver();

#define CHECK_CUDA(call) ::check::driver().must(::check::driver().call, #call)

class Stream {
  public:
    explicit Stream(unsigned flags) { CHECK_CUDA(cuStreamCreate(&mHandle, flags)); }
    /// One of the two that exist without being created.
    explicit Stream(CUstream implicit) : mHandle(implicit), mImplicit(true) {}
    Stream(Stream&& other) noexcept
        : mHandle(std::exchange(other.mHandle, nullptr)), mImplicit(std::exchange(other.mImplicit, true)) {}
    ~Stream() {
        if (!mImplicit) driver().cuStreamDestroy(mHandle);
    }

    operator CUstream() const { return mHandle; }
    uint64_t raw() const { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(mHandle)); }
    void wait() const { CHECK_CUDA(cuStreamSynchronize(mHandle)); }

    /// Later work of the stream begins that much later.
    void delay(unsigned microseconds) const;

  private:
    CUstream mHandle = nullptr;
    bool mImplicit = false;
};

class Event {
  public:
    enum Kind : unsigned {
        kPlain = CU_EVENT_DISABLE_TIMING,
        kTimed = CU_EVENT_DEFAULT,
        kAsTheLibrarys = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC,  ///< whoever waits for it sleeps
    };
    explicit Event(Kind kind = kPlain) { CHECK_CUDA(cuEventCreate(&mHandle, kind)); }
    Event(Event&& other) noexcept : mHandle(std::exchange(other.mHandle, nullptr)) {}
    ~Event() {
        if (mHandle) driver().cuEventDestroy(mHandle);
    }

    operator CUevent() const { return mHandle; }
    void record(Stream const& on) const { CHECK_CUDA(cuEventRecord(mHandle, on)); }
    void wait() const { CHECK_CUDA(cuEventSynchronize(mHandle)); }
    /// Seconds from another event to this one, both with timing and both reached.
    double since(Event const& start) const {
        float milliseconds = 0;
        CHECK_CUDA(cuEventElapsedTime(&milliseconds, start, mHandle));
        return static_cast<double>(milliseconds) / 1e3;
    }

  private:
    CUevent mHandle = nullptr;
};

class DeviceMemory {
  public:
    explicit DeviceMemory(size_t bytes) : mBytes(bytes) { CHECK_CUDA(cuMemAlloc(&mAddress, bytes)); }
    DeviceMemory(DeviceMemory&& other) noexcept
        : mAddress(std::exchange(other.mAddress, CUdeviceptr{0})), mBytes(other.mBytes) {}
    ~DeviceMemory() {
        if (mAddress) driver().cuMemFree(mAddress);
    }

    CUdeviceptr at(size_t offset = 0) const { return mAddress + offset; }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(static_cast<uintptr_t>(mAddress));
    }
    size_t bytes() const { return mBytes; }

  private:
    CUdeviceptr mAddress = 0;
    size_t mBytes = 0;
};

class PinnedMemory {
  public:
    explicit PinnedMemory(size_t bytes) : mBytes(bytes) { CHECK_CUDA(cuMemHostAlloc(&mData, bytes, 0)); }
    PinnedMemory(PinnedMemory&& other) noexcept : mData(std::exchange(other.mData, nullptr)), mBytes(other.mBytes) {}
    ~PinnedMemory() {
        if (mData) driver().cuMemFreeHost(mData);
    }

    template <typename T = uint8_t>
    T* as(size_t byteOffset = 0) const {
        return reinterpret_cast<T*>(static_cast<uint8_t*>(mData) + byteOffset);
    }
    size_t bytes() const { return mBytes; }

  private:
    void* mData = nullptr;
    size_t mBytes = 0;
};

/// A graph of the work that a function enqueues on a stream.
class Graph {
  public:
    template <typename F>
    Graph(Stream const& stream, F&& enqueue) {
        CHECK_CUDA(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        enqueue();
        CUgraph graph = nullptr;
        CHECK_CUDA(cuStreamEndCapture(stream, &graph));
        CUresult const made = driver().cuGraphInstantiateWithFlags(&mExec, graph, 0);
        driver().cuGraphDestroy(graph);
        driver().must(made, "cuGraphInstantiateWithFlags");
    }
    Graph(Graph const&) = delete;
    Graph& operator=(Graph const&) = delete;
    ~Graph() {
        if (mExec) driver().cuGraphExecDestroy(mExec);
    }

    void launch(Stream const& on) const { CHECK_CUDA(cuGraphLaunch(mExec, on)); }

  private:
    CUgraphExec mExec = nullptr;
};

/// A capture that is under way on a stream, and thrown away. Simulated, nothing may be enqueued in it.
class Capture {
  public:
    Capture(Stream const& stream, CUstreamCaptureMode mode);
    Capture(Capture const&) = delete;
    Capture& operator=(Capture const&) = delete;
    ~Capture();

    /// Ends it, on the thread that began it.
    /// @throws when something has spoiled it
    void end();

  private:
    CUstream mStream;
    bool mUnderWay = true;
};

/// A capture in global mode, the strictest and torch's, by a thread of its own: it is
/// spoiled by any unsafe call of any thread that is not in relaxed mode.
class CaptureElsewhere {
  public:
    explicit CaptureElsewhere(Stream const& stream);
    ~CaptureElsewhere();

    /// @throws when something has spoiled it
    void end();

  private:
    std::promise<void> mEnough;
    std::future<void> mEnded;
};

}  // namespace check

#endif  // PREFIXCACHE_CHECK_DRIVER_HPP
