"""Steps that a model runner can come to, although none does every day.

Each is short, and its name says what is odd about it. Blocks have 4 slots unless given.
"""

from __future__ import annotations

import threading
import warnings
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omni_host import HIDDEN, SPARE_THREADS, WIDTH, Host, eventually, rows, same, threads_of_this_process

from prefixcache import PrefixCacheError
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheUnmatchError

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN, "k", "d")


def of(out, key: str, name: str) -> torch.Tensor:
    return out.hidden_states[name] if key == HIDDEN else out.mm_outputs[key][name]


def settle(host: Host) -> None:
    """Every row is where it goes."""
    host.begin({})
    host.manager.discard_step(host.save())
    eventually(lambda: host.manager.stats()["pending_writes"] == 0)


# ------------------------------------------------------------------------------ rows


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_large_step_that_writes_slots_twice_keeps_the_last_rows(make_host, threads):
    """Whichever thread of the crew copies which rows."""
    host = make_host(num_blocks=256, copy_threads=threads, staging_capacity_tokens=2048, policy=DEFERRED)
    random = torch.Generator().manual_seed(threads)
    slots = torch.cat([torch.arange(1024) // 2, torch.randint(512, 1024, (1024,), generator=random)])
    values = torch.randn(2048, 1024, generator=random)
    host.arrive("A", list(range(256)))
    host.view.step_slots_cpu = lambda ids, counts: slots if counts else slots[:0]
    host.begin({"A": 2048})
    host.view.batch = ["A"]
    step = host.manager.save_outputs(
        values, {"k": -values, "d": 2 * values}, num_tokens_unpadded=2048, num_tokens_padded=2048
    )
    assert same(host.read(step, "A").hidden_states["A"], values)
    host.finish("A")
    settle(host)
    last = {int(slot): i for i, slot in enumerate(slots)}
    for key, expected in ((HIDDEN, values), ("k", -values), ("d", 2 * values)):
        assert torch.equal(host.stored(key, list(last)), expected[list(last.values())])


def test_rows_that_are_no_numbers_keep_their_bits(host):
    payload = (torch.arange(4 * WIDTH, dtype=torch.int32).view(4, WIDTH) + 0x7F800001).view(torch.float32)
    host.arrive("A", [0])
    host.begin({"A": 4})
    host.read(host.save(hidden=payload), "A")
    host.arrive("B", [0, 1], hit=4)
    out = host.go({"B": 1})
    assert torch.equal(out.hidden_states["B"][:4].clone().view(torch.int32), payload.view(torch.int32))


def test_one_row_of_sixteen_mebibytes(make_host):
    host = make_host(num_blocks=2, block_size=1, copy_threads=3)
    values = torch.arange(4 * 2**20 + 3).float()[None]
    host.arrive("A", [1])
    host.begin({"A": 1})
    host.read(host.save(hidden=values.clone()), "A")
    host.arrive("B", [1, 0], hit=1)
    host.begin({"B": 1})
    out = host.read(host.save(hidden=-values), "B")
    assert same(out.hidden_states["B"], torch.cat([values, -values]))


def test_one_slot_is_all_there_is(make_host):
    host = make_host(num_blocks=1, block_size=1, staging_depth=1, staging_capacity_tokens=1)
    for i in range(8):
        name = f"R{i}"
        host.arrive(name, [0])
        assert same(host.go({name: 1}, ("k",)).hidden_states[name], rows(name, 0, 1))
        host.finish(name)
        host.arrive("H", [0], hit=1)
        assert same(host.go({"H": 0}, ("k",)).mm_outputs["k"]["H"], rows(name, 0, 1, "k"))
        host.finish("H")


@pytest.mark.parametrize("more", [{}, {"other": 1}], ids=["like the last step", "like no step"])
def test_a_nested_tensor_by_the_name_of_cached_rows(host, more):
    host.arrive("A", [0, 1])
    for _ in range(3):
        host.go({"A": 1}, ("k",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(WIDTH), torch.ones(2)])
    host.begin({"A": 1})
    out = host.read(host.save({"k": nested, **more}), "A")
    assert out.mm_outputs["k"]["A"].is_nested
    assert same(host.go({"A": 1}, ("k",)).mm_outputs["k"]["A"], rows("A", 4, 5, "k"))


# ---------------------------------------------------------------------------- owners


def test_steps_over_one_slot_consumed_in_no_order(make_host):
    """Three owners and two hits between them: each read has the rows of its own time."""
    host = make_host(policy=DEFERRED, zero_on_release=True)
    steps, prefix = {}, {"H1": "A", "H2": "B"}
    for name, blocks, gone in (("A", [0], ()), ("H1", [0, 1], ()), ("B", [0], ("A", "H1")), ("H2", [0, 2], ())):
        host.finish(*gone)
        host.arrive(name, blocks, hit=4 if name in prefix else 0)
        steps[name] = host.run({name: 1 if name in prefix else 4}, ("k", "d"))
    host.finish("B", "H2")
    host.arrive("C", [0])
    steps["C"] = host.run({"C": 4})  # neither k nor d: their rows have no owner from here on
    assert host.states("k", [0, 1, 2, 3]) == [3] * 4
    for name in ("H2", "C", "H1", "A", "B"):
        out = host.read(steps[name], name)
        for key in KEYS if name != "C" else (HIDDEN,):
            own = rows(name, 4, 5, key) if name in prefix else rows(name, 0, 4, key)
            head = [rows(prefix[name], 0, 4, key)] if name in prefix else []
            assert same(of(out, key, name), torch.cat([*head, own])), (name, key)
    host.arrive("D", [0, 3], hit=4)
    assert not host.go({"D": 1}, ("k",)).mm_outputs["k"]["D"][:4].any()


def test_a_request_hits_its_own_rows_when_it_comes_back_at_once(make_host):
    host = make_host(policy=DEFERRED)
    host.arrive("A", [0, 1])
    host.go({"A": 4}, ("k", "d"))
    host.finish("A")
    host.arrive("A", [0, 2], hit=4)
    out = host.go({"A": 1}, ("k", "d"))
    for key in KEYS:
        assert same(of(out, key, "A"), rows("A", 0, 5, key))
    host.arrive("A", [0, 2], hit=4)  # and is live this time: no hit
    assert host.go({"A": 1}, ("k", "d")).hidden_states["A"].shape[0] == 1


def test_deferred_rows_written_twice_to_one_slot(make_host):
    host = make_host(policy=DEFERRED, gpu_staging_bytes=100)
    host.arrive("A", [0])
    host.begin({"A": 4})
    slots, host.view.step_slots_cpu = host.view.step_slots_cpu, lambda ids, counts: torch.tensor([0, 1, 1, 0])
    values = torch.arange(4.0 * WIDTH).view(4, WIDTH)
    host.read(host.save({"d": values}, hidden=values), "A")
    host.view.step_slots_cpu = slots
    host.finish("A")
    settle(host)
    assert torch.equal(host.stored("d", [0, 1]), values[[3, 2]])


def test_hits_asked_for_in_another_order_are_not_looked_for_one_by_one(host):
    """4,000 hits of one step took 0.2 s, of which looking through the list of ids for each was most."""

    class Positions(list):
        def __contains__(self, position: object) -> bool:
            raise AssertionError("goes through the list for each hit")

    host.arrive("P", [0])
    host.go({"P": 4})
    for i, name in enumerate("ABC"):
        host.arrive(name, [0, i + 1], hit=4)
    step = host.run({"A": 1, "B": 1, "C": 1})
    reads = host.manager._steps[step].read(Positions([2, 0]), True, host.manager._buffer)[2]
    assert {(read[1], read[2]) for read in reads} == {(0, 1), (2, 1)}
    assert same(host.read(step, "C", "A").hidden_states["A"], torch.cat([rows("P", 0, 4), rows("A", 4, 5)]))


def test_a_hit_that_its_step_leaves_out_is_gone(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    host.arrive("B", [0, 1], hit=4)
    host.arrive("C", [0, 2], hit=4)
    assert host.go({"C": 1}, ("k",)).hidden_states["C"].shape[0] == 5
    assert host.go({"B": 1}, ("k",)).hidden_states["B"].shape[0] == 1
    assert host.manager.stats()["pending_reads"] == 0


# --------------------------------------------------------------------------- numbers

BLOCKS = {
    "array": np.array([0, 1]),
    "tensor": torch.tensor([0, 1]),
    "numpy integers": [np.int64(0), np.int32(1)],
    "tensors of one": [torch.tensor(0), torch.tensor(1)],
    "group of an array": (np.array([0, 1]),),
    "two groups": ([0, 1], [7]),
    "range": range(2),
}
NO_BLOCKS = {
    "floats": [0.0, 1.0],
    "texts": ["0", "1"],
    "none": [None],
    "no group": [[]],
    "too large": [2**70],
    "below zero": [-1, 0],
    "array of floats": np.array([0.0, 1.0]),
}


@pytest.mark.parametrize("form", [*BLOCKS, *NO_BLOCKS])
def test_block_ids_of_any_kind(host, form):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.view.tables["B"], host.view.computed["B"] = [0, 1], 4
    ids = (BLOCKS | NO_BLOCKS)[form]
    host._arrivals = [SimpleNamespace(req_id="B", num_computed_tokens=np.int32(4), block_ids=ids)]
    if form in NO_BLOCKS:
        with pytest.raises(PrefixCacheError):
            host.begin({"B": 1})
        host._arrivals = []
        host.arrive("B", [0, 1], hit=4)
    assert same(host.go({"B": 1}).hidden_states["B"], torch.cat([rows("A", 0, 4), rows("B", 4, 5)]))


SLOTS = {
    "strided array": np.arange(8)[::2],
    "bytes": np.array([0, 2, 4, 6], np.uint8),
    "big-endian": np.array([0, 2, 4, 6], ">i8"),
    "list": [0, 2, 4, 6],
    "mixed": (np.int32(0), 2, 4, 6),
    "int32": torch.tensor([0, 2, 4, 6], dtype=torch.int32),
    "strided tensor": torch.arange(8)[::2],
    "two dimensions": torch.tensor([[0, 2], [4, 6]]),
    "array.array": array("q", [0, 2, 4, 6]),
}
NO_SLOTS = {
    "floats": torch.zeros(4),
    "booleans": torch.ones(4, dtype=torch.bool),
    "three": [0, 1, 2],
    "texts": ["a"] * 4,
    "none": None,
    "beyond int64": np.array([2**63] * 4, np.uint64),
    "sparse": torch.arange(4).to_sparse(),
    "nowhere": torch.empty(4, dtype=torch.int64, device="meta"),
}


@pytest.mark.parametrize("form", [*SLOTS, *NO_SLOTS])
def test_slots_of_any_kind(host, form):
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    slots, host.view.step_slots_cpu = host.view.step_slots_cpu, lambda ids, counts: (SLOTS | NO_SLOTS)[form]
    if form in NO_SLOTS:
        with pytest.raises(PrefixCacheError):
            host.save()
        host.view.step_slots_cpu = slots
    step = host.save()
    assert step == 1
    host.read(step, "A")
    assert torch.equal(host.stored(HIDDEN, [0, 2, 4, 6] if form in SLOTS else [0, 1, 2, 3]), rows("A", 0, 4))


@pytest.mark.parametrize("step", [True, -1, 2**64, 2**70, 0, None, "1", 1.0])
def test_steps_that_never_were(host, step):
    host.arrive("A", [0])
    first = host.run({"A": 1})
    if step is not True:  # which is 1
        for consume in (lambda: host.read(step, "A"), lambda: host.manager.discard_step(step)):
            with pytest.raises(OmniPrefixCacheUnmatchError, match="missing"):
                consume()
    host.read(first, "A")
    with pytest.raises(OmniPrefixCacheUnmatchError, match="missing"):
        host.read(step, "A")


# ------------------------------------------------------------------------------- end


@pytest.mark.parametrize("phase", range(4))
def test_shutdown_between_any_two_calls(make_host, phase):
    """What was saved is read as it should be, or refused."""
    host = make_host(policy=DEFERRED, zero_on_release=True, copy_threads=2)
    host.arrive("A", [0])
    steps = {"A": host.run({"A": 4}, ("k", "d"))}
    host.arrive("B", [0, 1], hit=4)
    host.begin({"B": 1})
    if phase == 0:
        host.manager.shutdown()
    try:
        steps["B"] = host.save({"k": host.outputs("k"), "d": host.outputs("d")})
    except PrefixCacheError:
        assert phase == 0
    if phase == 2:
        host.finish("A", "B")
        host.begin({})
    if phase == 3:
        host.manager.discard_step(steps.pop("A"))
    host.manager.shutdown()
    want = {"A": [rows("A", 0, 4, "d")], "B": [rows("A", 0, 4, "d"), rows("B", 4, 5, "d")]}
    refused = []
    for name, step in reversed(steps.items()):
        try:
            assert same(host.read(step, name).mm_outputs["d"][name], torch.cat(want[name]))
        except OmniPrefixCacheUnmatchError as e:
            refused.append(str(e))
    assert all("shut down" in text or "missing" in text for text in refused)
    host.manager.shutdown()
    assert host.manager.stats()["unconsumed_steps"] <= 2


def test_threads_of_a_crew_end_with_their_cache(mode):
    def run(caches: int) -> int:
        for _ in range(caches):
            host = Host(eager=mode == "eager", num_blocks=64, block_size=16, copy_threads=4)
            host.arrive("A", list(range(64)))
            host.begin({"A": 1024})
            host.read(host.save(hidden=torch.ones(1024, 1024)), "A")
        del host
        return threads_of_this_process()

    run(4)
    before = run(4)
    run(SPARE_THREADS)  # each had three of its own
    eventually(lambda: threads_of_this_process() < before + SPARE_THREADS)


def test_saves_of_several_threads_are_refused_or_whole(make_host):
    host = make_host(num_blocks=64, block_size=16, copy_threads=3, staging_depth=64)
    host.arrive("A", list(range(64)))
    host.begin({"A": 16})
    host.view.batch, slots = ["A"], torch.arange(16)
    host.view.step_slots_cpu = lambda ids, counts: slots
    saved, refused, wrong = [], [], []

    def save(value: float) -> None:
        for _ in range(6):
            x = torch.full((16, 70_000), value)
            try:
                step = host.manager.save_outputs(x, {"k": -x}, num_tokens_unpadded=16, num_tokens_padded=16)
            except PrefixCacheError as e:
                refused.append(str(e))
                continue
            saved.append(step)
            out = host.manager.materialize(step, ["A"])
            if not (torch.equal(out.hidden_states["A"], x) and torch.equal(out.mm_outputs["k"]["A"], -x)):
                wrong.append(step)

    threads = [threading.Thread(target=save, args=(float(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert saved and sorted(saved) == list(range(1, len(saved) + 1)) and not wrong
    assert all("overlap" in text for text in refused)
