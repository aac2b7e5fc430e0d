// Replays a trace through ContextCacheCoordinator on a host runtime whose KV of a
// position is a function of every token up to it. So a page that is bound to the
// wrong prefix, stale, or shared while it is written, is seen at once: every reused
// position of every request is compared, through the page table that kernels read.
//
//   replay_context [--trace FILE] [--requests N] [--page P] [--pages N] [--batch N]
//                  [--max-output N] [--original-recency] [--quiet] [--dry-run]
//
// Prints a summary; exit 1 when a check failed, 130 when it was interrupted.
#include <prefixcache/context_cache_coordinator.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trace.hpp"

namespace {

using namespace prefixcache;
using Status = ContextCacheCoordinatorStatus;
using Clock = std::chrono::steady_clock;

/// Ctrl-C ends the replay between two batches; a second one ends the process.
volatile std::sig_atomic_t gInterrupted = 0;

struct Options {
    std::string path;
    size_t requests = SIZE_MAX;
    int32_t page = 128;
    int32_t pages = 24000;
    int32_t batch = 1;
    int32_t maxOutput = INT32_MAX;
    bool originalRecency = false;
    bool quiet = false;
    bool dryRun = false;
};

/// KV of 8 bytes a token and pool: K is the digest of the prefix, V its complement.
class PagedKv : public HybridCacheManager {
  public:
    PagedKv(Options const& o, int32_t width)
        : mOptions(o), mWidth(width), mTokens(2 * static_cast<size_t>(o.pages) * static_cast<size_t>(o.page)) {}

    int32_t numPages() const override { return mOptions.pages; }
    int32_t maxBatchSize() const override { return mOptions.batch; }
    int32_t paddedCapacity() const override { return mWidth * mOptions.page; }
    void resetForNewSequences(Tensor const& reuse, cudaStream_t) override {
        lengths.assign(reuse.data<int32_t>(), reuse.data<int32_t>() + reuse.volume());
    }
    void compactSlotState(Tensor const&, std::vector<int32_t> const& mapping, int32_t, int32_t newBatch,
                          cudaStream_t) override {
        for (size_t old = 0; old < mapping.size(); ++old) {
            if (mapping[old] >= 0) {
                lengths.at(static_cast<size_t>(mapping[old])) = lengths[old];
            }
        }
        lengths.resize(static_cast<size_t>(newBatch));
    }
    void setActiveBatchSize(int32_t batch) override { lengths.resize(static_cast<size_t>(batch)); }

    void write(int32_t const* row, int32_t position, uint64_t digest) {
        at(row, position, false) = digest;
        at(row, position, true) = ~digest;
    }
    bool holds(int32_t const* row, int32_t position, uint64_t digest) {
        return at(row, position, false) == digest && at(row, position, true) == ~digest;
    }

    std::vector<int32_t> lengths;  // of the live slots

  private:
    uint64_t& at(int32_t const* row, int32_t position, bool v) {
        int32_t const id = row[position / mOptions.page + (v ? mWidth : 0)];
        if (id < 0) {
            throw std::runtime_error("position " + std::to_string(position) + " has no page");
        }
        return mTokens[static_cast<size_t>(id) * static_cast<size_t>(mOptions.page) +
                       static_cast<size_t>(position % mOptions.page)];
    }

    Options const& mOptions;
    int32_t mWidth;
    std::vector<uint64_t> mTokens;
};

struct Latencies {
    char const* name;
    std::vector<int64_t> values;

