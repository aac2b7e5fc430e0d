// Page tables.
#include "targets.hpp"

namespace fuzz {
namespace {

pc_status create(World& w) {
    Draw& d = w.draw;
    auto o = sized<pc_table_options>();
    o.flags = d.hostile() ? w.in.byte() : uint32_t{PC_HOST_MEMORY};
    o.max_batch = d.size<int32_t>(kBatch);
    o.row_width = d.size<int32_t>(kWidth);
    o.num_pages = d.size<int32_t>(kPages);
    d.reserved(o.reserved1);
    d.reserved(o.reserved[w.in.below(2)]);
    o.device_address = d.hostile() ? 1 + w.in.below(3) : 0;
    auto* options = d.structure(o, false);
    auto* table = d.out<pc_handle>();
    pc_status const st = w.api.table_create(options, table);
    if (st == PC_OK) {
        pc_handle h = World::value(table);
        w.must(w.api.table_check(h), "table_check of a new table");
        w.must(w.api.table_destroy(&h), "table_destroy");
    }
    return st;
}

pc_status destroy(World& w) {
    auto* h = w.draw.one(w.handle(w.pick(w.tables)), false);
    pc_handle const given = World::value(h);
    pc_status const st = w.api.table_destroy(h);
    if (st == PC_OK && given != 0) {
        if (given != w.loose) {
            fault("table_destroy", "took a coordinator's table");
        }
        w.forget(w.tables, given);
        w.loose = w.makeTable(0);
    }
    return st;
}

pc_status setRows(World& w) {
    Draw& d = w.draw;
    uint64_t const n = w.in.below(kBatch + 1);
    auto* slots = d.array<int32_t>(n, [&](uint64_t i) { return d.number<int32_t>(static_cast<int32_t>(i)); });
    std::vector<int64_t> cuts{0};
    for (uint64_t i = 0; i < n; ++i) {
        cuts.push_back(cuts.back() + w.in.below(kWidth + 1));
    }
    auto const total = static_cast<uint64_t>(cuts.back());
    auto* pages =
        d.array<int32_t>(total, [&](uint64_t) { return d.number<int32_t>(static_cast<int32_t>(w.in.below(kPages))); });
    // A cut beyond what is there would be believed: absurd ones fall or begin elsewhere.
    auto* offsets = d.array<int64_t>(
        n + 1,
        [&](uint64_t i) {
            if (!d.hostile()) {
                return cuts[i];
            }
            int64_t const absurd[] = {-1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                                      cuts[i] / 2};
            return absurd[w.in.below(4)];
        },
        true);
    return w.api.table_set_rows(w.handle(w.pick(w.tables)), slots, d.count<int32_t>(n), pages, offsets);
}

pc_status compactRows(World& w) {
    uint64_t const n = w.in.below(kBatch + 1);
    int32_t batch = 0;
    auto* m = mapping(w, n, batch);
    return w.api.table_compact_rows(w.handle(w.pick(w.tables)), m, w.draw.count<int32_t>(n),
                                    w.draw.number<int32_t>(batch));
}

pc_status getRow(World& w) {
    auto* row = w.draw.out<int32_t>(2 * kWidth);
    return w.api.table_get_row(w.handle(w.pick(w.tables)),
                               w.draw.number<int32_t>(static_cast<int32_t>(w.in.below(kBatch))), row);
}

}  // namespace

/// A mapping of n old slots, and how many survive.
int32_t* mapping(World& w, uint64_t n, int32_t& batch) {
    batch = 0;
    return w.draw.array<int32_t>(n, [&](uint64_t) { return w.draw.number<int32_t>(w.in.oneIn(2) ? -1 : batch++); });
}

std::vector<Target> tableTargets() {
    return {
        TARGET(table_create, create),
        TARGET(table_destroy, destroy),
        TARGET(table_set_identity, [](World& w) { return w.api.table_set_identity(w.handle(w.pick(w.tables))); }),
        TARGET(table_set_rows, setRows),
        TARGET(table_compact_rows, compactRows),
        TARGET(table_upload,
               [](World& w) {
                   auto* uploaded = w.in.oneIn(2) ? nullptr : w.draw.out<uint32_t>();
                   return w.api.table_upload(w.handle(w.pick(w.tables)), w.draw.number<uint64_t>(kStream), uploaded);
               }),
        TARGET(table_get_row, getRow),
        TARGET(table_get_info,
               [](World& w) {
                   return w.api.table_get_info(w.handle(w.pick(w.tables)),
                                               w.draw.structure(sized<pc_table_info>(), false));
               }),
        TARGET(table_check, [](World& w) { return w.api.table_check(w.handle(w.pick(w.tables))); }),
    };
}

}  // namespace fuzz
