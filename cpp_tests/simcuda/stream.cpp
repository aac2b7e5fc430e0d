// stream.cpp - entry points: streams and events.
#include "call.hpp"

using namespace sim;

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
    if (!s || call.asks_capture(*s)) return call.verdict;
    m.run_one(call.lock);  // polling makes progress, or a loop of polls would not end
    if (s->last && !s->last->done) return CUDA_ERROR_NOT_READY;
    m.observe(s->last);
    return current()->lost;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Stream* s = call.stream(stream);
    if (!s || call.asks_capture(*s)) return call.verdict;
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
    e->captured = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE ? s : nullptr;
    e->capture = s->captures;
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
    if (e->captured) return call.asks_capture(*e);
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
    if (e->captured) return call.asks_capture(*e);
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