    template <typename F>
    auto time(F&& call) {
        auto const start = Clock::now();
        auto result = call();
        values.push_back(std::chrono::nanoseconds(Clock::now() - start).count());
        return result;
    }
    double at(double quantile) {
        if (values.empty()) {
            return 0;
        }
        auto const nth =
            values.begin() + static_cast<std::ptrdiff_t>(quantile * static_cast<double>(values.size() - 1));
        std::nth_element(values.begin(), nth, values.end());
        return static_cast<double>(*nth) / 1000;
    }
};

/// One sequence of the running batch.
struct Sequence {
    size_t request = 0;  // of the trace
    std::vector<int32_t> tokens;
    int32_t output = 0;     // tokens still to accept
    int32_t committed = 0;  // tokens whose KV is written
    uint64_t digest = 0;    // of these
};

class Replay {
  public:
    Replay(Options const& options, std::vector<trace::Request> const& requests)
        : mOptions(options),
          mRequests(requests),
          mWidth(width()),
          mKv(options, mWidth),
          mTable(options.batch, mWidth, options.pages, true),
          mMapping(static_cast<size_t>(options.batch)),
          mMappingTensor(mMapping.data(), DataType::kInt32, options.batch) {
        ContextCacheConfig config;
        config.enabled = true;
        config.hostMemory = true;
        config.tokensPerPage = options.page;
        config.maxRecords = 1 << 20;
        config.originalRecency = options.originalRecency;
        DeploymentConfig deployment;
        deployment.base.maxBatchSize = options.batch;
        mCoordinator =
            std::make_unique<ContextCacheCoordinator>(config, deployment, ContextCacheDeploymentKind::kVanilla,
                                                      ContextCachePhysicalResources{mKv, mTable}, nullptr);
    }

    void run() {
        auto const start = Clock::now();
        while (mServed < mRequests.size() && gInterrupted == 0) {
            size_t const count = std::min(static_cast<size_t>(mOptions.batch), mRequests.size() - mServed);
            serve(mServed, count);
            mServed += count;
            progress(mServed, start);
        }
        if (!mOptions.quiet) {
            std::fprintf(stderr, "\n");
        }
        checkTheEnd();
        mSeconds = std::chrono::duration<double>(Clock::now() - start).count();
    }

    void summary() {
        auto const m = mCoordinator->metrics();
        auto const rate = [](uint64_t part, uint64_t whole) {
            return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
        };
        std::printf("context cache: %zu of %zu requests, %d-token pages, %d pages, batch %d, %.1f s\n", mServed,
                    mRequests.size(), mOptions.page, mOptions.pages, mOptions.batch, mSeconds);
        std::printf("  hit rate        %.2f %% of prompt tokens, %.1f %% of requests\n",
                    rate(m.reusedTokens, mPromptTokens), rate(m.hitSequences, m.admittedSequences));
        std::printf("  tokens saved    %llu of %llu\n", static_cast<unsigned long long>(m.reusedTokens),
                    static_cast<unsigned long long>(mPromptTokens));
        std::printf("  checked         %llu reused positions, %llu read back after decode, %llu wrong\n",
                    static_cast<unsigned long long>(mChecked), static_cast<unsigned long long>(mReadBack),
                    static_cast<unsigned long long>(mWrong));
        std::printf("  refused         %llu requests, %llu decode steps without a page\n",
                    static_cast<unsigned long long>(mRefused), static_cast<unsigned long long>(mStarved));
        std::printf("  records         %llu, %llu evicted; pages: %llu free of %llu, %llu reclaimed\n",
                    static_cast<unsigned long long>(m.currentRecords),
                    static_cast<unsigned long long>(m.evictedRecords), static_cast<unsigned long long>(m.pools[0].free),
                    static_cast<unsigned long long>(m.pools[0].capacity),
                    static_cast<unsigned long long>(m.pools[0].reclaimed));
        std::printf("  latency, us          p50        p99     calls\n");
        for (auto* l : {&mBegin, &mPublish, &mDecode, &mCompact}) {
            if (!l->values.empty()) {
                std::printf("    %-12s %11.2f %10.2f %9zu\n", l->name, l->at(0.5), l->at(0.99), l->values.size());
            }
        }
        std::printf("  why not more was reused\n");
        for (size_t i = 0; i < mReasons.size(); ++i) {
            if (mReasons[i] > 0) {
                std::printf("    %-18s %9llu  %5.1f %%\n", toString(static_cast<NoReuseReason>(i)),
                            static_cast<unsigned long long>(mReasons[i]), rate(mReasons[i], m.admittedSequences));
            }
        }
        if (!mFault.empty()) {
            std::printf("  FAILED: %s\n", mFault.c_str());
        }
    }

