// The objects that a fuzz input plays with, and what a refused call must leave alone.
#ifndef PREFIXCACHE_FUZZ_WORLD_HPP
#define PREFIXCACHE_FUZZ_WORLD_HPP

#include <prefixcache.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "input.hpp"

namespace fuzz {

constexpr int32_t kPageTokens = 4, kPages = 16, kBatch = 4, kWidth = 6, kSlots = 4;
constexpr int64_t kBlocks = 8, kBlockSize = 4;
constexpr uint64_t kStream = 0x51;

template <typename T>
T sized() {
    T v{};
    v.struct_size = sizeof(T);
    return v;
}

struct Key {
    uint32_t id;
    uint64_t rowBytes;
};

struct Step {  // an omni step that was saved
    std::vector<uint64_t> requests;
    std::vector<int64_t> rows, hits;  // of each request
    std::map<uint32_t, bool> given;   // by key: its new rows are at a dst already
};

struct Omni {
    pc_handle handle = 0;
    bool eager = true;
    std::vector<Key> keys;
    std::map<uint64_t, int64_t> hits;  // opened, not saved yet
    std::map<uint64_t, Step> steps;
};

struct Manager {
    pc_handle handle = 0;
    bool keyed = false;
    std::vector<pc_handle> leases;
    int32_t recurrent = -1, partial = -1;  // last reserved
};

struct Context {
    pc_handle handle = 0, manager = 0;
    uint32_t kind = 0;
    std::vector<pc_handle> tables, requests;
};

/// One of everything, made before the first call of an input.
class World {
  public:
    World(pc_api const& table, Input& input, Memory& calls, Memory& forLife)
        : api(table), in(input), memory(calls), device(forLife), draw(input, calls) {
        device.reset(0);
        memory.reset(0);
        uint8_t const settings = in.byte();
        makeOmni(settings % 2 == 0);
        makeManager((settings & 2) != 0,
                    (settings & 4) != 0 ? uint32_t{PC_WEAK_HASH} | PC_SHORTEN_VICTIMS | PC_ZERO_ON_RELEASE : 0U);
        makeManager(false, 0);
        makeContext((settings >> 3) % 4);
        loose = makeTable(0);
    }

    /// Checks every structure, ends everything, and looks for what was left behind.
    ~World() {
        for (auto& c : contexts) {
            must(api.manager_check(c.manager), "manager_check of a coordinator");
            for (pc_handle r : c.requests) {
                api.context_abandon(c.handle, r, 1);
            }
            api.context_shutdown(c.handle, 1);
            must(api.context_destroy(&c.handle), "context_destroy");
        }
        for (pc_handle& t : tables) {
            must(api.table_check(t), "table_check");
            must(api.table_destroy(&t), "table_destroy");
        }
        for (auto& m : managers) {
            must(api.manager_check(m.handle), "manager_check");
            for (pc_handle l : m.leases) {
                api.manager_release(m.handle, &l);
            }
            must(api.manager_flush(m.handle, nullptr), "manager_flush");
            auto s = sized<pc_manager_stats>();
            must(api.manager_get_stats(m.handle, &s), "manager_get_stats");
            for (int pool = 0; pool < 4; ++pool) {
                if (s.free[pool] != s.capacity[pool]) {
                    fault("manager", "pages are gone after every lease ended");
                }
            }
            must(api.manager_destroy(&m.handle), "manager_destroy");
        }
        for (auto& o : omnis) {
            must(api.omni_check(o.handle), "omni_check");
            must(api.omni_destroy(&o.handle), "omni_destroy");
        }
        for (pc_handle b : buffers) {
            must(api.buffer_release(b), "buffer_release");
        }
        auto s = sized<pc_buffer_stats>();
        must(api.buffer_get_stats(&s), "buffer_get_stats");
        if (s.in_use_bytes != 0) {
            fault("buffers", "in use after every one was released");
        }
    }
    World(World const&) = delete;

    void must(pc_status st, char const* call) const {
        if (st != PC_OK) {
            fault(call, api.last_error());
        }
    }

    // ------------------------------------------------------------------ making things

