// memory.cpp - address spaces, and who uses which bytes when.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "model.hpp"

namespace sim {

namespace {
constexpr size_t kSpace = size_t{1} << 40;  // of address space, no memory
constexpr size_t kAlign = 512;              // what cudaMalloc promises is 256
constexpr size_t kMaxFaults = 200;
}  // namespace

void Model::fault(const char* format, ...) {
    if (faults.size() >= kMaxFaults) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    faults.emplace_back(text);
}

void join(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

static uint64_t entry(const Clock& c, size_t i) { return i < c.size() ? c[i] : 0; }

bool Range::overlaps(const Range& other) const {
    if (base >= other.end() || other.base >= end()) return false;
    // Exact for rows: walk the side with fewer of them.
    if (height > other.height) return other.overlaps(*this);
    for (size_t y = 0; y < height; y++) {
        uint64_t low = base + y * pitch, high = low + width;
        if (low >= other.end() || high <= other.base) continue;
        if (other.height == 1) return true;
        size_t first = low <= other.base ? 0 : (low - other.base) / other.pitch;
        for (size_t r = first; r < other.height; r++) {
            uint64_t start = other.base + r * other.pitch;
            if (start >= high) break;
            if (start + other.width > low) return true;
        }
    }
    return false;
}

bool Range::covers(const Range& other) const {
    if (height == 1) return base <= other.base && end() >= other.end();
    return base == other.base && pitch == other.pitch && width >= other.width && height >= other.height;
}

bool Model::ensure_space() {
    if (device_space) return true;
    void* p = mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    device_space = device_next = reinterpret_cast<uint64_t>(p);
    device_end = device_space + kSpace;
    return true;
}

Block* Model::find(uint64_t address, bool live_only) {
    auto it = blocks.upper_bound(address);
    if (it == blocks.begin()) return nullptr;
    Block* b = std::prev(it)->second.get();
    if (address - b->base >= b->bytes || (live_only && b->freed)) return nullptr;
    return b;
}

Block* Model::add_device(size_t bytes, int device) {
    if (!ensure_space()) return nullptr;
    size_t room = (bytes + kAlign - 1) / kAlign * kAlign + (adjacent ? 0 : kAlign);
    if (device_next + room > device_end) return nullptr;
    auto b = std::make_unique<Block>();
    b->base = device_next;
    b->bytes = bytes;
    b->device = device;
    b->storage = std::make_unique<char[]>(bytes);
    memset(b->storage.get(), 0xA5, bytes);  // what was there before is never zeros
    device_next += room;
    Block* raw = b.get();
    blocks[raw->base] = std::move(b);
    return raw;
}

Where Model::where(uint64_t address) {
    if (Block* b = find(address)) return b->where;
    if (device_space && address >= device_space && address < device_end) return Where::kDevice;
    return Where::kPageable;
}

char* Model::bytes_at(uint64_t address, size_t n) {
    if (device_space && address >= device_space && address < device_end) {
        Block* b = find(address, false);
        if (!b || address + n > b->base + b->bytes || !b->storage) return nullptr;
        return b->storage.get() + (address - b->base);
    }
    return reinterpret_cast<char*>(address);
}

uint64_t Model::hash(const Range& range) {
    uint64_t h = 1469598103934665603u;
    for (size_t y = 0; y < range.height; y++) {
        const char* p = bytes_at(range.base + y * range.pitch, range.width);
        if (!p) return 0;
        size_t i = 0;
        for (; i + 8 <= range.width; i += 8) {
            uint64_t w;
            memcpy(&w, p + i, 8);
            h = (h ^ w) * 1099511628211u;
        }
        for (; i < range.width; i++) h = (h ^ static_cast<uint8_t>(p[i])) * 1099511628211u;
    }
    return h;
}

void Model::paint(const Range& range, uint8_t value) {
    for (size_t y = 0; y < range.height; y++)
        if (char* p = bytes_at(range.base + y * range.pitch, range.width)) memset(p, value, range.width);
}

// Pageable memory has no block and is not tracked: copies of it do not outlive the
// call that makes them.
void Model::note(Operation& op, const Range& range, bool write) {
    Block* b = find(range.base, false);
    if (!b) return;
    if (b->freed) {
        fault("%s #%lu uses %#lx, which was freed", op.name.c_str(), op.id, range.base);
        return;
    }
    auto& list = b->accesses;
    // What the host has seen completed comes before everything that is enqueued now.
    // And what this use comes after and covers need not be remembered beside it:
    // whoever is ordered after this use is ordered after that one too.
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const Access& a) {
                                  if (a.sequence <= entry(host, a.stream)) return true;
                                  return a.sequence <= entry(op.clock, a.stream) && a.operation != op.id &&
                                         (write || !a.write) && range.covers(a.range);
                              }),
               list.end());
    for (const Access& a : list) {
        bool before = a.sequence <= entry(op.clock, a.stream);
        if (before || (!write && !a.write) || a.operation == op.id || !a.range.overlaps(range)) continue;
        fault("%s #%lu (stream %zu) %s %#lx while #%lu (stream %zu) that %s it may not be done", op.name.c_str(), op.id,
              op.stream->index, write ? "writes" : "reads", range.base, a.operation, a.stream,
              a.write ? "writes" : "reads");
    }
    list.push_back({op.id, op.stream->index, op.sequence, range, write});
}

bool Model::used_by_queued(const Range& range, bool writes_only) {
    for (auto& s : streams)
        for (auto& op : s->queue) {
            if (op->dst.height && op->dst.overlaps(range)) return true;
            if (!writes_only && op->src.height && op->src.overlaps(range)) return true;
        }
    return false;
}

void Model::check_idle(Block& block, const char* how) {
    for (const Access& a : block.accesses) {
        if (a.sequence <= entry(host, a.stream)) continue;
        fault("%s of %#lx while #%lu (stream %zu) that %s it was not seen to be done", how, block.base, a.operation,
              a.stream, a.write ? "writes" : "reads");
        return;
    }
}

}  // namespace sim

using sim::model;

extern "C" void simcuda_host_access(const void* p, size_t bytes, int write) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    sim::Range r{reinterpret_cast<uint64_t>(p), bytes, bytes, 1};
    sim::Block* b = m.find(r.base);
    if (!b) return;
    for (const sim::Access& a : b->accesses) {
        if (a.sequence <= sim::entry(m.host, a.stream) || (!write && !a.write) || !a.range.overlaps(r)) continue;
        m.fault("the host %s %#lx before it saw that #%lu (stream %zu) that %s it is done", write ? "writes" : "reads",
                r.base, a.operation, a.stream, a.write ? "writes" : "reads");
    }
}

extern "C" int simcuda_peek(CUdeviceptr src, void* dst, size_t bytes) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    if (m.where(src) != sim::Where::kDevice) return 0;
    char* p = m.bytes_at(src, bytes);
    if (p) memcpy(dst, p, bytes);
    return p != nullptr;
}

extern "C" int simcuda_poke(CUdeviceptr dst, const void* src, size_t bytes) {
    auto& m = model();
    std::lock_guard<std::mutex> lock(m.mutex);
    if (m.where(dst) != sim::Where::kDevice) return 0;
    char* p = m.bytes_at(dst, bytes);
    if (p) memcpy(p, src, bytes);
    return p != nullptr;
}
