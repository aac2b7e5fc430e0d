// The C ABI of the context cache as a careless caller meets it: bad handles, nulls,
// lengths, struct sizes, calls out of order, two objects mixed up, many threads.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <prefixcache/library.hpp>

namespace {

using prefixcache::detail::sized;

pc_api const& api() { return prefixcache::Library::get(); }

std::vector<int32_t> tokensOf(int32_t n, int32_t seed = 0) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < n; ++i) {
        out.push_back(seed * 1000 + i);
    }
    return out;
}

pc_sequence sequenceOf(std::vector<int32_t> const& tokens) {
    auto s = sized<pc_sequence>();
    s.tokens = tokens.data();
    s.num_tokens = static_cast<int64_t>(tokens.size());
    return s;
}

/// A manager with pages of 4 tokens.
struct Manager {
    explicit Manager(uint32_t flags = 0, int32_t basePages = 16) {
        auto options = sized<pc_manager_options>();
        options.flags = flags;
        options.tokens_per_page = 4;
        options.base_pages = basePages;
        options.draft_pages = 16;
        options.recurrent_slots = 4;
        options.partial_slots = 4;
        EXPECT_EQ(api().manager_create(&options, &handle), PC_OK) << api().last_error();
    }
    ~Manager() {
        EXPECT_EQ(api().manager_check(handle), PC_OK) << api().last_error();
        EXPECT_EQ(api().manager_destroy(&handle), PC_OK);
        EXPECT_EQ(handle, 0U);
    }
    pc_status acquire(uint32_t mode, pc_sequence const& s, uint32_t lookup = PC_LOOKUP_USE_CACHE) {
        return api().manager_acquire(handle, mode, lookup, &s, &plan, nullptr, 0, nullptr, 0, &lease);
    }
    pc_manager_stats stats() const {
        auto s = sized<pc_manager_stats>();
        EXPECT_EQ(api().manager_get_stats(handle, &s), PC_OK);
        return s;
    }

    pc_handle handle = 0;
    pc_handle lease = 0;
    pc_plan plan = sized<pc_plan>();
};

TEST(Abi, TheTableIsWholeAndItsFunctionsAreTheExports) {
    auto const* words = reinterpret_cast<void* const*>(&api());
    for (size_t i = 1; i < sizeof(pc_api) / sizeof(void*); ++i) {  // word 0: struct_size and abi_version
        EXPECT_NE(words[i], nullptr) << "function " << i;
    }
    char const* path = std::getenv("PREFIXCACHE_LIBRARY");
    ASSERT_NE(path, nullptr);
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library, nullptr);
    EXPECT_EQ(dlsym(library, "pc_manager_set_quota"), words[sizeof(pc_api) / sizeof(void*) - 1]) << "the last entry";
    EXPECT_EQ(dlsym(library, "pc_manager_create"), reinterpret_cast<void*>(api().manager_create));
    EXPECT_EQ(dlsym(library, "pc_table_check"), reinterpret_cast<void*>(api().table_check));
    EXPECT_EQ(dlsym(library, "pcgo_manager_create"), nullptr) << "Go exports stay hidden";
}

// The numbers of the original's enums.
static_assert(PC_LOOKUP_USE_CACHE == 0 && PC_LOOKUP_BYPASS == 1);
static_assert(PC_COMMIT_INCLUDING_GENERATED == 0 && PC_COMMIT_PREFILL_ONLY == 1);
static_assert(PC_EXECUTE_VANILLA == 0 && PC_EXECUTE_EAGLE == 1);
static_assert(PC_DEPLOY_VANILLA == 0 && PC_DEPLOY_HYBRID == 1 && PC_DEPLOY_PURE_RECURRENT == 2 && PC_DEPLOY_EAGLE == 3);
static_assert(PC_OK == 0 && PC_REQUEST_FAILED == 1 && PC_POISONED == 2);
static_assert(PC_PUBLISHED == 0 && PC_EXISTING_RECORD == 1);
static_assert(PC_RESOURCE_BASE_PAGE == 0 && PC_RESOURCE_DRAFT_PAGE == 1 && PC_RESOURCE_RECURRENT == 2 &&
              PC_RESOURCE_PARTIAL_KV == 3);
static_assert(PC_PLAN_STANDARD == 0 && PC_PLAN_NO_REUSABLE_PREFIX == 1 && PC_PLAN_FULL_INPUT_REWIND == 2);
static_assert(PC_PLAN_VANILLA == 0 && PC_PLAN_HYBRID == 1 && PC_PLAN_SPEC == 2);
static_assert(PC_REPLAY_NONE == 0 && PC_REPLAY_FULL_PAGE == 1);
static_assert(PC_PHASE_ADMITTED == 0 && PC_PHASE_EXECUTING == 1 && PC_PHASE_FINISHING == 2);

