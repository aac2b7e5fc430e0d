// queue.cpp - streams as queues: order, choice of what runs next, and running it.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "model.hpp"

namespace sim {

Model& model() {
    static Model* m = new Model;  // never destroyed: other threads may outlive main
    return *m;
}

Stream* Model::add_stream(Context* c, unsigned flags, int priority) {
    auto s = std::make_unique<Stream>();
    s->index = streams.size();
    s->context = c;
    s->flags = flags;
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    s->priority = priority;
    Stream* raw = s.get();
    streams.push_back(std::move(s));
    return raw;
}

// Null: the handle was never a stream.
Stream* Model::stream(CUstream handle, Context* current) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        if (!current->legacy) {
            current->legacy = add_stream(current, 0, 0);
            current->legacy->implicit = true;
        }
        return current->legacy;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        Stream*& s = per_thread[static_cast<uint64_t>(pthread_self()) ^ reinterpret_cast<uint64_t>(current) << 1];
        if (!s) {
            s = add_stream(current, 0, 0);
            s->implicit = true;
        }
        return s;
    }
    return stream_handles.count(handle) ? reinterpret_cast<Stream*>(handle) : nullptr;
}

Op Model::begin(Stream* s, const char* name) {
    auto op = std::make_shared<Operation>();
    op->id = next_operation++;
    op->stream = s;
    op->name = name;
    op->sequence = ++s->sequence;
    op->clock = s->clock;
    join(op->clock, host);
    // The legacy stream waits for every blocking stream of its context and makes
    // later work of theirs wait for it.
    bool legacy = s == s->context->legacy;
    for (auto& other : streams) {
        if (other.get() == s || other->context != s->context || !other->last) continue;
        bool ordered = legacy ? other->blocking : s->blocking && other.get() == s->context->legacy;
        if (!ordered) continue;
        if (!other->last->done) op->after.push_back(other->last);
        join(op->clock, other->clock);
    }
    Clock own(s->index + 1);
    own[s->index] = op->sequence;
    join(op->clock, own);
    return op;
}

void Model::enqueue(const Op& op) {
    Stream* s = op->stream;
    s->clock = op->clock;
    s->last = op;
    s->queue.push_back(op);
    queued++;
}

bool Model::runnable(const Stream& s) const {
    if (s.queue.empty() || s.held || s.queue.front()->running) return false;
    for (auto& dep : s.queue.front()->after)
        if (!dep->done) return false;
    return true;
}

bool Model::run_one(std::unique_lock<std::mutex>& lock) {
    std::vector<Stream*> ready;
    for (auto& s : streams)
        if (runnable(*s)) ready.push_back(s.get());
    if (ready.empty()) return false;
    Stream* s = ready[random() % ready.size()];
    Op op = s->queue.front();
    op->running = true;
    if (op->host) {
        // A host function may take as long as it likes; the rest goes on.
        lock.unlock();
        op->host(op->host_data);
        lock.lock();
    } else {
        execute(*op);
    }
    s->queue.pop_front();
    op->done = true;
    finished = static_cast<uint64_t>(Time::now().time_since_epoch().count());
    op->after.clear();
    queued--;
    ran++;
    return true;
}

void Model::run_until(std::unique_lock<std::mutex>& lock, const Op& op) {
    while (!op->done) {
        if (!run_one(lock)) {  // held, or a host function runs elsewhere: whoever changes that goes on
            blocked.push_back(op);
            op->end.wait(lock, [&] { return op->done; });
            woken = static_cast<uint64_t>(Time::now().time_since_epoch().count());
            return;
        }
        lock.unlock();  // other threads enqueue while this one waits
        lock.lock();
    }
}

void Model::leave(std::unique_lock<std::mutex>& lock) {
    auto done = [](const Op& op) { return op->done; };
    while (!std::all_of(blocked.begin(), blocked.end(), done) && run_one(lock)) {
    }
    auto first = std::partition(blocked.begin(), blocked.end(), [&](const Op& op) { return !done(op); });
    std::vector<Op> ended(first, blocked.end());
    blocked.erase(first, blocked.end());
    lock.unlock();
    for (auto& op : ended) op->end.notify_one();
}

void Model::observe(const Op& op) {
    if (op) join(host, op->clock);
}

void Model::drain_context(std::unique_lock<std::mutex>& lock, Context* c) {
    for (size_t i = 0; i < streams.size(); i++) {
        Op last = streams[i]->context == c ? streams[i]->last : nullptr;
        if (!last) continue;
        run_until(lock, last);
        observe(last);
    }
}

static void move_rows(Model& m, const Operation& op) {
    for (size_t y = 0; y < op.dst.height; y++) {
        char* to = m.bytes_at(op.dst.base + y * op.dst.pitch, op.dst.width);
        const char* from = op.snapshot.empty() ? m.bytes_at(op.src.base + y * op.src.pitch, op.src.width)
                                               : op.snapshot.data() + y * op.src.width;
        if (to && from) memmove(to, from, op.dst.width);
    }
}

void Model::execute(Operation& op) {
    if (operation_fails_in > 0 && --operation_fails_in == 0) {
        op.stream->context->lost = operation_code;
        return;
    }
    if (op.stream->context->lost != CUDA_SUCCESS) return;
    // Host memory that is gone cannot be touched; whoever freed it was reported.
    for (const Range* r : {&op.dst, &op.src}) {
        Block* b = r->height ? find(r->base, false) : nullptr;
        if (b && b->freed && b->where == Where::kPinned) return;
    }
    if (op.check_src && hash(op.src) != op.src_hash)
        fault("the host rewrote %#lx, the source of %s #%lu, before the copy ran", op.src.base, op.name.c_str(), op.id);
    if (op.check_dst && hash(op.dst) != op.dst_hash)
        fault("the host wrote to %#lx, the destination of %s #%lu, before the copy ran", op.dst.base, op.name.c_str(),
              op.id);
    if (op.is_free)
        if (Block* b = find(op.dst.base, false)) {
            b->storage.reset();
            b->accesses.clear();
        }
    if (op.is_copy) move_rows(*this, op);
    if (op.is_fill) paint(op.dst, op.fill);
    if (op.is_launch)
        for (size_t i = 0; i < op.dst.width / 4; i++)
            if (char* p = bytes_at(op.dst.base + 4 * i, 4)) {
                uint32_t v = op.words + static_cast<uint32_t>(i);
                memcpy(p, &v, 4);
            }
}

}  // namespace sim

using sim::model;

extern "C" int simcuda_step(int n) {
    auto& m = model();
    std::unique_lock<std::mutex> lock(m.mutex);
    int ran = 0;
    while (ran < n && m.run_one(lock)) ran++;
    m.leave(lock);
    return ran;
}

extern "C" void simcuda_hold(CUstream s) {
    std::lock_guard<std::mutex> lock(model().mutex);
    if (model().stream_handles.count(s)) reinterpret_cast<sim::Stream*>(s)->held = true;
}

extern "C" void simcuda_release(CUstream s) {
    std::unique_lock<std::mutex> lock(model().mutex);
    if (model().stream_handles.count(s)) reinterpret_cast<sim::Stream*>(s)->held = false;
    model().leave(lock);
}
