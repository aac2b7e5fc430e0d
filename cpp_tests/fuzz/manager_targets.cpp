// The manager of the context cache, and the digests.
#include "targets.hpp"

namespace fuzz {
namespace {

int32_t token(World& w) { return w.in.below(3); }

/// A sequence that a manager of this kind takes, or in a hostile call one that it refuses.
pc_sequence* sequence(World& w, bool keyed, uint32_t most, uint64_t& length) {
    Draw& d = w.draw;
    auto s = sized<pc_sequence>();
    length = 1 + w.in.below(most);
    d.reserved(s.reserved0);
    if (keyed) {
        uint64_t const n = std::max<uint64_t>(1, length / kPageTokens);
        length = std::max<uint64_t>(length, kPageTokens);
        s.keys = d.array<pc_hash128>(n, [&](uint64_t i) { return pc_hash128{i, w.in.below(3)}; });
        s.num_keys = d.count<pc_hash128>(n);
        uint64_t const points = w.in.below(3);
        s.checkpoints = d.array<pc_checkpoint>(points, [&](uint64_t) {
            return pc_checkpoint{{1, w.in.below(3)}, d.number<int64_t>(1 + w.in.below(16))};
        });
        s.num_checkpoints = d.count<pc_checkpoint>(points);
        s.num_tokens = d.hostile() ? static_cast<int64_t>(w.in.word()) | std::numeric_limits<int64_t>::min()
                                   : static_cast<int64_t>(length);
    } else {
        s.tokens = d.array<int32_t>(length, [&](uint64_t) { return d.number<int32_t>(token(w)); });
        if (w.in.oneIn(4)) {
            s.media = d.array<pc_hash128>(length, [&](uint64_t) { return pc_hash128{w.in.below(2), 0}; });
        }
        if (w.in.oneIn(4)) {
            pc_extras e{};
            e.present = d.hostile() ? 16U << w.in.below(28) : w.in.below(16);
            d.reserved(e.reserved0);
            e.adapter = e.position = e.embedding = e.isolation = {0, w.in.below(2)};
            e.adapter_generation = w.in.below(2);
            s.extras = d.one(e, false);
        }
        if (w.in.oneIn(6)) {
            uint64_t const n = w.in.below(3);
            s.spans = d.array<pc_media_span>(n, [&](uint64_t i) {
                pc_media_span m{};
                m.content = {1, w.in.below(2)};
                m.offset = d.number<int32_t>(static_cast<int32_t>(w.in.below(kPageTokens)));
                m.order = d.number<int32_t>(static_cast<int32_t>(i));
                m.modality = d.number<uint32_t>(w.in.below(3));
                d.reserved(m.reserved0);
                return m;
            });
            s.num_spans = d.count<pc_media_span>(n);
        }
        if (d.hostile()) {
            int64_t const absurd[] = {0, -1, int64_t{1} << 31, std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min()};
            s.num_tokens = absurd[w.in.below(5)];
        } else {
            s.num_tokens = static_cast<int64_t>(length);
        }
        if (d.hostile()) {
            s.num_keys = 1;
        }
    }
    return d.structure(s, true);
}

pc_status create(World& w) {
    Draw& d = w.draw;
    auto o = sized<pc_manager_options>();
    o.flags = d.hostile() ? w.in.byte() : 0;
    o.tokens_per_page = d.size<int32_t>(kPageTokens);
    o.max_records = d.size<int32_t>(4);
    o.base_pages = d.size<int32_t>(kPages);
    o.draft_pages = d.size<int32_t>(kPages);
    o.recurrent_slots = d.size<int32_t>(kSlots);
    o.partial_slots = d.size<int32_t>(kSlots);
    d.reserved(o.reserved[w.in.below(4)]);
    o.tenant_quota = d.number<uint32_t>(0);
    d.reserved(o.reserved1);
    auto* options = d.structure(o, false);
    auto* manager = d.out<pc_handle>();
    pc_status const st = w.api.manager_create(options, manager);
    if (st == PC_OK) {
        pc_handle h = World::value(manager);
        w.must(w.api.manager_check(h), "manager_check of a new manager");
        w.must(w.api.manager_destroy(&h), "manager_destroy");
    }
    return st;
}

pc_status destroy(World& w) {
    auto* h = w.draw.one(w.handle(w.pick(w.managers).handle), false);
    pc_handle const given = World::value(h);
    pc_status const st = w.api.manager_destroy(h);
    Manager* m = World::find(w.managers, given);
    if (st == PC_OK && m != nullptr) {
        w.stale.push_back(given);
        w.stale.insert(w.stale.end(), m->leases.begin(), m->leases.end());
        bool const keyed = m->keyed;
        w.managers.erase(w.managers.begin() + (m - w.managers.data()));
        w.makeManager(keyed, 0);
    }
    return st;
}

/// Calls on a coordinator's manager are refused or queries.
pc_handle of(World& w, Manager const& m) { return w.in.oneIn(16) ? w.pick(w.contexts).manager : w.handle(m.handle); }

pc_status acquire(World& w) {
    Draw& d = w.draw;
    Manager& m = w.pick(w.managers);
    uint32_t const mode = w.in.below(3);
    uint64_t length = 0;
    auto* s = sequence(w, m.keyed, 40, length);
    auto* plan = d.structure(sized<pc_plan>(), false);
    uint64_t const pages = (length + kPageTokens - 1) / kPageTokens;
    int32_t* base = w.in.oneIn(3) ? nullptr : d.out<int32_t>(pages);
    uint64_t const numBase = d.hostile() ? pages / 2 : pages;
    int32_t* draft = w.in.oneIn(3) ? nullptr : d.out<int32_t>(pages);
    uint64_t const numDraft = d.hostile() ? pages / 2 : pages;
    auto* lease = d.out<pc_handle>();
    pc_handle const h = of(w, m);
    pc_status const st = w.api.manager_acquire(h, d.number<uint32_t>(mode), d.number<uint32_t>(w.in.oneIn(4)), s, plan,
                                               base, numBase, draft, numDraft, lease);
    if (st == PC_OK) {
        pc_handle const l = World::value(lease);
        Manager* owner = World::find(w.managers, h);
        if (owner == nullptr || l == 0) {
            fault("manager_acquire", "a lease of nothing");
        }
        owner->leases.push_back(l);
        Draw::apart("manager_acquire", lease, 1, base, owner->keyed ? 0 : pages);
        Draw::apart("manager_acquire", lease, 1, plan, 1);
    }
    return st;
}

pc_status append(World& w) {
    Manager& m = w.pick(w.managers);
    uint64_t const n = w.in.below(9);
    auto* tokens = w.draw.array<int32_t>(n, [&](uint64_t) { return token(w); });
    return w.api.manager_append(of(w, m), w.handle(w.pickHandle(m.leases)), tokens, w.draw.count<int32_t>(n));
}

/// Pages to append and room for them. A count that a call may believe comes with room.
struct Growth {
    int32_t base, draft;
    int32_t *basePages, *draftPages;
};
Growth growth(World& w) {
    Draw& d = w.draw;
    auto const one = [&](int32_t& n, int32_t*& p) {
        n = static_cast<int32_t>(w.in.below(4));
        p = w.in.oneIn(3) ? nullptr : d.out<int32_t>(static_cast<uint64_t>(n));
        if (d.hostile()) {
            int32_t const absurd[] = {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                                      kPages + 1};
            n = absurd[w.in.below(4)];
        }
    };
    Growth g{};
    one(g.base, g.basePages);
    one(g.draft, g.draftPages);
    return g;
}

pc_status grow(World& w) {
    Manager& m = w.pick(w.managers);
    Growth const g = growth(w);
    return w.api.manager_grow(of(w, m), w.handle(w.pickHandle(m.leases)), g.base, g.draft, g.basePages, g.draftPages);
}

pc_publication* publication(World& w) {
    return w.in.oneIn(3) ? nullptr : w.draw.structure(sized<pc_publication>(), false);
}

pc_status publish(World& w) {
    Manager& m = w.pick(w.managers);
    auto* p = publication(w);
    return w.api.manager_publish(of(w, m), w.handle(w.pickHandle(m.leases)), w.draw.number<int64_t>(w.in.below(40)), p);
}

pc_status advance(World& w) {
    Manager& m = w.pick(w.managers);
    uint64_t const n = w.in.below(5);
    auto* tokens = w.draw.array<int32_t>(n, [&](uint64_t) { return token(w); });
    Growth const g = growth(w);
    auto* p = publication(w);
    return w.api.manager_advance(of(w, m), w.handle(w.pickHandle(m.leases)), tokens, w.draw.count<int32_t>(n),
                                 w.draw.number<int64_t>(w.in.below(40)), g.base, g.draft, g.basePages, g.draftPages, p);
}

pc_status publishKeys(World& w) {
    Draw& d = w.draw;
    Manager& m = w.pick(w.managers);
    uint64_t const n = w.in.below(6), first = w.in.below(4);
    auto* keys = d.array<pc_hash128>(n, [&](uint64_t i) { return pc_hash128{first + i, w.in.below(3)}; });
    auto* p = publication(w);
    return w.api.manager_publish_keys(of(w, m), w.handle(w.pickHandle(m.leases)), d.number<uint64_t>(first), keys,
                                      d.count<pc_hash128>(n), d.number<int64_t>(w.in.below(40)), p);
}

pc_status reserve(World& w) {
    Manager& m = w.pick(w.managers);
    auto* recurrent = w.draw.out<int32_t>();
    auto* partial = w.draw.out<int32_t>();
    pc_status const st = w.api.manager_reserve(of(w, m), w.handle(w.pickHandle(m.leases)), w.draw.bit(w.in.below(2)),
                                               recurrent, partial);
    if (st == PC_OK) {
        m.recurrent = World::value(recurrent);
        m.partial = World::value(partial);
    }
    return st;
}

pc_status publishHybrid(World& w) {
    Manager& m = w.pick(w.managers);
    auto* p = publication(w);
    return w.api.manager_publish_hybrid(of(w, m), w.handle(w.pickHandle(m.leases)),
                                        w.draw.number<int64_t>(1 + w.in.below(24)), w.draw.number<int32_t>(m.recurrent),
                                        w.draw.number<int32_t>(m.partial), p);
}

pc_status publishHybridKeys(World& w) {
    Draw& d = w.draw;
    Manager& m = w.pick(w.managers);
    uint64_t const n = w.in.below(6), first = w.in.below(4);
    auto* keys = d.array<pc_hash128>(n, [&](uint64_t i) { return pc_hash128{first + i, w.in.below(3)}; });
    auto* point = d.one(pc_checkpoint{{1, w.in.below(3)}, d.number<int64_t>(1 + w.in.below(24))}, false);
    auto* p = publication(w);
    return w.api.manager_publish_hybrid_keys(of(w, m), w.handle(w.pickHandle(m.leases)), d.number<uint64_t>(first),
                                             keys, d.count<pc_hash128>(n), point, d.number<int32_t>(m.recurrent),
                                             d.number<int32_t>(m.partial), p);
}

pc_status retire(World& w) {
    Manager& m = w.pick(w.managers);
    return w.api.manager_retire(of(w, m), w.handle(w.pickHandle(m.leases)), w.draw.number<int32_t>(m.recurrent),
                                w.draw.number<int32_t>(m.partial));
}

pc_status leasePages(World& w) {
    Draw& d = w.draw;
    Manager& m = w.pick(w.managers);
    uint64_t const space = w.in.below(12);
    auto* pages = d.out<int32_t>(space);
    auto* count = d.out<uint64_t>();
    return w.api.manager_lease_pages(of(w, m), w.handle(w.pickHandle(m.leases)), d.number<uint32_t>(w.in.below(2)),
                                     d.number<uint64_t>(w.in.below(8)), pages, d.hostile() ? space / 2 : space, count);
}

pc_status release(World& w) {
    Manager& m = w.pick(w.managers);
    auto* lease = w.draw.one(w.handle(w.pickHandle(m.leases)), false);
    pc_handle const given = World::value(lease);
    pc_handle const h = of(w, m);
    pc_status const st = w.api.manager_release(h, lease);
    Manager* owner = World::find(w.managers, h);
    if (st == PC_OK && given != 0 && owner != nullptr) {
        w.forget(owner->leases, given);
    }
    return st;
}

pc_status lookup(World& w) {
    Manager& m = w.pick(w.managers);
    uint64_t length = 0;
    auto* s = sequence(w, m.keyed, 40, length);
    auto* plan = w.draw.structure(sized<pc_plan>(), false);
    return w.api.manager_lookup(w.handle(m.handle), w.draw.number<uint32_t>(w.in.below(3)), s, plan);
}

pc_status invalidate(World& w) {
    Draw& d = w.draw;
    auto* adapter = d.one(pc_hash128{0, w.in.below(2)}, false);
    auto* generation = w.in.oneIn(2) ? nullptr : d.one<uint64_t>(w.in.below(2), false);
    auto* removed = w.in.oneIn(2) ? nullptr : d.out<uint64_t>();
    return w.api.manager_invalidate(w.handle(w.pick(w.managers).handle), adapter, generation, removed);
}

pc_status records(World& w) {
    uint64_t const space = w.in.below(6);
    auto* list = w.draw.out<pc_record>(space);
    auto* count = w.draw.out<uint64_t>();
    return w.api.manager_records(w.handle(w.pick(w.managers).handle), list, w.draw.hostile() ? space / 2 : space,
                                 count);
}

pc_status tenants(World& w) {
    uint64_t const space = w.in.below(4);
    auto* list = w.draw.out<pc_tenant>(space);
    auto* count = w.draw.out<uint64_t>();
    return w.api.manager_tenants(w.handle(w.pick(w.managers).handle), list, w.draw.hostile() ? space / 2 : space,
                                 count);
}

pc_status setQuota(World& w) {
    auto* isolation = w.in.oneIn(3) ? nullptr : w.draw.one(pc_hash128{0, w.in.below(2)}, false);
    return w.api.manager_set_quota(w.handle(w.pick(w.managers).handle), isolation,
                                   w.draw.number<uint32_t>(4U * w.in.byte()));
}

pc_status recordPages(World& w) {
    uint64_t const space = w.in.below(6);
    auto* pages = w.draw.out<int32_t>(space);
    auto* count = w.draw.out<uint64_t>();
    return w.api.manager_record_pages(w.handle(w.pick(w.managers).handle), w.draw.number<uint64_t>(w.in.below(8)),
                                      w.draw.number<uint32_t>(w.in.below(2)), w.draw.number<uint64_t>(w.in.below(4)),
                                      pages, w.draw.hostile() ? space / 2 : space, count);
}

pc_status references(World& w) {
    Draw& d = w.draw;
    uint64_t const first = w.in.below(4), n = w.in.below(8);
    auto* active = w.in.oneIn(3) ? nullptr : d.out<int32_t>(n);
    auto* cached = w.in.oneIn(3) ? nullptr : d.out<int32_t>(n);
    // A count up to the capacity would be believed; beyond it is refused.
    uint64_t const absurd[] = {kPages + 1, ~uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0} - 3};
    return w.api.manager_references(w.handle(w.pick(w.managers).handle), d.number<uint32_t>(w.in.below(4)),
                                    d.number<uint64_t>(first), active, cached, d.hostile() ? absurd[w.in.below(4)] : n);
}

pc_status dump(World& w) {
    uint64_t const space = w.in.below(200);
    auto* text = w.draw.out<char>(space);
    auto* size = w.draw.out<uint64_t>();
    return w.api.manager_dump(w.handle(w.pick(w.managers).handle), text, w.draw.hostile() ? space / 2 : space, size);
}

pc_status digestSequence(World& w) {
    Draw& d = w.draw;
    uint64_t length = 0;
    auto* s = sequence(w, w.in.oneIn(16), 40, length);
    uint64_t const blocks = length / kPageTokens;
    auto* digests = d.out<pc_hash128>(blocks);
    uint64_t const n = d.hostile() ? (w.in.oneIn(2) ? blocks / 2 : ~uint64_t{0}) : blocks;
    int32_t const absurd[] = {0, -1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    auto* prefix = w.in.oneIn(2) ? nullptr : d.out<pc_hash128>();
    return w.api.digest_sequence(s, d.hostile() ? absurd[w.in.below(4)] : kPageTokens, digests, n, prefix);
}

}  // namespace

std::vector<Target> managerTargets() {
    return {
        TARGET(digest_sequence, digestSequence),
        TARGET(manager_create, create),
        TARGET(manager_destroy, destroy),
        TARGET(manager_acquire, acquire),
        TARGET(manager_append, append),
        TARGET(manager_grow, grow),
        TARGET(manager_publish, publish),
        TARGET(manager_advance, advance, true),  // the parts before the one that failed are done
        TARGET(manager_publish_keys, publishKeys),
        TARGET(manager_reserve, reserve),
        TARGET(manager_publish_hybrid, publishHybrid),
        TARGET(manager_publish_hybrid_keys, publishHybridKeys),
        TARGET(manager_retire, retire),
        TARGET(manager_release_restored,
               [](World& w) {
                   Manager& m = w.pick(w.managers);
                   return w.api.manager_release_restored(of(w, m), w.handle(w.pickHandle(m.leases)));
               }),
        TARGET(manager_lease_pages, leasePages),
        TARGET(manager_release, release),
        TARGET(manager_lookup, lookup),
        TARGET(manager_invalidate, invalidate),
        TARGET(manager_flush,
               [](World& w) {
                   auto* removed = w.in.oneIn(2) ? nullptr : w.draw.out<uint64_t>();
                   return w.api.manager_flush(w.handle(w.pick(w.managers).handle), removed);
               }),
        TARGET(manager_evict,
               [](World& w) {
                   return w.api.manager_evict(w.handle(w.pick(w.managers).handle),
                                              w.draw.number<uint64_t>(w.in.below(8)));
               }),
        TARGET(manager_records, records),
        TARGET(manager_tenants, tenants),
        TARGET(manager_set_quota, setQuota),
        TARGET(manager_record_pages, recordPages),
        TARGET(manager_references, references),
        TARGET(manager_get_stats,
               [](World& w) {
                   return w.api.manager_get_stats(w.handle(w.pick(w.managers).handle),
                                                  w.draw.structure(sized<pc_manager_stats>(), false));
               }),
        TARGET(manager_check, [](World& w) { return w.api.manager_check(w.handle(w.pick(w.managers).handle)); }),
        TARGET(manager_dump, dump),
    };
}

}  // namespace fuzz
