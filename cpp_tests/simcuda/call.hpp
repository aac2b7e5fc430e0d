// call.hpp - what every entry point of the simulated driver begins with.
#pragma once

#include <chrono>

#include "model.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

// Per thread, as in CUDA: the stack of contexts and the capture mode.
extern thread_local std::vector<Context*> current_stack;
extern thread_local CUstreamCaptureMode capture_mode;

inline Context* current() { return current_stack.empty() ? nullptr : current_stack.back(); }

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
        else if (m.fail_all_kinds & kind || m.fail_name == name)
            verdict = m.fail_code;
        else if (m.down)
            verdict = CUDA_ERROR_DEINITIALIZED;
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
        m.leave(lock);
    }

    // A call that may wait, allocate or give back spoils captures that are under way,
    // unless the thread is in relaxed mode: its own, and in global mode everybody's that
    // are in global mode.
    bool spoils_capture() {
        if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
        bool spoiled = false;
        for (auto& s : m.streams) {
            bool own = s->capturer == std::this_thread::get_id() && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
            bool all = capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
            if (s->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE || !(own || all)) continue;
            s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            m.fault("%s spoiled the capture of stream %zu", name, s->index);
            spoiled = true;
        }
        return spoiled;
    }

    // Asking about an event of a capture ends that capture, in every mode. Once it has
    // ended the event has no value any more.
    CUresult asks_capture(const Event& e) {
        Stream* s = e.captured;
        if (s->captures != e.capture || s->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_INVALID_VALUE;
        s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_CAPTURED_EVENT;
    }

    // Nor can a stream be asked, or waited for, while it is captured: what is enqueued
    // has not begun. That, too, ends the capture.
    bool asks_capture(Stream& s) {
        if (s.capture == CU_STREAM_CAPTURE_STATUS_NONE) return false;
        s.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        m.fault("%s of stream %zu, which is being captured", name, s.index);
        verdict = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return true;
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

inline Range bytes(uint64_t base, size_t n) { return {base, n, n, n ? size_t{1} : 0}; }

// Whether a range lies in memory of the wanted kind, all of it; sets the verdict.
bool inside(Call& call, const Range& r, bool device, Where* where);

}  // namespace sim