TEST(Abi, AVanillaLeaseFromAcquireToRelease) {
    Manager m;
    auto const tokens = tokensOf(9);
    auto const s = sequenceOf(tokens);
    std::array<int32_t, 3> pages{};
    ASSERT_EQ(api().manager_acquire(m.handle, PC_PLAN_VANILLA, PC_LOOKUP_USE_CACHE, &s, &m.plan, pages.data(), 3,
                                    nullptr, 0, &m.lease),
              PC_OK);
    EXPECT_EQ(m.plan.demand_base, 3);
    EXPECT_EQ(m.plan.reason, static_cast<uint32_t>(PC_REASON_EXTRAS_UNKNOWN));
    EXPECT_EQ(pages, (std::array<int32_t, 3>{0, 1, 2}));  // C-17
    auto publication = sized<pc_publication>();
    EXPECT_EQ(api().manager_publish(m.handle, m.lease, 9, &publication), PC_OK);
    EXPECT_EQ(publication.status, static_cast<uint32_t>(PC_PUBLISHED));
    EXPECT_EQ(publication.blocks, 2);
    std::array<int32_t, 2> grown{};
    EXPECT_EQ(api().manager_grow(m.handle, m.lease, 2, 0, grown.data(), nullptr), PC_OK);
    EXPECT_EQ(grown, (std::array<int32_t, 2>{3, 4}));
    auto const more = tokensOf(5, 2);
    EXPECT_EQ(api().manager_append(m.handle, m.lease, more.data(), more.size()), PC_OK);
    EXPECT_EQ(api().manager_publish(m.handle, m.lease, 13, &publication), PC_OK);
    EXPECT_EQ(publication.blocks, 3);
    EXPECT_EQ(api().manager_advance(m.handle, m.lease, more.data(), 3, 16, 1, 0, grown.data(), nullptr, &publication),
              PC_OK);
    EXPECT_EQ(publication.blocks, 4);
    EXPECT_EQ(grown[0], 5);
    uint64_t count = 0;
    std::array<int32_t, 8> all{};
    EXPECT_EQ(api().manager_lease_pages(m.handle, m.lease, PC_BASE, 4, all.data(), 8, &count), PC_OK);
    EXPECT_EQ(count, 6U);
    EXPECT_EQ(all[1], 5);
    pc_handle const stale = m.lease;
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
    EXPECT_EQ(m.lease, 0U);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK) << "zero is legal";
    pc_handle again = stale;
    EXPECT_EQ(api().manager_release(m.handle, &again), PC_ERROR_BAD_HANDLE);
    EXPECT_EQ(m.stats().base_blocks, 4U);
    EXPECT_EQ(m.stats().active[0], 0U);
}

TEST(Abi, AdvanceOutOfCapacityKeepsWhatCameBefore) {
    Manager m(0, 2);
    auto const tokens = tokensOf(7);
    ASSERT_EQ(m.acquire(PC_PLAN_VANILLA, sequenceOf(tokens)), PC_OK);
    auto publication = sized<pc_publication>();
    int32_t const next = 5;
    EXPECT_EQ(api().manager_advance(m.handle, m.lease, &next, 1, 8, 1, 0, nullptr, nullptr, &publication),
              PC_REQUEST_FAILED);
    EXPECT_EQ(publication.blocks, 2);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
}

TEST(Abi, TooLittleRoomChangesNothing) {
    Manager m;
    auto const tokens = tokensOf(9);
    auto const s = sequenceOf(tokens);
    std::array<int32_t, 2> pages{};
    EXPECT_EQ(api().manager_acquire(m.handle, PC_PLAN_VANILLA, PC_LOOKUP_USE_CACHE, &s, &m.plan, pages.data(), 2,
                                    nullptr, 0, &m.lease),
              PC_ERROR_BUFFER_TOO_SMALL);
    EXPECT_EQ(m.stats().free[0], 16U);
    EXPECT_EQ(m.stats().leases, 0U);
}

TEST(Abi, LeasesOfOneManagerMeanNothingToAnother) {
    Manager one;
    Manager two;
    auto const tokens = tokensOf(4);
    ASSERT_EQ(one.acquire(PC_PLAN_VANILLA, sequenceOf(tokens)), PC_OK);
    ASSERT_EQ(two.acquire(PC_PLAN_VANILLA, sequenceOf(tokens)), PC_OK);
    EXPECT_EQ(api().manager_publish(two.handle, one.lease, 4, nullptr), PC_ERROR_BAD_HANDLE);
    pc_handle foreign = one.lease;
    EXPECT_EQ(api().manager_release(two.handle, &foreign), PC_ERROR_BAD_HANDLE);
    EXPECT_EQ(foreign, one.lease);
    EXPECT_EQ(api().manager_release(one.handle, &one.lease), PC_OK);
    EXPECT_EQ(api().manager_release(two.handle, &two.lease), PC_OK);
}

