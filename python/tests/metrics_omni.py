"""What an omni cache does, and which metrics that moves by how much."""

from __future__ import annotations

import time

import exposition
import pytest
from metrics_scenarios import Watch, moves
from omni_host import WIDTH, Host

from prefixcache.metrics import prometheus_text
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheStagingTimeoutError, OmniPrefixCacheUnmatchError

ROW = 4 * WIDTH  # bytes of a row of one key: float32


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
    began = time.monotonic()
    with watch(host.manager), pytest.raises(OmniPrefixCacheStagingTimeoutError):
        host.save()
    most = time.monotonic() - began
    page = exposition.read(prometheus_text(host.manager))
    assert 0.05 <= page.value("wait_seconds_total", cache="omni", cause="staging") < most
    assert page.value("staging_depth_limit", cache="omni") == 1
    assert host.manager.stats()["waits"]["staging"]["count"] == host.manager.stats()["staging_waits"] == 1


@moves(failed_writes_total=1, copy_bytes_total__direction_is_save=ROW)
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
