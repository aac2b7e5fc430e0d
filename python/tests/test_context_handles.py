"""The request handle: closed, dropped and finished in every phase, drained or not; the
synchroniser that fails, throws, blocks; poison, quarantine, shutdown."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass

import pytest
from context_host import STREAM, Kind, Live, Rig, Status, prompt

from prefixcache import PrefixCacheError
from prefixcache.context import Phase

BUSY = -36


@dataclass(frozen=True)
class Place:
    """A point of a request's walk, and whether device work may be in flight there."""

    name: str
    kind: Kind
    pending: bool

    def reach(self, rig: Rig) -> Live:
        live = rig.begin(prompt(300), prompt(200, 1))
        order = ["admitted", "prefill", "captured", "settled"]
        at = order.index(self.name) if self.name in order else 3
        live.prepare() if at >= 1 else None
        live.compute() if at >= 1 else None
        live.capture() if at >= 2 else None
        live.finalize() if at >= 3 else None
        c = rig.coordinator
        if self.name == "decode":
            assert live.prepare_decode() is Status.OK
        elif self.name in ("compaction", "finishing"):
            keep = 1 if self.name == "compaction" else 0
            assert c.begin_batch_compaction(live.request, [0, -1] if keep else [-1, -1], keep) is Status.OK
            if self.name == "finishing":
                assert c.compact_batch(live.request) is Status.OK
        rig.sync.calls = 0
        return live


PLACES = [
    *(Place("admitted", kind, False) for kind in Kind),
    *(Place("prefill", kind, True) for kind in Kind),
    *(Place("captured", kind, True) for kind in Kind),
    *(Place("settled", kind, kind == Kind.EAGLE) for kind in Kind),  # EAGLE: the prompt is frozen
    *(Place("decode", kind, True) for kind in Kind),
    *(Place("compaction", kind, True) for kind in Kind),
    *(Place("finishing", kind, False) for kind in Kind),
]
PENDING = [p for p in PLACES if p.pending]


def ids(place: Place) -> str:
    return f"{place.name}-{place.kind.name.lower()}"


def nothing_is_held(rig: Rig) -> None:
    assert rig.coordinator.metrics()["active_requests"] == 0
    rig.emptied()


@pytest.mark.parametrize("place", PLACES, ids=ids)
@pytest.mark.parametrize("way", ["close", "with", "del", "raise"])
def test_c104_dropped_and_drained(place, way):
    rig = Rig(place.kind)
    live = place.reach(rig)
    assert live.request.inspect().device_work_pending == place.pending
    records = rig.manager.records()
    if way == "close":
        live.request.close()
        live.request.close()
    elif way == "with":
        with live.request:
            pass
    elif way == "raise":
        with pytest.raises(ZeroDivisionError), live.request:
            raise ZeroDivisionError
    else:
        live.begun = live.request = None  # the last references
    assert rig.sync.calls == int(place.pending)
    assert rig.manager.records() == records, "dropping publishes nothing"
    assert not rig.coordinator.metrics()["poisoned"]
    nothing_is_held(rig)
    assert rig.publish(prompt(150, 8)) == [0]
    rig.close()


@pytest.mark.parametrize("place", PLACES, ids=ids)
@pytest.mark.parametrize("fault", ["code", "exception", "del"])
def test_c105_dropped_and_not_drained(place, fault):
    rig = Rig(place.kind)
    live = place.reach(rig)
    owned = {name: pool["active"] for name, pool in rig.pools().items()}
    rig.sync.answer = 700
    rig.sync.error = OSError("the driver is gone") if fault == "exception" else None
    if fault == "del":
        live.begun = live.request = None  # the last references
    else:
        live.request.close()
    m = rig.coordinator.metrics()
    assert m["poisoned"] == place.pending
    assert m["active_requests"] == m["quarantined_requests"] == int(place.pending)
    if not place.pending:
        nothing_is_held(rig)
        return
    assert {name: pool["active"] for name, pool in rig.pools().items()} == owned, "all of it stays owned"
    assert rig.refused(prompt(4, 3)) is Status.POISONED
    assert rig.coordinator.shutdown() is Status.POISONED
    with pytest.raises(PrefixCacheError) as e:
        rig.coordinator.close()
    assert e.value.status == BUSY
    rig.sync.answer, rig.sync.error = 0, None
    assert rig.coordinator.shutdown() is Status.OK
    assert rig.coordinator.shutdown() is Status.OK, "C-107: repeatable"
    nothing_is_held(rig)
    assert rig.refused(prompt(4, 3)) is Status.POISONED, "C-106, D-7: for good"
    assert rig.coordinator.metrics()["poisoned"]
    rig.close()


