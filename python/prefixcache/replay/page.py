"""The report: one HTML file with its styles, script and numbers inside.

It loads nothing (a content security policy says so to the browser). Charts are drawn by
page.js at the width of the window; what they show stands beside them in tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from prefixcache.replay import charts
from prefixcache.replay.charts import Chart, Runs, Table
from prefixcache.replay.document import RATES, difference, number

_HERE = Path(__file__).parent
_TITLES = {"omni": "Omni cache", "context": "Context cache"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_REASONS = {
    "none": "everything that can be reused is",
    "bypass": "the lookup policy says so",
    "prompt_too_short": "the prompt has no full page",
    "extras_unknown": "nothing is cached for this adapter or tenant, or nothing at all yet",
    "first_block": "the first page is not cached",
    "diverged": "what follows is not cached: another continuation, or evicted",
    "full_input": "the whole prompt is cached; one page is computed again",
}
_UNDISTURBED = "Of steps that nothing disturbed: read at once, with no other step waiting."
_EVENTS = {
    "hits": "requests that began with cached rows",
    "preserved_bytes": "bytes of rows copied aside because a pending read still needed them",
    "absent_rows": "rows of a key that their step did not carry: they have to read as zeros, and were checked to",
    "displaced_rows": "deferred rows whose slot had a new owner before they were written",
    "deferred_writes": "rows written when their request ended",
    "flushes": "deferred rows written early, to free memory",
    "staging_waits": "saves that waited for a staging page",
}


def render(document: dict[str, Any], other: dict[str, Any] | None = None, name: str = "") -> str:
    """The page of a run, beside another one if there is one; ``name`` is what that is called."""
    builder = _Page()
    source = document["trace"]["source"]
    runs = [("this run" if other else "", document)]
    if other:
        runs.append((name or "other run", other))
    builder.header(source, runs)
    if any(d["sweep"] for _, d in runs):
        builder.chart_section("Sizing", [charts.sweep([(n, d) for n, d in runs if d["sweep"]])])
    for part in ("omni", "context"):
        having = [(n, d["parts"][part]) for n, d in runs if part in d["parts"]]
        if having:
            builder.part(part, having)
    return builder.finish(f"Prefix cache replay: {source}")


class _Page:
    def __init__(self) -> None:
        self._out: list[str] = []
        self._specs: list[dict[str, Any]] = []

    def header(self, source: str, runs: Runs) -> None:
        """What was run, and how it ended."""
        self._out.append("<header>\n<h1>Prefix cache replay</h1>")
        for name, document in runs:
            trace = document["trace"]
            label = f"<b>{escape(name)}</b>: " if name else ""
            self._out.append(
                f"<p class=source>{label}{escape(trace['source'])}, {trace['requests']:,} requests, "
                f"prefixcache {escape(document['library'])}</p>"
            )
            for part, result in document["parts"].items():
                state = "right" if result["right"] else "wrong"
                self._out.append(f"<p class={state}>{_TITLES.get(part, escape(part))}: {escape(result['verdict'])}</p>")
        self._out.append("</header>\n<main>")

    def part(self, part: str, runs: Runs) -> None:
        """Everything about one cache."""
        self._out.append(f"<section>\n<h2>{_TITLES[part]}</h2>")
        options = [", ".join(f"{k} {number(v)}" for k, v in p["options"].items()) for _, p in runs]
        for (name, _), text in zip(runs, options, strict=True):
            self._out.append(f"<p class=options>{escape(name) + ': ' if name else ''}{escape(text)}</p>")
        self._tables(_figures(runs))
        sampled = [(n, p) for n, p in runs if p["series"].get("request")]
        if sampled:
            for chart in (charts.hit_rate(sampled), charts.occupancy(sampled), charts.evictions(sampled)):
                self._chart(chart)
        calls = list(dict.fromkeys(call for _, p in runs for call in p["latencies"]))
        if calls:
            self._out.append("<h3>Time of a call</h3>")
            if part == "omni":
                self._out.append(f"<p class=note>{_UNDISTURBED}</p>")
            self._out.append("<div class=multiples>")
            for call in calls:
                self._chart(charts.latency(call, runs), level=4)
            self._out.append("</div>")
        if part == "context":
            self._out.append("<h3>Why not more was reused</h3>")
            self._tables([_counts("Requests by reason", "reasons", _REASONS, runs)])
        elif any(p.get("events") for _, p in runs):
            self._out.append("<h3>Rarer paths that the traffic took</h3>")
            self._tables([_counts("Counters of the library", "events", _EVENTS, runs)])
        self._out.append("</section>")

    def chart_section(self, title: str, found: Iterable[Chart]) -> None:
        """A section with nothing but charts."""
        self._out.append(f"<section>\n<h2>{title}</h2>")
        for chart in found:
            self._chart(chart)
        self._out.append("</section>")

    def _chart(self, chart: Chart, level: int = 3) -> None:
        index = len(self._specs)
        self._specs.append(chart.spec)
        note = f"<p class=note>{escape(chart.note)}</p>" if chart.note else ""
        self._out.append(
            f"<figure{' class=pair' if len(chart.tables) > 1 else ''}>\n<figcaption><h{level}>{escape(chart.title)}</h{level}>{note}</figcaption>\n"
            f'<div class=plot data-chart="{index}" data-title="{escape(chart.title, quote=True)}"></div>'
        )
        self._tables(chart.tables)
        self._out.append("</figure>")

    def _tables(self, tables: Sequence[Table]) -> None:
        self._out.append("<div class=tables>")
        self._out += [_table(t) for t in tables]
        self._out.append("</div>")

    def finish(self, title: str) -> str:
        """The whole file."""
        # "<" would end the script element, whatever the string around it.
        data = json.dumps(self._specs, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        style, script = ((_HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        return (
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
            f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">\n'
            '<meta name=viewport content="width=device-width, initial-scale=1">\n'
            '<meta name=color-scheme content="light dark">\n<link rel=icon href="data:,">\n'
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
            + "\n".join(self._out)
            + f"\n</main>\n<script type=application/json id=charts>{data}</script>\n<script>\n{script}</script>\n"
            "</body>\n</html>\n"
        )


def _table(table: Table) -> str:
    head = "".join(f"<th scope=col>{escape(text)}" for text in table.head)
    rows = []
    for i, row in enumerate(table.rows):
        bar = ""
        if table.shares is not None:
            bar = f"<span class=bar style='width:{100 * table.shares[i]:.1f}%'></span>"
        cells = "".join(f"<td>{escape(cell)}" for cell in row[1:])
        rows.append(f"<tr><th scope=row>{escape(row[0])}{bar}{cells}")
    return (
        f"<table{' class=words' if table.words else ''}>\n<caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table>"
    )


def _figures(runs: Runs) -> list[Table]:
    """All figures of a part, and how far the runs are apart; two tables, to stand side by side."""
    names = list(dict.fromkeys(key for _, p in runs for key in p["figures"]))
    head = ["", "value"] if len(runs) == 1 else ["", *(name for name, _ in runs), "difference"]
    rows: list[Sequence[str]] = []
    for name in names:
        values = [p["figures"].get(name) for _, p in runs]
        row = [name, *(_figure(name, value) for value in values)]
        rows.append(row if len(runs) == 1 else [*row, difference(name, *values)])
    half = (len(rows) + 1) // 2
    return [Table("Figures", head, rows[:half]), Table("Figures, continued", head, rows[half:])]


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in RATES:
        return charts.percent(value)
    return f"{value:,.1f} s" if name == "seconds" else number(value)


def _counts(caption: str, key: str, meanings: dict[str, str], runs: Runs) -> Table:
    """Counts by name, with what the names mean."""
    names = list(dict.fromkeys(name for _, p in runs for name in p.get(key, {})))
    table = Table(caption, ["", *(name or "number" for name, _ in runs), "meaning"], words=True)
    shares = []
    for name in names:
        values = [p.get(key, {}).get(name) for _, p in runs]
        table.rows.append([name.replace("_", " "), *map(number, values), meanings.get(name, "")])
        shares.append((values[0] or 0) / max(1, sum(runs[0][1].get(key, {}).values())))
    if key == "reasons":
        table.shares = shares
    return table
