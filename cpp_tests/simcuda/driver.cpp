// driver.cpp - the entry points: what libprefixcache calls.
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "model.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace sim;

namespace {

thread_local std::vector<Context*> current_stack;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

Context* current() { return current_stack.empty() ? nullptr : current_stack.back(); }

using Time = std::chrono::steady_clock;

// Every entry point makes one of these: it takes the lock, counts the call, takes
// the time, and knows whether the call was chosen to fail.
struct Call {
    Model& m = model();
    std::unique_lock<std::mutex> lock{m.mutex};
    Time::time_point start = Time::now();
    const char* name;
    CUresult verdict = CUDA_SUCCESS;

    Call(const char* name, int kind, bool needs_context = true) : name(name) {
        m.calls[name]++;
        if (m.fail_in > 0 && (m.fail_kinds & kind) && --m.fail_in == 0)
            verdict = m.fail_code;
        else if (needs_context && !m.initialised)
            verdict = CUDA_ERROR_NOT_INITIALIZED;
        else if (needs_context && !current())
            verdict = CUDA_ERROR_INVALID_CONTEXT;
        else if (needs_context && kind != SIMCUDA_FREE)
            verdict = current()->lost;
    }
    ~Call() {
        if (!lock.owns_lock()) lock.lock();
        m.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Time::now() - start).count();
    }

    // A call that may wait or allocate spoils captures that are under way, unless
    // the thread is in relaxed mode.
    bool spoils_capture() {
        if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
        bool spoiled = false;
        for (auto& s : m.streams) {
            if (s->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE || s->mode != CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
            s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            m.fault("%s spoiled the capture of stream %zu", name, s->index);
            spoiled = true;
        }
        return spoiled;
    }

    // The stream of an enqueueing or waiting call; null with verdict set. Implicit
    // streams mean the current context.
    Stream* stream(CUstream handle) {
        Stream* s = m.stream(handle, current());
        if (!s) {
            m.fault("%s: %p is no stream", name, static_cast<void*>(handle));
            verdict = CUDA_ERROR_INVALID_HANDLE;
        } else if (s->destroyed) {
            m.fault("%s: stream %zu was destroyed", name, s->index);
            verdict = CUDA_ERROR_INVALID_HANDLE;
            s = nullptr;
        }
        return s;
    }

    // As stream, for work: false when the work must not be queued. Work on a
    // capturing stream goes into the graph, which here means nowhere.
    Stream* target(CUstream handle) {
        Stream* s = stream(handle);
        if (!s) return nullptr;
        if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
            m.fault("%s on stream %zu, which is being captured", name, s->index);
            verdict =
                s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            return nullptr;
        }
        if (s == s->context->legacy)
            for (auto& other : m.streams)
                if (other->context == s->context && other->blocking &&
                    other->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
                    other->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
                    m.fault("%s on the legacy stream spoiled the capture of stream %zu", name, other->index);
                    verdict = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                    return nullptr;
                }
        return s;
    }

    Event* event(CUevent handle) {
        auto* e = reinterpret_cast<Event*>(handle);
        if (!m.event_handles.count(handle) || e->destroyed) {
            m.fault("%s: event %p %s", name, static_cast<void*>(handle),
                    m.event_handles.count(handle) ? "was destroyed" : "was never made");
            verdict = CUDA_ERROR_INVALID_HANDLE;
            return nullptr;
        }
        return e;
    }

    CUresult queue(const Op& op) {
        m.enqueue(op);
        int more = m.policy == SIMCUDA_EAGER  ? 1 << 30
                   : m.policy == SIMCUDA_LATE ? 0
                   : m.random() % 4           ? 0
                                              : m.random() % 4;
        while (more-- > 0 && m.run_one(lock)) {
        }
        return CUDA_SUCCESS;
    }

    CUresult wait_for(const Op& op) {
        if (op) m.run_until(lock, op);
        m.observe(op);
        return current() ? current()->lost : CUDA_SUCCESS;
    }
};

#define BEGIN(kind)                                        \
    Call call(__func__, kind);                             \
    if (call.verdict != CUDA_SUCCESS) return call.verdict; \
    Model& m = call.m;                                     \
    (void)m;
