// Many threads at once, and a host that dies among them.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "host.hpp"
#include "work.hpp"

namespace {

using Clock = std::chrono::steady_clock;

/// Objects that some threads use while others destroy them and put new ones in place.
struct Targets {
    std::atomic<pc_handle> manager{0}, omni{0}, table{0}, context{0};

    std::mutex mutex;
    std::map<pc_handle, pc_handle> tables;  // of the coordinators
};

pc_handle newManager() {
    auto o = sized<pc_manager_options>();
    o.tokens_per_page = 4;
    o.base_pages = 32;
    pc_handle h = 0;
    must(api(), api().manager_create(&o, &h), "manager_create");
    return h;
}
pc_handle newOmni(bool eager) {
    auto o = sized<pc_omni_options>();
    o.flags = eager ? uint32_t{PC_OMNI_EAGER} : 0U;
    o.num_blocks = 8;
    o.block_size = 4;
    pc_handle h = 0;
    must(api(), api().omni_create(&o, &h), "omni_create");
    return h;
}
pc_handle newTable() {
    auto o = sized<pc_table_options>();
    o.flags = PC_HOST_MEMORY;
    o.max_batch = o.row_width = 4;
    o.num_pages = 16;
    pc_handle h = 0;
    must(api(), api().table_create(&o, &h), "table_create");
    return h;
}

pc_handle newContext(Targets& t) {
    pc_handle const table = newTable();
    auto o = sized<pc_context_options>();
    o.flags = PC_HOST_MEMORY;
    o.tokens_per_page = 4;
    o.max_batch = 4;
    o.base.table = table;
    o.base.num_pages = 16;
    o.base.max_batch = 4;
    o.base.capacity_tokens = 16;
    pc_handle h = 0;
    must(api(), api().context_create(&o, &h), "context_create");
    std::lock_guard<std::mutex> lock(t.mutex);
    t.tables[h] = table;
    return h;
}
void destroyContext(Targets& t, pc_handle h) {
    pc_handle const name = h;
    pc_status st = PC_ERROR_BUSY;
    while (st == PC_ERROR_BUSY) {  // somebody has a request
        st = api().context_destroy(&h);
    }
    must(api(), st, "context_destroy");
    std::lock_guard<std::mutex> lock(t.mutex);
    must(api(), api().table_destroy(&t.tables[name]), "table_destroy");
    t.tables.erase(name);
}

/// What a call on an object that somebody else may just have destroyed can return.
void fair(pc_status st, char const* call) {
    switch (st) {
        case PC_OK:
        case PC_REQUEST_FAILED:
        case PC_KEY_MISMATCH:
        case PC_ERROR_BAD_HANDLE:
        case PC_ERROR_BUSY:
        case PC_ERROR_CLOSED:
        case PC_ERROR_UNMATCH:
        case PC_ERROR_WRONG_STATE:
        case PC_ERROR_INVALID_ARGUMENT:
        case PC_ERROR_STAGING_TIMEOUT:
            return;
        default:
            broken(call, api().last_error());
    }
}

void useManager(pc_handle h, int i) {
    auto const p = Context::prompt(i % 5);
    auto s = sized<pc_sequence>();
    s.tokens = p.data();
    s.num_tokens = 17;
    auto plan = sized<pc_plan>();
    pc_handle lease = 0;
    pc_status const st = api().manager_acquire(h, 0, 0, &s, &plan, nullptr, 0, nullptr, 0, &lease);
    fair(st, "manager_acquire");
    if (st == PC_OK) {
        fair(api().manager_publish(h, lease, 17, nullptr), "manager_publish");
        fair(api().manager_grow(h, lease, 1, 0, nullptr, nullptr), "manager_grow");
        fair(api().manager_release(h, &lease), "manager_release");
    }
    if (i % 16 == 0) {
        fair(api().manager_check(h), "manager_check");
        fair(api().manager_flush(h, nullptr), "manager_flush");
    }
}

void useOmni(pc_handle h, int i) {
    uint32_t key = 0;
    fair(api().omni_open_key(h, "a", 1, 16, 1, 0, &key), "omni_open_key");
    uint64_t const request = static_cast<uint64_t>(i % 8);
    int64_t const slot = i % 32, count = 1;
    uint8_t row[16] = {}, got[16] = {};
    pc_omni_rows r{};
    r.key = key;
    r.rows = row;
    r.row_stride = 16;
    auto a = sized<pc_omni_save_args>();
    a.requests = &request;
    a.counts = &count;
    a.num_requests = 1;
    a.slots = &slot;
    a.num_slots = 1;
    a.rows = &r;
    a.num_rows = 1;
    pc_omni_new_request arrival{request, 0, nullptr, 0};
    fair(api().omni_step_begin(h, &request, 1, &arrival, 1, nullptr), "omni_step_begin");
    pc_status const st = api().omni_save(h, &a);
    fair(st, "omni_save");
    if (st == PC_OK) {
        pc_omni_read read{};
        read.key = key;
        read.count = 1;
        read.dst = got;
        read.dst_bytes = sizeof got;
        fair(i % 3 == 0 ? api().omni_discard(h, a.step) : api().omni_materialize(h, a.step, &read, 1), "a step's end");
    }
    auto stats = sized<pc_omni_stats>();
    fair(api().omni_get_stats(h, &stats), "omni_get_stats");
}

void useTable(pc_handle h, int i) {
    int32_t const slot = i % 4, page = i % 16;
    int64_t const cuts[] = {0, 1};
    fair(api().table_set_rows(h, &slot, 1, &page, cuts), "table_set_rows");
    fair(api().table_upload(h, 0, nullptr), "table_upload");
    int32_t row[8];
    fair(api().table_get_row(h, slot, row), "table_get_row");
}

/// Whoever got a request has it until it ends, whoever wants to destroy the coordinator.
void useContext(pc_handle h, int i) {
    auto const p = Context::prompt(i % 5);
    int64_t const cuts[] = {0, 9};
    auto a = sized<pc_admission>();
    a.num_sequences = 1;
    a.tokens = p.data();
    a.token_offsets = cuts;
    pc_sequence_start start{};
    pc_handle request = 0;
    pc_status const st = api().context_begin(h, &a, &start, &request);
    fair(st, "context_begin");
    if (st == PC_OK) {
        must(api(), api().context_abandon(h, request, 1), "context_abandon");
    }
    auto metrics = sized<pc_context_metrics>();
    fair(api().context_get_metrics(h, &metrics), "context_get_metrics");
}

/// One thread of the crowd: three in four use objects, the fourth replaces them.
void member(Targets& t, int id, std::atomic<bool> const& stop, std::atomic<uint64_t>& rounds) {
    for (int i = id; !stop; ++i, ++rounds) {
        if (id % 4 == 3 && i % 8 == 0) {
            pc_handle old = t.manager.exchange(newManager());
            must(api(), api().manager_destroy(&old), "manager_destroy");
            old = t.omni.exchange(newOmni(i % 16 == 0));
            must(api(), api().omni_destroy(&old), "omni_destroy");
            old = t.table.exchange(newTable());
            must(api(), api().table_destroy(&old), "table_destroy");
            destroyContext(t, t.context.exchange(newContext(t)));
        }
        useManager(t.manager, i);
        useOmni(t.omni, i);
        useTable(t.table, i);
        useContext(t.context, i);
        void* data = nullptr;
        pc_handle buffer = 0;
        must(api(), api().buffer_acquire(4096, &data, &buffer), "buffer_acquire");
        must(api(), api().buffer_release(buffer), "buffer_release");
    }
}

struct Crowd {
    explicit Crowd(int n) : rounds(static_cast<size_t>(n)) {
        t.manager = newManager();
        t.omni = newOmni(false);
        t.table = newTable();
        t.context = newContext(t);
        for (int i = 0; i < n; ++i) {
            threads.emplace_back([this, i] { member(t, i, stop, rounds[static_cast<size_t>(i)]); });
        }
    }
    void end() {
        stop = true;
        for (auto& x : threads) {
            x.join();
        }
        pc_handle h = t.manager;
        must(api(), api().manager_check(h), "manager_check");
        must(api(), api().manager_destroy(&h), "manager_destroy");
        h = t.omni;
        must(api(), api().omni_check(h), "omni_check");
        must(api(), api().omni_destroy(&h), "omni_destroy");
        h = t.table;
        must(api(), api().table_destroy(&h), "table_destroy");
        destroyContext(t, t.context);
        auto s = sized<pc_buffer_stats>();
        must(api(), api().buffer_get_stats(&s), "buffer_get_stats");
        if (s.in_use_bytes != 0) {
            broken("buffers", "in use after every one was released");
        }
    }
    Targets t;
    std::atomic<bool> stop{false};
    std::vector<std::atomic<uint64_t>> rounds;  // of each thread
    std::vector<std::thread> threads;
};

}  // namespace

