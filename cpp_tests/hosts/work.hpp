// What a host does with both caches, small and with every result checked.
#ifndef PREFIXCACHE_HOSTS_WORK_HPP
#define PREFIXCACHE_HOSTS_WORK_HPP

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <prefixcache.h>

#ifdef HOST_LINKED
inline pc_api const& api() { return *pc_get_api(PC_ABI_VERSION); }
#else
#include <prefixcache/library.hpp>
inline pc_api const& api() { return prefixcache::Library::get(); }
#endif

[[noreturn]] inline void broken(char const* what, char const* why = "") {
    std::fprintf(stderr, "host: %s: %s\n", what, why);
    std::_Exit(1);
}

inline void must(pc_api const& a, pc_status st, char const* what) {
    if (st != PC_OK) {
        broken(what, a.last_error());
    }
}

template <typename T>
T sized() {
    T v{};
    v.struct_size = sizeof(T);
    return v;
}

/// An omni cache of its own: rows go in, a hit brings them back.
struct Omni {
    static constexpr int64_t kBlock = 4, kTokens = 8;
    static constexpr uint64_t kRow = 48;

    explicit Omni(pc_api const& table, bool eager = true) : a(table) {
        auto o = sized<pc_omni_options>();
        o.flags = eager ? uint32_t{PC_OMNI_EAGER} : 0U;
        o.num_blocks = 16;
        o.block_size = kBlock;
        must(a, a.omni_create(&o, &handle), "omni_create");
        must(a, a.omni_open_key(handle, PC_OMNI_HIDDEN_KEY, sizeof PC_OMNI_HIDDEN_KEY - 1, kRow, 1, 0, &key),
             "open_key");
    }
    ~Omni() { must(a, a.omni_destroy(&handle), "omni_destroy"); }
    Omni(Omni const&) = delete;

    uint64_t save(uint64_t request, std::vector<int64_t> const& slots, uint8_t fill) {
        std::vector<uint8_t> rows(slots.size() * kRow);
        for (size_t i = 0; i < rows.size(); ++i) {
            rows[i] = static_cast<uint8_t>(fill + i / kRow);
        }
        auto const count = static_cast<int64_t>(slots.size());
        pc_omni_rows r{};
        r.key = key;
        r.rows = rows.data();
        r.row_stride = static_cast<int64_t>(kRow);
        auto s = sized<pc_omni_save_args>();
        s.requests = &request;
        s.counts = &count;
        s.num_requests = 1;
        s.slots = slots.data();
        s.num_slots = count;
        s.rows = &r;
        s.num_rows = 1;
        must(a, a.omni_save(handle, &s), "omni_save");
        return s.step;
    }
    void begin(uint64_t finished, uint64_t request, int64_t hit, std::vector<int64_t> const& blocks) {
        pc_omni_new_request n{request, hit, blocks.data(), static_cast<int64_t>(blocks.size())};
        uint8_t accepted = 0;
        must(a, a.omni_step_begin(handle, &finished, 1, &n, 1, &accepted), "omni_step_begin");
    }
    /// The rows of a step with one request: `hit` rows of the prefix, then `count` new ones.
    std::vector<uint8_t> read(uint64_t step, int64_t hit, int64_t count) {
        std::vector<uint8_t> out(static_cast<size_t>(hit + count) * kRow);
        pc_omni_read r{};
        r.key = key;
        r.count = 1;
        r.dst = out.data();
        r.dst_bytes = out.size();
        must(a, a.omni_materialize(handle, step, &r, 1), "omni_materialize");
        return out;
    }
    void round(uint8_t fill) {
        std::vector<int64_t> const blocks{fill % 7, 7 + fill % 7};
        std::vector<int64_t> slots;
        for (int64_t i = 0; i < kTokens; ++i) {
            slots.push_back(blocks[static_cast<size_t>(i / kBlock)] * kBlock + i % kBlock);
        }
        begin(2, 1, 0, {});
        read(save(1, slots, fill), 0, kTokens);
        begin(1, 2, kTokens, blocks);
        auto const got = read(save(2, {60}, 99), kTokens, 1);
        for (size_t i = 0; i < got.size(); ++i) {
            uint8_t const want = i / kRow < kTokens ? static_cast<uint8_t>(fill + i / kRow) : uint8_t{99};
            if (got[i] != want) {
                broken("omni", "a row came back changed");
            }
        }
    }