    bool good() const { return mWrong == 0 && mFault.empty(); }

  private:
    int32_t width() const {
        int32_t longest = 1;
        for (auto const& r : mRequests) {
            longest = std::max(longest, r.input + std::min(r.output, mOptions.maxOutput) + 1);
        }
        int32_t const pages = (longest + mOptions.page - 1) / mOptions.page;
        if (pages * mOptions.batch > mOptions.pages) {
            throw std::runtime_error("the longest request has " + std::to_string(pages) + " pages: a batch of " +
                                     std::to_string(mOptions.batch) + " needs more than " +
                                     std::to_string(mOptions.pages));
        }
        return pages;
    }

    static uint64_t extend(uint64_t digest, int32_t token) {
        return trace::splitmix64(digest ^
                                 (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 0x517CC1B727220A95ULL));
    }

    int32_t const* row(size_t slot) const { return mTable.devicePointer() + static_cast<int32_t>(slot) * 2 * mWidth; }

    void wrong(std::string const& what, size_t request, int32_t position) {
        if (mWrong++ == 0) {
            mFault = what + " of request " + std::to_string(request) + " at position " + std::to_string(position);
        }
    }

    void serve(size_t first, size_t count) {
        ContextCacheBatchAdmission admission;
        std::vector<Sequence> batch(count);
        for (size_t i = 0; i < count; ++i) {
            auto const& r = mRequests[first + i];
            batch[i].request = first + i;
            batch[i].output = std::max(1, std::min(r.output, mOptions.maxOutput));
            trace::prompt(r, batch[i].tokens);
            ContextCacheSequenceAdmission sequence;
            sequence.tokenIds = batch[i].tokens;
            admission.sequences.push_back(std::move(sequence));
        }
        auto begun = mBegin.time([&] { return mCoordinator->beginRequest(admission, nullptr); });
        if (begun.status != Status::kOk) {
            mRefused += count;
            return;
        }
        auto& request = begun.admission->request;
        for (auto const& admitted : inspect(request).admissions) {
            ++mReasons.at(static_cast<size_t>(admitted.plan.reason));
        }
        mCoordinator->preparePrefill(request);
        for (size_t i = 0; i < count; ++i) {
            prefill(batch[i], row(i), begun.admission->prefillStarts[i], i);
        }
        mCoordinator->enqueuePrefillCaptures(request);
        mPublish.time([&] { return mCoordinator->finalizePrefillPublication(request, accept(batch)); });
        decode(request, batch);
        mCoordinator->finish(request);
    }

    /// Checks what is reused and computes the rest.
    void prefill(Sequence& s, int32_t const* pages, int32_t start, size_t slot) {
        mPromptTokens += s.tokens.size();
        if (mKv.lengths.at(slot) != start) {
            wrong("device length", s.request, start);
        }
        s.digest = 0;
        auto const length = static_cast<int32_t>(s.tokens.size());
        for (int32_t i = 0; i < length; ++i) {
            s.digest = extend(s.digest, s.tokens[static_cast<size_t>(i)]);
            if (i >= start) {
                mKv.write(pages, i, s.digest);
            } else if (!mKv.holds(pages, i, s.digest)) {
                wrong("reused KV", s.request, i);
            }
        }
        mChecked += static_cast<uint64_t>(start);
        s.committed = length;
    }

    /// The next token of every sequence.
    std::vector<ContextCacheSequenceAdvance> const& accept(std::vector<Sequence>& batch) {
        mNext.resize(batch.size());
        mAdvances.clear();
        for (size_t i = 0; i < batch.size(); ++i) {
            auto& s = batch[i];
            mNext[i] = trace::outputToken(s.request, --s.output);
            s.tokens.push_back(mNext[i]);
        }
        for (size_t i = 0; i < batch.size(); ++i) {
            mAdvances.push_back({&mNext[i], 1, batch[i].committed});
        }
        return mAdvances;
    }

