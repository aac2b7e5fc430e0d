"""A signal handler that raises (Ctrl-C, a timeout) anywhere in a call.

CPython runs handlers when a function begins and when a C function returns, so that is where
these tests raise: at the first such place of a call, at the second, ... until it gets through.
Whatever the host does next has to work, with the right rows.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from omni_host import Host, rows, same

from prefixcache.omni import ModelCachePolicy

# A generator that is closed by an interrupt may meet the next place.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

POLICY = ModelCachePolicy(deferred_keys=frozenset({"d"}))


# What finalizers raise is reported and goes no further.
UNHEARD = ("_destroy", "_give_back")


class Interrupt(BaseException):
    """Like KeyboardInterrupt, which pytest would take for itself."""


class Places:
    """Raises at the ``last``-th place of a call."""

    def __init__(self, last: int) -> None:
        self.left = last

    def reach(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupt

    def profile(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        ours = "/prefixcache/" in code.co_filename and code.co_name not in UNHEARD
        if ours and event in ("call", "c_return"):
            self.reach()

    def run(self, call: Callable[[], Any]) -> Any:
        """No collection falls into the call: a finalizer of another test's could meet the place, and
        CPython 3.11, which collects where it is about to call the profiler, calls one that is freed."""
        profile = self.profile
        gc.disable()
        sys.setprofile(profile)
        try:
            return call()
        finally:
            sys.setprofile(None)
            gc.enable()


class Library:
    """The library, whose functions the profiler does not see return."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.places: Places | None = None

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)

        def call(*args: Any) -> Any:
            result = function(*args)
            if self.places is not None:
                self.places.reach()
            return result

        return call


def interrupted(host: Host, call: Callable[[], Any], last: int) -> tuple[bool, Any]:
    """Whether the call got through, and what it returned."""
    places = host.manager._cache.library.places = Places(last)
    try:
        return True, places.run(call)
    except Interrupt:
        return False, None
    finally:
        host.manager._cache.library.places = None


def outputs(host: Host) -> dict[str, object]:
    return {"k": host.outputs("k"), "d": host.outputs("d"), "left": [torch.ones(2)]}


def check_b(out: Any) -> None:
    assert same(out.hidden_states["B"], torch.cat([rows("A", 0, 4), rows("B", 4, 5)]))
    for key in ("k", "d"):
        assert same(out.mm_outputs[key]["B"], torch.cat([rows("A", 0, 4, key), rows("B", 4, 5, key)]))


def begun(make_host: Callable[..., Host]) -> Host:
    """X is live, A left its rows, B hits them; the step with both is to begin."""
    host = make_host(policy=POLICY, staging_depth=1, staging_claim_timeout_s=0)
    host.manager._cache.library = Library(host.manager._cache.library)
    host.arrive("A", [0, 5])
    host.arrive("X", [3, 6])
    host.go({"A": 4, "X": 1}, ("k", "d"))
    host.finish("A")
    host.arrive("B", [0, 1], hit=4)
    return host


def goes_on(host: Host) -> None:
    """Other requests are served, and the only staging slot is free."""
    host.finish("B")
    host.arrive("D", [0, 7], hit=4)
    out = host.go({"D": 1, "X": 1}, ("k", "d"))
    assert same(out.hidden_states["D"], torch.cat([rows("A", 0, 4), rows("D", 4, 5)]))
    assert host.manager.stats()["unconsumed_steps"] == 0
    assert not host.manager._steps


@pytest.mark.parametrize("retry", [True, False])
def test_interrupted_step_starts(make_host, retry):
    through, last = False, 0
    while not through:
        last += 1
        host = begun(make_host)
        through, _ = interrupted(host, lambda h=host: h.begin({"B": 1, "X": 1}), last)
        if retry and not through:
            host.begin({"B": 1, "X": 1})
        if retry or through:
            check_b(host.read(host.save(outputs(host)), "X", "B"))
        else:  # the step is given up
            host._arrivals.clear()
        goes_on(host)
    assert last > 20


def test_interrupted_saves(make_host):
    through, last = False, 0
    while not through:
        last += 1
        host = begun(make_host)
        host.begin({"B": 1, "X": 1})
        through, step = interrupted(host, lambda h=host: h.save(outputs(h)), last)
        if through:
            check_b(host.read(step, "X", "B"))
        else:
            host.view.computed["X"] += 1  # it may or may not be saved: the step is given up
        goes_on(host)
    assert last > 50


@pytest.mark.parametrize("call", ["materialize", "discard_step"])
def test_interrupted_consumers(make_host, call):
    through, last = False, 0
    while not through:
        last += 1
        host = begun(make_host)
        host.begin({"B": 1, "X": 1})
        step = host.save(outputs(host))
        consume = (
            (lambda h=host, s=step: h.read(s, "X", "B"))
            if call == "materialize"
            else (lambda h=host, s=step: h.manager.discard_step(s))
        )
        through, out = interrupted(host, consume, last)
        if through and out is not None:
            check_b(out)
        if not through and step in host.manager._steps:  # it was not used up yet
            check_b(host.read(step, "B"))
        goes_on(host)
    assert last > 3


def test_an_interrupted_save_leaves_the_former_step_to_its_reader(make_host):
    through, last = False, 0
    while not through:
        last += 1
        host = make_host(staging_depth=2, staging_claim_timeout_s=0)
        host.manager._cache.library = Library(host.manager._cache.library)
        host.arrive("A", [0, 1])
        first = host.run({"A": 3}, ("k",))
        host.begin({"A": 1})
        through, second = interrupted(host, lambda h=host: h.save({"k": h.outputs("k")}), last)
        assert same(host.read(first, "A").hidden_states["A"], rows("A", 0, 3))
        if through:
            assert same(host.read(second, "A").hidden_states["A"], rows("A", 3, 4))
        assert host.manager.stats()["unconsumed_steps"] == 0