#define BEGIN_ANYWHERE(kind)                               \
    Call call(__func__, kind, false);                      \
    if (call.verdict != CUDA_SUCCESS) return call.verdict; \
    Model& m = call.m;                                     \
    (void)m;

Range bytes(uint64_t base, size_t n) { return {base, n, n, n ? size_t{1} : 0}; }

// Whether a range lies in memory of the wanted kind, all of it.
bool inside(Call& call, const Range& r, bool device, Where* where) {
    Model& m = call.m;
    *where = m.where(r.base);
    if (device != (*where == Where::kDevice)) {
        // A pinned address is a valid device address to the real driver; to the
        // library it is the wrong kind, so it is reported.
        if (device && *where == Where::kPinned)
            m.fault("%s: %#lx is host memory used as device memory", call.name, r.base);
        call.verdict = CUDA_ERROR_INVALID_VALUE;
        return false;
    }
    if (*where == Where::kPageable) return true;
    Block* b = m.find(r.base, false);
    if (!b || b->freed || r.end() > b->base + b->bytes) {
        m.fault("%s: [%#lx, %#lx) is %s", call.name, r.base, r.end(),
                b && b->freed ? "freed memory" : "outside its allocation");
        call.verdict = CUDA_ERROR_INVALID_VALUE;
        return false;
    }
    return true;
}

CUresult copy(Call& call, CUstream stream, Range dst, bool dst_device, Range src, bool src_device) {
    Model& m = call.m;
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (!dst.height || !dst.width) return CUDA_SUCCESS;
    Where to, from;
    if (!inside(call, dst, dst_device, &to) || !inside(call, src, src_device, &from)) return call.verdict;
    Op op = m.begin(s, call.name);
    op->is_copy = true;
    op->dst = dst;
    op->src = src;
    op->dst_where = to;
    op->src_where = from;
    m.note(*op, src, false);
    m.note(*op, dst, true);
    if (from == Where::kPageable) {
        m.pageable++;
        op->snapshot.resize(src.width * src.height);
        for (size_t y = 0; y < src.height; y++)
            memcpy(op->snapshot.data() + y * src.width, m.bytes_at(src.base + y * src.pitch, src.width), src.width);
    } else if (from == Where::kPinned && !m.used_by_queued(src, true)) {
        op->check_src = true;
        op->src_hash = m.hash(src);
    }
    if (to == Where::kPinned && !m.used_by_queued(dst, false)) {
        m.paint(dst, 0xDB);
        op->check_dst = true;
        op->dst_hash = m.hash(dst);
    }
    CUresult r = call.queue(op);
    if (to == Where::kPageable) {
        m.pageable++;
        return call.wait_for(op);
    }
    return r;
}

CUresult fill(Call& call, CUstream stream, CUdeviceptr dst, size_t n, uint8_t value) {
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (!n) return CUDA_SUCCESS;
    Range r = bytes(dst, n);
    Where where;
    if (!inside(call, r, true, &where)) return call.verdict;
    Op op = call.m.begin(s, call.name);
    op->is_fill = true;
    op->dst = r;
    op->fill = value;
    call.m.note(*op, r, true);
    return call.queue(op);
}

void drop_overlapping(Model& m, uint64_t base, size_t n) {
    for (auto it = m.blocks.begin(); it != m.blocks.end();)
        it = it->first < base + n && base < it->first + it->second->bytes && it->second->freed ? m.blocks.erase(it)
                                                                                               : std::next(it);
}

void add_host(Model& m, uint64_t base, size_t n, bool registered) {
    drop_overlapping(m, base, n);
    auto b = std::make_unique<Block>();
    b->base = base;
    b->bytes = n;
    b->where = Where::kPinned;
    b->registered = registered;
    m.blocks[base] = std::move(b);
}

}  // namespace

// ---- driver, devices, contexts ------------------------------------------------