    void decode(ContextCacheCoordinator::RequestHandle& request, std::vector<Sequence>& batch) {
        compact(request, batch);  // those that ended on their first token
        while (!batch.empty()) {
            auto const start = Clock::now();
            if (mCoordinator->prepareDecodeStep(request) != Status::kOk) {
                ++mStarved;
                return;
            }
            auto const prepared = Clock::now();
            std::vector<int32_t> done;
            for (size_t i = 0; i < batch.size(); ++i) {
                auto& s = batch[i];  // the lookahead token is computed
                s.digest = extend(s.digest, s.tokens[static_cast<size_t>(s.committed)]);
                mKv.write(row(i), s.committed, s.digest);
                ++s.committed;
                ++mKv.lengths.at(i);
                if (s.output == 1) {
                    done.push_back(static_cast<int32_t>(i));
                    readBack(s, row(i));
                }
            }
            auto const& advances = accept(batch);
            auto const computed = Clock::now();
            mCoordinator->completeDecodeStep(request, advances, done);
            mDecode.values.push_back(std::chrono::nanoseconds((prepared - start) + (Clock::now() - computed)).count());
            compact(request, batch);
        }
    }

    /// A finished sequence still holds every one of its positions.
    void readBack(Sequence const& s, int32_t const* pages) {
        uint64_t digest = 0;
        for (int32_t i = 0; i < s.committed; ++i) {
            digest = extend(digest, s.tokens[static_cast<size_t>(i)]);
            if (!mKv.holds(pages, i, digest)) {
                wrong("KV at the end", s.request, i);
            }
        }
        mReadBack += static_cast<uint64_t>(s.committed);
    }

    void compact(ContextCacheCoordinator::RequestHandle& request, std::vector<Sequence>& batch) {
        std::vector<int32_t> mapping;
        std::vector<Sequence> kept;
        for (auto& s : batch) {
            mapping.push_back(s.output == 0 ? -1 : static_cast<int32_t>(kept.size()));
            if (s.output > 0) {
                kept.push_back(std::move(s));
            }
        }
        if (kept.size() != batch.size()) {
            mCompact.time([&] {
                mCoordinator->beginBatchCompaction(request, mapping, static_cast<int32_t>(kept.size()), mMappingTensor);
                return mCoordinator->compactBatch(request);
            });
        }
        batch = std::move(kept);
    }

    void checkTheEnd() {
        auto const m = mCoordinator->metrics();
        auto const cached = mCoordinator->manager().baseIndex().size();
        if (m.pools[0].active != 0 || m.activeRequests != 0) {
            mFault = "pages are active after the last request";
        } else if (m.pools[0].free + cached != m.pools[0].capacity) {
            mFault = "free and cached pages are not the whole pool";
        }
        mCoordinator->manager().checkInvariants();
    }

    void progress(size_t done, Clock::time_point start) {
        if (mOptions.quiet) {
            return;
        }
        bool const terminal = isatty(STDERR_FILENO) != 0;
        size_t const percent = done * 100 / mRequests.size();
        if (percent == mPercent || (!terminal && percent % 10 != 0)) {
            return;
        }
        mPercent = percent;
        double const seconds = std::chrono::duration<double>(Clock::now() - start).count();
        std::string const bar = std::string(percent / 4, '#') + std::string(25 - percent / 4, '.');
        std::fprintf(stderr, terminal ? "\r  [%s] %3zu %%  %.0f requests/s " : "  [%s] %3zu %%  %.0f requests/s\n",
                     bar.c_str(), percent, static_cast<double>(done) / seconds);
    }

    Options const& mOptions;
    std::vector<trace::Request> const& mRequests;
    int32_t mWidth;
    PagedKv mKv;
    KVPageTable mTable;
    std::vector<int32_t> mMapping;
    Tensor mMappingTensor;
    std::unique_ptr<ContextCacheCoordinator> mCoordinator;

