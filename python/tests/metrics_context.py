"""What a manager and a coordinator do, and which metrics that moves by how much."""

from __future__ import annotations

from context_host import Kind, Rig, Status, prompt, sequence
from metrics_scenarios import Watch, moves

from prefixcache import _ffi
from prefixcache.context import BlockKeyExtras, ContextCacheManager, Hash128

# ------------------------------------------------------------------ manager


@moves(
    queries_tokens_total=300,
    acquires_total=1,
    reuse_outcomes_total__reason_is_extras_unknown=1,
    leases=1,
    leases_peak=1,
    pages__pool_is_base__state_is_active=3,
    pages__pool_is_base__state_is_free=-3,
    pages_active_peak__pool_is_base=3,
    usage_ratio__pool_is_base=3 / 8,
)
def manager_acquire(watch: Watch) -> None:
    cache = ContextCacheManager(base_pages=8)
    with watch(cache):
        lease = cache.acquire(prompt(300)).lease
    lease.release()


def filled(pages: int = 8, tokens: int = 300, **settings: object) -> ContextCacheManager:
    """A manager with one published prompt, and nobody who uses it."""
    cache = ContextCacheManager(base_pages=pages, **settings)
    with cache.acquire(prompt(tokens)).lease as lease:
        cache.publish(lease, tokens)
    return cache


@moves(
    leases=-1,
    records=1,
    cached_blocks__model_is_base=2,
    pages__pool_is_base__state_is_active=-3,
    pages__pool_is_base__state_is_cached=2,
    pages__pool_is_base__state_is_free=1,
    usage_ratio__pool_is_base=-3 / 8,
)
def manager_publish_and_release(watch: Watch) -> None:
    cache = ContextCacheManager(base_pages=8)
    lease = cache.acquire(prompt(300)).lease
    with watch(cache):
        cache.publish(lease, 300)
        lease.release()


@moves(
    queries_tokens_total=310,
    hits_tokens_total=256,
    acquires_total=1,
    reuse_outcomes_total__reason_is_none=1,
)
def manager_hit(watch: Watch) -> None:
    cache = filled()
    with watch(cache):
        cache.acquire(prompt(310)).lease.release()


@moves(
    acquires_total=1,
    infeasible_acquires_total=1,
)
def manager_infeasible(watch: Watch) -> None:
    cache = filled()
    with watch(cache):
        assert cache.acquire(prompt(128 * 9, 1)).lease is None


@moves(
    queries_tokens_total=128 * 8,
    acquires_total=1,
    reuse_outcomes_total__reason_is_first_block=1,
    evictions_total=1,
    reclaimed_pages_total__pool_is_base=2,
    records=-1,
    cached_blocks__model_is_base=-2,
    pages__pool_is_base__state_is_cached=-2,
    pages__pool_is_base__state_is_free=2,
    pages_active_peak__pool_is_base=5,
)
def manager_evict(watch: Watch) -> None:
    cache = filled()
    with watch(cache):
        cache.acquire(prompt(128 * 8, 1)).lease.release()


@moves(
    queries_tokens_total=128 * 7,
    acquires_total=1,
    reuse_outcomes_total__reason_is_first_block=1,
    shortened_records_total=1,
    reclaimed_pages_total__pool_is_base=1,
    cached_blocks__model_is_base=-1,
    pages__pool_is_base__state_is_cached=-1,
    pages__pool_is_base__state_is_free=1,
    pages_active_peak__pool_is_base=4,
)
def manager_shorten(watch: Watch) -> None:
    cache = filled(shorten_victims=True)
    with watch(cache):
        cache.acquire(prompt(128 * 7, 1)).lease.release()


@moves(stale_publications_total=1)
def manager_stale(watch: Watch) -> None:
    cache = ContextCacheManager(base_pages=8)
    lease = cache.acquire(prompt(300)).lease
    cache.flush()
    with watch(cache):
        cache.publish(lease, 300)
    lease.release()


@moves(
    queries_tokens_total=200,
    acquires_total=1,
    hash_collisions_total=1,
    reuse_outcomes_total__reason_is_first_block=1,
)
def manager_collision(watch: Watch) -> None:
    cache = filled(tokens=200, weak_hash=True)
    with watch(cache):
        cache.acquire(prompt(200, 1)).lease.release()


A, B = (BlockKeyExtras(isolation_digest=Hash128(0, digest)) for digest in (10, 11))
TENANT = "tenant_is_" + "0" * 31


