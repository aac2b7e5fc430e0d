"""Charts of a report as plain data for page.js, and the numbers behind them as tables.

Two runs that are compared share a chart: the other one is dashed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_WINDOWS = 40  # stretches of a run whose own hit rate is drawn
_ROWS = 10  # of a table beside a chart


@dataclass
class Table:
    """A caption, column heads and rows of text. The first column names the row."""

    caption: str
    head: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    shares: list[float] | None = None  # a bar below each row's name
    words: bool = False  # the last column is prose


@dataclass
class Chart:
    """``spec`` is what page.js draws; ``tables`` say the same in numbers."""

    title: str
    spec: dict[str, Any]
    tables: list[Table]
    note: str = ""


#: A run and what it is called in legends: "" for the only one.
Runs = Sequence[tuple[str, dict[str, Any]]]


def line(name: str, run: int, colour: int, points: Sequence[Sequence[float]]) -> dict[str, Any]:
    """One line of a chart. ``run`` 1 is dashed."""
    return {"name": name, "colour": colour, "dashed": run == 1, "points": [list(p) for p in points]}


def named(name: str, run: str) -> str:
    """A line's name, with the run where there are two."""
    return f"{name}, {run}" if run else name


def axis(label: str, form: str, scale: str = "linear", top: float | None = None) -> dict[str, Any]:
    """``form``: percent, count or us. ``top``: the axis goes up to this at least."""
    return {"label": label, "format": form, "scale": scale, "top": top}


def hit_rate(runs: Runs) -> Chart:
    """Of each stretch, and since the start."""
    lines, tables = [], []
    for i, (run, part) in enumerate(runs):
        s = part["series"]
        at, prompt, hit = s["request"], s["prompt_tokens"], s["hit_tokens"]
        since = [(x, h / p) for x, p, h in zip(at, prompt, hit, strict=True) if p]
        lines.append(line(named("of the last stretch", run), i, 1, list(_rates(at, hit, prompt, _WINDOWS))))
        lines.append(line(named("since the start", run), i, 2, since))
        clock = dict(zip(at, s["trace_ms"], strict=True))
        timed = any(s["trace_ms"])
        head = ["requests", "trace time", "stretch", "since start"]
        table = Table(named("Hit rate", run), head if timed else [head[0], *head[2:]])
        whole = dict(since)
        for x, rate in _rates(at, hit, prompt, _ROWS):
            time = [hours(clock[x])] if timed else []
            table.rows.append([f"{x:,}", *time, percent(rate), percent(whole.get(x, 0.0))])
        tables.append(table)
    spec = {
        "kind": "lines",
        "x": axis("requests", "count"),
        "y": axis("hit tokens of prompt tokens", "percent"),
        "lines": lines,
    }
    return Chart("Hit rate", spec, tables)


def occupancy(runs: Runs) -> Chart:
    """What the pool holds."""
    lines, tables = [], []
    unit = runs[0][1]["pool"]["unit"]
    top = max(part["pool"]["capacity"] for _, part in runs)
    for i, (run, part) in enumerate(runs):
        s, capacity = part["series"], part["pool"]["capacity"]
        full = [a + b for a, b in zip(s["in_use"], s["cached"], strict=True)]
        lines.append(line(named("in use or cached", run), i, 1, list(zip(s["request"], full, strict=True))))
        lines.append(line(named("in use by requests", run), i, 2, list(zip(s["request"], s["in_use"], strict=True))))
        table = Table(named(f"Of {capacity:,} {unit}", run), ["requests", "in use", "cached", "free"])
        for k in _spread(len(full)):
            values = (s["request"][k], s["in_use"][k], s["cached"][k], capacity - full[k])
            table.rows.append([f"{v:,}" for v in values])
        tables.append(table)
    spec = {"kind": "lines", "x": axis("requests", "count"), "y": axis(unit, "count", top=top), "lines": lines}
    return Chart("Pool occupancy", spec, tables)


def evictions(runs: Runs) -> Chart:
    """Cached pages or blocks that were taken for something else."""
    lines, tables = [], []
    unit = runs[0][1]["pool"]["unit"]
    for i, (run, part) in enumerate(runs):
        s = part["series"]
        at, evicted = s["request"], s["evicted"]
        lines.append(line(named(f"{unit} a request", run), i, 1, list(_rates(at, evicted, at, _WINDOWS))))
        table = Table(named("Evicted", run), ["requests", f"{unit} a request", f"{unit} so far"])
        total = dict(zip(at, evicted, strict=True))
        for x, rate in _rates(at, evicted, at, _ROWS):
            table.rows.append([f"{x:,}", f"{rate:,.1f}", f"{total[x]:,}"])
        tables.append(table)
    spec = {
        "kind": "lines",
        "x": axis("requests", "count"),
        "y": axis(f"{unit} a request", "count", top=1),
        "lines": lines,
    }
    return Chart("Evictions", spec, tables)