    void makeOmni(bool eager) {
        auto o = sized<pc_omni_options>();
        o.flags = eager ? uint32_t{PC_OMNI_EAGER} : 0U;
        o.num_blocks = kBlocks;
        o.block_size = kBlockSize;
        o.claim_timeout_ns = -1;
        Omni made;
        made.eager = eager;
        must(api.omni_create(&o, &made.handle), "omni_create");
        omnis.push_back(made);
    }
    void makeManager(bool keyed, uint32_t flags) {
        auto o = sized<pc_manager_options>();
        o.flags = (keyed ? uint32_t{PC_BLOCK_KEYS} : 0U) | flags;
        o.tokens_per_page = kPageTokens;
        o.base_pages = o.draft_pages = kPages;
        o.recurrent_slots = o.partial_slots = kSlots;
        o.max_records = 8;
        o.tenant_quota = (flags & PC_WEAK_HASH) != 0 ? 500 : 0;
        Manager made;
        made.keyed = keyed;
        must(api.manager_create(&o, &made.handle), "manager_create");
        managers.push_back(made);
    }
    pc_handle makeTable(uint64_t address) {
        auto o = sized<pc_table_options>();
        o.flags = PC_HOST_MEMORY;
        o.max_batch = kBatch;
        o.row_width = kWidth;
        o.num_pages = kPages;
        o.device_address = address;
        pc_handle made = 0;
        must(api.table_create(&o, &made), "table_create");
        tables.push_back(made);
        return made;
    }
    uint64_t onDevice(size_t bytes) { return reinterpret_cast<uint64_t>(device.take(bytes, false)); }

    /// The options of a coordinator of a kind, with memory and tables of its own. The
    /// layers are buffers of the present call.
    pc_context_options contextOptions(uint32_t kind) {
        auto o = sized<pc_context_options>();
        o.flags = PC_HOST_MEMORY;
        o.kind = kind;
        o.tokens_per_page = kPageTokens;
        o.max_batch = kBatch;
        o.max_records = 8;
        o.max_requests = 2;
        o.stream = kStream;
        bool const recurrent = kind == PC_DEPLOY_HYBRID || kind == PC_DEPLOY_PURE_RECURRENT;
        o.base.max_batch = kBatch;
        o.base.capacity_tokens = kWidth * kPageTokens;
        if (kind != PC_DEPLOY_PURE_RECURRENT) {
            o.base.table = makeTable(onDevice(sizeof(int32_t) * 2 * kWidth * kBatch));
            o.base.num_pages = kPages;
        }
        if (kind == PC_DEPLOY_EAGLE) {
            o.draft = o.base;
            o.draft.table = makeTable(0);
            o.draft_max_batch = kBatch;
            o.verify_size = 3;
            o.drafting_step = 2;
            o.drafting_top_k = 1;
        }
        if (recurrent) {
            pc_recurrent_layer r{};
            r.heads = r.head_dim = r.state_size = r.conv_dim = r.conv_kernel = 2;
            r.state_type = r.conv_type = PC_TYPE_FP32;
            r.state_address = onDevice(8 * 4 * kBatch);
            r.conv_address = onDevice(4 * 4 * kBatch);
            o.base.recurrent = draw.one(r, false);
            o.base.num_recurrent = 1;
            o.recurrent_budget = 3 * (8 + 4) * 4;
        }
        if (kind == PC_DEPLOY_HYBRID) {
            pc_attention_layer a{};
            a.kv_heads = 1;
            a.head_dim = 2;
            a.type = PC_TYPE_FP16;
            a.k_address = onDevice(2 * kPages * kPageTokens * 4);
            o.base.attention = draw.one(a, false);
            o.base.num_attention = 1;
            o.partial_budget = 3 * kPageTokens * 2 * 4;
        }
        return o;
    }
    void makeContext(uint32_t kind) {
        draw.calm();
        size_t const before = tables.size();
        auto const o = contextOptions(kind);
        Context made;
        made.kind = kind;
        must(api.context_create(&o, &made.handle), "context_create");
        must(api.context_manager(made.handle, &made.manager), "context_manager");
        made.tables.assign(tables.begin() + static_cast<ptrdiff_t>(before), tables.end());
        contexts.push_back(made);
        memory.reset(0);
    }

    // ------------------------------------------------------------------ choosing things

    /// A handle that a hostile call replaces by one that is none.
    pc_handle handle(pc_handle honest) {
        if (!draw.hostile()) {
            return honest;
        }
        switch (in.below(5)) {
            case 0:
                return 0;
            case 1:
                return stale.empty() ? 1 : stale[in.below(static_cast<uint32_t>(stale.size()))];
            case 2:
                return in.word();
            case 3:
                return honest ^ (uint64_t{1} << in.below(64));
            default: {  // of another kind, or of another object
                pc_handle const others[] = {omnis.empty() ? 7 : omnis[0].handle,
                                            managers[0].handle,
                                            contexts[0].handle,
                                            contexts[0].manager,
                                            loose,
                                            buffers.empty() ? 9 : buffers[0],
                                            managers[1].leases.empty() ? 5 : managers[1].leases[0]};
                return others[in.below(7)];
            }
        }
    }
    /// What an argument holds, wherever it lies.
    template <typename T>
    static T value(T const* p) {
        T v{};
        if (p != nullptr) {
            std::memcpy(&v, p, sizeof v);
        }
        return v;
    }
    /// The object of a handle, or null. Even a wrong handle may happen to be one.
    template <typename T>
    static T* find(std::vector<T>& list, pc_handle h) {
        for (auto& x : list) {
            if (x.handle == h) {
                return &x;
            }
        }
        return nullptr;
    }
    template <typename T>
    T& pick(std::vector<T>& list) {
        return list[in.below(static_cast<uint32_t>(list.size()))];
    }
    pc_handle pickHandle(std::vector<pc_handle> const& list) {
        return list.empty() ? 0 : list[in.below(static_cast<uint32_t>(list.size()))];
    }
    void forget(std::vector<pc_handle>& list, pc_handle h) {
        list.erase(std::remove(list.begin(), list.end(), h), list.end());
        stale.push_back(h);
    }

