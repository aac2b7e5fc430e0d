"""Faults that users of comparable caches reported, each as a scenario on this one.

Blocks have 4 slots. The name says the fault; siblings of the same kind follow it.
"""

from __future__ import annotations

import pytest
import torch
from omni_host import HIDDEN, Host, eventually, rows, same

from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheUnmatchError

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


@pytest.mark.parametrize("key", [HIDDEN, "k", "d"])
def test_same_step_hit_on_a_recycled_block_gets_the_new_rows(make_host, key):
    host = make_host(policy=DEFERRED)
    host.arrive("OLD", [0])
    host.go({"OLD": 4}, ("k", "d"))
    host.finish("OLD")
    host.arrive("W", [0])
    host.arrive("H", [0, 2], hit=4)
    out = host.go({"W": 4, "H": 1}, ("k", "d"))
    got = out.hidden_states["H"] if key == HIDDEN else out.mm_outputs[key]["H"]
    assert same(got, torch.cat([rows("W", 0, 4, key), rows("H", 4, 5, key)]))


def test_same_step_hit_on_a_recycled_block_when_the_old_owner_finishes_late(make_host):
    # The scheduler frees blocks one step before the finish is announced.
    host = make_host(policy=DEFERRED)
    host.arrive("OLD", [0])
    host.go({"OLD": 4}, ("k", "d"))
    host.arrive("W", [0])
    host.arrive("H", [0, 2], hit=4)
    step = host.run({"W": 4, "H": 1}, ("k", "d"))
    host.finish("OLD")
    host.go({"W": 0, "H": 1}, ("k", "d"))
    out = host.read(step, "H")
    assert same(out.hidden_states["H"][:4], rows("W", 0, 4))
    assert same(out.mm_outputs["d"]["H"][:4], rows("W", 0, 4, "d"))


def test_same_step_hit_on_fresh_blocks_gets_rows_not_zeros(host):
    host.arrive("A", [0, 1])
    host.arrive("B", [0, 1, 2], hit=8)
    out = host.go({"A": 8, "B": 2}, ("k",))
    assert same(out.hidden_states["B"], torch.cat([rows("A", 0, 8), rows("B", 8, 10)]))
    assert same(out.mm_outputs["k"]["B"], torch.cat([rows("A", 0, 8, "k"), rows("B", 8, 10, "k")]))


def test_same_step_hit_that_stands_before_its_producer(host):
    host.arrive("B", [0, 1, 2], hit=8)
    host.arrive("A", [0, 1])
    out = host.go({"B": 1, "A": 8}, ("k",))
    assert same(out.hidden_states["B"], torch.cat([rows("A", 0, 8), rows("B", 8, 9)]))


def test_same_step_hit_on_rows_half_old_half_new(host):
    host.arrive("A", [0, 1])
    host.go({"A": 4}, ("k",))
    host.arrive("B", [0, 1, 2], hit=8)
    out = host.go({"A": 4, "B": 1}, ("k",))
    assert same(out.mm_outputs["k"]["B"], torch.cat([rows("A", 0, 8, "k"), rows("B", 8, 9, "k")]))


@pytest.mark.parametrize("key", [HIDDEN, "k", "d"])
def test_delayed_read_never_returns_the_next_occupant(make_host, key):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.go({"A": 4}, ("k", "d"))
    host.arrive("R", [0, 1], hit=4)
    step = host.run({"R": 1}, ("k", "d"))
    host.finish("A", "R")
    host.arrive("B", [0])
    host.go({"B": 4}, ("k", "d"))
    out = host.read(step, "R")
    got = out.hidden_states["R"] if key == HIDDEN else out.mm_outputs[key]["R"]
    assert same(got, torch.cat([rows("A", 0, 4, key), rows("R", 4, 5, key)]))


