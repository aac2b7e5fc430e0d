"""A section of the check: a process with a time budget whose rows are collected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass

from report import Report, parse


@dataclass
class Section:
    """One process.

    command: None where this machine cannot run it; why_not says why.
    reports: it prints rows; else its exit status is the one row, and its last line the detail.
    always: others need what it leaves behind.
    """

    name: str
    seconds: float
    command: list[str] | None
    reports: bool = True
    why_not: str = ""
    always: bool = False


def run_section(section: Section, budget: float, environment: dict[str, str], report: Report) -> None:
    """Run it and add its rows. What it did not get to is a row as well, never silence.

    A process of its own: a CUDA error that cannot be undone, a hang or a crash ends one
    section and not the check.
    """
    if section.command is None:
        report.rows.append({"kind": "not run", "name": section.name, "detail": section.why_not})
        return
    if budget < min(5, section.seconds):
        report.rows.append(
            {"kind": "not run", "name": section.name, "detail": "the time for the whole check was used up"}
        )
        return
    print(f"gpu-check: {section.name} (at most {budget:.0f} s)", file=sys.stderr, flush=True)
    try:
        process = subprocess.Popen(
            section.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as e:
        report.rows.append({"kind": "not run", "name": section.name, "detail": f"{section.command[0]}: {e.strerror}"})
        return
    rows: list[dict] = []
    last: deque[str] = deque(maxlen=12)

    def read(stream) -> None:
        for line in stream:
            row = parse(line)
            if row is not None:
                rows.append(row)
            elif line.strip():
                last.append(line.strip())
                if section.reports:
                    print(f"    {line.rstrip()}", file=sys.stderr)

    code: int | None = None
    readers = [threading.Thread(target=read, args=(s,), daemon=True) for s in (process.stdout, process.stderr)]
    try:
        for reader in readers:
            reader.start()
        code = process.wait(timeout=budget)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when the check itself is interrupted
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own group: what it started goes as well
            process.wait()
        for reader in readers:
            reader.join(timeout=5)
        report.rows += rows
    if code is None:
        detail = f"stopped after {budget:.0f} s" + (f", after: {rows[-1]['name']}" if rows else "")
        report.rows.append({"kind": "check", "name": section.name, "ok": False, "detail": detail})
    elif not section.reports:
        detail = (last[-1] if last else "") if code == 0 else " / ".join(last)
        report.rows.append({"kind": "check", "name": section.name, "ok": code == 0, "detail": detail})
    elif code not in (0, 1) or (code == 1 and not any(r.get("ok") is False for r in rows)):
        # A crash: a negative status is a signal.
        detail = f"exit status {code}" + (f": {last[-1]}" if last else "")
        report.rows.append({"kind": "check", "name": section.name, "ok": False, "detail": detail})
    elif not rows:
        report.rows.append({"kind": "check", "name": section.name, "ok": False, "detail": "it reported nothing"})
