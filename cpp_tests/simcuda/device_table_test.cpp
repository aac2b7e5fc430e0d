// Page-table uploads of the built library on the simulated driver (C-76 to C-79):
// the whole way from the C ABI through Go and the trampolines to the driver.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <prefixcache.h>

#include <random>
#include <string>
#include <vector>

#include "simcuda.h"

namespace {

extern "C" CUresult cuInit(unsigned);

constexpr int32_t kBatch = 9, kWidth = 5, kPages = 64;

const pc_api* library() {
    static const pc_api* api = [] {
        // The very file that this test is linked with: both see one driver, one state.
        Dl_info driver;
        dladdr(reinterpret_cast<void*>(&simcuda_reset), &driver);
        setenv("PREFIXCACHE_CUDA_DRIVER", driver.dli_fname, 1);
        const char* path = getenv("PREFIXCACHE_LIBRARY");
        void* lib = dlopen(path ? path : "build/libprefixcache.so", RTLD_NOW);
        if (!lib) {
            ADD_FAILURE() << dlerror();
            abort();
        }
        auto get = reinterpret_cast<decltype(&pc_get_api)>(dlsym(lib, "pc_get_api"));
        return get(PC_ABI_VERSION);
    }();
    return api;
}

std::string faults() {
    char text[1 << 14];
    return simcuda_report(text, sizeof text) ? text : "";
}

std::string leaks() {
    char text[1 << 14];
    return simcuda_leaks(text, sizeof text) ? text : "";
}

struct DeviceTable : testing::Test {
    const pc_api* api = library();
    pc_handle table = 0;
    CUstream stream = nullptr;
    pc_table_info info{};

    void open(uint64_t seed) {
        simcuda_reset(seed);
        ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
        CUcontext context;
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        pc_table_options o{};
        o.struct_size = sizeof o;
        o.max_batch = kBatch;
        o.row_width = kWidth;
        o.num_pages = kPages;
        ASSERT_EQ(api->table_create(&o, &table), PC_OK) << api->last_error();
        info.struct_size = sizeof info;
        ASSERT_EQ(api->table_get_info(table, &info), PC_OK);
    }

    void close() {
        EXPECT_EQ(api->table_destroy(&table), PC_OK) << api->last_error();
        simcuda_step(1 << 20);
        cuStreamDestroy(stream);
        EXPECT_EQ(faults(), "");
        EXPECT_EQ(leaks(), "");
    }

    pc_status upload(uint32_t* any = nullptr) {
        return api->table_upload(table, reinterpret_cast<uint64_t>(stream), any);
    }

    pc_status setRow(int32_t slot, std::vector<int32_t> const& pages) {
        int64_t offsets[] = {0, static_cast<int64_t>(pages.size())};
        return api->table_set_rows(table, &slot, 1, pages.data(), offsets);
    }

    std::vector<int32_t> hostRow(int32_t slot) {
        std::vector<int32_t> row(2 * kWidth);
        EXPECT_EQ(api->table_get_row(table, slot, row.data()), PC_OK);
        return row;
    }

    CUdeviceptr address(int32_t slot) { return info.device_address + static_cast<uint64_t>(slot) * 2 * kWidth * 4; }

    std::vector<int32_t> deviceRow(int32_t slot) {
        std::vector<int32_t> row(2 * kWidth);
        EXPECT_TRUE(simcuda_peek(address(slot), row.data(), row.size() * 4));
        return row;
    }