def test_c106_what_is_wrong_with_the_coordinator_comes_before_what_is_wrong_with_the_batch():
    """13.3 asks for the stream and the policies, then for poison and a live request, and only then looks at the batch."""
    rig = Rig(Kind.HYBRID)
    live = rig.begin(prompt(20))
    begin = rig.coordinator.begin_request
    for answer in (Status.REQUEST_FAILED, Status.POISONED):
        for batch in ([], [prompt(4, seed) for seed in range(99)], [[]], [prompt(100_000)]):
            assert rig.refused(*batch) is answer, f"a batch of {len(batch)}"
            for policy, stream in (("execution_mode", STREAM), ("lookup_policy", STREAM), ("stream", STREAM + 1)):
                admission = rig.admission(*batch)
                if policy != "stream":
                    setattr(admission, policy, 7)
                with pytest.raises(PrefixCacheError, match=policy.replace("_", " ")):
                    begin(admission, stream)
        if answer is Status.REQUEST_FAILED:
            live.prepare()
            rig.sync.answer = 700
            assert live.finish() is Status.POISONED
            rig.sync.answer = 0
            assert rig.coordinator.shutdown() is Status.OK
    rig.close()


@pytest.mark.parametrize("place", PLACES, ids=ids)
def test_c103_finished_anywhere(place):
    rig = Rig(place.kind)
    live = place.reach(rig)
    assert live.finish() is Status.OK
    assert rig.sync.calls == int(place.pending)
    assert not live.request.valid()
    assert live.finish() is Status.OK, "an empty handle is fine"
    live.request.close()
    if place.name == "settled" and place.kind == Kind.EAGLE:
        assert len(rig.manager.records()) == 2, "a prompt-only EAGLE request publishes at its end"
    nothing_is_held(rig)
    assert rig.coordinator.shutdown() is Status.OK
    rig.close()


@pytest.mark.parametrize("place", PENDING, ids=ids)
def test_a_throwing_synchronizer_passes_through_finish_and_it_can_be_repeated(place):
    rig = Rig(place.kind)
    live = place.reach(rig)
    rig.sync.error = OSError("not now")
    for _ in range(2):
        with pytest.raises(OSError, match="not now"):
            live.finish()
        assert live.request.valid()
    rig.sync.error = None
    assert live.finish() is Status.OK
    assert not rig.coordinator.metrics()["poisoned"]
    nothing_is_held(rig)


@pytest.mark.parametrize("place", PENDING, ids=ids)
def test_a_failed_synchronization_in_finish_poisons(place):
    rig = Rig(place.kind)
    live = place.reach(rig)
    records = rig.manager.records()
    rig.sync.answer = 700
    assert live.finish() is Status.POISONED
    assert not live.request.valid()
    assert live.finish() is Status.OK
    assert rig.manager.records() == records, "nothing of it is published"
    assert rig.coordinator.metrics()["quarantined_requests"] == 1
    rig.sync.answer = 0
    assert rig.coordinator.shutdown() is Status.OK
    nothing_is_held(rig)


STEPS_THAT_SYNCHRONIZE = [
    ("compact", Kind.VANILLA),
    ("compact", Kind.HYBRID),
    ("compact", Kind.EAGLE),
    ("begin_compaction", Kind.EAGLE),
    ("complete", Kind.HYBRID),
    ("complete", Kind.PURE_RECURRENT),
]


def last_step(rig, name):
    """A request brought before its synchronising step, and that step."""
    place = {"compact": "compaction", "begin_compaction": "settled", "complete": "decode"}[name]
    live = Place(place, rig.kind, True).reach(rig)
    c = rig.coordinator
    return live, {
        "compact": lambda: c.compact_batch(live.request),
        "begin_compaction": lambda: c.begin_batch_compaction(live.request, [0, -1], 1),
        "complete": lambda: live.complete([[5], [6]], [0, 1]),
    }[name]