TEST(Abi, BlockKeysOfTheCaller) {
    Manager m(PC_BLOCK_KEYS);
    std::vector<pc_hash128> const keys{{1, 1}, {2, 2}, {3, 3}};
    auto s = sized<pc_sequence>();
    s.keys = keys.data();
    s.num_keys = 2;
    s.num_tokens = 9;
    ASSERT_EQ(m.acquire(PC_PLAN_VANILLA, s), PC_OK) << api().last_error();
    int32_t const token = 1;
    EXPECT_LT(api().manager_append(m.handle, m.lease, &token, 1), 0) << "no tokens with keys";
    auto publication = sized<pc_publication>();
    EXPECT_EQ(api().manager_publish_keys(m.handle, m.lease, 0, keys.data(), 2, 8, &publication), PC_OK)
        << api().last_error();
    EXPECT_EQ(publication.blocks, 2);
    EXPECT_EQ(api().manager_publish_keys(m.handle, m.lease, 2, &keys[2], 1, 12, &publication), PC_OK)
        << api().last_error();
    EXPECT_EQ(publication.blocks, 3);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
    s.num_keys = 3;
    s.num_tokens = 13;
    EXPECT_EQ(api().manager_lookup(m.handle, PC_PLAN_VANILLA, &s, &m.plan), PC_OK);
    EXPECT_EQ(m.plan.reuse, 12);
    auto const tokens = tokensOf(9);
    EXPECT_EQ(m.acquire(PC_PLAN_VANILLA, sequenceOf(tokens)), PC_ERROR_INVALID_ARGUMENT);
    Manager plain;
    EXPECT_EQ(plain.acquire(PC_PLAN_VANILLA, s), PC_ERROR_INVALID_ARGUMENT);
}

TEST(Abi, HybridSnapshotsOnTheManagerLevel) {
    Manager m;
    auto const tokens = tokensOf(6);
    ASSERT_EQ(m.acquire(PC_PLAN_HYBRID, sequenceOf(tokens)), PC_OK);
    EXPECT_EQ(api().manager_publish(m.handle, m.lease, 6, nullptr), PC_ERROR_WRONG_STATE) << "C-63";
    int32_t recurrent = -1;
    int32_t partial = -1;
    ASSERT_EQ(api().manager_reserve(m.handle, m.lease, 1, &recurrent, &partial), PC_OK);
    EXPECT_LT(api().manager_publish_hybrid(m.handle, m.lease, 6, recurrent, -1, nullptr), 0)
        << "the tail needs a partial slot";
    auto publication = sized<pc_publication>();
    EXPECT_EQ(api().manager_publish_hybrid(m.handle, m.lease, 6, recurrent, partial, &publication), PC_OK);
    EXPECT_EQ(api().manager_retire(m.handle, m.lease, recurrent, partial), PC_OK);
    EXPECT_LT(api().manager_retire(m.handle, m.lease, recurrent, partial), 0) << "once";
    int32_t active = -1;
    int32_t cached = -1;
    EXPECT_EQ(
        api().manager_references(m.handle, PC_RESOURCE_PARTIAL_KV, static_cast<uint64_t>(partial), &active, &cached, 1),
        PC_OK);
    EXPECT_EQ(active, 0);
    EXPECT_EQ(cached, 1);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
    auto const longer = tokensOf(9);
    ASSERT_EQ(m.acquire(PC_PLAN_HYBRID, sequenceOf(longer)), PC_OK);
    EXPECT_EQ(m.plan.reuse, 6);
    EXPECT_EQ(m.plan.recurrent_slot, recurrent);
    EXPECT_EQ(m.plan.partial_slot, partial);
    EXPECT_EQ(m.plan.partial_tokens, 2);
    EXPECT_EQ(api().manager_release_restored(m.handle, m.lease), PC_OK);
    EXPECT_EQ(api().manager_release_restored(m.handle, m.lease), PC_OK);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
    pc_record record{};
    uint64_t count = 0;
    EXPECT_EQ(api().manager_records(m.handle, &record, 1, &count), PC_OK);
    EXPECT_EQ(count, 1U);
    EXPECT_EQ(record.exact_length, 6);
    EXPECT_EQ(api().manager_evict(m.handle, record.id), PC_OK);
    EXPECT_EQ(api().manager_evict(m.handle, record.id), PC_NOT_FOUND);
    EXPECT_EQ(m.stats().free[PC_RESOURCE_RECURRENT], 4U);
}

TEST(Abi, SpecLeasesGrowBothPoolsOrNeither) {
    Manager m;
    auto const tokens = tokensOf(9);
    ASSERT_EQ(m.acquire(PC_PLAN_SPEC, sequenceOf(tokens)), PC_OK);
    EXPECT_EQ(api().manager_grow(m.handle, m.lease, 1, 100, nullptr, nullptr), PC_REQUEST_FAILED);
    EXPECT_EQ(m.stats().active[0], 3U);
    EXPECT_EQ(api().manager_grow(m.handle, m.lease, 1, 2, nullptr, nullptr), PC_OK);
    EXPECT_EQ(m.stats().active[1], 5U);
    EXPECT_EQ(api().manager_grow(m.handle, m.lease, INT32_MAX, INT32_MAX, nullptr, nullptr), PC_REQUEST_FAILED)
        << "C-54";
    EXPECT_LT(api().manager_grow(m.handle, m.lease, -1, 0, nullptr, nullptr), 0);
    EXPECT_EQ(api().manager_release(m.handle, &m.lease), PC_OK);
}