@moves(
    **{
        f"tenant_queries_tokens_total__{TENANT}a": 310,
        f"tenant_hits_tokens_total__{TENANT}a": 256,
        f"tenant_refusals_total__{TENANT}a": 1,
        f"tenant_pages__state_is_active__{TENANT}a": 3,
        f"tenant_pages__state_is_cached__{TENANT}a": -2,  # those that the lease uses now
        f"tenant_queries_tokens_total__{TENANT}b": 128 * 5,
        f"tenant_pages__state_is_active__{TENANT}b": 5,
        "tenant_evictions_total__tenant_is_none": 1,
        "tenant_evictions_by_others_total__tenant_is_none": 1,
        "tenant_pages__state_is_cached__tenant_is_none": -2,
    }
)
def manager_tenants(watch: Watch) -> None:
    cache = ContextCacheManager(base_pages=8, tenant_quota=700)
    for extras in (A, None):
        with cache.acquire(sequence(prompt(300), extras)).lease as lease:
            cache.publish(lease, 300)
    with watch(cache):
        leases = [cache.acquire(sequence(prompt(310), A)).lease]
        assert cache.acquire(sequence(prompt(128 * 3, 1), A)).lease is None  # 5 pages of 8 are its quota
        leases.append(cache.acquire(sequence(prompt(128 * 5, 1), B)).lease)
    watch.changes = {s: n for s, n in watch.changes.items() if s.startswith("tenant_")}


# -------------------------------------------------------------- coordinator

TABLE_ROW = 2 * 16 * 4  # bytes: K ids and V ids of 16 pages
# Snapshots of a hybrid model: in two layers a state of 8 bytes and convolution state of
# 4; of the page that is not full, K and V of 4 bytes for each token.
RECURRENT = 2 * (8 + 4)
PARTIAL_TOKEN = 2 * 4


@moves(
    queries_tokens_total=300,
    acquires_total=1,
    reuse_outcomes_total__reason_is_extras_unknown=1,
    sequences_total__outcome_is_admitted=1,
    plans_total__plan_is_no_reusable_prefix=1,
    publications_total__outcome_is_committed=1,
    copy_bytes_total__direction_is_upload=4 * TABLE_ROW,  # the whole table, which was never uploaded before
    live_requests_peak=1,
    leases_peak=1,
    records=1,
    cached_blocks__model_is_base=2,
    pages__pool_is_base__state_is_cached=2,
    pages__pool_is_base__state_is_free=-2,
    pages_active_peak__pool_is_base=3,
)
def context_request(watch: Watch) -> None:
    rig = Rig()
    with watch(rig.coordinator):
        rig.publish(prompt(300))


@moves(
    queries_tokens_total=310,
    hits_tokens_total=256,
    matched_tokens_total=256,
    skipped_media_tokens_total=2,
    acquires_total=1,
    reuse_outcomes_total__reason_is_none=1,
    sequences_total__outcome_is_admitted=1,
    sequences_total__outcome_is_hit=1,
    sequences_total__outcome_is_media=1,
    plans_total__plan_is_standard=1,
)
def context_hit_with_media(watch: Watch) -> None:
    rig = Rig()
    media = [Hash128(1, i + 1) if i in (5, 6) else None for i in range(310)]
    rig.publish(sequence(prompt(300), None, media[:300]))
    with watch(rig.coordinator):
        rig.hit(sequence(prompt(310), None, media))


@moves(
    acquires_total=1,
    reuse_outcomes_total__reason_is_bypass=1,
    sequences_total__outcome_is_admitted=1,
    sequences_total__outcome_is_bypass=1,
    plans_total__plan_is_no_reusable_prefix=1,
)
def context_bypass(watch: Watch) -> None:
    rig = Rig()
    rig.publish(prompt(300))
    with watch(rig.coordinator):
        rig.hit(prompt(300), bypass=True)


@moves(
    queries_tokens_total=256,
    hits_tokens_total=128,
    matched_tokens_total=256,
    acquires_total=1,
    reuse_outcomes_total__reason_is_full_input=1,
    sequences_total__outcome_is_admitted=1,
    sequences_total__outcome_is_hit=1,
    plans_total__plan_is_full_input_rewind=1,
    publications_total__outcome_is_existing=1,
    copy_bytes_total__direction_is_upload=TABLE_ROW,
)
def context_full_input(watch: Watch) -> None:
    rig = Rig()
    rig.publish(prompt(256))
    with watch(rig.coordinator):
        rig.publish(prompt(256))