@pytest.mark.parametrize("name, kind", STEPS_THAT_SYNCHRONIZE)
def test_a_failed_synchronization_in_a_step_poisons(name, kind):
    rig = Rig(kind)
    live, step = last_step(rig, name)
    records = rig.manager.records()
    rig.sync.answer = 700
    assert step() is Status.POISONED
    assert not live.request.valid()
    assert rig.manager.records() == records
    assert rig.refused(prompt(4, 3)) is Status.POISONED
    rig.sync.answer = 0
    assert rig.coordinator.shutdown() is Status.OK
    nothing_is_held(rig)


@pytest.mark.parametrize("name, kind", STEPS_THAT_SYNCHRONIZE)
def test_a_throwing_synchronizer_breaks_a_step_off(name, kind):
    rig = Rig(kind)
    live, step = last_step(rig, name)
    rig.sync.error = OSError("not now")
    with pytest.raises(OSError, match="not now"):
        step()
    assert live.request.valid()
    assert not rig.coordinator.metrics()["poisoned"]
    rig.sync.error = None
    if name == "begin_compaction":  # D-15: nothing is begun, the request goes on
        assert live.request.inspect().pending_compaction_batch_size == -1
        assert rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1) is Status.OK
        assert rig.coordinator.compact_batch(live.request) is Status.OK
    else:
        with pytest.raises(PrefixCacheError):
            live.prepare_decode()
    assert live.finish() is Status.OK
    nothing_is_held(rig)


@pytest.mark.parametrize("call", ["reset", "compact", "batch"])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("end", ["finish", "close"])
def test_faults_of_the_cache_manager_pass_through(call, kind, end):
    rig = Rig(kind)
    rig.base.fail_on = call
    live = rig.begin(prompt(300), prompt(200, 1))
    if call == "reset":
        with pytest.raises(OSError, match="injected"):
            rig.coordinator.prepare_prefill(live.request)
    else:
        live.prefill()
        rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1)
        with pytest.raises(OSError, match="injected"):
            rig.coordinator.compact_batch(live.request)
    assert live.request.valid()
    with pytest.raises(PrefixCacheError):
        live.prepare_decode()
    rig.base.fail_on = ""
    rig.sync.calls = 0
    assert live.finish() is Status.OK if end == "finish" else live.request.close() is None
    assert rig.sync.calls == 1, "whatever was enqueued is drained"
    nothing_is_held(rig)


@pytest.mark.parametrize("answer", [True, False, "0", 1.5])
def test_an_answer_of_the_synchronizer_that_is_none(answer):
    """True could mean either, so it is no success."""
    rig = Rig()
    live = Place("decode", Kind.VANILLA, True).reach(rig)
    rig.sync.answer = answer
    with pytest.raises(PrefixCacheError, match="synchronizer"):
        live.finish()
    live.request.close()
    assert rig.coordinator.metrics()["poisoned"]
    rig.sync.answer = None  # what a Python function returns that just waits
    assert rig.coordinator.shutdown() is Status.OK
    nothing_is_held(rig)


def test_a_blocking_synchronizer_keeps_the_pages_owned():
    rig = Rig()
    live = Place("prefill", Kind.VANILLA, True).reach(rig)
    owned = rig.pools()["base_pages"]["active"]
    inside, go_on = threading.Event(), threading.Event()
    rig.sync.hook = lambda: (inside.set(), go_on.wait(60))
    closing = threading.Thread(target=live.request.close)
    closing.start()
    assert inside.wait(60)
    assert rig.pools()["base_pages"]["active"] == owned
    assert rig.manager.lookup(prompt(300)).reuse_token_length == 0
    begun = []
    other = threading.Thread(target=lambda: begun.append(rig.begin(prompt(9, 9))))
    other.start()
    other.join(0.05)
    assert not begun, "a step waits for the one under way"
    go_on.set()
    closing.join(60)
    other.join(60)
    assert begun
    rig.sync.hook = None
    begun[0].request.close()
    nothing_is_held(rig)


def test_calls_from_inside_a_callback_are_refused_and_closing_waits():
    rig = Rig(requests=2)
    other = rig.begin(prompt(9, 9), slots=[3])
    live = rig.begin(prompt(300), slots=[0])
    seen = []

    def inside(lengths, slots, stream):
        for call in (
            lambda: rig.begin(prompt(5, 5), slots=[2]),
            lambda: rig.coordinator.prepare_prefill(other.request),
            rig.coordinator.shutdown,
            rig.coordinator.close,
        ):
            with pytest.raises(PrefixCacheError, match="inside another step") as e:
                call()
            assert e.value.status == BUSY
        seen.append(live.request.inspect())  # queries are fine
        other.request.close()
        live.request.close()
        assert not live.request.valid()
        seen.append(rig.coordinator.metrics()["active_requests"])

    rig.base.reset_for_new_sequences = inside
    assert rig.coordinator.prepare_prefill(live.request) is Status.OK
    assert seen[1] == 2, "both wait for the end of the step"
    nothing_is_held(rig)


