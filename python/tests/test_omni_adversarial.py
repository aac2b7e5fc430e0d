"""Hosts that hand over odd things: nothing may be misread, lost, leaked or half done."""

from __future__ import annotations

import math
import signal
import threading
from collections import UserDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omni_host import Host, eventually, rows, same

from prefixcache._cache import _READ, _address
from prefixcache._errors import INVALID_ARGUMENT, PrefixCacheArgumentError
from prefixcache.omni import (
    ModelCachePolicy,
    OmniPrefixCacheManager,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheConfig,
)

BUFFER_TOO_SMALL, UNSUPPORTED = -4, -5


def unconsumed(host: Host) -> int:
    return host.manager.stats()["unconsumed_steps"]


def output(scheduled: object, arrivals: object = (), finished: object = ()) -> SimpleNamespace:
    return SimpleNamespace(num_scheduled_tokens=scheduled, scheduled_new_reqs=arrivals, finished_req_ids=finished)


# ------------------------------------------------------------- steps and ids asked for


@pytest.mark.parametrize("convert", [np.int64, np.uint8, torch.tensor, type("Step", (int,), {})])
def test_a_step_id_may_be_any_integer(host, convert):
    host.arrive("A", [0])
    assert same(host.manager.materialize(convert(host.run({"A": 2})), ["A"]).hidden_states["A"], rows("A", 0, 2))
    host.manager.discard_step(convert(host.run({"A": 2})))
    assert unconsumed(host) == 0


@pytest.mark.parametrize("wrong", [1.0, "1", None, [1], -1, 1 + 2**64])
def test_a_step_id_that_is_none_consumes_nothing(host, wrong):
    host.arrive("A", [0])
    step = host.run({"A": 2})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"step context .* missing \(have \[1\]\)"):
        host.manager.materialize(wrong, ["A"])
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"step context .* missing \(have \[1\]\)"):
        host.manager.discard_step(wrong)
    assert same(host.read(step, "A").hidden_states["A"], rows("A", 0, 2))


@pytest.mark.parametrize(
    "ids",
    [lambda r: (x for x in r), iter, tuple, dict.fromkeys, np.array, deque],
    ids=["generator", "iterator", "tuple", "dict", "array", "deque"],
)
def test_ids_asked_for_may_be_any_iterable(host, ids):
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 2, "B": 1})
    step = host.save({"left": torch.arange(3)})
    out = host.manager.materialize(step, ids(["B", "A"]))
    assert list(out.hidden_states) == ["B", "A"]
    assert same(out.hidden_states["A"], rows("A", 0, 2))
    assert out.mm_outputs["left"]["B"].tolist() == [2]


@pytest.mark.parametrize("ids", [None, 5, [["A"]], ["A", None, 3], ["Z"]])
def test_o22_ids_that_cannot_be_meant_still_use_the_step_up(make_host, ids):
    host = make_host(staging_depth=1, staging_claim_timeout_s=0.2)
    host.arrive("A", [0])
    step = host.run({"A": 1})
    with pytest.raises((PrefixCacheArgumentError, OmniPrefixCacheUnmatchError, TypeError)):
        host.manager.materialize(step, ids)
    assert unconsumed(host) == 0
    assert same(host.go({"A": 1}).hidden_states["A"], rows("A", 1, 2))  # the only staging slot is free


def test_o22_memory_that_is_missing_uses_the_step_up(make_host, monkeypatch):
    host = make_host(eager=False)
    host.arrive("A", [0])
    host.begin({"A": 2})
    step = host.save(hidden=torch.ones(2, 1 << 18))  # from 1 MiB on the buffer is made later
    monkeypatch.setattr("prefixcache.omni.allocate", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        host.read(step, "A")
    assert unconsumed(host) == 0


# ------------------------------------------------------------------- scheduler outputs


@pytest.mark.parametrize("scheduled", [None, [1], {"A": "x"}, {"A": 2.7}, {"A": None}, {"A": 2**70}])
def test_s16_counts_that_cannot_be_meant_leave_nothing(host, scheduled):
    """A refused step start must not have finished OLD or made A a request that is live."""
    host.arrive("OLD", [0, 1])
    host.go({"OLD": 4})
    new = SimpleNamespace(req_id="A", num_computed_tokens=4, block_ids=([0, 2],))
    with pytest.raises(PrefixCacheArgumentError, match="num_scheduled_tokens"):
        host.manager.new_step_starts(output(scheduled, [new], {"OLD"}))
    assert host.manager.stats()["live_requests"] == 1
    host.arrive("A", [0, 2], hit=4)
    host.finish("OLD")
    assert same(host.go({"A": 1}).hidden_states["A"], torch.cat([rows("OLD", 0, 4), rows("A", 4, 5)]))


@pytest.mark.parametrize("count", [np.int32(2), np.uint64(2), torch.tensor(2)])
def test_counts_may_be_any_integers(host, count):
    host.arrive("A", [0])
    host.begin({"A": count})
    host.scheduled = {"A": 2}
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 2))