EXPORT CUresult cuInit(unsigned int flags) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    m.initialised = true;
    while (m.contexts.size() < 2) {
        m.contexts.push_back(std::make_unique<Context>());
        m.contexts.back()->device = static_cast<int>(m.contexts.size()) - 1;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = 12000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
#define NAME(x) \
    { x, #x }
    static const std::map<CUresult, const char*> names = {
        NAME(CUDA_SUCCESS),
        NAME(CUDA_ERROR_INVALID_VALUE),
        NAME(CUDA_ERROR_OUT_OF_MEMORY),
        NAME(CUDA_ERROR_NOT_INITIALIZED),
        NAME(CUDA_ERROR_NO_DEVICE),
        NAME(CUDA_ERROR_INVALID_DEVICE),
        NAME(CUDA_ERROR_INVALID_CONTEXT),
        NAME(CUDA_ERROR_INVALID_HANDLE),
        NAME(CUDA_ERROR_NOT_FOUND),
        NAME(CUDA_ERROR_NOT_READY),
        NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
        NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        NAME(CUDA_ERROR_LAUNCH_FAILED),
        NAME(CUDA_ERROR_NOT_SUPPORTED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        NAME(CUDA_ERROR_CAPTURED_EVENT),
        NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        NAME(CUDA_ERROR_UNKNOWN),
    };
#undef NAME
    auto it = names.find(error);
    *text = it == names.end() ? nullptr : it->second;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_SUCCESS ? "no error" : "simulated";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    *count = m.devices;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (ordinal < 0 || ordinal >= m.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    snprintf(name, static_cast<size_t>(len), "simulated GPU %d", dev);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attrib, CUdevice) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    *value = attrib == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && m.pools_supported;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (dev < 0 || dev >= m.devices) return CUDA_ERROR_INVALID_DEVICE;
    *ctx = reinterpret_cast<CUcontext>(m.contexts[static_cast<size_t>(dev)].get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned int, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_CREATE)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    m.contexts.push_back(std::make_unique<Context>());
    m.contexts.back()->device = dev;
    current_stack.push_back(m.contexts.back().get());
    *ctx = reinterpret_cast<CUcontext>(m.contexts.back().get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *ctx = reinterpret_cast<CUcontext>(current());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!current_stack.empty()) current_stack.pop_back();
    if (ctx) current_stack.push_back(reinterpret_cast<Context*>(ctx));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    current_stack.push_back(reinterpret_cast<Context*>(ctx));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (current_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx) *ctx = reinterpret_cast<CUcontext>(current());
    current_stack.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    BEGIN(SIMCUDA_ASK)
    *device = current()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    BEGIN(SIMCUDA_ASK)
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    m.drain_context(call.lock, current());
    return current()->lost;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

// ---- streams --------------------------------------------------------------------

EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
    BEGIN(SIMCUDA_CREATE)
    if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    Stream* s = m.add_stream(current(), flags, priority);
    m.stream_handles.insert(s);
    *stream = reinterpret_cast<CUstream>(s);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    BEGIN(SIMCUDA_FREE)
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    if (s->implicit) return CUDA_ERROR_INVALID_VALUE;
    s->destroyed = true;  // its queued work still runs
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (stream <= CU_STREAM_PER_THREAD && !current()) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    *ctx = reinterpret_cast<CUcontext>(s->context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    BEGIN(SIMCUDA_ASK)
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    if (s == s->context->legacy)
        for (auto& other : m.streams)
            if (other->context == s->context && other->blocking && other->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = s->capture;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    m.run_one(call.lock);  // polling makes progress, or a loop of polls would not end
    if (s->last && !s->last->done) return CUDA_ERROR_NOT_READY;
    m.observe(s->last);
    return current()->lost;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    return call.wait_for(s->last);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
    BEGIN(SIMCUDA_ENQUEUE)
    Stream* s = call.target(stream);
    Event* e = s ? call.event(event) : nullptr;
    if (!e) return call.verdict;
    if (e->captured) {
        m.fault("%s would pull stream %zu into a capture", __func__, s->index);
        return CUDA_SUCCESS;
    }
    if (!e->record) {
        m.fault("%s: the event was never recorded, so stream %zu waits for nothing", __func__, s->index);
        return CUDA_SUCCESS;
    }
    Op op = m.begin(s, __func__);
    if (!e->record->done) op->after.push_back(e->record);
    join(op->clock, e->record->clock);
    return call.queue(op);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void* data) {
    BEGIN(SIMCUDA_ENQUEUE)
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    Op op = m.begin(s, __func__);
    op->host = fn;
    op->host_data = data;
    return call.queue(op);
}

// ---- events -----------------------------------------------------------------------

EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
    BEGIN(SIMCUDA_CREATE)
    m.events.push_back(std::make_unique<Event>());
    Event* e = m.events.back().get();
    e->context = current();
    e->flags = flags;
    m.event_handles.insert(e);
    *event = reinterpret_cast<CUevent>(e);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    BEGIN(SIMCUDA_FREE)
    Event* e = call.event(event);
    if (!e) return call.verdict;
    e->destroyed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    Event* e = call.event(event);
    if (!e) return call.verdict;
    Stream* s = call.stream(stream);
    if (!s) return call.verdict;
    if (e->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    e->captured = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!(s = call.target(stream))) return call.verdict;
    Op op = m.begin(s, __func__);
    e->record = op;
    e->nanoseconds = static_cast<uint64_t>(Time::now().time_since_epoch().count());
    return call.queue(op);
}

EXPORT CUresult cuEventQuery(CUevent event) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Event* e = call.event(event);
    if (!e) return call.verdict;
    if (e->captured) return CUDA_ERROR_CAPTURED_EVENT;
    m.run_one(call.lock);
    if (e->record && !e->record->done) return CUDA_ERROR_NOT_READY;
    m.observe(e->record);
    return current()->lost;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Event* e = call.event(event);
    if (!e) return call.verdict;
    if (e->captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!e->record) m.fault("%s: the event was never recorded, so the host waits for nothing", __func__);
    return call.wait_for(e->record);
}

EXPORT CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
    BEGIN(SIMCUDA_ASK)
    Event* a = call.event(start);
    Event* b = a ? call.event(end) : nullptr;
    if (!b) return call.verdict;
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING || !a->record || !b->record) return CUDA_ERROR_INVALID_HANDLE;
    if (!a->record->done || !b->record->done) return CUDA_ERROR_NOT_READY;
    *ms = static_cast<float>(static_cast<double>(b->nanoseconds - a->nanoseconds) * 1e-6);
    return CUDA_SUCCESS;
}

