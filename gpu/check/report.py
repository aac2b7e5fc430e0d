"""Rows of the report, as sections print them and as the table shows them.

A section is a process that prints one JSON object per line (see raw/report.hpp for the
C++ ones). Three kinds:

    {"kind": "check", "name", "ok", "detail", "seconds"}
    {"kind": "not run", "name", "detail", "optional"}        optional: no failure
    {"kind": "figure", "name", "value", "unit", "reference", "reference_name"}
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


def emit(kind: str, name: str, **fields: Any) -> None:
    """One row, from inside a section."""
    print(json.dumps({"kind": kind, "name": name, **fields}), flush=True)


class NotRunError(Exception):
    """Raised by a check that needs something optional which is not there or does not work."""


def check(name: str, body: Callable[[], str | None]) -> None:
    """One check; whatever it raises fails it. It returns a detail for the table."""
    start = time.monotonic()
    try:
        detail, ok = body() or "", True
    except NotRunError as e:
        not_run(name, str(e), optional=True)
        return
    except Exception as e:  # the next check goes on
        traceback.print_exc(file=sys.stderr)
        detail, ok = f"{type(e).__name__}: {e}", False
    emit("check", name, ok=ok, detail=detail, seconds=round(time.monotonic() - start, 2))


def not_run(name: str, why: str, *, optional: bool = False) -> None:
    emit("not run", name, detail=why, optional=optional)


def figure(name: str, value: float, unit: str, reference: float | None, reference_name: str) -> None:
    emit("figure", name, value=value, unit=unit, reference=reference, reference_name=reference_name)


def parse(line: str) -> dict[str, Any] | None:
    """The row that a line of a section is; None for anything else it prints."""
    if not line.startswith('{"kind"'):
        return None
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row if {"kind", "name"} <= row.keys() else None


@dataclass
class Report:
    """Rows in order. A check that failed or was not run fails the whole."""

    machine: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def failed(self) -> list[str]:
        return [r["name"] for r in self.rows if _verdict(r) in ("FAILED", "not run") and not r.get("optional")]

    def verdicts(self, first: int) -> list[str]:
        """A line for each check from that row on, for whoever watches."""
        checks = [r for r in self.rows[first:] if r["kind"] != "figure"]
        return [f"  {_verdict(r)}: {r['name']}" for r in checks]

    def markdown(self, to_come: Sequence[str] = ()) -> str:
        """The tables. to_come: sections that have not run yet, for a report in between."""
        checks = [r for r in self.rows if r["kind"] != "figure"]
        figures = [r for r in self.rows if r["kind"] == "figure"]
        lines = [f"- {line}" for line in self.machine]
        lines += ["", "| check | result | detail |", "| --- | --- | --- |"]
        lines += [f"| {r['name']} | {_verdict(r)} | {_cell(r.get('detail', ''))} |" for r in checks]
        if figures:
            lines += ["", "| figure | here | compared to | ratio |", "| --- | ---: | --- | ---: |"]
            lines += [_figure(r) for r in figures]
        bad = self.failed()
        passed = sum(_verdict(r) == "ok" for r in checks)
        lines += ["", f"{passed} checks passed, {len(bad)} failed or not run; {len(figures)} figures"]
        if to_come:
            lines += ["", f"Unfinished. Still to come: {', '.join(to_come)}"]
        return "\n".join(lines) + "\n"


def _verdict(row: dict[str, Any]) -> str:
    if row["kind"] == "check":
        return "ok" if row.get("ok") else "FAILED"
    return str(row["kind"])


def _cell(text: str) -> str:
    """One line of a Markdown table, of bearable length."""
    flat = " ".join(str(text).replace("|", "/").split())
    return flat if len(flat) <= 300 else flat[:297] + "..."


def _figure(row: dict[str, Any]) -> str:
    unit, value, reference = row["unit"], row["value"], row["reference"]
    other = "-" if reference is None else f"{_number(reference)} {unit} ({_cell(row['reference_name'])})"
    ratio = "-" if not reference else f"{value / reference:.2f}"
    return f"| {row['name']} | {_number(value)} {unit} | {other} | {ratio} |"


def _number(x: float) -> str:
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"