    void expectSame(uint64_t seed) {
        for (int32_t b = 0; b < kBatch; b++) EXPECT_EQ(deviceRow(b), hostRow(b)) << "seed " << seed << " row " << b;
    }
};

// C-76, C-78: uploads follow each other without a wait of the caller; the mirror
// ends up right and staging was never rewritten under a queued copy.
TEST_F(DeviceTable, C78_BackToBackUploadsInAnyOrder) {
    for (uint64_t seed = 0; seed < 500 && !HasFailure(); seed++) {
        open(seed);
        std::mt19937_64 random(seed);
        for (int round = 0; round < 12; round++) {
            for (int n = static_cast<int>(random() % 4); n > 0; n--) {
                std::vector<int32_t> pages(random() % (kWidth + 1));
                for (auto& p : pages) p = static_cast<int32_t>(random() % kPages);
                ASSERT_EQ(setRow(static_cast<int32_t>(random() % kBatch), pages), PC_OK) << api->last_error();
            }
            ASSERT_EQ(upload(), PC_OK) << api->last_error();
        }
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
        expectSame(seed);
        EXPECT_EQ(simcuda_pageable(), 0u) << "staging is pinned";
        close();
    }
}

// C-77, C-79: the first upload carries every row, later ones only what changed, with
// one copy for rows side by side.
TEST_F(DeviceTable, C77_OnlyDirtyRowsTravel) {
    open(1);
    ASSERT_EQ(upload(), PC_OK);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    expectSame(1);
    EXPECT_EQ(simcuda_calls("cuMemcpyHtoDAsync_v2"), 1u);
    int32_t mark = 4711;
    simcuda_poke(address(3), &mark, sizeof mark);
    ASSERT_EQ(setRow(5, {1, 2}), PC_OK);
    ASSERT_EQ(setRow(6, {3}), PC_OK);
    ASSERT_EQ(upload(), PC_OK);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(simcuda_calls("cuMemcpyHtoDAsync_v2"), 2u);
    EXPECT_EQ(deviceRow(3)[0], mark) << "a clean row was rewritten";
    EXPECT_EQ(deviceRow(5), hostRow(5));
    uint32_t any = 7;
    ASSERT_EQ(upload(&any), PC_OK);
    EXPECT_EQ(any, 0u);
    close();
}

// Whichever driver call of an upload fails: the error names it, and the next upload
// repairs the mirror without disturbing a copy that is still queued.
TEST_F(DeviceTable, FailedUploadIsRepaired) {
    int failures = 0;
    for (int n = 1; n < 40; n++) {
        open(static_cast<uint64_t>(n));
        simcuda_policy(SIMCUDA_LATE);
        ASSERT_EQ(setRow(2, {7, 8, 9}), PC_OK);
        ASSERT_EQ(setRow(7, {1}), PC_OK);
        ASSERT_EQ(upload(), PC_OK);
        ASSERT_EQ(setRow(2, {4}), PC_OK);
        ASSERT_EQ(setRow(4, {5}), PC_OK);
        simcuda_fail_nth(SIMCUDA_ENQUEUE | SIMCUDA_WAIT | SIMCUDA_ASK, n, CUDA_ERROR_OUT_OF_MEMORY);
        pc_status st = upload();
        simcuda_fail_nth(0, 0, CUDA_SUCCESS);
        if (st != PC_OK) {
            failures++;
            EXPECT_EQ(st, PC_ERROR_DEVICE);
            EXPECT_NE(std::string(api->last_error()).find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
                << api->last_error();
        }
        ASSERT_EQ(setRow(4, {6}), PC_OK);
        ASSERT_EQ(upload(), PC_OK) << api->last_error();
        ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
        expectSame(static_cast<uint64_t>(n));
        close();
        ASSERT_FALSE(HasFailure()) << "call " << n;
    }
    EXPECT_GT(failures, 10);
}

// As in CUDA, a stream may be destroyed while its work is under way. The copies of an upload
// that broke off are still known then.
TEST_F(DeviceTable, AStreamMayGoAfterAFailedUpload) {
    int failures = 0;
    for (int n = 1; n < 40; n++) {
        open(static_cast<uint64_t>(n));
        simcuda_policy(SIMCUDA_LATE);
        ASSERT_EQ(upload(), PC_OK);
        ASSERT_EQ(setRow(2, {4}), PC_OK);
        ASSERT_EQ(setRow(4, {5}), PC_OK);
        simcuda_fail_nth(SIMCUDA_ENQUEUE | SIMCUDA_WAIT | SIMCUDA_ASK, n, CUDA_ERROR_OUT_OF_MEMORY);
        failures += upload() == PC_ERROR_DEVICE;
        simcuda_fail_nth(0, 0, CUDA_SUCCESS);
        ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        if (n % 2 == 0) {
            ASSERT_EQ(upload(), PC_OK) << api->last_error();
            simcuda_step(1 << 20);
            expectSame(static_cast<uint64_t>(n));
        }
        close();
        ASSERT_FALSE(HasFailure()) << "call " << n;
    }
    EXPECT_GT(failures, 10);
}

TEST_F(DeviceTable, CapturingStreamIsRefusedAndItsCaptureKept) {
    open(1);
    simcuda_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(upload(), PC_ERROR_WRONG_STATE) << api->last_error();
    EXPECT_NE(std::string(api->last_error()).find("captured"), std::string::npos);
    EXPECT_EQ(simcuda_end_capture(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_EQ(upload(), PC_OK);
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    expectSame(1);
    close();
}

TEST_F(DeviceTable, DestroyWaitsForAPendingUpload) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        open(seed);
        simcuda_policy(SIMCUDA_LATE);
        ASSERT_EQ(upload(), PC_OK);
        close();
    }
}

// Whichever driver call of a destroy fails once, nothing is left behind.
TEST_F(DeviceTable, DestroyGivesEverythingBackWhateverFails) {
    int failures = 0;
    for (int n = 1; n < 40; n++) {
        open(static_cast<uint64_t>(n));
        simcuda_policy(SIMCUDA_LATE);
        ASSERT_EQ(upload(), PC_OK);
        simcuda_fail_nth(SIMCUDA_ANY, n, CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(api->table_destroy(&table), PC_OK) << api->last_error();
        failures += simcuda_armed() == 0;
        simcuda_fail_nth(0, 0, CUDA_SUCCESS);
        close();
        ASSERT_FALSE(HasFailure()) << "call " << n;
    }
    EXPECT_GT(failures, 5);
}

// What cannot be given back is said, and memory that a copy may still read stays.
TEST_F(DeviceTable, DestroySaysWhatItCouldNotGiveBack) {
    open(1);
    simcuda_policy(SIMCUDA_LATE);
    simcuda_fail_operation(1, CUDA_ERROR_LAUNCH_FAILED);  // the copy of the upload: the context is lost with it
    ASSERT_EQ(upload(), PC_OK);
    EXPECT_EQ(api->table_destroy(&table), PC_ERROR_DEVICE);
    EXPECT_EQ(table, 0u);
    EXPECT_NE(std::string(api->last_error()).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << api->last_error();
    EXPECT_EQ(faults(), "");
    simcuda_reset(1);
}

// Memory that a copy may still use is not given back, whatever that costs.
TEST_F(DeviceTable, DestroyKeepsWhatItCannotWaitFor) {
    open(1);
    simcuda_policy(SIMCUDA_LATE);
    ASSERT_EQ(upload(), PC_OK);
    simcuda_fail_all(SIMCUDA_WAIT, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(api->table_destroy(&table), PC_ERROR_DEVICE);
    simcuda_fail_all(0, CUDA_SUCCESS);
    EXPECT_NE(leaks().find("pinned memory"), std::string::npos) << leaks();
    EXPECT_NE(leaks().find("device memory"), std::string::npos) << leaks();
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(faults(), "");
    simcuda_reset(1);
}

// A host with static objects destroys them when the driver is gone: nothing is wrong then.
TEST_F(DeviceTable, DestroyAfterTheDriverIsSilent) {
    open(1);
    ASSERT_EQ(upload(), PC_OK);
    static int lines = 0;
    lines = 0;
    auto count = [](void*, int32_t, const char*) { lines++; };
    ASSERT_EQ(api->set_log(count, nullptr, PC_LOG_WARNING), PC_OK);
    simcuda_shut_down();
    EXPECT_EQ(api->table_destroy(&table), PC_OK) << api->last_error();
    EXPECT_EQ(table, 0u);
    EXPECT_EQ(lines, 0);
    ASSERT_EQ(api->set_log(nullptr, nullptr, PC_LOG_WARNING), PC_OK);
    simcuda_reset(1);
}

// The thread that destroys may have another context, or none, current.
TEST_F(DeviceTable, DestroyWorksInAnyContext) {
    for (bool another : {true, false}) {
        open(1);
        CUcontext own, other, current;
        ASSERT_EQ(cuCtxGetCurrent(&own), CUDA_SUCCESS);
        while (cuCtxPopCurrent(&other) == CUDA_SUCCESS) {
        }
        if (another) {
            ASSERT_EQ(cuCtxCreate(&other, 0, 0), CUDA_SUCCESS);
        }
        ASSERT_EQ(cuCtxGetCurrent(&other), CUDA_SUCCESS);
        ASSERT_EQ(another, other != nullptr);
        ASSERT_EQ(api->table_destroy(&table), PC_OK) << api->last_error();
        ASSERT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
        EXPECT_EQ(current, other) << "what was current still is";
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "and so is the thread's capture mode";
        ASSERT_EQ(cuCtxSetCurrent(own), CUDA_SUCCESS);
        close();
    }
}

TEST_F(DeviceTable, HostPointerAsDeviceCopyIsRefused) {
    open(1);
    std::vector<int32_t> host(kBatch * 2 * kWidth);
    pc_table_options o{};
    o.struct_size = sizeof o;
    o.max_batch = kBatch;
    o.row_width = kWidth;
    o.num_pages = kPages;
    o.device_address = reinterpret_cast<uint64_t>(host.data());
    pc_handle other = 0;
    EXPECT_EQ(api->table_create(&o, &other), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(api->last_error()).find("device_address"), std::string::npos) << api->last_error();
    // Nor is memory of the device that ends before the table does.
    o.device_address = info.device_address + 2 * kWidth * 4;
    EXPECT_EQ(api->table_create(&o, &other), PC_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(api->last_error()).find("with 360 bytes, of which 320 are"), std::string::npos)
        << api->last_error();
    o.device_address = info.device_address;
    EXPECT_EQ(api->table_create(&o, &other), PC_OK) << api->last_error();
    EXPECT_EQ(api->table_destroy(&other), PC_OK);
    close();
}

}  // namespace
