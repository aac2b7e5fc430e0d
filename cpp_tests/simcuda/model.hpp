// model.hpp - the state of the simulated driver. One mutex guards all of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "simcuda.h"

namespace sim {

using Time = std::chrono::steady_clock;

// A vector clock: entry i is how many operations of stream i come before.
using Clock = std::vector<uint64_t>;
void join(Clock& into, const Clock& from);

enum class Where { kDevice, kPinned, kPageable };

// Rows of bytes. One row for a plain range.
struct Range {
    uint64_t base = 0;
    size_t pitch = 0, width = 0, height = 0;
    uint64_t end() const { return base + (height ? (height - 1) * pitch + width : 0); }
    bool overlaps(const Range& other) const;
    bool covers(const Range& other) const;  // false when in doubt
};

// One use of memory by an operation.
struct Access {
    uint64_t operation;
    size_t stream;
    uint64_t sequence;
    Range range;
    bool write;
};

// An allocation, or a registration of the caller's memory. Device blocks keep
// their bytes in storage and their addresses for ever.
struct Block {
    uint64_t base = 0;
    size_t bytes = 0;
    Where where = Where::kDevice;
    bool registered = false;  // the caller's memory, ours only by registration
    bool freed = false;
    int device = 0;
    std::unique_ptr<char[]> storage;
    std::vector<Access> accesses;
};

struct Context;
struct Stream;

struct Operation {
    uint64_t id = 0;
    Stream* stream = nullptr;
    uint64_t sequence = 0;
    std::string name;
    Clock clock;
    std::vector<std::shared_ptr<Operation>> after;  // besides its predecessor in the stream
    Range dst, src;
    Where dst_where = Where::kPageable, src_where = Where::kPageable;
    uint8_t fill = 0;
    uint32_t words = 0;  // first word of a launch
    bool is_fill = false, is_launch = false, is_copy = false, is_free = false;
    bool check_src = false, check_dst = false;  // the host must leave these bytes alone
    uint64_t src_hash = 0, dst_hash = 0;
    std::vector<char> snapshot;  // of pageable source memory
    CUhostFn host = nullptr;
    void* host_data = nullptr;
    bool running = false, done = false;
    std::condition_variable end;  // of those in Model::blocked
};
using Op = std::shared_ptr<Operation>;

struct Context {
    int device = 0;
    CUresult lost = CUDA_SUCCESS;  // sticky error
    Stream* legacy = nullptr;
};

struct Stream {
    size_t index = 0;
    Context* context = nullptr;
    bool blocking = true, implicit = false, destroyed = false, held = false;
    int priority = 0;
    unsigned flags = 0;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id capturer;
    uint64_t captures = 0;  // begun so far
    uint64_t sequence = 0;
    Clock clock;  // of the last operation
    Op last;      // the last operation, done or not
    std::deque<Op> queue;
};

struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    bool destroyed = false;
    Stream* captured = nullptr;  // recorded into a graph: by the capture with this number of this stream
    uint64_t capture = 0;
    Op record;  // null: never recorded
    uint64_t nanoseconds = 0;
};

struct Pool {
    int device = 0;
    bool destroyed = false;
};

struct Model {
    std::mutex mutex;
    bool down = false;
    int fail_all_kinds = 0;
    std::string fail_name;                            // of the calls that fail; empty: none
    std::vector<std::shared_ptr<Operation>> blocked;  // what sleeping threads wait for
    std::mt19937_64 random{1};
    int policy = SIMCUDA_RANDOM;
    int devices = 1;
    bool pools_supported = true, adjacent = false;
    bool initialised = false;

    std::vector<std::unique_ptr<Context>> contexts;  // primary ones first
    std::vector<std::unique_ptr<Stream>> streams;    // by index, never removed before a reset
    std::vector<std::unique_ptr<Event>> events;
    std::vector<std::unique_ptr<Pool>> pools;
    std::set<void*> stream_handles, event_handles, pool_handles;  // known, live or destroyed
    std::map<uint64_t, std::unique_ptr<Block>> blocks;            // by base
    std::map<uint64_t, Stream*> per_thread;
    uint64_t device_space = 0, device_next = 0, device_end = 0;

    Clock host;  // what the host has seen completed
    uint64_t next_operation = 1, ran = 0, queued = 0;
    uint64_t pageable = 0, implicit_waits = 0, nanoseconds = 0, finished = 0, woken = 0;
    std::map<std::string, uint64_t> calls;
    std::vector<std::string> faults;

    int fail_kinds = 0, fail_in = 0;
    CUresult fail_code = CUDA_SUCCESS;
    int operation_fails_in = 0;
    CUresult operation_code = CUDA_SUCCESS;

    void fault(const char* format, ...) __attribute__((format(printf, 2, 3)));

    // memory.cpp
    Block* find(uint64_t address, bool live_only = true);
    Block* add_device(size_t bytes, int device);
    bool ensure_space();
    // The bytes of one row of a range: storage for device memory, the address itself
    // for host memory; null when a device row is outside any block.
    char* bytes_at(uint64_t address, size_t n);
    Where where(uint64_t address);
    uint64_t hash(const Range& range);
    void paint(const Range& range, uint8_t value);
    // Reports conflicts of op with what nothing orders before it, and notes the use.
    void note(Operation& op, const Range& range, bool write);
    bool used_by_queued(const Range& range, bool writes_only);
    // Reports what would still use a block that is about to go.
    void check_idle(Block& block, const char* how);

    // queue.cpp
    Stream* stream(CUstream handle, Context* current);
    Op begin(Stream* s, const char* name);  // clock and order; not queued yet
    void enqueue(const Op& op);             // queues, and runs some by policy
    bool runnable(const Stream& s) const;
    bool run_one(std::unique_lock<std::mutex>& lock);
    void run_until(std::unique_lock<std::mutex>& lock, const Op& op);
    // Ends every call: does what sleeping threads wait for, as far as it can run now,
    // gives the lock up, and only then wakes them.
    void leave(std::unique_lock<std::mutex>& lock);
    void observe(const Op& op);  // the host knows that op is done
    void drain_context(std::unique_lock<std::mutex>& lock, Context* c);
    void execute(Operation& op);
    Stream* add_stream(Context* c, unsigned flags, int priority);
};

Model& model();

}  // namespace sim
