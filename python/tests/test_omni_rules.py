"""One test for each numbered rule that shows at this level; the rest is tested in core."""

from __future__ import annotations

import threading
import time

import omni_host
import pytest
import torch
from omni_host import HIDDEN, Host, eventually, rows, same

from prefixcache.omni import (
    ModelCachePolicy,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheConfig,
)

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def settle(host: Host) -> None:
    """A step of nothing: finishes are taken in, and immediate writes are waited for."""
    host.begin({})
    host.manager.discard_step(host.save(hidden=None))
    eventually(lambda: 1 not in host.states(HIDDEN, list(range(16))))


def test_o01_keys_are_independent(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.go({"A": 4}, ("d",))
    settle(host)
    assert host.states(HIDDEN, [0, 1, 2, 3]) == [2] * 4
    assert host.states("d", [0, 1, 2, 3]) == [1] * 4


def test_o03_nothing_becomes_absent_again(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    host.finish("A")
    host.arrive("B", [0])
    host.go({"B": 4}, ("k",))
    settle(host)
    assert 0 not in host.states("k", [0, 1, 2, 3])


def test_o04_a_claim_raises_the_version_by_one(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    before = host.versions("k", [0, 1, 2, 3])
    host.finish("A")
    host.arrive("B", [0])
    host.go({"B": 2}, ("k",))
    settle(host)
    assert [b - a for a, b in zip(before, host.versions("k", [0, 1, 2, 3]), strict=True)] == [1, 1, 0, 0]


def test_o14_an_id_may_finish_and_come_back_in_one_output(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.finish("A")
    host.arrive("A", [0, 1], hit=4)
    assert host.go({"A": 2}).hidden_states["A"].shape == (6, 6)


def test_o15_a_live_id_opens_no_hit(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("A", [0, 1], hit=4)
    assert same(host.go({"A": 2}).hidden_states["A"], rows("A", 4, 6))


def test_o15_an_id_twice_in_one_output_is_live_the_second_time(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [3])
    host.arrive("B", [0, 1], hit=4)
    host.view.computed["B"] = 0
    assert host.go({"B": 2}).hidden_states["B"].shape == (2, 6)


def test_o16_finish_writes_deferred_rows(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.go({"A": 4}, ("d",))
    host.finish("A")
    settle(host)
    eventually(lambda: host.states("d", [0, 1, 2, 3]) == [2] * 4)
    assert same(host.stored("d", [0, 1, 2, 3]), rows("A", 0, 4, "d"))


def test_o17_block_ids_are_copied(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    blocks = host._arrivals[0].block_ids[0]
    host.begin({"B": 1})
    blocks[:] = [9, 9]
    assert same(host.read(host.save(), "B").hidden_states["B"][:4], rows("A", 0, 4))


def test_o20_the_later_request_of_a_batch_wins_a_slot(host):
    host.arrive("A", [0])
    host.arrive("B", [0])
    out = host.go({"A": 4, "B": 4}, ("k",))
    assert same(out.hidden_states["A"], rows("A", 0, 4))
    assert same(out.hidden_states["B"], rows("B", 0, 4))
    host.arrive("H", [0, 1], hit=4)
    assert same(host.go({"H": 1}, ("k",)).mm_outputs["k"]["H"][:4], rows("B", 0, 4, "k"))


def test_o22_materialize_that_raises_has_used_the_step(make_host):
    host = make_host(staging_depth=1)
    host.arrive("B", [3, 1], hit=4)
    step = host.run({"B": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="absent"):
        host.read(step, "B")
    with pytest.raises(OmniPrefixCacheUnmatchError, match="missing"):
        host.manager.discard_step(step)
    host.go({"B": 1})


def test_o23_steps_are_consumed_in_any_order(host):
    host.arrive("A", [0, 1])
    steps = [host.run({"A": 1}, ("k",)) for _ in range(6)]
    for i in (3, 0, 5, 1, 4, 2):
        assert same(host.read(steps[i], "A").mm_outputs["k"]["A"], rows("A", i, i + 1, "k"))


@pytest.mark.parametrize("key", [HIDDEN, "k", "d"])
def test_o24_discarded_steps_are_cached(make_host, key):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.manager.discard_step(host.run({"A": 4}, ("k", "d")))
    host.arrive("B", [0, 1], hit=4)
    out = host.go({"B": 1}, ("k", "d"))
    got = out.hidden_states["B"] if key == HIDDEN else out.mm_outputs[key]["B"]
    assert same(got[:4], rows("A", 0, 4, key))


@pytest.mark.parametrize("width", [6, 1 << 15])  # from 1 MiB on another path makes the results
def test_o25_prefix_first_then_new_rows_for_any_subset_in_any_order(make_host, width):
    host = make_host(staging_capacity_tokens=32)

    def rows(name: str, start: int, end: int, key: str = "k") -> torch.Tensor:
        return omni_host.rows(name, start, end, key, width)

    def save() -> int:
        return host.save({"k": host.outputs("k", width)})

    host.arrive("A", [0, 1])
    host.begin({"A": 8})
    host.read(save(), "A")

    def step() -> int:
        for name, blocks in (("H", [0, 1, 2]), ("I", [0, 4])):
            host.finish(name)
            host.arrive(name, blocks, hit=4 * (len(blocks) - 1))
        host.begin({"A": 0, "H": 2, "M": 3, "I": 1})
        return save()

    host.view.tables["M"], host.view.computed["M"] = [5, 6, 7, 8, 9], 0
    start = 0
    for ids in (["H"], ["M", "H"], ["I", "M", "A"], [], ["H", "H"], ["A", "H", "M", "I"]):
        step_id = step()
        out = host.read(step_id, *ids)
        want = {
            "A": rows("A", 8, 8, "k"),
            "H": torch.cat([rows("A", 0, 8, "k"), rows("H", 8, 10, "k")]),
            "I": torch.cat([rows("A", 0, 4, "k"), rows("I", 4, 5, "k")]),
            "M": rows("M", start, start + 3, "k"),
        }
        start += 3
        assert list(out.mm_outputs["k"]) == list(dict.fromkeys(ids))
        for r in ids:
            assert same(out.mm_outputs["k"][r], want[r])


def test_o31_o39_a_save_waits_for_a_slot_no_longer_than_its_timeout(make_host):
    host = make_host(staging_depth=3, staging_claim_timeout_s=0.1)
    host.arrive("A", [0, 1])
    for _ in range(3):
        host.run({"A": 1})
    start = time.monotonic()
    with pytest.raises(OmniPrefixCacheStagingTimeoutError, match="within 100ms"):
        host.run({"A": 1})
    assert 0.1 <= time.monotonic() - start < PrefixCacheConfig.staging_claim_timeout_s


def test_o31_a_save_without_tokens_takes_a_slot_too(make_host):
    host = make_host(staging_depth=1, staging_claim_timeout_s=0)
    host.begin({})
    step = host.save(hidden=None)
    with pytest.raises(OmniPrefixCacheStagingTimeoutError):
        host.save(hidden=None)
    host.manager.discard_step(step)
    host.manager.discard_step(host.save(hidden=None))


def test_o36_an_appending_request_is_flushed_and_goes_on(make_host):
    host = make_host(policy=DEFERRED, gpu_staging_bytes=2 * 2 * 6 * 4)
    host.arrive("A", [0, 1])
    for _ in range(8):
        host.go({"A": 1}, ("d",))
    assert host.manager.stats()["flushes"] > 0
    host.finish("A")
    host.arrive("B", [0, 1, 2], hit=8)
    assert same(host.go({"B": 1}, ("d",)).mm_outputs["d"]["B"][:8], rows("A", 0, 8, "d"))


def test_o38_nothing_stays_charged(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0, 1])
    for _ in range(4):
        host.go({"A": 2}, ("k", "d"))
    host.finish("A")
    settle(host)
    eventually(lambda: host.manager.stats()["staged_bytes"] == 0)


def test_o47_a_discard_frees_a_save_that_waits(make_host):
    host = make_host(staging_depth=1, staging_claim_timeout_s=20.0)
    host.arrive("A", [0])
    step = host.run({"A": 1})
    timer = threading.Timer(0.1, host.manager.discard_step, [step])
    timer.start()
    assert same(host.read(host.run({"A": 1}), "A").hidden_states["A"], rows("A", 1, 2))
    timer.join()


def test_s09_hits_that_are_never_read_leave_no_pending_read(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    for i in range(20):
        host.arrive(f"B{i}", [0, 1], hit=4)
        step = host.run({f"B{i}": 1})  # k is not part of this step
        host.manager.discard_step(step) if i % 2 else host.read(step)
        host.finish(f"B{i}")
    host.begin({})
    assert host.manager.stats()["pending_reads"] == 0


def test_hits_of_a_step_that_was_never_saved_are_gone(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    host.begin({"B": 1})
    host.begin({"B": 1})
    assert same(host.read(host.save(), "B").hidden_states["B"], rows("B", 4, 5))
