// Coordinators, and the gate.
#include "targets.hpp"

namespace fuzz {
namespace {

pc_status create(World& w) {
    Draw& d = w.draw;
    size_t const tables = w.tables.size(), used = w.device.used();
    auto o = w.contextOptions(w.in.below(4));
    o.flags = d.hostile() ? w.in.byte() | uint32_t{PC_HOST_MEMORY} : uint32_t{PC_HOST_MEMORY};
    o.kind = d.number<uint32_t>(o.kind);
    o.tokens_per_page = d.size<int32_t>(o.tokens_per_page);
    o.max_batch = d.size<int32_t>(o.max_batch);
    o.draft_max_batch = d.size<int32_t>(o.draft_max_batch);
    o.max_records = d.size<int32_t>(o.max_records);
    o.max_requests = d.size<int32_t>(o.max_requests);
    o.verify_size = d.size<int32_t>(o.verify_size);
    o.drafting_step = d.size<int32_t>(o.drafting_step);
    o.drafting_top_k = d.size<int32_t>(o.drafting_top_k);
    o.future_tokens = d.number<int32_t>(o.future_tokens);
    o.recurrent_budget = d.hostile() ? (w.in.oneIn(2) ? -1 : std::numeric_limits<int64_t>::max()) : o.recurrent_budget;
    o.partial_budget = d.hostile() ? (w.in.oneIn(2) ? -1 : std::numeric_limits<int64_t>::max()) : o.partial_budget;
    d.reserved(o.reserved[w.in.below(4)]);
    pc_handle const baseTable = o.base.table, draftTable = o.draft.table;
    for (auto* r : {&o.base, &o.draft}) {
        r->table = w.handle(r->table);
        r->num_pages = d.number<int32_t>(r->num_pages);
        r->max_batch = d.number<int32_t>(r->max_batch);
        r->capacity_tokens = d.number<int32_t>(r->capacity_tokens);
        d.reserved(r->reserved0);
        r->num_attention = d.count<pc_attention_layer>(r->num_attention);
        r->num_recurrent = d.count<pc_recurrent_layer>(r->num_recurrent);
    }
    auto* options = d.structure(o, true);
    auto* context = d.out<pc_handle>();
    pc_status const st = w.api.context_create(options, context);
    if (st == PC_OK) {
        pc_handle h = World::value(context);
        w.must(w.api.context_destroy(&h), "context_destroy");
    }
    for (pc_handle h : {baseTable, draftTable}) {  // given back, whatever happened
        if (h != 0) {
            w.must(w.api.table_destroy(&h), "table_destroy after a coordinator");
        }
    }
    w.tables.resize(tables);
    w.device.reset(used);
    return st;
}

pc_status destroy(World& w) {
    Context& c = w.contexts[0];
    pc_handle const manager = c.manager;
    auto* h = w.draw.one(w.handle(c.handle), false);
    pc_handle const given = World::value(h);
    pc_status const st = w.api.context_destroy(h);
    if (st == PC_OK && given == c.handle) {
        w.stale.push_back(given);
        w.stale.push_back(manager);
        uint32_t const kind = c.kind;
        for (pc_handle t : c.tables) {
            w.forget(w.tables, t);
            w.must(w.api.table_destroy(&t), "table_destroy after a coordinator");
        }
        w.contexts.clear();
        w.device.reset(0);
        w.makeContext(kind);
    }
    return st;
}

pc_status begin(World& w) {
    Draw& d = w.draw;
    Context& c = w.contexts[0];
    uint64_t const n = 1 + w.in.below(3);
    std::vector<int64_t> cuts{0}, none{0};
    for (uint64_t i = 0; i < n; ++i) {
        cuts.push_back(cuts.back() + 1 + w.in.below(kWidth * kPageTokens - 2));
        none.push_back(w.in.oneIn(2) ? none.back() : none.back() + cuts.back() - cuts[i]);
    }
    auto const offsets = [&](std::vector<int64_t> const& honest) {
        return d.array<int64_t>(
            n + 1,
            [&](uint64_t i) {
                if (!d.hostile()) {
                    return honest[i];
                }
                int64_t const absurd[] = {-1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                                          honest[i] / 2};
                return absurd[w.in.below(4)];
            },
            true);
    };
    auto a = sized<pc_admission>();
    a.execution =
        d.number<uint32_t>(c.kind == PC_DEPLOY_EAGLE && w.in.oneIn(2) ? PC_EXECUTE_EAGLE : PC_EXECUTE_VANILLA);
    a.lookup = d.number<uint32_t>(w.in.oneIn(8));
    a.commit = d.number<uint32_t>(w.in.oneIn(4));
    d.reserved(a.reserved0);
    a.stream = d.number<uint64_t>(kStream);
    a.tokens = d.array<int32_t>(static_cast<uint64_t>(cuts.back()),
                                [&](uint64_t) { return static_cast<int32_t>(w.in.below(2)); });
    a.token_offsets = offsets(cuts);
    if (w.in.oneIn(4)) {
        a.media = d.array<pc_hash128>(static_cast<uint64_t>(none.back()), [&](uint64_t) {
            return pc_hash128{w.in.below(2), 0};
        });
        a.media_offsets = offsets(none);
    }
    if (w.in.oneIn(4)) {
        a.extras = d.array<pc_extras>(n, [&](uint64_t) {
            pc_extras e{};
            e.present = d.hostile() ? 16U << w.in.below(28) : w.in.below(16);
            d.reserved(e.reserved0);
            return e;
        });
    }
    if (w.in.oneIn(2)) {
        uint32_t const first = w.in.below(2);
        a.slots = d.array<int32_t>(n, [&](uint64_t i) { return d.number<int32_t>(static_cast<int32_t>(first + i)); });
    }
    if (d.hostile()) {
        uint32_t const absurd[] = {0, kBatch + 1, ~0U, 1U << 31};
        a.num_sequences = absurd[w.in.below(4)];
    } else {
        a.num_sequences = static_cast<uint32_t>(n);
    }
    d.reserved(a.reserved[w.in.below(4)]);
    auto* admission = d.structure(a, true);
    auto* starts = d.out<pc_sequence_start>(n);
    auto* request = d.out<pc_handle>();
    pc_status const st = w.api.context_begin(w.handle(c.handle), admission, starts, request);
    if (st == PC_OK) {
        Draw::apart("context_begin", starts, n, request, 1);
        c.requests.push_back(World::value(request));
    }
    return st;
}

pc_work* work(World& w) { return w.draw.structure(sized<pc_work>(), false); }

/// A step: what it hands out is reported like an honest runtime would, most of the time.
template <typename F>
pc_status step(World& w, F call) {
    Context& c = w.contexts[0];
    pc_handle const request = w.pickHandle(c.requests);
    auto* out = work(w);
    pc_status const st = call(w, w.handle(c.handle), w.handle(request), out);
    if (w.in.oneIn(4)) {
        return st;
    }
    auto more = sized<pc_work>();
    if (st == PC_OK && out != nullptr) {
        std::memcpy(&more.count, &out->count, sizeof more.count);
    }
    for (pc_status next = st; next == PC_OK && more.count > 0;) {
        more.struct_size = sizeof more;
        next = w.api.context_report(c.handle, request, PC_WORK_DONE, &more);
    }
    return st;
}

/// What an honest step did; lengths come from the library.
template <typename F>
pc_status advancing(World& w, bool decode, F call) {
    return step(w, [&](World&, pc_handle context, pc_handle request, pc_work* out) {
        Draw& d = w.draw;
        Context& c = w.contexts[0];
        auto info = sized<pc_request_info>();
        if (w.api.context_get_request(c.handle, request, &info) != PC_OK || info.num_sequences == 0) {
            info.num_sequences = 1;
        }
        uint64_t const n = info.num_sequences;
        std::vector<int32_t> committed(n, 1);
        for (uint32_t i = 0; i < n; ++i) {
            auto q = sized<pc_sequence_info>();
            if (w.api.context_get_sequence(c.handle, request, i, &q) == PC_OK) {
                committed[i] = q.tokens;
            }
        }
        auto a = sized<pc_advance>();
        a.tokens = d.array<int32_t>(n, [&](uint64_t) { return static_cast<int32_t>(w.in.below(3)); });
        a.token_offsets = d.array<int64_t>(
            n + 1,
            [&](uint64_t i) {
                if (!d.hostile()) {
                    return static_cast<int64_t>(i);
                }
                int64_t const absurd[] = {-1, std::numeric_limits<int64_t>::max(), static_cast<int64_t>(i / 2)};
                return absurd[w.in.below(3)];
            },
            true);
        a.committed = d.array<int32_t>(n, [&](uint64_t i) { return d.number<int32_t>(committed[i]); });
        if (info.execution == PC_EXECUTE_EAGLE) {
            a.common = d.array<int32_t>(n, [&](uint64_t i) { return d.number<int32_t>(committed[i]); });
        }
        if (decode && w.in.oneIn(2)) {
            a.publish = d.array<int32_t>(1, [&](uint64_t) {
                return d.number<int32_t>(static_cast<int32_t>(w.in.below(static_cast<uint32_t>(n))));
            });
            a.num_publish = d.count<int32_t>(1);
        }
        if (d.hostile()) {
            uint32_t const absurd[] = {0, kBatch + 1, ~0U};
            a.num_sequences = absurd[w.in.below(3)];
        } else {
            a.num_sequences = static_cast<uint32_t>(n);
        }
        d.reserved(a.reserved[w.in.below(2)]);
        return call(context, request, d.structure(a, true), out);
    });
}

pc_status beginCompaction(World& w) {
    return step(w, [](World& world, pc_handle context, pc_handle request, pc_work* out) {
        Context& c = world.contexts[0];
        auto info = sized<pc_request_info>();
        uint64_t const n = world.api.context_get_request(c.handle, request, &info) == PC_OK ? info.num_sequences : 1;
        int32_t batch = 0;
        auto* m = mapping(world, n, batch);
        static uint64_t device = 0;  // for the life of the process: copies may come later
        if (device == 0) {
            device = reinterpret_cast<uint64_t>(new int32_t[kBatch]);
        }
        return world.api.context_begin_compaction(context, request, m, world.draw.count<int32_t>(n),
                                                  world.draw.number<int32_t>(batch), world.in.oneIn(2) ? device : 0,
                                                  out);
    });
}

pc_status moveSlots(World& w) {
    Draw& d = w.draw;
    uint64_t const n = w.in.below(kBatch + 1);
    int32_t batch = 0;
    auto* m = mapping(w, n, batch);
    auto* lengths = w.in.oneIn(2) ? nullptr : d.out<int32_t>(kBatch);
    auto const address = reinterpret_cast<uint64_t>(lengths);
    return w.api.context_move_slots(w.handle(w.contexts[0].handle), d.number<uint32_t>(w.in.below(2)), m,
                                    d.count<int32_t>(n), address % 4 == 0 ? address : 0);
}

pc_status abandon(World& w) {
    Context& c = w.contexts[0];
    pc_handle const r = w.handle(w.pickHandle(c.requests));
    pc_handle const h = w.handle(c.handle);
    // Quarantine ends a coordinator: seldom.
    pc_status const st = w.api.context_abandon(h, r, w.draw.bit(w.in.oneIn(8) ? 0 : 1));
    if ((st == PC_OK || st == PC_POISONED) && h == c.handle) {
        w.forget(c.requests, r);
    }
    return st;
}

pc_status report(World& w) {
    Context& c = w.contexts[0];
    auto* out = work(w);
    uint32_t const outcome = w.in.oneIn(8) ? 1 + w.in.below(2) : 0;
    return w.api.context_report(w.handle(c.handle), w.handle(w.pickHandle(c.requests)),
                                w.draw.number<uint32_t>(outcome), out);
}

// A pc_model that the gate takes.
pc_model* model(World& w, bool draft) {
    Draw& d = w.draw;
    pc_model m{};
    m.max_batch = d.number<int32_t>(2);
    m.capacity_tokens = d.number<int32_t>(16);
    m.num_pages = d.number<int64_t>(8);
    uint64_t const n = 1 + w.in.below(3);
    m.layers = d.array<uint32_t>(n, [&](uint64_t) { return d.number<uint32_t>(PC_LAYER_ATTENTION); });
    m.num_layers = d.count<uint32_t>(n);
    m.attention = d.array<pc_attention_layer>(n, [&](uint64_t) {
        pc_attention_layer a{};
        a.kv_heads = d.number<int32_t>(1);
        a.head_dim = d.number<int32_t>(2);
        a.type = d.number<uint32_t>(0);
        d.reserved(a.reserved0);
        return a;
    });
    m.num_attention = d.count<pc_attention_layer>(n);
    if (w.in.oneIn(4)) {
        m.kv_donors = d.array<int32_t>(n, [&](uint64_t) { return d.number<int32_t>(-1); });
        m.num_kv_donors = d.count<int32_t>(n);
    }
    m.hidden_size = d.number<int32_t>(8);
    m.base_hidden_size = d.number<int32_t>(draft ? 8 : 0);
    m.spec_base = d.bit(draft ? 0 : w.in.below(2));
    m.eagle = d.bit(draft ? 1 : 0);
    return d.one(m, true);
}

pc_status validate(World& w) {
    Draw& d = w.draw;
    auto v = sized<pc_deployment>();
    bool const eagle = w.in.oneIn(3);
    v.diffusion_backbone = d.bit(0);
    v.vision_bidirectional = d.bit(0);
    v.speculative = d.number<uint32_t>(eagle ? PC_SPECULATIVE_EAGLE : PC_SPECULATIVE_NONE);
    v.tokens_per_page = d.number<int32_t>(kPageTokens);
    if (eagle) {
        v.verify_size = d.number<int32_t>(3);
        v.drafting_step = d.number<int32_t>(2);
        v.drafting_top_k = d.number<int32_t>(1);
        v.conditioning_layers = d.array<int32_t>(1, [&](uint64_t) { return d.number<int32_t>(0); });
        v.num_conditioning_layers = d.count<int32_t>(1);
        v.draft = model(w, true);
    }
    v.base = model(w, false);
    d.reserved(v.reserved[w.in.below(2)]);
    auto* deployment = d.structure(v, true);
    return w.api.context_validate_deployment(deployment, d.out<uint32_t>());
}

pc_status sequencePages(World& w) {
    Draw& d = w.draw;
    Context& c = w.contexts[0];
    uint64_t const space = w.in.below(8);
    auto* pages = d.out<int32_t>(space);
    auto* n = d.out<uint64_t>();
    return w.api.context_sequence_pages(w.handle(c.handle), w.handle(w.pickHandle(c.requests)),
                                        d.number<uint32_t>(w.in.below(3)), d.number<uint32_t>(w.in.below(2)),
                                        d.number<uint64_t>(w.in.below(3)), pages, d.hostile() ? space / 2 : space, n);
}

pc_status sequenceTokens(World& w) {
    Draw& d = w.draw;
    Context& c = w.contexts[0];
    uint64_t const space = w.in.below(24);
    auto* tokens = d.out<int32_t>(space);
    auto* n = d.out<uint64_t>();
    return w.api.context_sequence_tokens(w.handle(c.handle), w.handle(w.pickHandle(c.requests)),
                                         d.number<uint32_t>(w.in.below(3)), d.number<uint64_t>(w.in.below(20)), tokens,
                                         d.hostile() ? space / 2 : space, n);
}

pc_handle context(World& w) { return w.handle(w.contexts[0].handle); }
pc_handle request(World& w) { return w.handle(w.pickHandle(w.contexts[0].requests)); }

}  // namespace

std::vector<Target> contextTargets() {
    return {
        TARGET(context_validate_deployment, validate),
        TARGET(context_create, create),
        TARGET(context_destroy, destroy),
        TARGET(context_manager, [](World& w) { return w.api.context_manager(context(w), w.draw.out<pc_handle>()); }),
        TARGET(context_begin, begin),
        TARGET(context_report, report),
        TARGET(context_prepare_prefill,
               [](World& w) {
                   return step(w, [](World& x, pc_handle c, pc_handle r, pc_work* o) {
                       return x.api.context_prepare_prefill(c, r, o);
                   });
               }),
        TARGET(context_capture_prefill,
               [](World& w) {
                   return step(w, [](World& x, pc_handle c, pc_handle r, pc_work* o) {
                       return x.api.context_capture_prefill(c, r, o);
                   });
               }),
        TARGET(context_finalize_prefill, [](World& w) { return advancing(w, false, w.api.context_finalize_prefill); }),
        TARGET(context_prepare_decode,
               [](World& w) {
                   return step(w, [](World& x, pc_handle c, pc_handle r, pc_work* o) {
                       int32_t const base = x.draw.number<int32_t>(static_cast<int32_t>(x.in.below(3)));
                       return x.api.context_prepare_decode(c, r, base, x.draw.number<int32_t>(0), o);
                   });
               }),
        TARGET(context_complete_decode, [](World& w) { return advancing(w, true, w.api.context_complete_decode); }),
        TARGET(context_begin_compaction, beginCompaction),
        TARGET(context_compact,
               [](World& w) {
                   return step(w, [](World& x, pc_handle c, pc_handle r, pc_work* o) {
                       return x.api.context_compact(c, r, o);
                   });
               }),
        TARGET(context_move_slots, moveSlots),
        TARGET(context_finish,
               [](World& w) {
                   return step(
                       w, [](World& x, pc_handle c, pc_handle r, pc_work* o) { return x.api.context_finish(c, r, o); });
               }),
        TARGET(context_abandon, abandon),
        TARGET(context_shutdown,
               [](World& w) { return w.api.context_shutdown(context(w), w.draw.bit(w.in.below(2))); }),
        TARGET(context_synchronize, [](World& w) { return w.api.context_synchronize(context(w)); }),
        TARGET(context_get_request,
               [](World& w) {
                   auto* info = w.draw.structure(sized<pc_request_info>(), false);
                   return w.api.context_get_request(context(w), request(w), info);
               }),
        TARGET(context_get_sequence,
               [](World& w) {
                   auto* info = w.draw.structure(sized<pc_sequence_info>(), false);
                   return w.api.context_get_sequence(context(w), request(w), w.draw.number<uint32_t>(w.in.below(3)),
                                                     info);
               }),
        TARGET(context_sequence_pages, sequencePages),
        TARGET(context_sequence_tokens, sequenceTokens),
        TARGET(context_get_metrics,
               [](World& w) {
                   return w.api.context_get_metrics(context(w), w.draw.structure(sized<pc_context_metrics>(), false));
               }),
    };
}

}  // namespace fuzz
