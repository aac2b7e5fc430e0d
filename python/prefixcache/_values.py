"""Settings as both caches read them."""

from __future__ import annotations

from typing import Any


def truth_of(value: Any) -> bool | None:
    """``value`` as a bool when it equals one, of any type; else None: a text that says no would be true."""
    try:
        for answer in (False, True):
            if value == answer:
                return answer
    except (TypeError, ValueError, RuntimeError):  # an array of several
        pass
    return None