@pytest.mark.parametrize("hit", [4.5, "4", math.nan, math.inf, [4], 2**63])
def test_computed_tokens_that_cannot_be_meant(host, hit):
    new = SimpleNamespace(req_id="A", num_computed_tokens=hit, block_ids=([0],))
    with pytest.raises(PrefixCacheArgumentError, match=r"num_computed_tokens of req A is .*, expected"):
        host.manager.new_step_starts(output({}, [new]))
    assert host.manager.stats()["live_requests"] == 0


@pytest.mark.parametrize("field", ["finished_req_ids", "scheduled_new_reqs"])
def test_lists_that_are_none(host, field):
    out = output({})
    setattr(out, field, 5)
    with pytest.raises(PrefixCacheArgumentError, match=f"{field} is a int, expected an iterable"):
        host.manager.new_step_starts(out)


def test_finished_ids_may_be_an_array(host):
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.go({"A": 1, "B": 1})
    host.manager.new_step_starts(output({}, None, np.array(["A", "B"])))
    assert host.manager.stats()["live_requests"] == 0


@pytest.mark.parametrize(
    "blocks", [lambda: iter([[0, 2]]), lambda: deque([0, 2]), lambda: iter([0, 2]), lambda: [deque([0, 2])]]
)
def test_block_ids_may_be_any_iterables(host, blocks):
    host.arrive("P", [0, 1])
    host.go({"P": 4})
    host.arrive("A", [0, 2], hit=4)
    host._arrivals[0].block_ids = blocks()
    assert same(host.go({"A": 1}).hidden_states["A"][:4], rows("P", 0, 4))


def test_ids_that_are_no_strings_show_in_errors(host):
    new = SimpleNamespace(req_id=17, num_computed_tokens=3, block_ids=([0],))
    with pytest.raises(OmniPrefixCacheUnmatchError, match="req 17 has 3 hit tokens"):
        host.manager.new_step_starts(output({}, [new]))


def test_requests_that_finished_and_are_still_in_the_batch_leave_nothing_behind(make_host):
    host = make_host(staging_depth=2)
    last = []
    for i in range(300):
        name = f"r{i}"
        host.arrive(name, [i % 16])
        host.finish(*last)
        host.begin({name: 1})
        host.scheduled = {name: 1, **dict.fromkeys(last, 0)}  # the batch, of which some have nothing to do
        host.manager.discard_step(host.save())
        last = [name]
    assert host.manager.stats()["live_requests"] == 1
    assert len(host.manager._numbers) == 1


# --------------------------------------------------------------------- slots and views


@pytest.mark.parametrize(
    "slots",
    [
        lambda: np.array([4, 5, 6], np.uint32),
        lambda: np.array([4, 5, 6], np.uint64),
        lambda: np.array([4, 5, 6], ">i8"),
        lambda: np.array([6, 5, 4])[::-1],
        lambda: np.frombuffer(np.array([4, 5, 6]).tobytes(), np.int64),
        lambda: range(4, 7),
        lambda: iter([4, 5, 6]),
        lambda: [torch.tensor(4), 5, np.int8(6)],
        lambda: torch.tensor([4, 0, 5, 0, 6, 0])[::2],
        lambda: torch.tensor([[4], [5], [6]], dtype=torch.int16),
    ],
    ids=["uint32", "uint64", "big-endian", "reversed", "read-only", "range", "iterator", "mixed", "strided", "int16"],
)
def test_slots_may_come_in_any_integer_form(host, slots):
    host.arrive("A", [1])
    host.begin({"A": 3})
    host.view.step_slots_cpu = lambda *_: slots()
    host.read(host.save(), "A")
    assert same(host.stored("__hidden_states__", [4, 5, 6]), rows("A", 0, 3))


@pytest.mark.parametrize(
    "slots",
    [
        None,
        4,
        "456",
        ["4"],
        [4, 5, None],
        [4, 5, 2**63],
        torch.tensor([4, 5, 6]).to_sparse(),
        torch.arange(3, device="meta"),
    ],
)
def test_slots_that_cannot_be_meant_name_themselves(host, slots):
    host.arrive("A", [1])
    host.begin({"A": 3})
    good, host.view.step_slots_cpu = host.view.step_slots_cpu, lambda *_: slots
    with pytest.raises((PrefixCacheArgumentError, OmniPrefixCacheUnmatchError), match="slot mapping"):
        host.save()
    host.view.step_slots_cpu = good
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 3))


