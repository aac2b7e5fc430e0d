"""What moves which metric, and by how much: scenarios that say so beforehand.

Times are left out: they have tests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import exposition
import pytest
from context_host import Kind, Rig, Status, prompt, sequence
from omni_host import WIDTH, Host

from prefixcache import _ffi
from prefixcache.context import BlockKeyExtras, ContextCacheManager, Hash128
from prefixcache.metrics import prometheus_text
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheStagingTimeoutError, OmniPrefixCacheUnmatchError

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = (REPOSITORY / "capi" / "metrics_table.go").read_text()
NAMES = re.findall(r'^\tm\w+:\s+\{"(\w+)", (?:counter|gauge), ', TABLE, re.MULTILINE)
ROW = 4 * WIDTH  # bytes of a row of one key: float32

# Sizes of address space, results of the host, and whatever a clock or another thread decides.
LOOSE = re.compile(r"(reserved_bytes|\w+_seconds(_total)?|result_buffer\w+|waits_total cause=lock)( |$)")

Expected = dict[str, float]
SCENARIOS: list[tuple[Expected, Callable]] = []


def moves(**expected: float) -> Callable:
    """expected: series -> change. ``copy_bytes_total__direction_save`` is a series with a label."""

    def register(scenario: Callable) -> Callable:
        SCENARIOS.append(({name.replace("__", " ").replace("_is_", "="): n for name, n in expected.items()}, scenario))
        return scenario

    return register


def short(series: exposition.Series) -> str:
    name, labels = series
    shown = [f"{k}={v}" for k, v in sorted(labels) if k != "cache"]
    return " ".join([name.removeprefix("prefixcache_"), *shown])


class Watch:
    """Remembers what changed on the page while a block ran."""

    def __init__(self) -> None:
        self.changes: Expected = {}

    @contextmanager
    def __call__(self, cache: object) -> Iterator[None]:
        before = exposition.read(prometheus_text(cache)).samples
        yield
        after = exposition.read(prometheus_text(cache)).samples
        changes = {
            short(s): round(after.get(s, 0) - before.get(s, 0), 9)
            for s in before.keys() | after.keys()
            if after.get(s, 0) != before.get(s, 0)
        }
        self.changes = {s: n for s, n in changes.items() if not LOOSE.match(s)}


# --------------------------------------------------------------------- omni


@moves(
    queries_tokens_total=5,
    saved_rows_total=5,
    saved_bytes_total=5 * ROW,
    copy_bytes_total__direction_is_save=5 * ROW,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    live_requests=1,
    live_requests_peak=1,
    staging_depth_peak=1,
    keys=1,
)
def omni_step(watch: Watch) -> None:
    host = Host()
    with watch(host.manager):
        host.arrive("A", [0, 1])
        host.go({"A": 5})


@moves(
    queries_tokens_total=4 + 1,
    hits_tokens_total=4,
    hits_total=1,
    saved_rows_total=2,
    saved_bytes_total=2 * ROW,
    copy_bytes_total__direction_is_save=2 * ROW,
    copy_bytes_total__direction_is_gather=2 * 4 * ROW,
    prefix_reads_total__outcome_is_used=2,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    live_requests=1,
    live_requests_peak=1,
)
def omni_hit(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    with watch(host.manager):
        host.arrive("B", [0, 1], hit=4)
        host.go({"B": 1}, ("k",))


@moves(
    queries_tokens_total=4 + 1,
    hits_tokens_total=4,
    hits_total=1,
    saved_rows_total=1,
    saved_bytes_total=ROW,
    copy_bytes_total__direction_is_save=ROW,
    prefix_reads_total__outcome_is_dropped=1,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_discarded=1,
    live_requests=1,
    live_requests_peak=1,
)
def omni_discard(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    with watch(host.manager):
        host.arrive("B", [0, 1], hit=4)
        host.manager.discard_step(host.run({"B": 1}))


@moves(
    queries_tokens_total=2,
    saved_rows_total=2,
    saved_bytes_total=2 * ROW,
    copy_bytes_total__direction_is_save=2 * ROW,
    preserved_bytes_total=2 * ROW,  # two of the four rows that B has yet to read
    steps_total__outcome_is_saved=1,
    staging_depth=1,
    staging_depth_peak=1,
    live_requests_peak=0,
)
def omni_preserve(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    step = host.run({"B": 1})
    host.finish("A")
    host.arrive("C", [0])
    host.begin({"C": 2})
    with watch(host.manager):
        host.save()
    host.read(step, "B")


@moves(
    queries_tokens_total=4 + 1,
    hits_tokens_total=4,
    hits_total=1,
    saved_rows_total=2,
    saved_bytes_total=2 * ROW,
    copy_bytes_total__direction_is_save=2 * ROW,
    copy_bytes_total__direction_is_gather=2 * 4 * ROW,
    absent_rows_total=4,  # nobody computed k for the prefix
    prefix_reads_total__outcome_is_used=2,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    live_requests=1,
    live_requests_peak=1,
    keys=1,
)
def omni_absent(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    with watch(host.manager):
        host.arrive("B", [0, 1], hit=4)
        host.go({"B": 1}, ("k",))


def deferring(**settings: object) -> Host:
    return Host(policy=ModelCachePolicy(needs_full_hidden_states=False, deferred_keys=frozenset({"d"})), **settings)


@moves(
    queries_tokens_total=3,
    saved_rows_total=3,
    saved_bytes_total=3 * ROW,
    copy_bytes_total__direction_is_save=3 * ROW,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    pending_writes=1,
    staged_bytes=3 * ROW,
    staged_bytes_peak=3 * ROW,
    usage_ratio__pool_is_staging=3 * ROW / (64 * ROW),
    live_requests=1,
    live_requests_peak=1,
    staging_depth_peak=1,
    keys=1,
)
def omni_deferred_rows_wait(watch: Watch) -> None:
    host = deferring(gpu_staging_bytes=64 * ROW)
    with watch(host.manager):
        host.arrive("A", [0])
        host.go({"A": 3}, ("d",))


@moves(
    deferred_writes_total=1,
    copy_bytes_total__direction_is_commit=3 * ROW,
    pending_writes=-1,
    staged_bytes=-3 * ROW,
    usage_ratio__pool_is_staging=-3 * ROW / (64 * ROW),
    live_requests=-1,
)
def omni_deferred_rows_are_written(watch: Watch) -> None:
    host = deferring(gpu_staging_bytes=64 * ROW)
    host.arrive("A", [0])
    host.go({"A": 3}, ("d",))
    host.finish("A")
    with watch(host.manager):
        host.begin({})


@moves(
    queries_tokens_total=2,
    displaced_rows_total=2,  # A's rows never reach their slots
    saved_rows_total=2,
    saved_bytes_total=2 * ROW,
    copy_bytes_total__direction_is_save=2 * ROW,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    pending_writes=1,
    staged_bytes=2 * ROW,
    staged_bytes_peak=2 * ROW,
    usage_ratio__pool_is_staging=2 / 64,
    live_requests=1,
    live_requests_peak=1,
)
def omni_displace(watch: Watch) -> None:
    host = deferring(gpu_staging_bytes=64 * ROW)
    host.arrive("A", [0])
    host.go({"A": 3}, ("d",))
    with watch(host.manager):
        host.arrive("B", [0])
        host.go({"B": 2}, ("d",))


@moves(
    queries_tokens_total=3,
    flushes_total=1,
    deferred_writes_total=1,
    saved_rows_total=3,
    saved_bytes_total=3 * ROW,
    copy_bytes_total__direction_is_save=3 * ROW,
    copy_bytes_total__direction_is_commit=3 * ROW,
    steps_total__outcome_is_saved=1,
    steps_total__outcome_is_materialized=1,
    live_requests=1,
    live_requests_peak=1,
)
def omni_flush(watch: Watch) -> None:
    host = deferring(gpu_staging_bytes=4 * ROW)
    host.arrive("A", [0])
    host.go({"A": 3}, ("d",))
    with watch(host.manager):
        host.arrive("B", [1])
        host.go({"B": 3}, ("d",))


@moves(waits_total__cause_is_staging=1)
def omni_staging_wait(watch: Watch) -> None:
    host = Host(staging_depth=1, staging_claim_timeout_s=0.05)
    host.arrive("A", [0])
    host.run({"A": 1})
    host.begin({"A": 1})
    with watch(host.manager), pytest.raises(OmniPrefixCacheStagingTimeoutError):
        host.save()
    page = exposition.read(prometheus_text(host.manager))
    assert 0.05 <= page.value("wait_seconds_total", cache="omni", cause="staging") < 5
    assert page.value("staging_depth_limit", cache="omni") == 1
    assert host.manager.stats()["waits"]["staging"]["count"] == host.manager.stats()["staging_waits"] == 1


@moves(failed_writes_total=1, queries_tokens_total=1, saved_rows_total=1, saved_bytes_total=ROW,
       copy_bytes_total__direction_is_save=ROW, steps_total__outcome_is_saved=1)  # fmt: skip
def omni_failed_write(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 1})
    host.begin({"A": 1})
    host.fail_write()
    with watch(host.manager), pytest.raises(OmniPrefixCacheUnmatchError, match="write failed"):
        host.save()


@moves(pending_reads=1, hits_total=1, hits_tokens_total=4, queries_tokens_total=5, saved_rows_total=1,
       saved_bytes_total=ROW, copy_bytes_total__direction_is_save=ROW, steps_total__outcome_is_saved=1,
       staging_depth=1, live_requests=1, live_requests_peak=1)  # fmt: skip
def omni_pending_read(watch: Watch) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    with watch(host.manager):
        host.arrive("B", [0, 1], hit=4)
        host.run({"B": 1})


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