void crowd(int threads, int milliseconds) {
    must(api(), api().reserve_threads(static_cast<uint32_t>(std::max(1, threads / 8))), "reserve_threads");
    Crowd c(threads);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    // On a busy machine a thread may have had no time at all so far.
    auto const stuck = [&] { return std::count(c.rounds.begin(), c.rounds.end(), 0U) > 0; };
    for (auto const end = Clock::now() + std::chrono::minutes(1); stuck();) {
        if (Clock::now() > end) {
            broken("crowd", "a thread never came through");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    c.end();
    uint64_t const rounds = std::accumulate(c.rounds.begin(), c.rounds.end(), uint64_t{0});
    std::printf("%d threads, %llu rounds\n", threads, static_cast<unsigned long long>(rounds));
}

void die(std::string const& how) {
    auto* context = new Context(api());  // live handles, to the end
    auto* omni = new Omni(api(), false);
    context->round(1);
    omni->round(1);
    auto* c = new Crowd(6);
    std::printf("up\n");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + getpid() % 17));
    if (how == "wait") {
        std::this_thread::sleep_for(std::chrono::hours(1));
    } else if (how == "exit") {
        std::exit(3);
    } else if (how == "exit_of_a_thread") {
        std::thread([] { std::exit(3); }).join();
    } else if (how == "quick_exit") {
        std::quick_exit(3);
    } else if (how == "_exit") {
        _exit(3);
    } else if (how == "abort") {
        std::abort();
    } else if (how == "throw") {
        throw std::runtime_error("nobody catches this");
    } else if (how == "segfault") {
        raise(SIGSEGV);
        int volatile* nowhere = nullptr;
        *nowhere = 1;
    } else if (how == "end_of_main") {
        c->threads.front().detach();
        pthread_exit(nullptr);  // the process lives on in its threads, until it is killed
    }
    broken("die", how.c_str());
}
