// The request handle: moved, dropped in every phase, drained or not, quarantined,
// poisoned, shut down.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <type_traits>

#include "host_cache.hpp"

namespace {

using namespace test;
using Status = ContextCacheCoordinatorStatus;
using Kind = ContextCacheDeploymentKind;
using Handle = ContextCacheCoordinator::RequestHandle;

std::vector<int32_t> gStore(4);

/// Brings a request to a named place of its walk.
struct Place {
    char const* name;
    Kind kind;
    bool pending;  // device work in flight: dropping has to drain
};

Place const kPlaces[] = {
    {"admitted", Kind::kVanilla, false},  {"prefill", Kind::kVanilla, true},    {"captured", Kind::kHybrid, true},
    {"settled", Kind::kVanilla, false},   {"frozen", Kind::kEagle, true},       {"decode", Kind::kVanilla, true},
    {"compaction", Kind::kVanilla, true}, {"finishing", Kind::kVanilla, false},
};

Handle bring(Rig& rig, Place const& place) {
    static Tensor mapping(gStore.data(), DataType::kInt32, 4);
    std::string const name = place.name;
    auto admission = admissionOf({tokensOf(7)});
    if (place.kind == Kind::kEagle) {
        admission.executionMode = ContextCacheExecutionMode::kEagle;
    }
    auto admitted = begin(*rig, admission);
    auto& r = admitted.request;
    if (name == "admitted") return std::move(r);
    rig->preparePrefill(r);
    if (name == "prefill") return std::move(r);
    rig->enqueuePrefillCaptures(r);
    if (name == "captured") return std::move(r);
    std::vector<int32_t> const common{7};
    rig->finalizePrefillPublication(r, Advances({7}).list, place.kind == Kind::kEagle ? &common : nullptr);
    if (name == "settled" || name == "frozen") return std::move(r);
    if (name == "decode") {
        rig->prepareDecodeStep(r);
        return std::move(r);
    }
    rig->beginBatchCompaction(r, {-1}, 0, mapping);
    if (name == "compaction") return std::move(r);
    rig->compactBatch(r);
    rig.synchronizer.calls = 0;
    return std::move(r);
}

class HandleInEveryPhase : public testing::TestWithParam<Place> {};

TEST_P(HandleInEveryPhase, C104_DroppedAndDrained) {
    Rig rig(GetParam().kind);
    size_t const before = [&] {
        auto request = bring(rig, GetParam());
        EXPECT_EQ(inspect(request).deviceWorkPending, GetParam().pending);
        return rig->manager().records().size();
    }();
    EXPECT_EQ(rig.synchronizer.calls, GetParam().pending ? 1 : 0);
    EXPECT_EQ(rig->manager().records().size(), before) << "dropping publishes nothing";
    EXPECT_EQ(rig->metrics().activeRequests, 0U);
    EXPECT_EQ(rig->metrics().pools[0].active, 0U);
    EXPECT_EQ(rig->metrics().pools[2].active, 0U);
    EXPECT_FALSE(rig->metrics().poisoned);
    rig->manager().checkInvariants();
    EXPECT_EQ(serve(*rig, {tokensOf(3, 8)}), std::vector<int32_t>{0});
}

TEST_P(HandleInEveryPhase, C105_DroppedAndNotDrained) {
    for (bool const throws : {false, true}) {
        Rig rig(GetParam().kind);
        {
            auto request = bring(rig, GetParam());
            rig.synchronizer.answer = cudaErrorUnknown;
            rig.synchronizer.throws = throws;
        }
        EXPECT_EQ(rig->metrics().poisoned, GetParam().pending);
        EXPECT_EQ(rig->metrics().activeRequests, GetParam().pending ? 1U : 0U);
        auto const begun = rig->beginRequest(admissionOf({tokensOf(4)}), kStream).status;
        EXPECT_EQ(begun, GetParam().pending ? Status::kPoisoned : Status::kOk);
        EXPECT_EQ(rig->shutdown(), GetParam().pending ? Status::kPoisoned : Status::kOk);
        rig.synchronizer.answer = cudaSuccess;
        rig.synchronizer.throws = false;
        EXPECT_EQ(rig->shutdown(), Status::kOk) << "C-107: repeatable";
        EXPECT_EQ(rig->metrics().pools[0].active, 0U);
        EXPECT_EQ(rig->metrics().poisoned, GetParam().pending) << "C-106, D-7: for good";
        rig->manager().checkInvariants();
    }
}

// 13.3 asks for the stream and the policies, then for poison and a live request, and only
// then looks at the batch.
TEST(Handle, C106_WhatIsWrongWithTheCoordinatorComesBeforeWhatIsWrongWithTheBatch) {
    Rig rig(Kind::kHybrid);
    auto request = bring(rig, Place{"prefill", Kind::kHybrid, true});
    for (auto const answer : {Status::kRequestFailed, Status::kPoisoned}) {
        for (size_t const count : {size_t{0}, size_t{99}}) {
            std::vector<std::vector<int32_t>> const batch(count, tokensOf(4));
            EXPECT_EQ(rig->beginRequest(admissionOf(batch), kStream).status, answer) << count << " sequences";
            EXPECT_THROW(rig->beginRequest(admissionOf(batch), cudaStream_t{}), std::runtime_error);
        }
        EXPECT_EQ(rig->beginRequest(admissionOf({{}}), kStream).status, answer) << "a sequence without tokens";
        if (answer == Status::kRequestFailed) {
            rig.synchronizer.answer = cudaErrorUnknown;
            EXPECT_EQ(rig->finish(request), Status::kPoisoned);
            rig.synchronizer.answer = cudaSuccess;
            EXPECT_EQ(rig->shutdown(), Status::kOk);
        }
    }
}

TEST_P(HandleInEveryPhase, C103_FinishedAnywhere) {
    Rig rig(GetParam().kind);
    auto request = bring(rig, GetParam());
    EXPECT_EQ(rig->finish(request), Status::kOk);
    EXPECT_EQ(rig.synchronizer.calls, GetParam().pending ? 1 : 0);
    EXPECT_FALSE(request.valid());
    EXPECT_EQ(rig->finish(request), Status::kOk) << "idempotent";
    EXPECT_EQ(rig->metrics().pools[0].active, 0U);
    EXPECT_EQ(rig->metrics().pools[2].active, 0U);
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(serve(*rig, {tokensOf(3, 8)}), std::vector<int32_t>{0});
}

TEST_P(HandleInEveryPhase, C108_DestroyingTheCoordinatorUnderIt) {
    auto const& place = GetParam();
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a bare fork cannot run the library
    EXPECT_DEATH(
        {
            Rig rig(place.kind);
            auto request = bring(rig, place);
            rig.coordinator.reset();
        },
        "live or quarantined");
}

std::string nameOf(testing::TestParamInfo<Place> const& place) { return place.param.name; }

INSTANTIATE_TEST_SUITE_P(Handle, HandleInEveryPhase, testing::ValuesIn(kPlaces), nameOf);

class HandleWithPendingWork : public testing::TestWithParam<Place> {};

TEST_P(HandleWithPendingWork, AThrowingSynchronizerPassesThroughFinish) {
    Rig rig(GetParam().kind);
    auto request = bring(rig, GetParam());
    rig.synchronizer.throws = true;
    EXPECT_THROW(rig->finish(request), std::runtime_error);
    EXPECT_TRUE(request.valid()) << "still there: finish can be repeated";
    rig.synchronizer.throws = false;
    EXPECT_EQ(rig->finish(request), Status::kOk);
    EXPECT_FALSE(rig->metrics().poisoned);
}

TEST_P(HandleWithPendingWork, AFailedSynchronizationPoisonsFinish) {
    Rig rig(GetParam().kind);
    auto request = bring(rig, GetParam());
    rig.synchronizer.answer = cudaErrorUnknown;
    EXPECT_EQ(rig->finish(request), Status::kPoisoned);
    EXPECT_FALSE(request.valid());
    EXPECT_GT(rig->metrics().activeRequests, 0U) << "quarantined";
    rig.synchronizer.answer = cudaSuccess;
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(rig->metrics().activeRequests, 0U);
}

INSTANTIATE_TEST_SUITE_P(Handle, HandleWithPendingWork,
                         testing::Values(kPlaces[1], kPlaces[2], kPlaces[4], kPlaces[5], kPlaces[6]), nameOf);

TEST(HandleTest, C108_DestroyingAQuarantine) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(
        {
            Rig rig;
            bring(rig, kPlaces[1]);  // dropped at once, in the prefill
            rig.synchronizer.answer = cudaErrorUnknown;
            bring(rig, kPlaces[1]);
            rig.coordinator.reset();
        },
        "live or quarantined");
}