def test_delayed_read_survives_several_occupants(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("R", [0, 1], hit=4)
    step = host.run({"R": 1})
    host.finish("A", "R")
    for name in "BCD":
        host.arrive(name, [0])
        host.go({name: 4})
        host.finish(name)
    assert same(host.read(step, "R").hidden_states["R"], torch.cat([rows("A", 0, 4), rows("R", 4, 5)]))


def test_two_delayed_reads_of_one_slot_at_two_times(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("R", [0, 1], hit=4)
    first = host.run({"R": 1})
    host.finish("A", "R")
    host.arrive("B", [0])
    host.go({"B": 4})
    host.arrive("S", [0, 2], hit=4)
    second = host.run({"S": 1})
    host.finish("B", "S")
    host.arrive("C", [0])
    host.go({"C": 4})
    assert same(host.read(second, "S").hidden_states["S"][:4], rows("B", 0, 4))
    assert same(host.read(first, "R").hidden_states["R"][:4], rows("A", 0, 4))


def test_a_request_that_keeps_appending_does_not_defeat_the_budget(make_host):
    row = 6 * 4
    host = make_host(policy=ModelCachePolicy(False, frozenset({"d"})), gpu_staging_bytes=3 * row)
    host.arrive("A", [0, 1])
    for _ in range(4):
        host.go({"A": 1}, ("d",))
    assert host.manager.stats()["staged_bytes"] == row
    assert host.states("d", [0, 1, 2, 3])[:3] == [2, 2, 2]
    assert same(host.stored("d", [0, 1, 2]), rows("A", 0, 3, "d"))


def test_hit_on_rows_that_never_were_here_is_an_error(host):
    host.arrive("X", [0])
    host.go({"X": 4})
    host.arrive("B", [5, 6, 7], hit=8)
    step = host.run({"B": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"absent slots"):
        host.read(step, "B")


def test_hit_on_absent_rows_stays_an_error_when_rows_come_later(host):
    host.arrive("B", [5, 7], hit=4)
    step = host.run({"B": 1})
    host.arrive("C", [5])
    host.go({"C": 4})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"absent slots"):
        host.read(step, "B")


def test_hit_on_absent_rows_is_no_error_for_others_of_the_batch(host):
    host.arrive("A", [0])
    host.arrive("B", [5, 7], hit=4)
    step = host.run({"A": 4, "B": 1})
    assert same(host.read(step, "A").hidden_states["A"], rows("A", 0, 4))


@pytest.mark.parametrize("key", [HIDDEN, "k", "d"])
def test_saved_rows_do_not_follow_the_caller_s_buffers(make_host, key):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.begin({"A": 4})
    hidden = host.outputs()
    mm = {"k": host.outputs("k"), "d": host.outputs("d"), "left": torch.arange(3.0)}
    step = host.save(mm, hidden=hidden)
    for t in (hidden, *mm.values()):
        t.fill_(-1)
    out = host.read(step, "A")
    got = out.hidden_states["A"] if key == HIDDEN else out.mm_outputs[key]["A"]
    assert same(got, rows("A", 0, 4, key))
    assert same(out.mm_outputs["left"]["A"], torch.arange(3.0))
    host.finish("A")
    host.arrive("B", [0, 1], hit=4)
    out = host.go({"B": 1}, ("k", "d"))
    got = out.hidden_states["B"] if key == HIDDEN else out.mm_outputs[key]["B"]
    assert same(got[:4], rows("A", 0, 4, key))


def test_hit_on_rows_still_being_written_waits_for_them(make_host):
    # Large rows, so that the background thread has work left when the hit arrives.
    host = make_host(num_blocks=600, staging_capacity_tokens=4096)
    width = 2048
    host.arrive("A", list(range(512)))
    host.begin({"A": 2048})
    step = host.save(hidden=host.outputs(width=width))
    host.arrive("B", [*range(512), 520], hit=2048)
    host.begin({"B": 1})
    out = host.read(host.save(hidden=host.outputs(width=width)), "B")
    assert same(out.hidden_states["B"][:2048], rows("A", 0, 2048, width=width))
    host.manager.discard_step(step)


def test_deferred_key_gives_the_step_s_rows_and_caches_at_the_end(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    assert same(host.go({"A": 2}, ("d",)).mm_outputs["d"]["A"], rows("A", 0, 2, "d"))
    assert same(host.go({"A": 2}, ("d",)).mm_outputs["d"]["A"], rows("A", 2, 4, "d"))
    assert host.states("d", [0, 1, 2, 3]) == [1, 1, 1, 1]
    host.finish("A")
    host.arrive("B", [5])
    host.go({"B": 1})
    eventually(lambda: host.states("d", [0, 1, 2, 3]) == [2, 2, 2, 2])
    assert same(host.stored("d", [0, 1, 2, 3]), rows("A", 0, 4, "d"))


def test_a_huge_key_is_cached_like_a_small_one(host):
    width = 1 << 18
    host.arrive("A", [0])
    host.begin({"A": 4})
    host.read(host.save({"small": host.outputs("small"), "huge": host.outputs("huge", width)}), "A")
    host.arrive("B", [0, 1], hit=4)
    host.begin({"B": 1})
    out = host.read(host.save({"small": host.outputs("small"), "huge": host.outputs("huge", width)}), "B")
    assert same(out.mm_outputs["small"]["B"], torch.cat([rows("A", 0, 4, "small"), rows("B", 4, 5, "small")]))
    want = torch.cat([rows("A", 0, 4, "huge", width), rows("B", 4, 5, "huge", width)])
    assert same(out.mm_outputs["huge"]["B"], want)


def test_one_dimensional_values_are_never_cached(host):
    host.arrive("A", [0])
    host.begin({"A": 3})
    out = host.read(host.save({"p": torch.arange(3.0)}), "A")
    assert same(out.mm_outputs["p"]["A"], torch.arange(3.0))
    assert host.manager.stats()["keys"] == 1
    host.begin({"A": 1})
    out = host.read(host.save({"p": torch.arange(1.0)}), "A")
    assert same(out.mm_outputs["p"]["A"], torch.arange(1.0))
    assert host.manager.stats()["keys"] == 1


def test_uncached_batch_tensor_is_cut_for_each_request(host):
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 1, "B": 2})
    out = host.read(host.save({"p": torch.arange(3.0)}), "A", "B")
    assert out.mm_outputs["p"]["A"].tolist() == [0.0]
    assert out.mm_outputs["p"]["B"].tolist() == [1.0, 2.0]


def test_steps_consumed_in_reverse_order_keep_their_own_rows(host):
    host.arrive("A", [0, 1])
    first = host.run({"A": 3}, ("k",))
    second = host.run({"A": 2}, ("k",))
    assert same(host.read(second, "A").mm_outputs["k"]["A"], rows("A", 3, 5, "k"))
    assert same(host.read(first, "A").mm_outputs["k"]["A"], rows("A", 0, 3, "k"))


def test_a_result_is_the_caller_s_own(host):
    host.arrive("A", [0])
    out = host.go({"A": 4}, ("k",))
    out.hidden_states["A"].fill_(-1)
    out.mm_outputs["k"]["A"].fill_(-1)
    host.arrive("B", [0, 1], hit=4)
    out = host.go({"B": 1}, ("k",))
    assert same(out.hidden_states["B"][:4], rows("A", 0, 4))
    out.mm_outputs["k"]["B"].fill_(-2)
    host.arrive("C", [0, 2], hit=4)
    assert same(host.go({"C": 1}, ("k",)).mm_outputs["k"]["C"][:4], rows("A", 0, 4, "k"))


def test_aborted_requests_leave_their_deferred_rows(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0, 1])
    host.run({"A": 5}, ("d",))
    host.finish("A")  # an abort is announced the same way
    host.arrive("B", [0, 2], hit=4)
    assert same(host.go({"B": 1}, ("d",)).mm_outputs["d"]["B"][:4], rows("A", 0, 4, "d"))


