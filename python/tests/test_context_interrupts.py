"""A signal handler that raises (Ctrl-C, a timeout) anywhere in a call of the context cache.

As in test_omni_interrupts: at the first place of a call where CPython runs handlers, at the
second, ... until it gets through. What was interrupted can be dropped, nothing stays behind,
and the next request is served.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from context_host import Kind, Live, Rig, Status, prompt
from test_omni_interrupts import Interrupt, Library, Places

from prefixcache.context import ContextCacheManager, ReusePlanMode

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def quick_collections() -> Iterator[None]:
    """What was there before a test is not looked at again by each collection of it."""
    gc.freeze()
    yield
    gc.unfreeze()


# The way out: what is raised in there is the way out of another call, or a finalizer's.
CLEANING = {"_abandon", "_run_dropped", "drop", "_end", "__del__", "close", "_break_off"}


class Elsewhere(Places):
    """Places of a call, but for those of its way out."""

    def profile(self, frame: Any, event: str, argument: Any) -> None:
        inner = frame
        while inner is not None:
            if inner.f_code.co_name in CLEANING:
                return
            inner = inner.f_back
        super().profile(frame, event, argument)


class Watched(Library):
    """The library, whose calls on the way out are none of the places."""

    def __getattr__(self, name: str) -> Any:
        if name in ("context_abandon", "context_get_request", "manager_release"):
            return getattr(self._library, name)
        function = super().__getattr__(name)
        setattr(self, name, function)  # the same one each time, as the library has it
        return function


def interrupted(owner: Any, call: Callable[[], Any], last: int) -> tuple[bool, Any]:
    places = owner._library.places = Elsewhere(last)
    try:
        return True, places.run(call)
    except Interrupt:
        return False, None
    finally:
        sys.setprofile(None)
        owner._library.places = None


def watched(kind: Kind) -> Rig:
    rig = Rig(kind, pages=16, tokens_per_page=8)
    rig.coordinator._library = Watched(rig.coordinator._library)
    return rig


def to_settled(live: Live) -> None:
    live.prepare()
    live.compute()
    live.capture()
    live.finalize()


def to_decode(live: Live) -> None:
    to_settled(live)
    assert live.prepare_decode() is Status.OK


def to_compaction(live: Live) -> None:
    to_settled(live)
    assert live.rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1) is Status.OK


STEPS: dict[str, tuple[Callable[[Live], Any], Callable[[Live], Any]]] = {
    "prepare": (lambda _: None, Live.prepare),
    "capture": (lambda live: (live.prepare(), live.compute()), Live.capture),
    "finalize": (lambda live: (live.prepare(), live.compute(), live.capture()), Live.finalize),
    "prepare_decode": (to_settled, Live.prepare_decode),
    "complete": (to_decode, lambda live: live.complete([[8], [9]], [0])),
    "begin_compaction": (
        to_settled,
        lambda live: live.rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1),
    ),
    "compact": (to_compaction, lambda live: live.rig.coordinator.compact_batch(live.request)),
    "finish": (to_decode, Live.finish),
}


def nothing_is_left(rig: Rig) -> None:
    gc.collect()
    m = rig.coordinator.metrics()
    assert (m["active_requests"], m["quarantined_requests"], m["poisoned"]) == (0, 0, False)
    assert m["leases"] == 0
    assert rig.publish(prompt(20, 8)) is not None
    rig.close()


@pytest.mark.parametrize("kind", [Kind.EAGLE, Kind.HYBRID])
def test_interrupted_begins(kind):
    through, last = False, 0
    while not through:
        last += 1
        rig = watched(kind)
        admission = rig.admission(prompt(20), prompt(12, 1))
        through, begun = interrupted(rig.coordinator, lambda r=rig, a=admission: r.coordinator.begin_request(a), last)
        del begun
        nothing_is_left(rig)
    assert last > 30


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [Kind.EAGLE, Kind.HYBRID])
def test_interrupted_steps(kind, step):
    before, call = STEPS[step]
    through, last = False, 0
    while not through:
        last += 1
        rig = watched(kind)
        live = rig.begin(prompt(20), prompt(12, 1))
        before(live)
        through, _ = interrupted(rig.coordinator, lambda c=call, x=live: c(x), last)
        if last % 2:
            live.request.close()
        else:
            assert live.finish() is Status.OK
        nothing_is_left(rig)
    assert last > 3


def test_interrupted_leases():
    through, last = False, 0
    while not through:
        last += 1
        manager = ContextCacheManager(base_pages=16, tokens_per_page=4, draft_pages=16)
        manager._library = Watched(manager._library)
        through, found = interrupted(manager, lambda m=manager: m.acquire(prompt(10), mode=ReusePlanMode.SPEC), last)
        assert not through or found.lease.draft_pages()
        del found
        gc.collect()
        assert manager.metrics()["leases"] == 0
        assert manager.acquire(prompt(64)).lease
        manager.close()
    assert last > 20