// ---- memory -------------------------------------------------------------------------

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t n) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = n ? m.add_device(n, current()->device) : nullptr;
    if (!b) return n ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *dptr = b->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr) {
    BEGIN(SIMCUDA_FREE)
    Block* b = m.find(dptr, false);
    if (!b || b->base != dptr || b->freed || b->where != Where::kDevice) {
        m.fault("%s: %#llx %s", __func__, dptr,
                b && b->freed ? "was freed before" : "is not the start of an allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    m.implicit_waits++;
    m.drain_context(call.lock, current());
    b->freed = true;
    b->storage.reset();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
    BEGIN(SIMCUDA_CREATE)
    if (!m.pools_supported) return CUDA_ERROR_NOT_SUPPORTED;
    m.pools.push_back(std::make_unique<Pool>());
    m.pools.back()->device = props->location.id;
    m.pool_handles.insert(m.pools.back().get());
    *pool = reinterpret_cast<CUmemoryPool>(m.pools.back().get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
    BEGIN(SIMCUDA_ASK)
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    BEGIN(SIMCUDA_FREE)
    auto* p = reinterpret_cast<Pool*>(pool);
    if (!m.pool_handles.count(p) || p->destroyed) return CUDA_ERROR_INVALID_VALUE;
    p->destroyed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t n, CUmemoryPool pool, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    auto* p = reinterpret_cast<Pool*>(pool);
    if (!m.pool_handles.count(p) || p->destroyed || !n) return CUDA_ERROR_INVALID_VALUE;
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    Block* b = m.add_device(n, p->device);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = b->base;
    Op op = m.begin(s, __func__);
    op->dst = bytes(b->base, n);
    m.note(*op, op->dst, true);  // another stream has to be ordered after this
    return call.queue(op);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    BEGIN(SIMCUDA_FREE)
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    Block* b = m.find(dptr, false);
    if (!b || b->base != dptr || b->freed || b->where != Where::kDevice) {
        m.fault("%s: %#llx %s", __func__, dptr,
                b && b->freed ? "was freed before" : "is not the start of an allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    Op op = m.begin(s, __func__);
    op->dst = bytes(dptr, b->bytes);
    m.note(*op, op->dst, true);  // uses that nothing orders before the free are reported
    b->freed = true;             // and uses that are enqueued after it, too
    op->is_free = true;
    return call.queue(op);
}

EXPORT CUresult cuMemHostAlloc(void** p, size_t n, unsigned int) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!n) return CUDA_ERROR_INVALID_VALUE;
    void* q = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (q == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    add_host(m, reinterpret_cast<uint64_t>(q), n, false);
    *p = q;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* p) {
    BEGIN(SIMCUDA_FREE)
    Block* b = m.find(reinterpret_cast<uint64_t>(p));
    if (!b || b->base != reinterpret_cast<uint64_t>(p) || b->where != Where::kPinned || b->registered) {
        m.fault("%s: %p is not live pinned memory", __func__, p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    m.check_idle(*b, "free");
    b->freed = true;
    munmap(p, b->bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void* p, size_t n, unsigned int) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    auto base = reinterpret_cast<uint64_t>(p);
    if (!base || !n) return CUDA_ERROR_INVALID_VALUE;
    for (auto& [start, b] : m.blocks)
        if (!b->freed && start < base + n && base < start + b->bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    add_host(m, base, n, true);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void* p) {
    BEGIN(SIMCUDA_FREE)
    Block* b = m.find(reinterpret_cast<uint64_t>(p));
    if (!b || b->base != reinterpret_cast<uint64_t>(p) || !b->registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    m.check_idle(*b, "unregistration");
    b->freed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr ptr) {
    BEGIN(SIMCUDA_ASK)
    Block* b = m.find(ptr);
    for (unsigned i = 0; i < count; i++) switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *static_cast<unsigned*>(data[i]) = !b                           ? 0
                                                   : b->where == Where::kDevice ? CU_MEMORYTYPE_DEVICE
                                                                                : CU_MEMORYTYPE_HOST;
                break;
            case CU_POINTER_ATTRIBUTE_IS_MANAGED:
                *static_cast<char*>(data[i]) = 0;
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *static_cast<int*>(data[i]) = b ? b->device : -2;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                *static_cast<CUdeviceptr*>(data[i]) = b ? b->base : 0;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                *static_cast<size_t*>(data[i]) = b ? b->bytes : 0;
                break;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
    return CUDA_SUCCESS;
}

// ---- copies and fills -----------------------------------------------------------------

static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(dst, n), true, bytes(address(src), n), false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(address(dst), n), false, bytes(src, n), true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(dst, n), true, bytes(src, n), true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    bool to = c->dstMemoryType == CU_MEMORYTYPE_DEVICE, from = c->srcMemoryType == CU_MEMORYTYPE_DEVICE;
    if (c->dstPitch < c->WidthInBytes || c->srcPitch < c->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    Range dst{to ? c->dstDevice : address(c->dstHost), c->dstPitch, c->WidthInBytes, c->Height};
    Range src{from ? c->srcDevice : address(c->srcHost), c->srcPitch, c->WidthInBytes, c->Height};
    return copy(call, stream, dst, to, src, from);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return fill(call, stream, dst, n, value);
}

EXPORT CUresult simcuda_launch(CUstream stream, CUdeviceptr dst, size_t words, uint32_t value) {
    BEGIN(SIMCUDA_ENQUEUE)
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    Range r = bytes(dst, words * 4);
    Where where;
    if (!inside(call, r, true, &where)) return call.verdict;
    Op op = m.begin(s, __func__);
    op->is_launch = true;
    op->dst = r;
    op->words = value;
    m.note(*op, r, true);
    return call.queue(op);
}