TEST(HandleTest, C82_EmptyAndForeignHandlesThrow) {
    Rig one;
    Rig two;
    auto admitted = begin(*one, admissionOf({tokensOf(4)}));
    EXPECT_THROW(two->preparePrefill(admitted.request), std::runtime_error);
    EXPECT_THROW(two->finish(admitted.request), std::runtime_error);
    Handle moved = std::move(admitted.request);
    EXPECT_TRUE(moved.valid());
    EXPECT_FALSE(admitted.request.valid());
    EXPECT_THROW(one->preparePrefill(admitted.request), std::runtime_error);
    EXPECT_THROW(inspect(admitted.request), std::runtime_error);
    EXPECT_EQ(one->finish(admitted.request), Status::kOk) << "empty";
    EXPECT_EQ(one->preparePrefill(moved), Status::kOk);
    EXPECT_EQ(one->finish(moved), Status::kOk);
}

// However often a handle moves, there is one, and its end is the end of the request, once.
TEST(HandleTest, C83_MovedNeverCopied) {
    static_assert(std::is_nothrow_move_constructible_v<Handle> && !std::is_move_assignable_v<Handle>);
    static_assert(!std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>);
    Rig rig;
    {
        std::vector<Handle> handles;
        {
            auto begun = rig->beginRequest(admissionOf({tokensOf(5)}), kStream);
            rig->preparePrefill(begun.admission->request);
            handles.push_back(std::move(begun.admission->request));
            EXPECT_FALSE(begun.admission->request.valid());
        }  // a handle that was moved from ends nothing
        EXPECT_EQ(rig->metrics().activeRequests, 1U);
        EXPECT_EQ(rig.synchronizer.calls, 0);
        handles.reserve(handles.capacity() + 1);  // moves it again
        std::thread([&] { rig->finalizePrefillPublication(handles[0], Advances({5}).list); }).join();
        ASSERT_EQ(rig->prepareDecodeStep(handles[0]), Status::kOk);
    }
    EXPECT_EQ(rig.synchronizer.calls, 1) << "dropped: drained once";
    EXPECT_EQ(rig->metrics().activeRequests, 0U);
    EXPECT_EQ(rig->metrics().pools[0].active, 0U);
}

