// control.cpp - what a test asks of the simulated driver.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "call.hpp"

using sim::model;

namespace {

// Copies lines to text, cut to size and terminated; returns how many there are.
int put(const std::vector<std::string>& lines, char* text, size_t size) {
    if (text && size) {
        std::string all;
        for (auto& l : lines) all += l + "\n";
        size_t n = std::min(all.size(), size - 1);
        memcpy(text, all.data(), n);
        text[n] = 0;
    }
    return static_cast<int>(lines.size());
}

std::string line(const char* format, unsigned long a, unsigned long b) {
    char s[160];
    snprintf(s, sizeof s, format, a, b);
    return s;
}

}  // namespace

extern "C" {

// Streams and events of before stay allocated: somebody may still hold a handle,
// and a stale handle has to be told from a live one.
void simcuda_reset(uint64_t seed) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    static std::vector<std::unique_ptr<sim::Stream>> old_streams;
    static std::vector<std::unique_ptr<sim::Event>> old_events;
    static std::vector<std::unique_ptr<sim::Pool>> old_pools;
    for (auto& s : m.streams) {
        s->destroyed = true;
        s->queue.clear();
        s->last = nullptr;
        old_streams.push_back(std::move(s));
    }
    for (auto& e : m.events) {
        e->destroyed = true;
        e->record = nullptr;
        old_events.push_back(std::move(e));
    }
    for (auto& p : m.pools) {
        p->destroyed = true;
        old_pools.push_back(std::move(p));
    }
    m.streams.clear();
    m.events.clear();
    m.pools.clear();
    m.per_thread.clear();
    m.blocks.clear();
    for (auto& c : m.contexts) {
        c->legacy = nullptr;
        c->lost = CUDA_SUCCESS;
    }
    m.random.seed(seed);
    m.policy = SIMCUDA_RANDOM;
    m.devices = 1;
    m.pools_supported = true;
    m.adjacent = false;
    m.host.clear();
    m.next_operation = 1;
    m.ran = m.queued = m.pageable = m.implicit_waits = m.nanoseconds = m.finished = m.woken = 0;
    m.calls.clear();
    m.faults.clear();
    m.fail_in = m.operation_fails_in = 0;
    m.fail_all_kinds = 0;
    m.fail_name.clear();
    m.down = false;
    sim::capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // of this thread
}

void simcuda_shut_down(void) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().down = true;
}

void simcuda_policy(int policy) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().policy = policy;
}

void simcuda_devices(int count) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().devices = count < 1 ? 1 : count > 2 ? 2 : count;
}

void simcuda_pools(int supported) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().pools_supported = supported != 0;
}

void simcuda_adjacent(int on) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().adjacent = on != 0;
}

void simcuda_fail_nth(int kinds, int n, CUresult code) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().fail_kinds = kinds;
    model().fail_in = n;
    model().fail_code = code;
}

void simcuda_fail_all(int kinds, CUresult code) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().fail_all_kinds = kinds;
    model().fail_code = code;
}

void simcuda_fail_call(const char* name, CUresult code) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().fail_name = name ? name : "";
    model().fail_code = code;
}

int simcuda_armed(void) {
    std::lock_guard<std::mutex> lock(model().mutex);
    return model().fail_in > 0;
}

void simcuda_fail_operation(int n, CUresult code) {
    std::lock_guard<std::mutex> lock(model().mutex);
    model().operation_fails_in = n;
    model().operation_code = code;
}

void simcuda_capture(CUstream stream, CUstreamCaptureMode mode) {
    std::lock_guard<std::mutex> lock(model().mutex);
    if (!model().stream_handles.count(stream)) return;
    auto* s = reinterpret_cast<sim::Stream*>(stream);
    s->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    s->mode = mode;
    s->capturer = std::this_thread::get_id();
    s->captures++;
}

CUstreamCaptureStatus simcuda_end_capture(CUstream stream) {
    std::lock_guard<std::mutex> lock(model().mutex);
    if (!model().stream_handles.count(stream)) return CU_STREAM_CAPTURE_STATUS_NONE;
    auto* s = reinterpret_cast<sim::Stream*>(stream);
    auto was = s->capture;
    s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    return was;
}

int simcuda_report(char* text, size_t size) {
    std::lock_guard<std::mutex> lock(model().mutex);
    return put(model().faults, text, size);
}

int simcuda_leaks(char* text, size_t size) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    std::vector<std::string> lines;
    for (auto& s : m.streams)
        if (!s->destroyed && !s->implicit)
            lines.push_back(line("stream %lu (%lu operations queued)", s->index, s->queue.size()));
    for (size_t i = 0; i < m.events.size(); i++)
        if (!m.events[i]->destroyed) lines.push_back(line("event %lu of %lu", i, m.events.size()));
    for (auto& p : m.pools)
        if (!p->destroyed) lines.push_back(line("memory pool of device %lu", static_cast<unsigned long>(p->device), 0));
    for (auto& [base, b] : m.blocks) {
        if (b->freed) continue;
        const char* what = b->where == sim::Where::kDevice ? "device memory %#lx, %lu bytes"
                           : b->registered                 ? "registration %#lx, %lu bytes"
                                                           : "pinned memory %#lx, %lu bytes";
        lines.push_back(line(what, base, b->bytes));
    }
    return put(lines, text, size);
}

uint64_t simcuda_calls(const char* name) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    if (name) {
        auto it = m.calls.find(name);
        return it == m.calls.end() ? 0 : it->second;
    }
    uint64_t n = 0;
    for (auto& [_, count] : m.calls) n += count;
    return n;
}

#define GAUGE(function, field)                           \
    uint64_t function(void) {                            \
        std::lock_guard<std::mutex> lock(model().mutex); \
        return model().field;                            \
    }
GAUGE(simcuda_nanoseconds, nanoseconds)
GAUGE(simcuda_finished, finished)
GAUGE(simcuda_woken, woken)
GAUGE(simcuda_ran, ran)
GAUGE(simcuda_queued, queued)
GAUGE(simcuda_pageable, pageable)
GAUGE(simcuda_implicit_waits, implicit_waits)

}  // extern "C"