def test_spans_go_by_scheduled_tokens_not_by_length(host):
    host.arrive("A", [0, 1])
    host.go({"A": 8})
    host.arrive("H", [0, 1, 2], hit=8)
    host.arrive("M", [3])
    out = host.go({"H": 2, "M": 4})
    assert same(out.hidden_states["H"], torch.cat([rows("A", 0, 8), rows("H", 8, 10)]))
    assert same(out.hidden_states["M"], rows("M", 0, 4))


def test_consumed_steps_never_make_a_save_wait(make_host):
    host = make_host(num_blocks=256, staging_depth=2)
    names = [f"r{i}" for i in range(8)]
    for i, name in enumerate(names):
        host.arrive(name, list(range(26 * i, 26 * i + 26)))
    for _ in range(100):
        host.go(dict.fromkeys(names, 1), ("k",))
    assert host.manager.stats()["staging_waits"] == 0


def test_many_short_requests_leave_nothing_behind(make_host, mode):
    host = make_host(policy=DEFERRED)
    for i in range(10_000 if mode == "eager" else 2_000):
        name = f"r{i}"
        host.arrive(name, [i % 16])
        host.go({name: 2}, ("k", "d"))
        host.finish(name)
        host.view.tables.pop(name, None)
    host.begin({})
    host.manager.discard_step(host.save(hidden=None))
    stats = host.manager.stats()
    assert (stats["live_requests"], stats["unconsumed_steps"], stats["pending_reads"]) == (0, 0, 0)
    eventually(lambda: host.manager.stats()["staged_bytes"] == 0)
    assert not host.manager._numbers
    assert not host.manager._steps


@pytest.mark.parametrize("key", ["k", "d"])
def test_sparse_key_never_returns_a_former_tenant(make_host, key):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.go({"A": 4}, ("k", "d"))
    host.finish("A")
    host.arrive("B", [0])
    host.go({"B": 4})
    host.arrive("C", [0, 1], hit=4)
    out = host.go({"C": 1}, (key,))
    assert same(out.hidden_states["C"][:4], rows("B", 0, 4))
    assert same(out.mm_outputs[key]["C"], torch.cat([torch.zeros(4, 6), rows("C", 4, 5, key)]))


def test_step_without_hidden_makes_its_slots_unreadable(host: Host):
    # The same for hidden rows, where a hole is an error and not zeros.
    host.arrive("A", [0])
    host.go({"A": 4})
    host.finish("A")
    host.arrive("B", [0])
    host.read(host.run({"B": 4}, hidden=None), "B")
    host.arrive("C", [0, 1], hit=4)
    step = host.run({"C": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"absent slots"):
        host.read(step, "C")


def test_displaced_deferred_rows_never_land(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0])
    host.go({"A": 4}, ("d",))
    host.arrive("B", [0])
    host.go({"B": 4})
    host.finish("A")
    host.arrive("C", [0, 1], hit=4)
    out = host.go({"C": 1}, ("d",))
    assert same(out.mm_outputs["d"]["C"][:4], torch.zeros(4, 6))


def test_absent_rows_read_zeros_whatever_comes_later(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("X", [9])
    host.go({"X": 1}, ("k",))
    host.arrive("B", [0, 1], hit=4)
    step = host.run({"B": 1}, ("k",))
    host.finish("A")
    host.arrive("C", [0])
    host.go({"C": 4}, ("k",))
    assert same(host.read(step, "B").mm_outputs["k"]["B"], torch.cat([torch.zeros(4, 6), rows("B", 4, 5, "k")]))
