// The omni cache. Saves follow the header's order of calls as far as an honest engine
// would, so that the hostile ones meet every state.
#include <numeric>

#include "targets.hpp"

namespace fuzz {
namespace {

pc_status create(World& w) {
    Draw& d = w.draw;
    auto o = sized<pc_omni_options>();
    o.flags = d.hostile() ? w.in.byte() : w.in.below(4);
    o.num_blocks = d.number<int64_t>(kBlocks);
    o.block_size = d.number<int64_t>(kBlockSize);
    o.staging_bytes = d.number<int64_t>(0);
    o.staging_depth = d.number<int64_t>(w.in.below(5));
    o.staging_capacity_tokens = d.number<int64_t>(0);
    o.claim_timeout_ns = -1;
    o.copy_chunk_bytes = d.number<int64_t>(0);
    o.warm_bytes = d.number<int64_t>(0);
    d.reserved(o.reserved[w.in.below(4)]);
    auto* options = d.structure(o, false);
    auto* cache = d.out<pc_handle>();
    pc_status const st = w.api.omni_create(options, cache);
    if (st == PC_OK) {
        pc_handle h = World::value(cache);
        w.must(w.api.omni_check(h), "omni_check of a new cache");
        w.must(w.api.omni_destroy(&h), "omni_destroy");
    }
    return st;
}

/// A cache that was destroyed, by a new one.
void replace(World& w, pc_handle gone) {
    Omni* o = World::find(w.omnis, gone);
    if (o != nullptr) {
        w.stale.push_back(gone);
        w.omnis.erase(w.omnis.begin() + (o - w.omnis.data()));
        w.makeOmni(w.in.oneIn(2));
    }
}

pc_status destroy(World& w) {
    auto* h = w.draw.one(w.handle(w.pick(w.omnis).handle), false);
    pc_handle const given = World::value(h);
    pc_status const st = w.api.omni_destroy(h);
    if (st == PC_OK) {
        replace(w, given);
    }
    return st;
}

pc_status openKey(World& w) {
    Draw& d = w.draw;
    Omni& o = w.pick(w.omnis);
    char const* names[] = {PC_OMNI_HIDDEN_KEY, "a", "b", "c"};
    std::string const name = names[w.in.below(4)];
    uint64_t const widths[] = {1, 8, 24, 100};
    uint64_t const width = widths[w.in.below(4)];
    char* text = d.array<char>(name.size(), [&](uint64_t i) { return name[i]; });
    uint64_t const asked = d.hostile() ? (w.in.oneIn(2) ? 0 : (uint64_t{1} << 31) + 1) : width;
    auto* key = d.out<uint32_t>();
    size_t const length = d.hostile() ? (w.in.oneIn(2) ? 0 : 4097 + w.in.byte()) : name.size();
    pc_status const st = w.api.omni_open_key(w.handle(o.handle), text, length, asked, w.in.below(2),
                                             d.number<uint32_t>(w.in.below(2)), key);
    if (st == PC_OK && !d.wasHostile()) {
        auto const known = std::find_if(o.keys.begin(), o.keys.end(), [&](Key const& k) { return k.id == *key; });
        if (known == o.keys.end()) {
            o.keys.push_back({*key, width});
        } else {
            known->rowBytes = width;
        }
    }
    return st;
}

pc_status stepBegin(World& w) {
    Draw& d = w.draw;
    Omni& o = w.pick(w.omnis);
    uint64_t const numFinished = w.in.below(3), n = w.in.below(4);
    auto* finished = d.array<uint64_t>(numFinished, [&](uint64_t) { return uint64_t{w.in.below(6)}; });
    std::vector<pc_omni_new_request> wanted;
    auto* arrivals = d.array<pc_omni_new_request>(
        n,
        [&](uint64_t) {
            uint64_t const blocks = w.in.below(4);
            pc_omni_new_request a{};
            a.request = w.in.below(6);
            a.blocks = d.array<int64_t>(blocks, [&](uint64_t) { return d.number<int64_t>(w.in.below(kBlocks)); });
            a.num_blocks = d.count<int64_t, int64_t>(blocks);
            a.hit_tokens = d.number<int64_t>(kBlockSize * static_cast<int64_t>(w.in.oneIn(2) ? blocks : 0));
            wanted.push_back(a);
            return a;
        },
        true);
    auto* accepted = w.in.oneIn(4) ? nullptr : d.out<uint8_t>(n);
    pc_status const st = w.api.omni_step_begin(w.handle(o.handle), finished, d.count<uint64_t>(numFinished), arrivals,
                                               d.count<pc_omni_new_request>(n), accepted);
    if (st == PC_OK && !d.wasHostile()) {
        for (uint64_t i = 0; i < numFinished; ++i) {
            o.hits.erase(finished[i]);
        }
        for (uint64_t i = 0; accepted != nullptr && i < n; ++i) {
            if (accepted[i] != 0) {
                o.hits[wanted[i].request] = wanted[i].hit_tokens;
            }
        }
    }
    return st;
}

pc_status save(World& w) {
    Draw& d = w.draw;
    Omni& o = w.pick(w.omnis);
    Step step;
    std::set<uint64_t> batch;
    for (uint32_t i = w.in.below(4); i > 0; --i) {
        batch.insert(w.in.below(6));
    }
    int64_t tokens = 0, hits = 0;
    for (uint64_t r : batch) {
        step.requests.push_back(r);
        step.rows.push_back(w.in.below(5));
        step.hits.push_back(o.hits.count(r) != 0 ? o.hits[r] : 0);
        tokens += step.rows.back();
        hits += step.hits.back();
    }
    auto const n = static_cast<uint64_t>(tokens);
    auto a = sized<pc_omni_save_args>();
    a.flags = d.hostile() ? 1U : 0U;
    a.stream = d.number<uint64_t>(0);
    a.requests = d.array<uint64_t>(batch.size(), [&](uint64_t i) { return step.requests[i]; });
    a.counts = d.array<int64_t>(batch.size(), [&](uint64_t i) { return d.number<int64_t>(step.rows[i]); });
    a.num_requests = d.count<uint64_t>(batch.size());
    uint32_t const first = w.in.byte();
    a.slots = d.array<int64_t>(
        n, [&](uint64_t i) { return d.number<int64_t>(static_cast<int64_t>((first + i) % (kBlocks * kBlockSize))); });
    a.num_slots = d.count<int64_t, int64_t>(n);
    std::vector<Key> keys;
    for (auto const& k : o.keys) {
        if (!w.in.oneIn(4)) {
            keys.push_back(k);
        }
    }
    a.rows = d.array<pc_omni_rows>(
        keys.size(),
        [&](uint64_t i) {
            pc_omni_rows r{};
            r.key = d.number<uint32_t>(keys[i].id);
            if (d.hostile()) {  // where there is a GPU, the address would be followed there
                r.flags = w.in.oneIn(2) ? uint32_t{PC_OMNI_ON_DEVICE} : 2U << w.in.below(30);
            }
            uint64_t const stride = keys[i].rowBytes + w.in.below(3);
            uint64_t const bytes = n == 0 ? 0 : (n - 1) * stride + keys[i].rowBytes;
            r.rows = d.array<uint8_t>(bytes, [&](uint64_t b) { return static_cast<uint8_t>(first + b); });
            r.row_stride = static_cast<int64_t>(stride);
            if (d.hostile()) {
                int64_t const absurd[] = {0, -1, 1, std::numeric_limits<int64_t>::max(),
                                          std::numeric_limits<int64_t>::min()};
                r.row_stride = absurd[w.in.below(5)] < static_cast<int64_t>(keys[i].rowBytes) || n > 1
                                   ? absurd[w.in.below(5)]
                                   : r.row_stride;
            }
            uint64_t const whole = static_cast<uint64_t>(hits + tokens) * keys[i].rowBytes;
            if (w.in.oneIn(2)) {
                r.dst = d.array<uint8_t>(whole, [](uint64_t) { return uint8_t{0}; });
                r.dst_bytes = d.hostile() ? (w.in.oneIn(2) ? whole / 2 : uint64_t{1} << 63) : whole;
                step.given[keys[i].id] = true;
            } else {
                step.given[keys[i].id] = false;
            }
            return r;
        },
        true);
    a.num_rows = d.count<pc_omni_rows>(keys.size());
    // An event is for rows on a device, and these are not.
    uint64_t* const zeros[] = {&a.reserved[0], &a.reserved[1], &a.reserved[2], &a.reserved[3], &a.event};
    d.reserved(*zeros[w.in.below(5)]);
    auto* args = d.structure(a, true);
    pc_status const st = w.api.omni_save(w.handle(o.handle), args);
    if (st == PC_OK && !d.wasHostile()) {
        for (uint64_t r : step.requests) {
            o.hits.erase(r);
        }
        o.steps[args->step] = step;
    }
    return st;
}

uint64_t pickStep(World& w, Omni& o) {
    if (o.steps.empty()) {
        return 1;
    }
    auto at = o.steps.begin();
    std::advance(at, w.in.below(static_cast<uint32_t>(o.steps.size())));
    return at->first;
}

pc_status materialize(World& w) {
    Draw& d = w.draw;
    Omni& o = w.pick(w.omnis);
    uint64_t const id = pickStep(w, o);
    Step const step = o.steps[id];
    auto const batch = static_cast<int64_t>(step.requests.size());
    uint64_t const n = o.keys.empty() ? w.in.below(2) : w.in.below(4);
    auto* reads = d.array<pc_omni_read>(
        n,
        [&](uint64_t i) {
            pc_omni_read r{};
            bool const none = o.keys.empty() || w.in.oneIn(8);
            Key const key = none ? Key{PC_OMNI_NO_KEY, 0} : o.keys[i % o.keys.size()];
            int64_t const first = batch == 0 ? 0 : w.in.below(static_cast<uint32_t>(batch));
            int64_t const count = batch == 0 ? 0 : 1 + w.in.below(static_cast<uint32_t>(batch - first));
            uint64_t bytes = 0;
            for (int64_t k = first; k < first + count; ++k) {
                auto const at = static_cast<size_t>(k);
                bytes += static_cast<uint64_t>(step.hits[at] + step.rows[at]) * key.rowBytes;
            }
            r.key = d.number<uint32_t>(key.id);
            d.reserved(r.reserved0);
            r.first = d.number<int64_t>(first);
            r.count = d.number<int64_t>(count);
            r.dst = none ? nullptr : d.array<uint8_t>(bytes, [](uint64_t) { return uint8_t{0}; });
            r.dst_bytes = d.hostile() ? (w.in.oneIn(2) ? bytes / 2 : ~uint64_t{0}) : bytes;
            return r;
        },
        true);
    pc_handle const h = w.handle(o.handle);
    uint64_t const asked = d.number<uint64_t>(id);
    pc_status const st = w.api.omni_materialize(h, asked, reads, d.count<pc_omni_read>(n));
    if (st != PC_ERROR_BAD_HANDLE && h == o.handle) {
        o.steps.erase(asked);
    }
    return st;
}

pc_status discard(World& w) {
    Omni& o = w.pick(w.omnis);
    uint64_t const id = w.draw.number<uint64_t>(pickStep(w, o));
    pc_status const st = w.api.omni_discard(w.handle(o.handle), id);
    if (st == PC_OK) {
        o.steps.erase(id);
    }
    return st;
}

pc_status inspect(World& w) {
    Draw& d = w.draw;
    Omni& o = w.pick(w.omnis);
    Key const key = o.keys.empty() ? Key{0, 8} : w.pick(o.keys);
    uint64_t const n = w.in.below(9);
    auto* slots = d.array<int64_t>(n, [&](uint64_t) { return d.number<int64_t>(w.in.below(kBlocks * kBlockSize)); });
    auto* states = d.out<pc_omni_slot_state>(n);
    uint64_t const bytes = n * key.rowBytes;
    uint8_t* rows = w.in.oneIn(2) ? d.out<uint8_t>(bytes) : nullptr;
    uint64_t const claimed = d.hostile() ? (w.in.oneIn(2) ? bytes / 2 : ~uint64_t{0}) : bytes;
    return w.api.omni_inspect(w.handle(o.handle), d.number<uint32_t>(key.id), slots, d.count<int64_t>(n), states, rows,
                              claimed);
}

pc_status shutDown(World& w) {
    pc_handle h = w.handle(w.pick(w.omnis).handle);
    pc_status const st = w.api.omni_shutdown(h);
    if (st == PC_OK) {  // little works on it from now on
        pc_handle const gone = h;
        w.must(w.api.omni_shutdown(h), "a second omni_shutdown");
        w.must(w.api.omni_destroy(&h), "omni_destroy");
        replace(w, gone);
    }
    return st;
}

}  // namespace

std::vector<Target> omniTargets() {
    return {
        TARGET(omni_create, create),
        TARGET(omni_shutdown, shutDown),
        TARGET(omni_destroy, destroy),
        TARGET(omni_set_policy,
               [](World& w) {
                   return w.api.omni_set_policy(w.handle(w.pick(w.omnis).handle), w.draw.bit(w.in.below(2)));
               }),
        TARGET(omni_open_key, openKey),
        TARGET(omni_step_begin, stepBegin),
        TARGET(omni_save, save),
        TARGET(omni_materialize, materialize, true),  // the step is used up
        TARGET(omni_discard, discard),
        TARGET(omni_get_stats,
               [](World& w) {
                   return w.api.omni_get_stats(w.handle(w.pick(w.omnis).handle),
                                               w.draw.structure(sized<pc_omni_stats>(), false));
               }),
        TARGET(omni_inspect, inspect),
        TARGET(omni_check, [](World& w) { return w.api.omni_check(w.handle(w.pick(w.omnis).handle)); }),
        TARGET(omni_fail_write,
               [](World& w) {
                   // A failed write is sticky: most inputs should live without.
                   return w.api.omni_fail_write(w.handle(w.pick(w.omnis).handle), w.in.oneIn(16) ? w.in.below(4) : 0);
               }),
    };
}

}  // namespace fuzz