@pytest.mark.parametrize("batch", [("A", "B"), {"A": 0, "B": 1}, np.array(["A", "B"])])
def test_the_batch_may_be_any_sequence_also_when_it_stays(host, batch):
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.view.batch_req_ids = lambda: batch
    for k in range(2):
        assert same(host.go({"A": 1, "B": 1}).hidden_states["B"], rows("B", k, k + 1))


def test_a_view_that_fails_costs_nothing(make_host):
    host = make_host(staging_depth=1)
    host.arrive("A", [0])
    host.begin({"A": 3})
    good, host.view.step_slots_cpu = host.view.step_slots_cpu, lambda *_: {}["no block table"]
    with pytest.raises(KeyError, match="no block table"):
        host.save()
    host.view.step_slots_cpu = good
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 3))


# ----------------------------------------------------------------------------- outputs


def test_quantized_rows_are_handed_out_and_not_cached(host):
    """Their bytes mean nothing without the quantizer, which no cached row has."""
    value = torch.quantize_per_tensor(torch.arange(12.0).view(4, 3), 0.5, 3, torch.qint8)
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 3, "B": 1})
    out = host.read(host.save({"q": value}, hidden=value), "A", "B")
    for got in (out.hidden_states, out.mm_outputs["q"]):
        assert torch.equal(got["A"].dequantize(), value[:3].dequantize())
        assert torch.equal(got["B"].dequantize(), value[3:].dequantize())
    assert host.manager._keys.get("q") is None


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
def test_sparse_outputs_are_cut_for_each_request(host, kind):
    value = torch.arange(12.0).view(4, 3)
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 3, "B": 1})
    out = host.read(host.save({"x": getattr(value, kind)()}), "A", "B").mm_outputs["x"]
    assert torch.equal(out["A"].to_dense() if out["A"].layout is not torch.strided else out["A"], value[:3])
    assert torch.equal(out["B"].to_dense() if out["B"].layout is not torch.strided else out["B"], value[3:])


def test_hidden_rows_have_to_be_dense(host):
    host.arrive("A", [0])
    host.begin({"A": 3})
    with pytest.raises(PrefixCacheArgumentError, match=r"hidden_states is torch.sparse_coo, expected a dense tensor"):
        host.save(hidden=torch.ones(3, 4).to_sparse())
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 3))


@pytest.mark.parametrize("mm", [[("k", 1)], "k", torch.ones(2), 5])
def test_outputs_that_are_no_mapping(host, mm):
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(PrefixCacheArgumentError, match=r"mm_outputs is a \w+, expected a mapping"):
        host.save(mm)
    assert same(host.read(host.save(UserDict(x=1)), "A").hidden_states["A"], rows("A", 0, 2))


@pytest.mark.parametrize("name", [5, None, ("a", "b"), b"k"])
def test_names_that_are_no_strings(host, name):
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(PrefixCacheArgumentError, match=r"mm_outputs has the name .*, expected a string"):
        host.save({name: torch.ones(2, 3)})


@pytest.mark.parametrize("counts", [(2.0, 2), ("2", 2), (None, 2), (2, "2"), (2**70, 2)])
def test_token_numbers_that_cannot_be_meant(host, counts):
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(PrefixCacheArgumentError, match=r"num_tokens_(un)?padded is .*, expected"):
        host.manager.save_outputs(None, None, num_tokens_unpadded=counts[0], num_tokens_padded=counts[1])


def test_a_refused_save_does_not_settle_the_schedule_of_a_key(make_host):
    host = make_host()
    host.arrive("A", [99])
    host.begin({"A": 2})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"slots\[0\] is 396"):
        host.save({"d": host.outputs("d")})
    host.manager.register_policy(ModelCachePolicy(deferred_keys=frozenset({"d"})))
    host.view.tables["A"] = [0]
    host.read(host.save({"d": host.outputs("d")}), "A")
    assert host.states("d", [0, 1]) == [1, 1]  # they wait for the end of the request
    host.finish("A")
    host.begin({})
    eventually(lambda: host.states("d", [0, 1]) == [2, 2])


def test_a_refused_save_does_not_settle_a_key(make_host):
    """Neither its width nor its schedule: both may still change."""
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    with pytest.raises(PrefixCacheArgumentError, match="width 0"):
        host.save({"d": torch.ones(4, 2), "z": torch.ones(4, 0)}, hidden=torch.ones(4, 3))
    host.view.computed["A"] = 0
    host.manager.register_policy(ModelCachePolicy(deferred_keys=frozenset({"d"})))
    host.read(host.save({"d": host.outputs("d")}), "A")
    assert host.manager.stats()["pending_writes"] == 1  # deferred, as the policy of the first save says
    host.finish("A")
    host.arrive("B", [0, 2], hit=4)
    assert same(host.go({"B": 1}, ("d",)).mm_outputs["d"]["B"][:4], rows("A", 0, 4, "d"))