    pc_api const& a;
    pc_handle handle = 0;
    uint32_t key = 0;
};

/// A manager, and a coordinator with a table: prompts that share a prefix.
struct Context {
    static constexpr int32_t kPage = 4, kPages = 64, kWidth = 8;
    static constexpr uint64_t kStream = 0x51;

    explicit Context(pc_api const& from) : a(from) {
        auto t = sized<pc_table_options>();
        t.flags = PC_HOST_MEMORY;
        t.max_batch = 2;
        t.row_width = kWidth;
        t.num_pages = kPages;
        must(a, a.table_create(&t, &table), "table_create");
        auto o = sized<pc_context_options>();
        o.flags = PC_HOST_MEMORY;
        o.tokens_per_page = kPage;
        o.max_batch = 2;
        o.stream = kStream;
        o.base.table = table;
        o.base.num_pages = kPages;
        o.base.max_batch = 2;
        o.base.capacity_tokens = kWidth * kPage;
        must(a, a.context_create(&o, &handle), "context_create");
        auto m = sized<pc_manager_options>();
        m.tokens_per_page = kPage;
        m.base_pages = kPages;
        must(a, a.manager_create(&m, &manager), "manager_create");
    }
    ~Context() {
        must(a, a.manager_check(manager), "manager_check");
        must(a, a.manager_destroy(&manager), "manager_destroy");
        must(a, a.context_destroy(&handle), "context_destroy");
        must(a, a.table_destroy(&table), "table_destroy");
    }
    Context(Context const&) = delete;

    static std::vector<int32_t> prompt(int32_t seed) {
        std::vector<int32_t> p(17, 7);
        for (size_t i = 8; i < p.size(); ++i) {
            p[i] = seed;
        }
        return p;
    }
    void steps(pc_handle request, pc_status (*step)(pc_handle, pc_handle, pc_work*)) {
        auto w = sized<pc_work>();
        pc_status st = step(handle, request, &w);
        while (st == PC_OK && w.count > 0) {
            st = a.context_report(handle, request, PC_WORK_DONE, &w);
        }
        must(a, st, "a step of a request");
    }
    void serve(int32_t seed) {
        auto const p = prompt(seed);
        int64_t const cuts[] = {0, 17};
        auto in = sized<pc_admission>();
        in.num_sequences = 1;
        in.stream = kStream;
        in.tokens = p.data();
        in.token_offsets = cuts;
        pc_sequence_start start{};
        pc_handle request = 0;
        must(a, a.context_begin(handle, &in, &start, &request), "context_begin");
        if (start.prefill_start % kPage != 0 || start.prefill_start > 16) {
            broken("context_begin", "starts inside a page");
        }
        steps(request, a.context_prepare_prefill);
        int32_t const token = 5, committed = 17;
        int64_t const one[] = {0, 1};
        auto adv = sized<pc_advance>();
        adv.num_sequences = 1;
        adv.tokens = &token;
        adv.token_offsets = one;
        adv.committed = &committed;
        auto w = sized<pc_work>();
        must(a, a.context_finalize_prefill(handle, request, &adv, &w), "finalize_prefill");
        steps(request, a.context_finish);
    }
    void lease(int32_t seed) {
        auto const p = prompt(seed);
        auto s = sized<pc_sequence>();
        s.tokens = p.data();
        s.num_tokens = 17;
        auto plan = sized<pc_plan>();
        pc_handle l = 0;
        std::vector<int32_t> pages(5);
        must(a, a.manager_acquire(manager, PC_PLAN_VANILLA, 0, &s, &plan, pages.data(), 5, nullptr, 0, &l), "acquire");
        must(a, a.manager_publish(manager, l, 17, nullptr), "publish");
        must(a, a.manager_release(manager, &l), "release");
        if (a.manager_lookup(manager, PC_PLAN_VANILLA, &s, &plan) != PC_OK || plan.reuse != 16) {
            broken("manager_lookup", "does not find what was published");
        }
    }
    void round(int32_t seed) {
        serve(seed);
        lease(seed);
    }

    pc_api const& a;
    pc_handle table = 0, handle = 0, manager = 0;
};

#endif  // PREFIXCACHE_HOSTS_WORK_HPP