TEST(Abi, DigestsAreStableNames) {
    auto const tokens = tokensOf(10);
    auto s = sequenceOf(tokens);
    std::array<pc_hash128, 2> blocks{};
    pc_hash128 whole{};
    ASSERT_EQ(api().digest_sequence(&s, 4, blocks.data(), 2, &whole), PC_OK);
    EXPECT_NE(std::memcmp(&blocks[1], &whole, sizeof(whole)), 0);
    s.num_tokens = 8;
    pc_hash128 aligned{};
    ASSERT_EQ(api().digest_sequence(&s, 4, blocks.data(), 2, &aligned), PC_OK);
    EXPECT_EQ(std::memcmp(&blocks[1], &aligned, sizeof(aligned)), 0);
    EXPECT_EQ(api().digest_sequence(&s, 0, blocks.data(), 2, nullptr), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(api().digest_sequence(&s, 4, blocks.data(), 1, nullptr), PC_ERROR_INVALID_ARGUMENT);
    pc_hash128 empty{};
    pc_hash128 zero{};
    ASSERT_EQ(api().digest_bytes(nullptr, 0, &empty), PC_OK);
    ASSERT_EQ(api().digest_bytes("", 1, &zero), PC_OK);
    EXPECT_NE(std::memcmp(&empty, &zero, sizeof(zero)), 0) << "a trailing NUL matters";
    EXPECT_NE(empty.high | empty.low, 0U);
    EXPECT_EQ(api().digest_bytes(nullptr, 1, &empty), PC_ERROR_INVALID_ARGUMENT);
}

TEST(Abi, StructsSayTheirSizeAndReservedFieldsAreZero) {
    auto options = sized<pc_manager_options>();
    pc_handle handle = 0;
    options.struct_size = 0;
    EXPECT_EQ(api().manager_create(&options, &handle), PC_ERROR_UNSUPPORTED);
    // The first release's struct had no quota: still accepted, anything shorter is not.
    constexpr uint32_t kFirst = offsetof(pc_manager_options, tenant_quota);
    options.struct_size = kFirst - 8;
    EXPECT_EQ(api().manager_create(&options, &handle), PC_ERROR_UNSUPPORTED);
    options.struct_size = kFirst;
    options.tenant_quota = 5000;  // not read
    EXPECT_EQ(api().manager_create(&options, &handle), PC_OK) << api().last_error();
    EXPECT_EQ(api().manager_destroy(&handle), PC_OK);
    options = sized<pc_manager_options>();
    options.tenant_quota = 1001;
    EXPECT_EQ(api().manager_create(&options, &handle), PC_ERROR_INVALID_ARGUMENT);
    options = sized<pc_manager_options>();
    options.flags = 1U << 20;
    EXPECT_EQ(api().manager_create(&options, &handle), PC_ERROR_UNSUPPORTED);
    options.flags = 0;
    options.reserved[2] = 1;
    EXPECT_EQ(api().manager_create(&options, &handle), PC_ERROR_UNSUPPORTED);
    // A newer host: a longer struct whose unknown part is zero is fine.
    struct {
        pc_manager_options known;
        uint64_t future;
    } longer{sized<pc_manager_options>(), 0};
    longer.known.struct_size = sizeof(longer);
    EXPECT_EQ(api().manager_create(&longer.known, &handle), PC_OK);
    EXPECT_EQ(api().manager_destroy(&handle), PC_OK);
    longer.future = 1;
    EXPECT_EQ(api().manager_create(&longer.known, &handle), PC_ERROR_UNSUPPORTED);
    EXPECT_EQ(api().manager_create(nullptr, &handle), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(api().manager_create(&options, nullptr), PC_ERROR_INVALID_ARGUMENT);
    for (int32_t const bad : {-1, -2}) {
        options = sized<pc_manager_options>();
        options.base_pages = bad;
        EXPECT_LT(api().manager_create(&options, &handle), 0);
        options.base_pages = 0;
        options.max_records = bad - 1;
        EXPECT_LT(api().manager_create(&options, &handle), 0);
    }
    // Statistics: an older host asks for less, and gets no more than it has room for.
    Manager m;
    auto stats = sized<pc_manager_stats>();
    stats.struct_size = 16;
    stats.leases = 77;
    EXPECT_EQ(api().manager_get_stats(m.handle, &stats), PC_OK);
    EXPECT_EQ(stats.leases, 77U);
}

// ------------------------------------------------------------------- coordinator

/// A vanilla coordinator with pages of 4 tokens in host memory.
struct Context {
    explicit Context(int32_t maxRequests = 1) {
        auto table = sized<pc_table_options>();
        table.flags = PC_HOST_MEMORY;
        table.max_batch = 4;
        table.row_width = 8;
        table.num_pages = 32;
        EXPECT_EQ(api().table_create(&table, &tableHandle), PC_OK) << api().last_error();
        auto options = sized<pc_context_options>();
        options.flags = PC_HOST_MEMORY;
        options.tokens_per_page = 4;
        options.max_batch = 4;
        options.max_requests = maxRequests;
        options.base.table = tableHandle;
        options.base.num_pages = 32;
        options.base.max_batch = 4;
        options.base.capacity_tokens = 32;
        EXPECT_EQ(api().context_create(&options, &handle), PC_OK) << api().last_error();
        EXPECT_EQ(api().context_manager(handle, &manager), PC_OK);
    }
    ~Context() {
        EXPECT_EQ(api().manager_check(manager), PC_OK) << api().last_error();
        EXPECT_EQ(api().context_destroy(&handle), PC_OK) << api().last_error();
        EXPECT_EQ(api().table_destroy(&tableHandle), PC_OK) << api().last_error();
    }
    pc_status begin(std::vector<int32_t> const& tokens, int32_t slot = 0) {
        std::array<int64_t, 2> const offsets{0, static_cast<int64_t>(tokens.size())};
        auto a = sized<pc_admission>();
        a.num_sequences = 1;
        a.tokens = tokens.data();
        a.token_offsets = offsets.data();
        a.slots = &slot;
        return api().context_begin(handle, &a, &start, &request);
    }

    pc_handle tableHandle = 0;
    pc_handle handle = 0;
    pc_handle manager = 0;
    pc_handle request = 0;
    pc_sequence_start start{};
    pc_work work = sized<pc_work>();
};

TEST(Abi, WorkIsHandedOutAndReported) {
    Context c;
    ASSERT_EQ(c.begin(tokensOf(6)), PC_OK) << api().last_error();
    EXPECT_EQ(api().context_report(c.handle, c.request, PC_WORK_DONE, &c.work), PC_ERROR_WRONG_STATE);
    ASSERT_EQ(api().context_prepare_prefill(c.handle, c.request, &c.work), PC_OK);
    ASSERT_EQ(c.work.count, 1U);
    EXPECT_EQ(c.work.items[0].op, static_cast<uint32_t>(PC_WORK_RESET_LENGTHS));
    EXPECT_EQ(c.work.items[0].count, 1);
    EXPECT_EQ(c.work.items[0].values[0], 0);
    EXPECT_EQ(c.work.items[0].slots[0], 0);
    auto info = sized<pc_request_info>();
    EXPECT_EQ(api().context_get_request(c.handle, c.request, &info), PC_OK);
    EXPECT_EQ(info.report_due, 1U);
    EXPECT_EQ(info.pending, 1U);
    auto work = sized<pc_work>();
    EXPECT_EQ(api().context_capture_prefill(c.handle, c.request, &work), PC_ERROR_BUSY);
    EXPECT_EQ(api().context_finish(c.handle, c.request, &work), PC_ERROR_BUSY);
    EXPECT_EQ(api().context_report(c.handle, c.request, 9, &work), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(api().context_report(c.handle, c.request, PC_WORK_SYNC_FAILED, &work), PC_ERROR_INVALID_ARGUMENT)
        << "there is no synchronization in it";
    EXPECT_EQ(api().context_report(c.handle, c.request, PC_WORK_DONE, &work), PC_OK);
    EXPECT_EQ(work.count, 0U);
    EXPECT_EQ(api().context_finish(c.handle, c.request, &work), PC_OK);
    ASSERT_EQ(work.count, 1U);
    EXPECT_EQ(work.items[0].op, static_cast<uint32_t>(PC_WORK_SYNCHRONIZE));
    EXPECT_EQ(api().context_report(c.handle, c.request, PC_WORK_DONE, &work), PC_OK);
    EXPECT_EQ(api().context_finish(c.handle, c.request, &work), PC_ERROR_BAD_HANDLE) << "stale";
    EXPECT_EQ(api().context_finish(c.handle, 0, &work), PC_OK);
}

TEST(Abi, AbandonedWithWorkInHand) {
    for (uint32_t const drained : {1U, 0U}) {
        Context c;
        ASSERT_EQ(c.begin(tokensOf(6)), PC_OK);
        ASSERT_EQ(api().context_prepare_prefill(c.handle, c.request, &c.work), PC_OK);
        EXPECT_EQ(api().context_destroy(&c.handle), PC_ERROR_BUSY);
        EXPECT_EQ(api().context_abandon(c.handle, c.request, 2), PC_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(api().context_abandon(c.handle, c.request, drained), drained == 1 ? PC_OK : PC_POISONED);
        EXPECT_EQ(api().context_report(c.handle, c.request, PC_WORK_DONE, &c.work), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(c.begin(tokensOf(4)), drained == 1 ? PC_OK : PC_POISONED);
        if (drained == 1) {
            EXPECT_EQ(api().context_abandon(c.handle, c.request, 0), PC_OK) << "nothing is pending";
        }
        EXPECT_EQ(api().context_shutdown(c.handle, 0), drained == 1 ? PC_OK : PC_POISONED);
        EXPECT_EQ(api().context_shutdown(c.handle, 1), PC_OK);
    }
}

TEST(Abi, TwoRequestsInSlotsOfTheirOwn) {
    Context c(2);
    ASSERT_EQ(c.begin(tokensOf(6), 0), PC_OK);
    pc_handle const first = c.request;
    EXPECT_EQ(c.begin(tokensOf(6, 2), 0), PC_ERROR_INVALID_ARGUMENT) << "the slot is taken";
    ASSERT_EQ(c.begin(tokensOf(6, 2), 3), PC_OK);
    EXPECT_EQ(c.begin(tokensOf(6, 3), 1), PC_REQUEST_FAILED);
    for (pc_handle const request : {first, c.request}) {
        ASSERT_EQ(api().context_prepare_prefill(c.handle, request, &c.work), PC_OK);
        EXPECT_EQ(c.work.items[0].slots[0], request == first ? 0 : 3);
        EXPECT_EQ(api().context_report(c.handle, request, PC_WORK_DONE, &c.work), PC_OK);
    }
    std::array<int32_t, 16> row{};
    EXPECT_EQ(api().table_get_row(c.tableHandle, 3, row.data()), PC_OK);
    EXPECT_GE(row[0], 0);
    for (pc_handle const request : {first, c.request}) {
        EXPECT_EQ(api().context_abandon(c.handle, request, 1), PC_OK);
    }
}

TEST(Abi, SlotsMoveDownInOrder) {
    Context c;
    std::array<int32_t, 4> lengths{10, 11, 12, 13};
    auto const address = reinterpret_cast<uint64_t>(lengths.data());
    auto const move = [&](std::vector<int32_t> const& m) {
        return api().context_move_slots(c.handle, PC_BASE, m.data(), m.size(), address);
    };
    for (auto const& bad : {std::vector<int32_t>{1, 0}, {0, 2}, {-2}, {0, 0}, {0, 1, 2, 3, -1}}) {
        EXPECT_EQ(move(bad), PC_ERROR_INVALID_ARGUMENT);
    }
    EXPECT_EQ(lengths, (std::array<int32_t, 4>{10, 11, 12, 13}));
    EXPECT_EQ(move({-1, 0, -1, 1}), PC_OK) << api().last_error();
    EXPECT_EQ(lengths, (std::array<int32_t, 4>{11, 13, 12, 13}));
    EXPECT_EQ(api().context_move_slots(c.handle, 2, lengths.data(), 1, 0), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(api().context_move_slots(c.handle, PC_DRAFT, nullptr, 0, 0), PC_OK);
}

TEST(Abi, TheManagerOfACoordinatorIsForQueries) {
    Context c;
    auto const tokens = tokensOf(4);
    auto const s = sequenceOf(tokens);
    auto plan = sized<pc_plan>();
    pc_handle lease = 0;
    EXPECT_EQ(api().manager_acquire(c.manager, PC_PLAN_VANILLA, 0, &s, &plan, nullptr, 0, nullptr, 0, &lease),
              PC_ERROR_WRONG_STATE);
    pc_handle copy = c.manager;
    EXPECT_EQ(api().manager_destroy(&copy), PC_ERROR_WRONG_STATE);
    EXPECT_EQ(api().manager_lookup(c.manager, PC_PLAN_VANILLA, &s, &plan), PC_OK);
    EXPECT_EQ(api().manager_flush(c.manager, nullptr), PC_OK);
    pc_handle table = c.tableHandle;
    EXPECT_EQ(api().table_destroy(&table), PC_ERROR_BUSY);
}

TEST(Abi, FlatArraysAreChecked) {
    Context c;
    auto const tokens = tokensOf(6);
    std::array<int64_t, 3> offsets{0, 4, 6};
    auto a = sized<pc_admission>();
    a.num_sequences = 2;
    a.tokens = tokens.data();
    a.token_offsets = offsets.data();
    std::array<pc_sequence_start, 2> starts{};
    auto const begin = [&] { return api().context_begin(c.handle, &a, starts.data(), &c.request); };
    for (auto const& bad : {std::array<int64_t, 3>{1, 4, 6}, {0, 4, 3}, {0, 6, 6}, {0, -1, 6}, {0, 4, INT64_MAX}}) {
        offsets = bad;
        EXPECT_EQ(begin(), PC_ERROR_INVALID_ARGUMENT);
    }
    offsets = {0, 4, 6};
    std::vector<pc_hash128> const media(6);
    a.media = media.data();
    EXPECT_EQ(begin(), PC_ERROR_INVALID_ARGUMENT) << "no offsets";
    std::array<int64_t, 3> mediaOffsets{0, 3, 5};
    a.media_offsets = mediaOffsets.data();
    EXPECT_EQ(begin(), PC_ERROR_INVALID_ARGUMENT) << "D-1";
    mediaOffsets = {0, 4, 4};
    std::array<pc_extras, 2> extras{};
    extras[1].present = 0x100;
    a.extras = extras.data();
    EXPECT_EQ(begin(), PC_ERROR_UNSUPPORTED);
    extras[1].present = PC_EXTRA_ISOLATION;
    std::array<int32_t, 2> slots{1, 1};
    a.slots = slots.data();
    EXPECT_EQ(begin(), PC_ERROR_INVALID_ARGUMENT);
    slots = {2, 1};
    EXPECT_EQ(begin(), PC_OK) << api().last_error();
    auto info = sized<pc_sequence_info>();
    EXPECT_EQ(api().context_get_sequence(c.handle, c.request, 0, &info), PC_OK);
    EXPECT_EQ(info.slot, 2);
    EXPECT_EQ(api().context_get_sequence(c.handle, c.request, 2, &info), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(api().context_abandon(c.handle, c.request, 1), PC_OK);
}

// Handles that are zero, invented, of another kind, or gone: an error, never a crash.
TEST(Abi, BadHandlesAreRefusedEverywhere) {
    Context c;
    Manager m;
    pc_handle gone = 0;
    {
        Manager shortLived;
        gone = shortLived.handle;
    }
    auto const tokens = tokensOf(4);
    auto const s = sequenceOf(tokens);
    auto plan = sized<pc_plan>();
    auto work = sized<pc_work>();
    auto stats = sized<pc_manager_stats>();
    auto metrics = sized<pc_context_metrics>();
    auto info = sized<pc_table_info>();
    auto request = sized<pc_request_info>();
    uint64_t n = 0;
    uint32_t flag = 0;
    int32_t value = 0;
    int32_t other = 0;
    pc_handle out = 0;
    for (pc_handle const bad :
         {pc_handle{0}, pc_handle{1}, pc_handle{UINT64_MAX}, pc_handle{0x123456789ABCDEF}, gone, c.tableHandle}) {
        EXPECT_EQ(api().manager_acquire(bad, 0, 0, &s, &plan, nullptr, 0, nullptr, 0, &out), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_append(bad, 1, tokens.data(), 1), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_grow(bad, 1, 0, 0, nullptr, nullptr), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_lookup(bad, 0, &s, &plan), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_flush(bad, &n), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_records(bad, nullptr, 0, &n), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_get_stats(bad, &stats), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_check(bad), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_dump(bad, nullptr, 0, &n), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_manager(bad, &out), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_prepare_prefill(bad, 1, &work), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_shutdown(bad, 1), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_synchronize(bad), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_get_metrics(bad, &metrics), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_publish(m.handle, bad, 4, nullptr), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().manager_reserve(m.handle, bad, 0, &value, &other), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_prepare_decode(c.handle, bad, 0, 0, &work), PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_get_request(c.handle, bad, &request), PC_ERROR_BAD_HANDLE);
        if (bad != c.tableHandle) {
            EXPECT_EQ(api().table_set_identity(bad), PC_ERROR_BAD_HANDLE);
            EXPECT_EQ(api().table_upload(bad, 0, &flag), PC_ERROR_BAD_HANDLE);
            EXPECT_EQ(api().table_get_info(bad, &info), PC_ERROR_BAD_HANDLE);
        }
        pc_handle copy = bad;
        EXPECT_EQ(api().manager_destroy(&copy), bad == 0 ? PC_OK : PC_ERROR_BAD_HANDLE);
        EXPECT_EQ(api().context_destroy(&copy), bad == 0 ? PC_OK : PC_ERROR_BAD_HANDLE);
        EXPECT_NE(std::strlen(api().last_error()) > 0, bad == 0);
    }
    EXPECT_EQ(api().manager_destroy(nullptr), PC_OK);
    EXPECT_EQ(api().table_destroy(nullptr), PC_OK);
    EXPECT_EQ(api().context_destroy(nullptr), PC_OK);
}

// Random calls with random arguments: whatever happens, nothing crashes and the
// structure stays sound.
TEST(Abi, RandomCallsNeverBreakAnything) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random(seed);
        Context c(2);
        Manager m;
        std::vector<pc_handle> leases{0};
        std::vector<pc_handle> requests{0};
        std::vector<int32_t> const memory = tokensOf(64);
        std::vector<int32_t> outputs(64);
        auto const pick = [&](auto const& list) { return list[random() % list.size()]; };
        auto const number = [&] { return static_cast<int32_t>(random() % 16) - 2; };
        for (int step = 0; step < 3000; ++step) {
            auto work = sized<pc_work>();
            auto plan = sized<pc_plan>();
            auto sequence = sequenceOf(memory);
            sequence.num_tokens = number();
            std::array<int64_t, 2> offsets{0, number()};
            std::array<int32_t, 2> committed{number(), number()};
            auto advance = sized<pc_advance>();
            advance.num_sequences = static_cast<uint32_t>(random() % 3);
            advance.tokens = memory.data();
            std::array<int64_t, 3> cuts{0, static_cast<int64_t>(random() % 2), static_cast<int64_t>(random() % 3)};
            advance.token_offsets = cuts.data();
            advance.committed = committed.data();
            advance.publish = committed.data();
            advance.num_publish = random() % 2;
            auto admission = sized<pc_admission>();
            admission.num_sequences = 1;
            admission.tokens = memory.data();
            admission.token_offsets = offsets.data();
            std::array<pc_sequence_start, 4> starts{};
            pc_handle out = 0;
            uint64_t n = 0;
            pc_handle const lease = pick(leases);
            pc_handle const request = pick(requests);
            switch (random() % 22) {
                case 0:
                    if (api().manager_acquire(m.handle, static_cast<uint32_t>(random() % 4),
                                              static_cast<uint32_t>(random() % 3), &sequence, &plan, outputs.data(),
                                              random() % 8, outputs.data(), 8, &out) == PC_OK) {
                        leases.push_back(out);
                    }
                    break;
                case 1:
                    api().manager_append(m.handle, lease, memory.data(), random() % 8);
                    break;
                case 2:
                    api().manager_grow(m.handle, lease, number(), number(), outputs.data(), outputs.data());
                    break;
                case 3:
                    api().manager_publish(m.handle, lease, number(), nullptr);
                    break;
                case 4:
                    api().manager_reserve(m.handle, lease, static_cast<uint32_t>(random() % 3), &outputs[0],
                                          &outputs[1]);
                    break;
                case 5:
                    api().manager_publish_hybrid(m.handle, lease, number(), outputs[0], outputs[1], nullptr);
                    break;
                case 6:
                    api().manager_retire(m.handle, lease, number(), number());
                    break;
                case 7:
                    out = lease;
                    api().manager_release(m.handle, &out);
                    break;
                case 8:
                    api().manager_advance(m.handle, lease, memory.data(), random() % 4, number(), number(), number(),
                                          outputs.data(), outputs.data(), nullptr);
                    break;
                case 9:
                    api().manager_evict(m.handle, random() % 8);
                    break;
                case 10:
                    api().manager_references(m.handle, static_cast<uint32_t>(random() % 5), random() % 20,
                                             outputs.data(), nullptr, random() % 20);
                    break;
                case 11:
                    api().manager_lease_pages(m.handle, lease, static_cast<uint32_t>(random() % 3), random() % 6,
                                              outputs.data(), random() % 8, &n);
                    break;
                case 12:
                    if (api().context_begin(c.handle, &admission, starts.data(), &out) == PC_OK) {
                        requests.push_back(out);
                    }
                    break;
                case 13:
                    api().context_prepare_prefill(c.handle, request, &work);
                    break;
                case 14:
                    api().context_finalize_prefill(c.handle, request, &advance, &work);
                    break;
                case 15:
                    api().context_prepare_decode(c.handle, request, number(), number(), &work);
                    break;
                case 16:
                    api().context_complete_decode(c.handle, request, &advance, &work);
                    break;
                case 17:
                    api().context_begin_compaction(c.handle, request, committed.data(), random() % 3, number(),
                                                   reinterpret_cast<uint64_t>(outputs.data()), &work);
                    break;
                case 18:
                    api().context_compact(c.handle, request, &work);
                    break;
                case 19:
                case 20:
                    api().context_report(c.handle, request, static_cast<uint32_t>(random() % 5 == 0), &work);
                    break;
                default:
                    api().context_finish(c.handle, request, &work);
                    break;
            }
            if (step % 97 == 0) {
                ASSERT_EQ(api().manager_check(m.handle), PC_OK) << api().last_error();
                ASSERT_EQ(api().manager_check(c.manager), PC_OK) << api().last_error();
            }
        }
        for (pc_handle const request : requests) {
            api().context_abandon(c.handle, request, 1);
        }
        EXPECT_EQ(api().context_shutdown(c.handle, 1), PC_OK);
        for (pc_handle lease : leases) {
            api().manager_release(m.handle, &lease);
        }
        EXPECT_EQ(m.stats().leases, 0U);
        EXPECT_EQ(api().manager_flush(m.handle, nullptr), PC_OK);
        for (size_t pool = 0; pool < 4; ++pool) {
            EXPECT_EQ(m.stats().free[pool], m.stats().capacity[pool]) << "C-71, pool " << pool << ", seed " << seed;
        }
    }
}

TEST(Abi, CallsFromManyThreadsAreSerialised) {
    Manager m(0, 64);
    std::atomic<int> acquired{0};
    std::vector<std::thread> threads;
    for (int32_t t = 0; t < 6; ++t) {
        threads.emplace_back([&, t] {
            for (int32_t i = 0; i < 300; ++i) {
                auto const tokens = tokensOf(4 + (i + t) % 12, i % 3);
                auto const s = sequenceOf(tokens);
                auto plan = sized<pc_plan>();
                pc_handle lease = 0;
                if (api().manager_acquire(m.handle, 0, 0, &s, &plan, nullptr, 0, nullptr, 0, &lease) == PC_OK) {
                    ++acquired;
                    api().manager_publish(m.handle, lease, s.num_tokens, nullptr);
                    api().manager_check(m.handle);
                    api().manager_release(m.handle, &lease);
                }
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(acquired, 1800);
    EXPECT_EQ(m.stats().active[0], 0U);
}

}  // namespace