def latency(call: str, runs: Runs) -> Chart:
    """How long one call took, as shares of its calls."""
    lines = []
    quantiles = [
        ("median", "p50_us"),
        ("90 %", "p90_us"),
        ("99 %", "p99_us"),
        ("mean", "mean_us"),
        ("longest", "max_us"),
    ]
    table = Table(f"{call}, a call", ["", *(run or "µs" for run, _ in runs)])
    rows = [[name] for name, _ in quantiles] + [["calls"]]
    for i, (run, part) in enumerate(runs):
        measured = part["latencies"].get(call)
        if measured is None:
            cells = ["-"] * len(rows)
        else:
            lines.append(line(run or call, i, 2 if i else 1, _outline(measured)))
            cells = [micros(measured[key]) + (" µs" if run else "") for _, key in quantiles] + [
                f"{measured['calls']:,}"
            ]
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    table.rows = list(rows)
    spec = {
        "kind": "lines",
        "x": axis("time of a call", "us", "log"),
        "y": axis("of the calls", "percent"),
        "lines": lines,
    }
    return Chart(call, spec, [table])


def sweep(runs: Runs) -> Chart:
    """Hit rate against capacity, and the bounds."""
    lines, tables = [], []
    note = ""
    # Pages of two sizes have nothing in common but what they hold.
    unit = "pages" if len({document["sweep"]["page"] for _, document in runs}) == 1 else "tokens"
    ticks = sorted({z[unit] for _, document in runs for z in document["sweep"]["sizes"]})
    for i, (run, document) in enumerate(runs):
        s = document["sweep"]
        sizes = s["sizes"]
        for key, name, colour in (
            ("hit_rate", "library", 1),
            ("least_recent", "least-recent bound", 2),
            ("optimal", "optimal bound", 3),
        ):
            points = [(z[unit], z[key]) for z in sizes if z[key] is not None]
            if points:
                # The library often lies on the least-recent bound: a wide line shows below it.
                lines.append({**line(named(name, run), i, colour, points), "wide": key == "least_recent"})
        table = Table(named("Hit rate", run), ["pages", "M tokens", "library", "least-recent", "optimal"])
        for z in sizes:
            rates = (z["hit_rate"], z["least_recent"], z["optimal"])
            table.rows.append([f"{z['pages']:,}", f"{z['tokens'] / 1e6:,.3g}", *map(percent, rates)])
        table.rows.append(["unlimited", "", "", percent(s["unlimited"]), percent(s["unlimited"])])
        tables.append(table)
        note = note or (
            f"{s['requests']:,} requests with {s['prompt_tokens']:,} prompt tokens; pages of {s['page']} tokens. The "
            f"longest request needs {-(-s['longest_tokens'] // s['page']):,} pages by itself. The bounds keep blocks of "
            "512 tokens, the grain of the trace; the optimal one knows the future. Requests run one after the other: add "
            "the pages that your live requests hold."
            + (
                f" Interrupted: {s['of_requests']:,} requests were asked for, and the optimal bound needs all of them."
                if s["interrupted"]
                else ""
            )
        )
    spec = {
        "kind": "lines",
        "marks": True,
        "x": {**axis(unit, "count", "log"), "ticks": ticks},
        "y": axis("hit tokens of prompt tokens", "percent"),
        "lines": lines,
    }
    return Chart("Hit rate against capacity", spec, tables, note)


def percent(rate: float | None) -> str:
    """A share, or a dash."""
    return "-" if rate is None else f"{100 * rate:.2f} %"


def micros(value: float) -> str:
    """Microseconds with three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def hours(milliseconds: float) -> str:
    """Hours, minutes and seconds since the start of a trace."""
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _spread(length: int, count: int = _ROWS) -> list[int]:
    """Indexes of up to ``count`` samples, evenly spaced, the last one included."""
    return sorted({round((k + 1) * length / count) - 1 for k in range(count)} - {-1})


def _rates(at: Sequence[int], part: Sequence[int], whole: Sequence[int], count: int) -> Iterator[tuple[int, float]]:
    """Between samples: how much one counter rose for what another rose."""
    before = (0, 0)
    for k in _spread(len(at), count):
        if whole[k] > before[1]:
            yield at[k], (part[k] - before[0]) / (whole[k] - before[1])
            before = (part[k], whole[k])


def _outline(measured: dict[str, Any]) -> list[tuple[float, float]]:
    """The upper edge of a histogram with four buckets to a power of two."""
    calls = max(1, measured["calls"])
    width = 2**0.25
    shares: dict[int, float] = {}
    for start, count in measured["buckets_us"]:
        index = _bucket(max(start, 0.001), width)
        shares[index] = shares.get(index, 0) + count / calls
    if not shares:
        return []
    points = [(width ** min(shares), 0.0)]
    for index in range(min(shares), max(shares) + 1):
        share = shares.get(index, 0.0)
        points += [(width**index, share), (width ** (index + 1), share)]
    return [*points, (width ** (max(shares) + 1), 0.0)]


def _bucket(value: float, width: float) -> int:
    return math.floor(math.log(value * (1 + 1e-9)) / math.log(width))
