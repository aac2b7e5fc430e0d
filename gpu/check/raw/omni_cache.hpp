// An omni cache through the C ABI, with static device buffers of a model in front of it.
#ifndef PREFIXCACHE_CHECK_OMNI_CACHE_HPP
#define PREFIXCACHE_CHECK_OMNI_CACHE_HPP

#include <prefixcache/library.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "driver.hpp"
#include "report.hpp"

namespace check {

inline pc_api const& library() { return prefixcache::Library::get(); }

/// @throws unless the status is PC_OK
inline void ok(pc_status status, char const* call) {
    if (status != PC_OK) fail(std::string(call) + ": " + library().status_name(status) + ": " + library().last_error());
}
#define CHECK_OK(call) ::check::ok(::check::library().call, #call)

/// One kind of rows: its place in the model's output, and how often it is cached.
struct OmniKey {
    char const* name;
    int64_t rowBytes;
    int64_t stride;  // in the device buffer
    uint32_t schedule;
    uint32_t number = 0;
};

/// Row contents: a function of what the token is, and of nothing else.
inline void fillRow(uint8_t* row, uint64_t content, OmniKey const& key) {
    uint64_t const base = mix(content, key.number + 1);
    for (int64_t i = 0; i < key.rowBytes; i += 4) {
        auto const word = static_cast<uint32_t>(base + static_cast<uint64_t>(i) * 2654435761u);
        std::memcpy(row + i, &word, 4);
    }
}

class OmniCache {
  public:
    OmniCache(int64_t blocks, int64_t blockSize, std::vector<OmniKey> wanted, int64_t depth = 4,
              int64_t capacity = 1024, uint32_t flags = 0)
        : keys(std::move(wanted)) {
        pc_omni_options options{};
        options.struct_size = sizeof options;
        options.flags = flags;
        options.num_blocks = blocks;
        options.block_size = blockSize;
        options.staging_depth = depth;
        options.staging_capacity_tokens = capacity;
        options.claim_timeout_ns = 10'000'000'000;
        CHECK_OK(omni_create(&options, &handle));
        for (auto& key : keys)
            CHECK_OK(omni_open_key(handle, key.name, std::strlen(key.name), static_cast<uint64_t>(key.rowBytes), 1,
                                   key.schedule, &key.number));
    }
    OmniCache(OmniCache const&) = delete;
    OmniCache& operator=(OmniCache const&) = delete;
    ~OmniCache() { library().omni_destroy(&handle); }

    /// The status of a save of rows that lie at `rows[i]` for key i, behind `ready` if not null.
    pc_status save(Stream const& stream, std::vector<uint64_t> const& requests, std::vector<int64_t> const& counts,
                   std::vector<int64_t> const& slots, std::vector<CUdeviceptr> const& rows, uint64_t* step,
                   CUevent ready = nullptr) {
        std::vector<pc_omni_rows> packed(keys.size());
        for (size_t i = 0; i < keys.size(); ++i) {
            packed[i].key = keys[i].number;
            packed[i].flags = PC_OMNI_ON_DEVICE;
            packed[i].rows = reinterpret_cast<void const*>(static_cast<uintptr_t>(rows[i]));
            packed[i].row_stride = keys[i].stride;
        }
        pc_omni_save_args args{};
        args.struct_size = sizeof args;
        args.stream = stream.raw();
        args.requests = requests.data();
        args.counts = counts.data();
        args.num_requests = requests.size();
        args.slots = slots.data();
        args.num_slots = static_cast<int64_t>(slots.size());
        args.rows = packed.data();
        args.num_rows = packed.size();
        args.event = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(ready));
        pc_status const status = library().omni_save(handle, &args);
        *step = args.step;
        return status;
    }

    pc_omni_stats stats() const {
        pc_omni_stats out{};
        out.struct_size = sizeof out;
        CHECK_OK(omni_get_stats(handle, &out));
        return out;
    }

    std::vector<OmniKey> keys;
    pc_handle handle = 0;
};

}  // namespace check

#endif  // PREFIXCACHE_CHECK_OMNI_CACHE_HPP