TEST(HandleTest, C107_ShutdownWithALiveRequest) {
    Rig rig;
    auto admitted = begin(*rig, admissionOf({tokensOf(4)}));
    EXPECT_EQ(rig->shutdown(), Status::kRequestFailed);
    rig->finish(admitted.request);
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(rig->shutdown(), Status::kOk);
    EXPECT_EQ(serve(*rig, {tokensOf(4)}), std::vector<int32_t>{0}) << "it closes nothing";
}

/// Brings a request of two to where the faulty callback is, which throws.
void runInto(Rig& rig, HostCache& faulty, std::string const& callback, Handle& r, bool eagle) {
    std::vector<int32_t> const common{6, 6};
    std::vector<int32_t> store(4);
    Tensor mapping(store.data(), DataType::kInt32, 4);
    faulty.failOn = callback;
    if (callback == "reset") {
        EXPECT_THROW(rig->preparePrefill(r), std::runtime_error);
    } else {
        rig->preparePrefill(r);
        rig->enqueuePrefillCaptures(r);
        rig->finalizePrefillPublication(r, Advances({6, 6}).list, eagle ? &common : nullptr);
        ASSERT_EQ(rig->beginBatchCompaction(r, {-1, 0}, 1, mapping), Status::kOk);
        EXPECT_THROW(rig->compactBatch(r), std::runtime_error);
    }
    faulty.failOn.clear();
    EXPECT_EQ(inspect(r).sequences.size(), 2U) << "nobody was retired";
    EXPECT_TRUE(inspect(r).deviceWorkPending);
    EXPECT_THROW(rig->prepareDecodeStep(r), std::runtime_error) << "only the end is legal";
    EXPECT_THROW(rig->compactBatch(r), std::runtime_error);
}

// A fault of the runtime's own cache manager, of either model, passes through; the request
// ends cleanly, finished or dropped, and the next one is served as if nothing had been.
TEST(HandleTest, FaultsOfTheCacheManagerPassThrough) {
    for (Kind const kind : {Kind::kVanilla, Kind::kHybrid, Kind::kPureRecurrent, Kind::kEagle}) {
        bool const eagle = kind == Kind::kEagle;
        for (int which = 0; which < (eagle ? 12 : 6); ++which) {
            SCOPED_TRACE(which);
            Rig rig(kind);
            auto admission = admissionOf({tokensOf(6, 1), tokensOf(6, 2)});
            admission.executionMode = eagle ? ContextCacheExecutionMode::kEagle : ContextCacheExecutionMode::kVanilla;
            std::string const callbacks[] = {"reset", "compact", "batch"};
            int calls = 0;
            {
                auto admitted = begin(*rig, admission);
                runInto(rig, which < 6 ? rig.base : *rig.draft, callbacks[which % 3], admitted.request, eagle);
                calls = rig.synchronizer.calls;
                if (which % 6 < 3) {
                    EXPECT_EQ(rig->finish(admitted.request), Status::kOk);
                }
            }
            EXPECT_EQ(rig.synchronizer.calls, calls + 1) << "drained once";
            for (auto const& pool : rig->metrics().pools) {
                EXPECT_EQ(pool.active, 0U);
            }
            rig->manager().checkInvariants();
            auto next = begin(*rig, admission);
            EXPECT_EQ(rig->preparePrefill(next.request), Status::kOk);
            auto const& lease = inspect(next.request).sequences[0].lease;
            for (size_t i = 0; i < lease.basePages().size(); ++i) {
                EXPECT_EQ(rig.table.devicePointer()[i], lease.basePages()[i]) << "the device has the row";
            }
            rig->finish(next.request);
        }
    }
}