# ------------------------------------------------------------------------------- other


@pytest.mark.parametrize("name", ["gpu_staging_bytes", "copy_chunk_bytes"])
def test_a_cap_beyond_64_bits_is_a_large_cap(name):
    options = PrefixCacheConfig(num_blocks=4, block_size=4, **{name: 1 << 70}).options(eager=True)
    assert (options.staging_bytes if name == "gpu_staging_bytes" else options.copy_chunk_bytes) >= 1 << 61


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": None},
        {"num_blocks": "x"},
        {"block_size": math.inf},
        {"gpu_staging_bytes": math.nan},
        {"copy_chunk_bytes": None},
        {"staging_claim_timeout_s": None},
        {"staging_claim_timeout_s": "soon"},
    ],
)
def test_sizes_that_are_no_numbers_name_themselves(settings):
    with pytest.raises(PrefixCacheArgumentError, match=f"PrefixCacheConfig.{next(iter(settings))} is .*, expected"):
        OmniPrefixCacheManager(PrefixCacheConfig(**{"num_blocks": 4, "block_size": 4, **settings}), None, eager=True)


def test_a_signal_handler_that_raises_in_a_save_leaves_no_step_behind(make_host):
    """The handler runs when the library has saved already, and nobody gets the id."""
    host = make_host(staging_depth=1, staging_claim_timeout_s=2)
    host.arrive("A", [0])
    step = host.run({"A": 1})
    host.begin({"A": 1})

    def ring(*_):
        raise InterruptedError("alarm")

    before = signal.signal(signal.SIGALRM, ring)
    free = threading.Timer(0.3, lambda: host.manager.discard_step(step))
    try:
        free.start()
        with pytest.raises((InterruptedError, OmniPrefixCacheStagingTimeoutError)):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            host.save()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        free.join()
    assert unconsumed(host) == 0
    assert same(host.go({"A": 1}).hidden_states["A"], rows("A", 1, 2))


# --------------------------------------------------------------------------- the C ABI


@pytest.mark.parametrize("reads", ["flag", "null", "too many", "beyond memory", "overlap", "short"])
def test_o22_reads_that_the_library_refuses_use_the_step_up(host, reads):
    cache = host.manager._cache
    host.arrive("A", [0])
    host.arrive("B", [1])
    step = host.run({"A": 2, "B": 2})
    key, size = host.manager._keys.get("__hidden_states__").number, 2 * 6 * 4
    memory = bytearray(2 * size)
    at = _address(memory)
    packed = {
        "flag": [(key, 1, 0, 1, at, size)],
        "null": [],
        "too many": [(key, 0, 0, 1, at, size)],
        "beyond memory": [(key, 0, 0, 1, 2**64 - 8, size)],
        "overlap": [(key, 0, 0, 1, at, size), (key, 0, 1, 1, at + size - 1, size)],
        "short": [(key, 0, 0, 1, at, size - 1)],
    }[reads]
    count = {"null": 1, "too many": 2**60}.get(reads, len(packed))
    status = cache.library.omni_materialize(
        cache.handle, step, b"".join(_READ.pack(*read) for read in packed) or None, count
    )
    assert status in (INVALID_ARGUMENT, BUFFER_TOO_SMALL, UNSUPPORTED), cache.library.error_text()
    assert "expected" in cache.library.error_text() or "overlaps" in cache.library.error_text()
    assert unconsumed(host) == 0
    host.manager._steps.clear()


@pytest.mark.parametrize("place", ["rows", "dst"])
def test_memory_beyond_the_address_space_is_refused(host, place):
    """Not a panic, after which the cache would be unusable."""
    host.arrive("A", [0])
    host.begin({"A": 2})
    put = host.manager._cache.put_rows

    def beyond(i, key, address, stride, target, nbytes, *flags):
        if place == "rows":
            put(i, key, 2**64 - 8, stride, target, nbytes, *flags)
        else:
            put(i, key, address, stride, 2**64 - 8, nbytes, *flags)

    host.manager._cache.put_rows = beyond
    with pytest.raises(
        PrefixCacheArgumentError, match=r"(rows|dst) of key .* is 0xfffffffffffffff8, expected an address"
    ):
        host.save()
    host.manager._cache.put_rows = put
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 2))