    // ------------------------------------------------------- what must stay as it is

    /// Everything that a refused call may not change, as text.
    std::string snapshot() {
        std::string s;
        for (auto const& m : managers) {
            dump(s, m.handle);
            for (pc_handle l : m.leases) {
                uint64_t n = 0;
                int32_t pages[64];
                for (uint32_t model = PC_BASE; model <= PC_DRAFT; ++model) {
                    if (api.manager_lease_pages(m.handle, l, model, 0, pages, 64, &n) == PC_OK) {
                        add(s, pages, sizeof pages[0] * std::min<uint64_t>(n, 64));
                    }
                }
            }
        }
        for (pc_handle t : tables) {
            int32_t row[2 * kWidth];
            for (int32_t i = 0; i < kBatch; ++i) {
                must(api.table_get_row(t, i, row), "table_get_row");
                add(s, row, sizeof row);
            }
            auto info = sized<pc_table_info>();
            must(api.table_get_info(t, &info), "table_get_info");
            add(s, &info, sizeof info);
        }
        for (auto const& c : contexts) {
            dump(s, c.manager);
            auto m = sized<pc_context_metrics>();
            must(api.context_get_metrics(c.handle, &m), "context_get_metrics");
            m.planning_nanoseconds = 0;
            add(s, &m, sizeof m);
            for (pc_handle r : c.requests) {
                auto info = sized<pc_request_info>();
                if (api.context_get_request(c.handle, r, &info) == PC_OK) {
                    add(s, &info, sizeof info);
                    for (uint32_t i = 0; i < info.num_sequences; ++i) {
                        auto q = sized<pc_sequence_info>();
                        must(api.context_get_sequence(c.handle, r, i, &q), "context_get_sequence");
                        add(s, &q, sizeof q);
                    }
                }
            }
        }
        for (auto const& o : omnis) {
            if (!o.eager) {  // its thread works meanwhile
                continue;
            }
            auto stats = sized<pc_omni_stats>();
            must(api.omni_get_stats(o.handle, &stats), "omni_get_stats");
            stats.staging_waits = 0;  // whoever waited in vain has waited
            std::fill(std::begin(stats.waits), std::end(stats.waits), 0);
            std::fill(std::begin(stats.wait_nanoseconds), std::end(stats.wait_nanoseconds), 0);
            add(s, &stats, sizeof stats);
            int64_t slots[kBlocks * kBlockSize];
            pc_omni_slot_state states[kBlocks * kBlockSize];
            for (int64_t i = 0; i < kBlocks * kBlockSize; ++i) {
                slots[i] = i;
            }
            for (auto const& k : o.keys) {
                if (api.omni_inspect(o.handle, k.id, slots, kBlocks * kBlockSize, states, nullptr, 0) == PC_OK) {
                    add(s, states, sizeof states);
                }
            }
        }
        auto b = sized<pc_buffer_stats>();
        must(api.buffer_get_stats(&b), "buffer_get_stats");
        b.retained_bytes = 0;
        add(s, &b, sizeof b);
        return s;
    }

    pc_api const& api;
    Input& in;
    Memory& memory;
    Memory& device;
    Draw draw;
    std::vector<Omni> omnis;
    std::vector<Manager> managers;
    std::vector<Context> contexts;
    std::vector<pc_handle> tables, buffers, stale;
    pc_handle loose = 0;  // a table of no coordinator

  private:
    static void add(std::string& s, void const* p, size_t n) { s.append(static_cast<char const*>(p), n); }
    void dump(std::string& s, pc_handle manager) {
        static char text[1 << 16];
        uint64_t n = 0;
        must(api.manager_dump(manager, text, sizeof text, &n), "manager_dump");
        s += text;
        auto stats = sized<pc_manager_stats>();
        must(api.manager_get_stats(manager, &stats), "manager_get_stats");
        add(s, &stats, sizeof stats);
    }
};

}  // namespace fuzz

#endif  // PREFIXCACHE_FUZZ_WORLD_HPP
