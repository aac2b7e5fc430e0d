"""Settings as both caches read them."""

from __future__ import annotations

from array import array
from typing import Any


def misfit(values: Any, code: str) -> str:
    """Where the first of ``values`` is that no array of this type takes, and which: ``[2]: 'x'``; else all of them."""
    room = array(code, [0])
    try:
        for i, value in enumerate(() if iter(values) is values else values):  # an iterator is used up
            try:
                room[0] = value
            except (TypeError, OverflowError):
                return f"[{i}]: {value!r}"
    except TypeError:
        pass
    return f": {values!r}"


def truth_of(value: Any) -> bool | None:
    """``value`` as a bool when it equals one, of any type; else None: a text that says no would be true."""
    try:
        for answer in (False, True):
            if value == answer:
                return answer
    except (TypeError, ValueError, RuntimeError):  # an array of several
        pass
    return None
