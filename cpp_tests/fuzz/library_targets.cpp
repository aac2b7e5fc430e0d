// The functions that belong to no object, and the buffers.
#include "targets.hpp"

namespace fuzz {
namespace {

void ignore(void*, int32_t, char const*) {}

pc_status text(char const* t) {
    if (t == nullptr) {
        fault("a function that returns text", "null");
    }
    return PC_OK;
}

pc_status bufferAcquire(World& w) {
    Draw& d = w.draw;
    uint64_t const wanted[] = {1, 64, 4096, 100000, 1 << 21};
    uint64_t const absurd[] = {0, (uint64_t{1} << 46) + 1, ~uint64_t{0}, uint64_t{1} << 63};
    uint64_t const bytes = d.hostile() ? absurd[w.in.below(4)] : wanted[w.in.below(5)];
    void** data = d.out<void*>();
    pc_handle* buffer = d.out<pc_handle>();
    pc_status const st = w.api.buffer_acquire(bytes, data, buffer);
    if (st == PC_OK) {
        Draw::apart("buffer_acquire", data, 1, buffer, 1);
        w.buffers.push_back(World::value(buffer));
        std::memset(World::value(data), 0xEE, bytes);
    }
    return st;
}

pc_status bufferRelease(World& w) {
    pc_handle const h = w.handle(w.pickHandle(w.buffers));
    pc_status const st = w.api.buffer_release(h);
    if (st == PC_OK) {
        w.forget(w.buffers, h);
    }
    return st;
}

char* string(World& w, std::string const& honest) {
    return w.draw.array<char>(honest.size() + 1, [&](uint64_t i) {
        return i == honest.size() ? '\0' : w.draw.hostile() ? static_cast<char>(w.in.byte() | 1) : honest[i];
    });
}

pc_status metricsText(World& w) {
    Draw& d = w.draw;
    uint64_t const n = w.in.below(4), space = w.in.below(200);
    auto* sources = d.array<pc_metrics_source>(
        n,
        [&](uint64_t) {
            pc_metrics_source s{};
            pc_handle const caches[] = {w.omnis[0].handle, w.managers[0].handle, w.contexts[0].handle};
            s.cache = w.handle(caches[w.in.below(3)]);
            uint64_t const labels = w.in.below(3);
            s.labels = d.array<pc_label>(
                labels,
                [&](uint64_t i) {
                    return pc_label{string(w, i == 0 ? "model" : "rank"),
                                    string(w, std::string(1 + w.in.below(3), 'x'))};
                },
                true);
            s.num_labels = d.count<pc_label>(labels);
            return s;
        },
        true);
    auto* text = d.out<char>(space);
    auto* size = d.out<uint64_t>();
    return w.api.metrics_text(sources, d.count<pc_metrics_source>(n), text, d.hostile() ? space / 2 : space, size);
}

}  // namespace

std::vector<Target> libraryTargets() {
    return {
        TARGET(version, [](World& w) { return text(w.api.version()); }),
        TARGET(status_name, [](World& w) { return text(w.api.status_name(w.draw.number<int32_t>(-3))); }),
        TARGET(last_error, [](World& w) { return text(w.api.last_error()); }),
        TARGET(kernel_name, [](World& w) { return text(w.api.kernel_name()); }),
        TARGET(reserve_threads,
               [](World& w) {
                   uint32_t const absurd[] = {0, 4097, ~0U};
                   return w.api.reserve_threads(w.draw.hostile() ? absurd[w.in.below(3)] : 1 + w.in.below(4));
               }),
        TARGET(set_log,
               [](World& w) {
                   return w.api.set_log(w.draw.hostile() ? nullptr : ignore, nullptr,
                                        w.draw.number<int32_t>(PC_LOG_DEBUG));
               }),
        TARGET(buffer_acquire, bufferAcquire),
        TARGET(buffer_release, bufferRelease),
        TARGET(buffer_get_stats,
               [](World& w) { return w.api.buffer_get_stats(w.draw.structure(sized<pc_buffer_stats>(), false)); }),
        TARGET(metrics_text, metricsText),
        TARGET(digest_bytes,
               [](World& w) {
                   uint64_t const n = w.in.below(64);
                   auto* data = w.draw.array<uint8_t>(n, [&](uint64_t) { return w.in.byte(); });
                   auto* digest = w.draw.out<pc_hash128>();
                   return w.api.digest_bytes(data, w.draw.count<uint8_t>(n), digest);
               }),
    };
}

}  // namespace fuzz