@moves(quarantined_requests_total=1, poisoned=1)
def context_poison(watch: Watch) -> None:
    rig = Rig()
    live = rig.begin(prompt(300))
    live.prepare()
    rig.sync.answer = 700
    with watch(rig.coordinator):
        assert live.finish() is Status.POISONED


@moves(
    copy_bytes_total__direction_is_capture=RECURRENT + 2 * PARTIAL_TOKEN,  # 130 tokens are a page and 2
    pages__pool_is_partial__state_is_active=1,
    pages__pool_is_partial__state_is_free=-1,
    pages__pool_is_recurrent__state_is_active=1,
    pages__pool_is_recurrent__state_is_free=-1,
    pages_active_peak__pool_is_partial=1,
    pages_active_peak__pool_is_recurrent=1,
    usage_ratio__pool_is_partial=1,
    usage_ratio__pool_is_recurrent=1,
    snapshot_skips_total=1,  # the other sequence's
)
def hybrid_capture(watch: Watch) -> None:
    rig = Rig(Kind.HYBRID, snapshots=1)
    live = rig.begin(prompt(130), prompt(140, 1))
    live.prepare()
    live.compute()
    with watch(rig.coordinator):
        live.capture()


@moves(
    snapshot_restores_total=1,
    copy_bytes_total__direction_is_restore=RECURRENT + 2 * PARTIAL_TOKEN,
    copy_bytes_total__direction_is_upload=TABLE_ROW,
)
def hybrid_restore(watch: Watch) -> None:
    rig = Rig(Kind.HYBRID)
    rig.publish(prompt(130))
    live = rig.begin(prompt(131))
    with watch(rig.coordinator):
        live.prepare()


@moves(
    capture_synchronizations_total=1,
    copy_bytes_total__direction_is_capture=RECURRENT + 3 * PARTIAL_TOKEN,
    pages__pool_is_partial__state_is_cached=1,
    pages__pool_is_partial__state_is_free=-1,
    pages__pool_is_recurrent__state_is_cached=1,
    pages__pool_is_recurrent__state_is_free=-1,
    publications_total__outcome_is_committed=1,
    records=1,
)
def hybrid_decode_end(watch: Watch) -> None:
    rig = Rig(Kind.HYBRID)
    live = rig.begin(prompt(130)).prefill()
    live.prepare_decode()
    with watch(rig.coordinator):
        live.complete([[1]], [0])


@moves(copy_bytes_total__direction_is_compact=RECURRENT)
def hybrid_compact(watch: Watch) -> None:
    rig = Rig(Kind.HYBRID)
    with watch(rig.coordinator):
        rig.coordinator.move_slot_state([-1, 0])


@moves(
    draft_replays_total=1,
    queries_tokens_total=310,
    hits_tokens_total=128,
    matched_tokens_total=256,
    acquires_total=1,
    plans_total__plan_is_standard=1,
    reuse_outcomes_total__reason_is_replay=1,
    sequences_total__outcome_is_admitted=1,
    sequences_total__outcome_is_hit=1,
)
def eagle_replay(watch: Watch) -> None:
    rig = Rig(Kind.EAGLE)
    rig.publish(prompt(300))
    with watch(rig.coordinator):
        rig.hit(prompt(310))


@moves(
    pair_publications_total=1,
    publications_total__outcome_is_committed=1,
    records=1,
    leases=-1,
    live_requests=-1,
    cached_blocks__model_is_base=2,
    cached_blocks__model_is_draft=2,
    pages__pool_is_base__state_is_active=-3,
    pages__pool_is_base__state_is_cached=2,
    pages__pool_is_base__state_is_free=1,
    pages__pool_is_draft__state_is_active=-3,
    pages__pool_is_draft__state_is_cached=2,
    pages__pool_is_draft__state_is_free=1,
    usage_ratio__pool_is_base=-3 / 64,
    usage_ratio__pool_is_draft=-3 / 64,
)
def eagle_publish(watch: Watch) -> None:
    rig = Rig(Kind.EAGLE)
    live = rig.begin(prompt(300)).prefill()
    with watch(rig.coordinator):
        live.finish()


@moves(waits_total__cause_is_synchronize=1)
def context_synchronize(watch: Watch) -> None:
    rig = Rig()
    with watch(rig.coordinator):
        _ffi.load().check(rig.coordinator._library.context_synchronize(rig.coordinator.handle))
