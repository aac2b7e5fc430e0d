"""What moves which metric, and by how much: scenarios say so beforehand.

They are in metrics_omni.py and metrics_context.py. Times are left out: they have tests
of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import exposition

from prefixcache.metrics import prometheus_text

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = (REPOSITORY / "capi" / "metrics_table.go").read_text()
NAMES = re.findall(r'^\tm\w+:\s+\{"(\w+)", (?:counter|gauge), ', TABLE, re.MULTILINE)

# Sizes of address space, results of the host, and whatever a clock or another thread decides.
LOOSE = re.compile(r"(reserved_bytes|\w+_seconds(_total)?|result_buffer\w+|waits_total cause=lock)( |$)")

Expected = dict[str, float]
SCENARIOS: list[tuple[Expected, Callable]] = []


def moves(**expected: float) -> Callable:
    """expected: series -> change. ``copy_bytes_total__direction_save`` is a series with a label."""

    def register(scenario: Callable) -> Callable:
        SCENARIOS.append(({name.replace("__", " ").replace("_is_", "="): n for name, n in expected.items()}, scenario))
        return scenario

    return register


def short(series: exposition.Series) -> str:
    name, labels = series
    shown = [f"{k}={v}" for k, v in sorted(labels) if k != "cache"]
    return " ".join([name.removeprefix("prefixcache_"), *shown])


class Watch:
    """Remembers what changed on the page while a block ran."""

    def __init__(self) -> None:
        self.changes: Expected = {}

    @contextmanager
    def __call__(self, cache: object) -> Iterator[None]:
        before = exposition.read(prometheus_text(cache)).samples
        yield
        after = exposition.read(prometheus_text(cache)).samples
        changes = {
            short(s): round(after.get(s, 0) - before.get(s, 0), 9)
            for s in before.keys() | after.keys()
            if after.get(s, 0) != before.get(s, 0)
        }
        self.changes = {s: n for s, n in changes.items() if not LOOSE.match(s)}