    std::vector<int32_t> mNext;
    std::vector<ContextCacheSequenceAdvance> mAdvances;
    Latencies mBegin{"begin", {}};
    Latencies mPublish{"publish", {}};
    Latencies mDecode{"decode step", {}};
    Latencies mCompact{"compaction", {}};
    std::array<uint64_t, 16> mReasons{};
    uint64_t mPromptTokens = 0, mChecked = 0, mReadBack = 0, mWrong = 0, mRefused = 0, mStarved = 0;
    size_t mServed = 0, mPercent = 0;
    double mSeconds = 0;
    std::string mFault;
};

constexpr char const* kUsage = R"(usage: replay_context [options]

  --trace FILE        JSON lines with input_length, output_length and hash_ids (default: one that is generated)
  --requests N        only the first N (default: all of FILE, 1000 generated ones)
  --page P            tokens of a page (default 128)
  --pages N           pages of the pool (default 24000)
  --batch N           sequences of a request (default 1)
  --max-output N      generate at most N tokens for each sequence (default: as many as the trace says)
  --original-recency  evict in the order of the original cache
  --quiet             no progress
  --dry-run           look at the options and at the trace, and replay nothing

Exit code 0: every page was right; 1: a check failed; 2: an option or the trace is wrong; 130: interrupted.)";

Options parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        std::string const name = argv[i];
        auto const number = [&]() -> int64_t {
            char* end = nullptr;
            if (i + 1 >= argc) {
                throw std::runtime_error(name + ": expected a number from 1 to 2^31 - 1 behind it");
            }
            int64_t const value = std::strtoll(argv[i + 1], &end, 10);
            if (*end != '\0' || value < 1 || value > INT32_MAX) {
                throw std::runtime_error(name + " is '" + argv[i + 1] + "', expected a number from 1 to 2^31 - 1");
            }
            ++i;
            return value;
        };
        if (name == "--trace") {
            if (i + 1 >= argc) {
                throw std::runtime_error("--trace: expected a file behind it");
            }
            o.path = argv[++i];
        } else if (name == "--requests") {
            o.requests = static_cast<size_t>(number());
        } else if (name == "--page") {
            o.page = static_cast<int32_t>(number());
        } else if (name == "--pages") {
            o.pages = static_cast<int32_t>(number());
        } else if (name == "--batch") {
            o.batch = static_cast<int32_t>(number());
        } else if (name == "--max-output") {
            o.maxOutput = static_cast<int32_t>(number());
        } else if (name == "--original-recency") {
            o.originalRecency = true;
        } else if (name == "--quiet") {
            o.quiet = true;
        } else if (name == "--dry-run") {
            o.dryRun = true;
        } else {
            throw std::runtime_error(name + ": no such option, expected one of those that --help lists");
        }
    }
    return o;
}

}  // namespace

int main(int argc, char** argv) try {
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "--help" || std::string(argv[i]) == "-h") {
            std::puts(kUsage);
            return 0;
        }
    }
    Options options;
    std::vector<trace::Request> requests;
    std::unique_ptr<Replay> made;
    try {
        options = parse(argc, argv);
        requests = options.path.empty() ? trace::generate(std::min<size_t>(options.requests, 1000))
                                        : trace::read(options.path, options.requests);
        made = std::make_unique<Replay>(options, requests);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "replay_context: %s\n", e.what());
        return 2;  // of the arguments or the trace; 1 is for a page that was wrong
    }
    if (options.dryRun) {
        return 0;
    }
    Replay& replay = *made;
    std::signal(SIGINT, [](int) {
        gInterrupted = 1;
        std::signal(SIGINT, SIG_DFL);
    });
    replay.run();
    replay.summary();
    if (!replay.good()) {
        std::puts("FAILED");
        return 1;
    }
    std::puts(gInterrupted != 0 ? "interrupted; so far every page was right" : "every page was right");
    return gInterrupted != 0 ? 130 : 0;
} catch (std::exception const& e) {
    std::fprintf(stderr, "replay_context: %s\n", e.what());
    return 1;
}