// From inside a callback everything may be asked, and nothing done: a step is under way.
TEST(HandleTest, CallbacksMayAskButNotAct) {
    Rig rig;
    ContextCachePhysicalResources const resources{rig.base, rig.table};
    rig.coordinator.reset();
    int calls = 0;
    ContextCacheCoordinator* c = nullptr;
    Handle* request = nullptr;
    rig.coordinator = std::make_unique<ContextCacheCoordinator>(
        rig.config, rig.deployment, Kind::kVanilla, resources, kStream, [&](cudaStream_t stream) {
            ++calls;
            EXPECT_EQ(stream, kStream);
            EXPECT_EQ(c->metrics().activeRequests, 1U);
            EXPECT_EQ(inspect(*request).sequences.size(), 1U);
            c->manager().checkInvariants();
            EXPECT_THROW(c->beginRequest(admissionOf({tokensOf(3)}), kStream), std::runtime_error);
            EXPECT_THROW(c->prepareDecodeStep(*request), std::runtime_error);
            EXPECT_THROW(c->finish(*request), std::runtime_error);
            EXPECT_NE(c->shutdown(), Status::kOk);
            return cudaSuccess;
        });
    c = rig.coordinator.get();
    auto admitted = begin(*c, admissionOf({tokensOf(5)}));
    request = &admitted.request;
    c->preparePrefill(*request);
    EXPECT_EQ(c->finish(*request), Status::kOk);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(c->metrics().activeRequests, 0U);
}

// The step under way works with the request until it ends. Its end is the end of the request then.
TEST(HandleTest, DestroyedInsideACallback) {
    for (std::string const callback : {"reset", "compact", "batch"}) {
        for (bool const throws : {false, true}) {
            SCOPED_TRACE(callback + (throws ? ", which throws" : ""));
            Rig rig;
            std::vector<int32_t> store(4);
            Tensor mapping(store.data(), DataType::kInt32, 4);
            auto begun = rig->beginRequest(admissionOf({tokensOf(6, 1), tokensOf(6, 2)}), kStream);
            rig.base.onCall = [&](std::string const& call) {
                if (call == callback) {
                    EXPECT_THROW(rig->finish(begun.admission->request), std::runtime_error);
                    begun.admission.reset();
                    rig.base.failOn = throws ? call : "";
                }
            };
            std::string text;
            try {
                auto& r = begun.admission->request;
                rig->preparePrefill(r);
                rig->enqueuePrefillCaptures(r);
                rig->finalizePrefillPublication(r, Advances({6, 6}).list);
                rig->beginBatchCompaction(r, {-1, 0}, 1, mapping);
                rig->compactBatch(r);
            } catch (std::runtime_error const& e) {
                text = e.what();
            }
            EXPECT_EQ(text, throws ? "injected: " + callback
                                   : "prefixcache: the request handle was destroyed inside a callback of this step");
            rig.base.onCall = nullptr;
            rig.base.failOn.clear();
            EXPECT_EQ(rig->metrics().activeRequests, 0U);
            EXPECT_EQ(rig->metrics().pools[0].active, 0U);
            rig->manager().checkInvariants();
            EXPECT_EQ(serve(*rig, {tokensOf(6, 3)}), std::vector<int32_t>{0});
        }
    }
}

// The same when it is the synchronizer, whose answer decides about the step, but not about the request.
TEST(HandleTest, DestroyedInsideTheSynchronizer) {
    for (cudaError_t answer : {cudaSuccess, cudaErrorUnknown}) {
        Rig rig;
        ContextCachePhysicalResources const resources{rig.base, rig.table};
        rig.coordinator.reset();
        std::unique_ptr<Handle> request;
        rig.coordinator = std::make_unique<ContextCacheCoordinator>(rig.config, rig.deployment, Kind::kVanilla,
                                                                    resources, kStream, [&](cudaStream_t) {
                                                                        request.reset();
                                                                        return answer;
                                                                    });
        auto begun = rig->beginRequest(admissionOf({tokensOf(6)}), kStream);
        request = std::make_unique<Handle>(std::move(begun.admission->request));
        rig->preparePrefill(*request);
        EXPECT_THROW(rig->finish(*request), std::runtime_error);
        EXPECT_EQ(rig->metrics().poisoned, answer != cudaSuccess);
        EXPECT_EQ(rig->metrics().quarantinedRequests, answer != cudaSuccess ? 1U : 0U);
        answer = cudaSuccess;
        EXPECT_EQ(rig->shutdown(), Status::kOk);
        EXPECT_EQ(rig->metrics().activeRequests, 0U);
    }
}

}  // namespace
