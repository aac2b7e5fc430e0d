/*
 * Bodies of ContextCacheCoordinator. Included by context_cache_coordinator.hpp.
 *
 * Every step has the same two halves: the library decides, enqueues its own device
 * work and hands out what belongs to the runtime; complete() carries that out and
 * reports, until the library says that the step is committed.
 */
#ifndef PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_IMPL_HPP
#define PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_IMPL_HPP

namespace prefixcache {

// ------------------------------------------------------------------ construction

inline pc_handle ContextCacheCoordinator::create(pc_api const& api, ContextCacheConfig const& config,
                                                 DeploymentConfig const& deployment, ContextCacheDeploymentKind kind,
                                                 ContextCachePhysicalResources const& resources, cudaStream_t stream) {
    if (!config.enabled) {
        throw std::runtime_error(
            "prefixcache: config.enabled is false, expected true: an unconfigured cache must not come up");
    }
    if (config.maxRecords < 0 || config.tokensPerPage < 1) {
        throw std::runtime_error("prefixcache: config.maxRecords is " + std::to_string(config.maxRecords) +
                                 " and config.tokensPerPage " + std::to_string(config.tokensPerPage) +
                                 ", expected >= 0 and >= 1");
    }
    if (config.tenantQuota < 0 || config.tenantQuota > 1000) {
        throw std::runtime_error("prefixcache: config.tenantQuota is " + std::to_string(config.tenantQuota) +
                                 ", expected 0 to 1000 per mille");
    }
    bool const recurrent =
        kind == ContextCacheDeploymentKind::kHybrid || kind == ContextCacheDeploymentKind::kPureRecurrent;
    detail::ResourceArguments base;
    detail::ResourceArguments draft;
    auto options = detail::sized<pc_context_options>();
    options.flags = config.originalRecency ? static_cast<uint32_t>(PC_ORIGINAL_RECENCY) : 0u;
    options.flags |= config.shortenVictims ? static_cast<uint32_t>(PC_SHORTEN_VICTIMS) : 0u;
    options.flags |= config.zeroOnRelease ? static_cast<uint32_t>(PC_ZERO_ON_RELEASE) : 0u;
    options.tenant_quota = static_cast<uint32_t>(config.tenantQuota);
    options.flags |= config.weakHash ? static_cast<uint32_t>(PC_WEAK_HASH) : 0u;
    options.flags |= config.hostMemory ? static_cast<uint32_t>(PC_HOST_MEMORY) : 0u;
    options.kind = static_cast<uint32_t>(kind);
    options.tokens_per_page = config.tokensPerPage;
    options.max_batch = deployment.base.maxBatchSize;
    options.draft_max_batch = deployment.draft ? deployment.draft->maxBatchSize : 0;
    options.max_records = config.maxRecords == 0 ? -1 : config.maxRecords;
    if (deployment.spec) {
        options.verify_size = deployment.spec->verifySize;
        options.drafting_step = deployment.spec->draftingStep;
        options.drafting_top_k = deployment.spec->draftingTopK;
    }
    options.future_tokens = kind == ContextCacheDeploymentKind::kEagle ? config.futureDependencyTokens : 0;
    options.recurrent_budget = config.recurrentSnapshotBudgetBytes;
    options.partial_budget = config.partialKvSnapshotBudgetBytes;
    options.stream = detail::ResourceArguments::address(stream);
    bool const attention = kind != ContextCacheDeploymentKind::kPureRecurrent;
    options.base = base.fill(&resources.baseCache, attention ? &resources.basePageTable : nullptr, recurrent);
    options.draft = draft.fill(resources.draftCache, resources.draftPageTable, false);
    pc_handle context = 0;
    detail::check(api, api.context_create(&options, &context));
    return context;
}

inline ContextCacheManager ContextCacheCoordinator::viewOf(pc_api const& api, pc_handle context) {
    pc_handle manager = 0;
    detail::check(api, api.context_manager(context, &manager));
    return ContextCacheManager(api, manager);
}

inline ContextCacheCoordinator::ContextCacheCoordinator(ContextCacheConfig const& config,
                                                        DeploymentConfig const& deployment,
                                                        ContextCacheDeploymentKind deploymentKind,
                                                        ContextCachePhysicalResources resources, cudaStream_t stream,
                                                        StreamSynchronizer synchronizer)
    : mApi(Library::get(config.libraryPath)),
      mResources(resources),
      mKind(deploymentKind),
      mTokensPerPage(config.tokensPerPage),
      mStream(stream),
      mSynchronizer(std::move(synchronizer)),
      mContext(create(mApi, config, deployment, deploymentKind, resources, stream)),
      mManager(viewOf(mApi, mContext)) {}

inline ContextCacheCoordinator::~ContextCacheCoordinator() noexcept {
    if (mApi.context_destroy(&mContext) == PC_ERROR_BUSY) {
        std::fprintf(stderr, "prefixcache: ContextCacheCoordinator destroyed with a live or quarantined request: %s\n",
                     mApi.last_error());
        std::terminate();
    }
}

// --------------------------------------------------------------------- admission

inline ContextCacheCoordinator::BeginRequestResult ContextCacheCoordinator::beginRequest(
    ContextCacheBatchAdmission const& admission, cudaStream_t stream) {
    size_t const count = admission.sequences.size();
    detail::AdmissionArguments const in(admission, stream, mTokens, mOffsets);

    // Everything that can fail for want of memory comes before the admission.
    auto impl = std::make_unique<RequestHandle::Impl>(*this, stream);
    impl->executionMode = admission.executionMode;
    impl->sequences.resize(count);
    impl->admissions.resize(count);
    std::vector<pc_sequence_start> starts(std::max<size_t>(1, count));  // never null
    std::vector<int32_t> prefillStarts(count);
    for (size_t i = 0; i < count; ++i) {
        auto& state = impl->sequences[i];
        state.keyExtras = admission.sequences[i].keyExtras;
        state.perPositionMediaHash = admission.sequences[i].perPositionMediaHash;
        state.lookupPolicy = admission.lookupPolicy;
        state.commitPolicy = admission.commitPolicy;
    }

    BeginRequestResult result;
    pc_status const status = detail::check(mApi, mApi.context_begin(mContext, in.get(), starts.data(), &impl->handle));
    result.status = static_cast<ContextCacheCoordinatorStatus>(status);
    if (status != PC_OK) {
        return result;
    }
    for (size_t i = 0; i < count; ++i) {
        auto& admitted = impl->admissions[i];
        admitted.status = AcquireStatus::kAcquired;
        admitted.forcedCold = starts[i].forced_cold != 0;
        admitted.plan = planOf(starts[i], admission.executionMode, admission.sequences[i].tokenIds.size());
        prefillStarts[i] = starts[i].prefill_start;
    }
    result.admission.emplace(AdmissionResult{RequestHandle(std::move(impl)), std::move(prefillStarts)});
    return result;
}

/// The plan of an admitted sequence: a page is bound for each block that is reused, and the
/// others are its own.
inline ReusePlan ContextCacheCoordinator::planOf(pc_sequence_start const& start, ContextCacheExecutionMode execution,
                                                 size_t tokens) const {
    ReusePlan plan;
    bool const spec = execution == ContextCacheExecutionMode::kEagle;
    if (spec) {
        plan.mode = ReusePlanMode::kSpec;
    } else if (mKind == ContextCacheDeploymentKind::kHybrid || mKind == ContextCacheDeploymentKind::kPureRecurrent) {
        plan.mode = ReusePlanMode::kHybrid;
    }
    plan.kind = static_cast<ReusePlanKind>(start.kind);
    plan.reason = static_cast<NoReuseReason>(start.reason);
    plan.matchedTokenLength = start.matched;
    plan.reuseTokenLength = start.prefill_start;
    plan.skippedMediaPositions = start.skipped_media;
    if (spec && (start.matched > 0 || plan.reason == NoReuseReason::kMediaBoundary)) {
        plan.replayMode = SpecReplayMode::kFullPage;
    }
    if (mKind != ContextCacheDeploymentKind::kPureRecurrent) {
        auto const page = static_cast<size_t>(mTokensPerPage);
        plan.boundBasePages = start.prefill_start / mTokensPerPage;
        plan.demandBasePages = static_cast<int32_t>((tokens + page - 1) / page) - plan.boundBasePages;
    }
    if (spec) {
        plan.boundDraftPages = plan.boundBasePages;
        plan.demandDraftPages = plan.demandBasePages;
    }
    return plan;
}

// ------------------------------------------------------------------ host's half

inline cudaError_t ContextCacheCoordinator::synchronize(cudaStream_t stream) const {
    if (mSynchronizer) {
        return mSynchronizer(stream);
    }
    pc_status const status = mApi.context_synchronize(mContext);
    if (status == PC_ERROR_WRONG_STATE || status == PC_ERROR_INVALID_ARGUMENT) {
        detail::check(mApi, status);  // it was not tried, which says nothing about the device
    }
    return status == PC_OK ? cudaSuccess : cudaErrorUnknown;
}

/// Does what the library handed out; returns PC_WORK_*.
inline uint32_t ContextCacheCoordinator::carryOut(RequestHandle::Impl& impl, pc_work const& work) {
    for (uint32_t i = 0; i < work.count; ++i) {
        pc_work_item const& item = work.items[i];
        HybridCacheManager& cache = item.model == PC_DRAFT ? *mResources.draftCache : mResources.baseCache;
        switch (item.op) {
            case PC_WORK_SYNCHRONIZE:
                if (synchronize(impl.stream) != cudaSuccess) {
                    return PC_WORK_SYNC_FAILED;
                }
                break;
            case PC_WORK_RESET_LENGTHS:
                cache.resetForNewSequences(Tensor(const_cast<int32_t*>(item.values), DataType::kInt32, item.count),
                                           impl.stream);
                break;
            case PC_WORK_COMPACT_SLOTS:
                cache.compactSlotState(*impl.pendingDeviceBatchMapping, impl.pendingCompactionMapping, item.count,
                                       impl.pendingCompactionBatchSize, impl.stream);
                break;
            case PC_WORK_SET_BATCH:
                cache.setActiveBatchSize(item.count);
                break;
            default:
                throw std::runtime_error("prefixcache: the library asks for work " + std::to_string(item.op) +
                                         ", which this header does not know");
        }
    }
    return PC_WORK_DONE;
}

/// Second half of every step.
inline ContextCacheCoordinatorStatus ContextCacheCoordinator::complete(RequestHandle::Impl& impl, pc_status status,
                                                                       pc_work& work) {
    bool const inside = std::exchange(impl.inStep, true);  // a step from inside a callback, which is refused
    std::exception_ptr thrown;
    while (status == PC_OK && work.count > 0 && !thrown) {
        uint32_t outcome = PC_WORK_FAILED;
        try {
            outcome = carryOut(impl, work);
        } catch (...) {
            thrown = std::current_exception();
        }
        status = mApi.context_report(mContext, impl.handle, outcome, &work);
    }
    impl.inStep = inside;
    if (impl.orphaned && !inside) {
        std::unique_ptr<RequestHandle::Impl> const last(&impl);
        dropped(impl);
        if (!thrown) {
            throw std::runtime_error("prefixcache: the request handle was destroyed inside a callback of this step");
        }
    }
    if (thrown) {
        std::rethrow_exception(thrown);
    }
    return static_cast<ContextCacheCoordinatorStatus>(detail::check(mApi, status));
}

inline ContextCacheCoordinator::RequestHandle::Impl& ContextCacheCoordinator::owned(RequestHandle& request,
                                                                                    char const* call) const {
    if (!request.valid()) {
        throw std::runtime_error(std::string("prefixcache: ") + call + ": the request handle is empty");
    }
    if (request.mImpl->owner != this) {
        throw std::runtime_error(std::string("prefixcache: ") + call + ": the request belongs to another coordinator");
    }
    return *request.mImpl;
}

// ------------------------------------------------------------------------- steps

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::preparePrefill(RequestHandle& request) {
    auto& impl = owned(request, "preparePrefill");
    auto work = detail::sized<pc_work>();
    return complete(impl, mApi.context_prepare_prefill(mContext, impl.handle, &work), work);
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::enqueuePrefillCaptures(RequestHandle& request) {
    auto& impl = owned(request, "enqueuePrefillCaptures");
    auto work = detail::sized<pc_work>();
    return complete(impl, mApi.context_capture_prefill(mContext, impl.handle, &work), work);
}

/// Flattens the advances. Every pointer is checked before anything is changed.
inline pc_advance ContextCacheCoordinator::flatten(char const* call,
                                                   std::vector<ContextCacheSequenceAdvance> const& advances,
                                                   std::vector<int32_t> const* commonStateLengths) {
    mTokens.clear();
    mCommitted.clear();
    mOffsets.assign(1, 0);
    for (size_t i = 0; i < advances.size(); ++i) {
        auto const& advance = advances[i];
        auto const broken = [&](std::string const& what) {
            return std::runtime_error(std::string("prefixcache: ") + call + ": advances[" + std::to_string(i) + "]." +
                                      what);
        };
        if (advance.acceptedTokenCount < 0) {
            throw broken("acceptedTokenCount is " + std::to_string(advance.acceptedTokenCount) + ", expected >= 0");
        }
        if (advance.acceptedTokenCount > 0 && advance.acceptedTokenIds == nullptr) {
            throw broken("acceptedTokenIds is null with acceptedTokenCount " +
                         std::to_string(advance.acceptedTokenCount) + ", expected an array");
        }
        mTokens.insert(mTokens.end(), advance.acceptedTokenIds, advance.acceptedTokenIds + advance.acceptedTokenCount);
        mOffsets.push_back(static_cast<int64_t>(mTokens.size()));
        mCommitted.push_back(advance.committedStateLength);
    }
    auto out = detail::sized<pc_advance>();
    out.num_sequences = static_cast<uint32_t>(advances.size());
    out.tokens = mTokens.data();
    out.token_offsets = mOffsets.data();
    out.committed = mCommitted.data();
    if (commonStateLengths != nullptr && !commonStateLengths->empty()) {
        if (commonStateLengths->size() != advances.size()) {
            throw std::runtime_error(std::string("prefixcache: ") + call + ": commonStateLengths has " +
                                     std::to_string(commonStateLengths->size()) +
                                     " entries, expected one for each of " + std::to_string(advances.size()) +
                                     " advances");
        }
        out.common = commonStateLengths->data();
    }
    return out;
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::finalizePrefillPublication(
    RequestHandle& request, std::vector<ContextCacheSequenceAdvance> const& advances,
    std::vector<int32_t> const* commonStateLengths) {
    auto& impl = owned(request, "finalizePrefillPublication");
    pc_advance const advance = flatten("finalizePrefillPublication", advances, commonStateLengths);
    auto work = detail::sized<pc_work>();
    return complete(impl, mApi.context_finalize_prefill(mContext, impl.handle, &advance, &work), work);
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::prepareDecodeStep(RequestHandle& request) {
    auto& impl = owned(request, "prepareDecodeStep");
    auto work = detail::sized<pc_work>();
    return complete(impl, mApi.context_prepare_decode(mContext, impl.handle, 0, 0, &work), work);
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::completeDecodeStep(
    RequestHandle& request, std::vector<ContextCacheSequenceAdvance> const& advances,
    std::vector<int32_t> const& publishableCompletedSlots, std::vector<int32_t> const* commonStateLengths) {
    auto& impl = owned(request, "completeDecodeStep");
    pc_advance advance = flatten("completeDecodeStep", advances, commonStateLengths);
    advance.publish = publishableCompletedSlots.data();
    advance.num_publish = publishableCompletedSlots.size();
    auto work = detail::sized<pc_work>();
    auto const status = complete(impl, mApi.context_complete_decode(mContext, impl.handle, &advance, &work), work);
    if (status == ContextCacheCoordinatorStatus::kPoisoned) {
        request.mImpl.reset();  // quarantined by the library
    }
    return status;
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::beginBatchCompaction(RequestHandle& request,
                                                                                   std::vector<int32_t> const& oldToNew,
                                                                                   int32_t newBatchSize,
                                                                                   Tensor& deviceBatchMapping) {
    auto& impl = owned(request, "beginBatchCompaction");
    std::vector<int64_t> shape{static_cast<int64_t>(oldToNew.size())};
    auto const count = std::to_string(oldToNew.size());
    std::string wrong;
    if (deviceBatchMapping.dataType() != DataType::kInt32) {
        wrong = "elements of DataType " + std::to_string(static_cast<int>(deviceBatchMapping.dataType())) +
                ", expected kInt32 (5)";
    } else if (deviceBatchMapping.rawPointer() == nullptr && !oldToNew.empty()) {
        wrong = "a null address, expected room for " + count + " elements";
    } else if (!deviceBatchMapping.fits(shape)) {
        wrong = "room for " + std::to_string(deviceBatchMapping.capacity()) + " elements, expected at least " + count;
    }
    if (!wrong.empty()) {
        throw std::runtime_error("prefixcache: beginBatchCompaction: deviceBatchMapping has " + wrong);
    }
    std::vector<int32_t> mapping = oldToNew;
    auto work = detail::sized<pc_work>();
    uint64_t const address = detail::ResourceArguments::address(deviceBatchMapping.rawPointer());
    auto const status = complete(impl,
                                 mApi.context_begin_compaction(mContext, impl.handle, oldToNew.data(), oldToNew.size(),
                                                               newBatchSize, address, &work),
                                 work);
    if (status == ContextCacheCoordinatorStatus::kPoisoned) {
        request.mImpl.reset();
        return status;
    }
    deviceBatchMapping.reshape(std::move(shape));
    impl.pendingCompactionMapping = std::move(mapping);
    impl.pendingCompactionBatchSize = newBatchSize;
    impl.pendingDeviceBatchMapping = &deviceBatchMapping;
    return status;
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::compactBatch(RequestHandle& request) {
    auto& impl = owned(request, "compactBatch");
    auto work = detail::sized<pc_work>();
    auto const status = complete(impl, mApi.context_compact(mContext, impl.handle, &work), work);
    if (status == ContextCacheCoordinatorStatus::kPoisoned) {
        request.mImpl.reset();
    } else {
        impl.retire();
    }
    return status;
}

// --------------------------------------------------------------------------- end

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::finish(RequestHandle& request) {
    if (!request.valid()) {
        return ContextCacheCoordinatorStatus::kOk;
    }
    auto& impl = owned(request, "finish");
    auto work = detail::sized<pc_work>();
    auto const status = complete(impl, mApi.context_finish(mContext, impl.handle, &work), work);
    request.mImpl.reset();
    return status;
}

/// The abnormal exit. An exception of the synchronizer counts as a failed drain.
inline void ContextCacheCoordinator::dropped(RequestHandle::Impl& impl) noexcept {
    auto info = detail::sized<pc_request_info>();
    uint32_t drained = 0;
    if (mApi.context_get_request(mContext, impl.handle, &info) == PC_OK && info.pending != 0) {
        try {
            drained = synchronize(impl.stream) == cudaSuccess ? 1 : 0;
        } catch (...) {
        }
    }
    if (mApi.context_abandon(mContext, impl.handle, drained) < 0 && drained != 0) {
        // This thread has waited for a stream of its own, not for the one that the request's work is on:
        // nobody knows what is still written. The handle is the last that knows the request.
        static_cast<void>(mApi.context_abandon(mContext, impl.handle, 0));
    }
}

inline ContextCacheCoordinatorStatus ContextCacheCoordinator::shutdown() noexcept {
    pc_status status = mApi.context_shutdown(mContext, 0);
    if (status == PC_POISONED) {
        try {
            if (synchronize(mStream) == cudaSuccess) {
                status = mApi.context_shutdown(mContext, 1);
            }
        } catch (...) {
        }
    }
    return status < 0 ? ContextCacheCoordinatorStatus::kRequestFailed
                      : static_cast<ContextCacheCoordinatorStatus>(status);
}

// ------------------------------------------------------------------------ handle

inline ContextCacheCoordinator::RequestHandle::RequestHandle(std::unique_ptr<Impl> impl) noexcept
    : mImpl(std::move(impl)) {}
inline ContextCacheCoordinator::RequestHandle::RequestHandle(RequestHandle&& other) noexcept = default;
inline bool ContextCacheCoordinator::RequestHandle::valid() const noexcept { return mImpl != nullptr; }
inline ContextCacheCoordinator::RequestHandle::~RequestHandle() noexcept {
    if (mImpl && mImpl->inStep) {
        mImpl.release()->orphaned = true;  // the step under way still works with it, and drops it at its end
    } else if (mImpl) {
        mImpl->owner->dropped(*mImpl);
    }
}

inline void ContextCacheCoordinator::RequestHandle::Impl::retire() {
    std::vector<SequenceState> kept;
    std::vector<AcquireSequenceResult> keptAdmissions;
    for (size_t old = 0; old < pendingCompactionMapping.size(); ++old) {
        if (pendingCompactionMapping[old] >= 0) {
            kept.push_back(std::move(sequences[old]));
            keptAdmissions.push_back(std::move(admissions[old]));
        }
    }
    sequences = std::move(kept);
    admissions = std::move(keptAdmissions);
    pendingCompactionMapping.clear();
    pendingCompactionBatchSize = -1;
    pendingDeviceBatchMapping = nullptr;
}

inline void ContextCacheCoordinator::RequestHandle::Impl::refresh() {
    auto info = detail::sized<pc_request_info>();
    detail::check(owner->mApi, owner->mApi.context_get_request(owner->mContext, handle, &info));
    phase = static_cast<Phase>(info.phase);
    deviceWorkPending = info.pending != 0;
    specAwaitingFirstCompletion = info.awaiting_draft != 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
        refreshSequence(i);
    }
}

inline void ContextCacheCoordinator::RequestHandle::Impl::refreshSequence(size_t index) {
    pc_api const& api = owner->mApi;
    auto const i = static_cast<uint32_t>(index);
    auto info = detail::sized<pc_sequence_info>();
    detail::check(api, api.context_get_sequence(owner->mContext, handle, i, &info));
    auto& state = sequences[index];
    uint64_t count = 0;
    state.tokenIds.resize(static_cast<size_t>(info.tokens));
    detail::check(api, api.context_sequence_tokens(owner->mContext, handle, i, 0, state.tokenIds.data(),
                                                   state.tokenIds.size(), &count));
    std::vector<int32_t> base(static_cast<size_t>(info.base_pages));
    std::vector<int32_t> draft(static_cast<size_t>(info.draft_pages));
    detail::check(api,
                  api.context_sequence_pages(owner->mContext, handle, i, PC_BASE, 0, base.data(), base.size(), &count));
    detail::check(
        api, api.context_sequence_pages(owner->mContext, handle, i, PC_DRAFT, 0, draft.data(), draft.size(), &count));
    state.lease = CacheRequestLease(std::move(base), std::move(draft));
    state.reuseTokenLength = info.prefill_start;
    state.committedStateLength = info.committed;
    state.commonStateLength = info.common;
    state.publishedFullBlockCount = info.published_blocks;
    state.publishedExactLength = info.published_length;
    state.frozenSpecPrefillLength = info.frozen_length >= 0 ? std::optional<int32_t>(info.frozen_length) : std::nullopt;
    state.stagedHybridPublication.reset();
    if (info.staged != 0) {  // seen between the capture of a prompt's end and its publication
        StagedHybridPublication staged;
        staged.checkpoint.tokenLength = info.tokens;
        state.stagedHybridPublication = staged;
    }
}

// ----------------------------------------------------------------------- queries

inline ContextCacheMetrics ContextCacheCoordinator::metrics() const noexcept {
    ContextCacheMetrics out;
    auto in = detail::sized<pc_context_metrics>();
    auto pools = detail::sized<pc_manager_stats>();
    if (mApi.context_get_metrics(mContext, &in) != PC_OK ||
        mApi.manager_get_stats(mManager.handle(), &pools) != PC_OK) {
        return out;
    }
    out.admittedSequences = in.admitted_sequences;
    out.hitSequences = in.hit_sequences;
    out.mediaAwareSequences = in.media_aware_sequences;
    out.lookupBypassSequences = in.lookup_bypass_sequences;
    out.forcedColdSequences = in.forced_cold_sequences;
    out.standardPlans = in.standard_plans;
    out.noReusablePrefixPlans = in.no_reusable_prefix_plans;
    out.fullInputRewindPlans = in.full_input_rewind_plans;
    out.matchedTokens = in.matched_tokens;
    out.reusedTokens = in.reused_tokens;
    out.skippedMediaPositions = in.skipped_media_positions;
    out.publicationAttempts = in.publication_attempts;
    out.committedPublications = in.committed_publications;
    out.existingPublications = in.existing_publications;
    out.publishedEndpoints = in.published_endpoints;
    out.hybridRestores = in.hybrid_restores;
    out.hybridSnapshotPressureSkips = in.hybrid_snapshot_pressure_skips;
    out.hybridCaptureSynchronizations = in.hybrid_capture_synchronizations;
    out.specFullPageReplays = in.spec_full_page_replays;
    out.specPairPublications = in.spec_pair_publications;
    out.planningNanoseconds = in.planning_nanoseconds;
    out.quarantinedRequests = in.quarantined_requests;
    out.activeRequests = in.active_requests;
    out.poisoned = in.poisoned != 0;
    out.evictedRecords = pools.evicted_records;
    out.currentRecords = pools.records;
    for (size_t i = 0; i < out.pools.size(); ++i) {
        out.pools[i] = {pools.capacity[i], pools.free[i], pools.active[i], pools.reclaimed[i]};
    }
    return out;
}

inline ContextCacheCoordinator::RequestHandle::Impl const& ContextCacheCoordinator::refreshed(
    RequestHandle const& request) {
    if (!request.valid()) {
        throw std::runtime_error("prefixcache: inspect: the request handle is empty");
    }
    request.mImpl->refresh();
    return *request.mImpl;
}

inline ContextCacheCoordinator::RequestHandle::Impl const& inspect(
    ContextCacheCoordinator::RequestHandle const& request) {
    return ContextCacheCoordinator::refreshed(request);
}

inline uint64_t invalidateAdapter(ContextCacheCoordinator& coordinator, Hash128 const& adapter,
                                  std::optional<uint64_t> generation = std::nullopt) {
    pc_hash128 const id = detail::SequenceArguments::toC(adapter);
    uint64_t removed = 0;
    detail::check(coordinator.mApi, coordinator.mApi.manager_invalidate(coordinator.mManager.handle(), &id,
                                                                        generation ? &*generation : nullptr, &removed));
    return removed;
}

inline void moveSlotState(ContextCacheCoordinator& coordinator, bool isDraft, std::vector<int32_t> const& mapping,
                          void* deviceLengths) {
    detail::check(coordinator.mApi, coordinator.mApi.context_move_slots(
                                        coordinator.mContext, isDraft ? PC_DRAFT : PC_BASE, mapping.data(),
                                        mapping.size(), detail::ResourceArguments::address(deviceLengths)));
}

inline uint64_t flush(ContextCacheCoordinator& coordinator) {
    uint64_t removed = 0;
    detail::check(coordinator.mApi, coordinator.mApi.manager_flush(coordinator.mManager.handle(), &removed));
    return removed;
}

inline pc_handle handleOf(ContextCacheCoordinator const& coordinator) { return coordinator.mContext; }

}  // namespace prefixcache

#endif  // PREFIXCACHE_CONTEXT_CACHE_COORDINATOR_IMPL_HPP
