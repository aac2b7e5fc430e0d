"""A run as one JSON document: what ``--json`` writes and ``--compare`` reads.

format, version      "prefixcache.replay", 1
library              version of the package
trace                source (a file name, or how it was generated) and requests
parts                "omni" and "context", those that ran: options, pool, figures,
                     series (totals and gauges at some requests), latencies, and
                     reasons (context) or events (omni)
sweep                sizes with their hit rates, if there was a sweep
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixcache import __version__

FORMAT, VERSION = "prefixcache.replay", 1
#: Figures that are shares; the others are counts or seconds.
RATES = ("hit rate",)
_SERIES = ("request", "trace_ms", "prompt_tokens", "hit_tokens", "in_use", "cached", "evicted")
_LATENCY = ("calls", "p50_us", "p90_us", "p99_us", "max_us", "mean_us")
_SWEEP = ("page", "requests", "of_requests", "prompt_tokens", "longest_tokens", "unlimited")
_SIZE = ("pages", "tokens", "hit_rate", "least_recent")


class DocumentError(ValueError):
    """A file is not a run that was saved; the text says what it lacks."""


def new(source: str, requests: int) -> dict[str, Any]:
    """A document without results."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "library": __version__,
        "trace": {"source": source, "requests": requests},
        "parts": {},
        "sweep": None,
    }


def save(document: dict[str, Any], path: str | Path) -> None:
    """Write it. Raises OSError."""
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> dict[str, Any]:
    """Read one. Raises OSError, or DocumentError for anything but a run of this version."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise DocumentError(f"is no JSON ({e}), expected a run that --json saved") from e
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DocumentError(f"is no run that --json saved: expected an object with format {FORMAT!r}")
    if document.get("version") != VERSION:
        raise DocumentError(f"has version {document.get('version')!r}, expected {VERSION}")
    try:
        json.dumps(document, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
        _check(document)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise DocumentError(f"is incomplete ({type(e).__name__}: {e}), expected a run that --json saved") from e
    return document


def _check(document: dict[str, Any]) -> None:
    """Everything that a report reads is there and has its type."""
    trace = document["trace"]
    _texts(document["library"], trace["source"])
    _numbers(trace["requests"])
    for name, part in document["parts"].items():
        if name not in ("omni", "context"):
            raise ValueError(f"part {name!r}")
        _texts(part["verdict"], part["pool"]["unit"])
        _numbers(int(part["right"]), part["pool"]["capacity"])
        for counts in (part["options"], part["figures"], part.get("reasons", {}), part.get("events", {})):
            _numbers(*counts.values())
        series = part["series"]
        columns = [series[column] for column in _SERIES] if series["request"] else []
        for column in columns:
            _numbers(*column)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of its series differ in length")
        for latency in part["latencies"].values():
            _numbers(*(latency[key] for key in _LATENCY))
            for start, calls in latency["buckets_us"]:
                _numbers(start, calls)
    sweep = document["sweep"]
    if sweep is None:
        return
    _numbers(*(sweep[key] for key in _SWEEP), int(sweep["interrupted"]))
    if sweep["page"] < 1:
        raise ValueError("pages of no tokens")
    if not sweep["sizes"]:
        raise ValueError("a sweep without sizes")
    for size in sweep["sizes"]:
        _numbers(*(size[key] for key in _SIZE), *([] if size["optimal"] is None else [size["optimal"]]))


def _texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not a text")


def _numbers(*values: object) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 63:
            raise TypeError(f"{value!r} is not a number")


def comparison_lines(this: dict[str, Any], other: dict[str, Any], name: str) -> list[str]:
    """The figures of two runs side by side, for a terminal."""
    lines = [f"{'':<34}{'this run':>18}{name[-18:]:>20}{'difference':>14}"]
    for part in this["parts"]:
        if part not in other["parts"]:
            continue
        a, b = this["parts"][part], other["parts"][part]
        rows = [(f"{key}", value, b["figures"].get(key)) for key, value in a["figures"].items()]
        for call, latency in a["latencies"].items():
            if call in b["latencies"]:
                rows += [
                    (f"{call} {q}, us", latency[f"{q}_us"], b["latencies"][call][f"{q}_us"]) for q in ("p50", "p99")
                ]
        lines.append(part)
        lines += [_compared(*row) for row in rows]
    if this["sweep"] and other["sweep"]:
        rates = [{size["tokens"]: size["hit_rate"] for size in run["sweep"]["sizes"]} for run in (this, other)]
        lines.append("hit rate with a capacity of so many tokens")
        lines += [
            _compared(f"{t:,}", rates[0].get(t), rates[1].get(t), rate=True) for t in sorted({*rates[0], *rates[1]})
        ]
    return lines if len(lines) > 1 else ["the two runs have no part in common"]


def _compared(name: str, this: float | None, other: float | None, rate: bool = False) -> str:
    apart = difference("hit rate" if rate else name, this, other)
    return f"  {name:<32}{number(this):>18}{number(other):>20}{apart:>14}"


def number(value: float | None) -> str:
    """A figure as readers like it."""
    if value is None:
        return "-"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4f}" if abs(value) < 1 else f"{value:,.1f}"


def difference(name: str, this: float | None, other: float | None) -> str:
    """How far two figures are apart: points for a rate, else percent of the other one."""
    if this is None or other is None:
        return "-"
    if name in RATES:
        return f"{100 * (this - other):+.2f} pt"
    if this == other:
        return "same"
    return f"{100 * (this - other) / other:+.1f} %" if other else "new"