def test_a_handle_collected_inside_a_step_of_the_same_thread():
    rig = Rig(requests=2)
    live = rig.begin(prompt(300), slots=[0])
    dropped = [rig.begin(prompt(9, 9), slots=[3])]
    rig.base.reset_for_new_sequences = lambda *_: (dropped.clear(), gc.collect())
    assert rig.coordinator.prepare_prefill(live.request) is Status.OK
    assert rig.coordinator.metrics()["active_requests"] == 1
    live.request.close()
    nothing_is_held(rig)


def test_handles_closed_by_many_threads_at_once():
    rig = Rig(requests=8, max_batch=8, pages=64, width=4)
    for _ in range(20):
        lives = [rig.begin(prompt(200, i), slots=[i]) for i in range(8)]
        for live in lives[::2]:
            live.prepare()
        threads = [threading.Thread(target=live.request.close) for live in lives for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    nothing_is_held(rig)


def test_c82_empty_and_foreign_handles():
    one, two = Rig(), Rig()
    live, own = one.begin(prompt(9)), two.begin(prompt(9))
    for step in (
        lambda c, r: c.prepare_prefill(r),
        lambda c, r: c.enqueue_prefill_captures(r),
        lambda c, r: c.finalize_prefill_publication(r, []),
        lambda c, r: c.prepare_decode_step(r),
        lambda c, r: c.complete_decode_step(r, []),
        lambda c, r: c.begin_batch_compaction(r, [0], 1),
        lambda c, r: c.compact_batch(r),
        lambda c, r: c.finish(r),
    ):
        with pytest.raises(PrefixCacheError):
            step(two.coordinator, live.request)
    live.request.close()
    with pytest.raises(PrefixCacheError, match="empty"):
        one.coordinator.prepare_prefill(live.request)
    with pytest.raises(PrefixCacheError, match="empty"):
        live.request.inspect()
    assert one.coordinator.finish(live.request) is Status.OK
    assert own.request.inspect().phase is Phase.ADMITTED
    own.request.close()


def test_c81_one_request_at_a_time_unless_asked_for_more():
    rig = Rig()
    live = rig.begin(prompt(9))
    assert rig.refused(prompt(9, 1)) is Status.REQUEST_FAILED
    assert rig.coordinator.shutdown() is Status.REQUEST_FAILED
    with pytest.raises(PrefixCacheError) as e:
        rig.coordinator.close()
    assert e.value.status == BUSY
    live.request.close()
    assert rig.coordinator.shutdown() is Status.OK
    rig.begin(prompt(9)).request.close()
    rig.close()
    rig.coordinator.close()  # repeatable


def test_quarantined_requests_keep_their_place():
    rig = Rig(requests=2)
    first = rig.begin(prompt(300), slots=[0])
    second = rig.begin(prompt(300, 1), slots=[1])
    first.prepare()
    second.prepare()
    rig.sync.answer = 700
    first.request.close()
    assert second.finish() is Status.POISONED
    assert rig.coordinator.metrics()["quarantined_requests"] == 2
    assert rig.coordinator.metrics()["active_requests"] == 2
    rig.sync.answer = 0
    assert rig.coordinator.shutdown() is Status.OK
    nothing_is_held(rig)


def test_a_coordinator_that_goes_away_with_its_requests():
    """The collector takes the cycle; live requests are drained first, quarantined ones
    leave their memory behind."""
    from prefixcache.context import coordinator as module

    rig = Rig()
    live = Place("decode", Kind.VANILLA, True).reach(rig)
    calls = rig.sync
    live.self = live  # a cycle
    table = rig.table
    del live, rig
    gc.collect()
    assert calls.calls == 1
    table.close()  # nobody uses it any longer

    rig = Rig()
    live = Place("decode", Kind.VANILLA, True).reach(rig)
    rig.sync.answer = 700
    resources = rig.coordinator._resources
    live.request.close()
    del live, rig
    gc.collect()
    assert module._stranded[-1] is resources
    with pytest.raises(PrefixCacheError):
        resources.base_page_table.close()
