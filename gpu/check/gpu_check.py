#!/usr/bin/env python3
"""Checks and measures libprefixcache on a real GPU, in at most six minutes.

For a machine with an NVIDIA driver, torch and g++; no Go, no network, no make. The
library is built elsewhere and carried along. Files that have to be there, relative to
the root of the repository (make gpu-check-bundle packs them):

    build/libprefixcache.so      built on x86-64 with a glibc no newer than this machine's
    include/                     prefixcache.h and the C++ headers
    python/prefixcache/          the Python package
    python/tests/omni_host.py, python/tests/omni_trace.py
    gpu/check/                   this script and what it runs
    gpu/cuda/include/cuda.h, gpu/cuda/check-header.py
    ../shared/reference/omni, ../shared/seeds   optional: the original manager, to compare with

A CUDA toolkit is looked for in $CUDA_HOME, $CUDA_PATH, beside nvcc, in /usr/local/cuda
and in Python's nvidia packages; only its cuda.h is read.

Prints a Markdown table, also when it is interrupted; with --out the file has what is known
after each section, whatever becomes of the check. Exit status: 0 every check passed; 1 a check failed or could
not be run; 2 a file is missing or the usage is wrong; 3 there is no GPU.
docs/gpu-check.md says what each row means.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_raw import PROGRAM as RAW
from environment import ROOT, describe, find_driver, find_header_folder, missing_files, simulated_driver
from report import Report
from sections import Section, run_section

HERE = Path(__file__).resolve().parent
TOTAL_S = 350


def sections(simulated: bool) -> list[Section]:
    """What is run, with the seconds that each may take."""
    python = [sys.executable, "-u"]
    build = Section(
        "raw streams: build raw_check", 240 if simulated else 90, [*python, str(HERE / "build_raw.py")], always=True
    )
    if simulated:
        return [
            build,
            Section("omni, raw streams", 60, [str(RAW), "omni", "--seeds", "100", "--seconds", "5"]),
            Section("context, raw streams", 60, [str(RAW), "context", "--seeds", "30", "--seconds", "5"]),
        ]
    header = find_header_folder()
    return [
        Section(
            "cuda.h: ours against the toolkit's",
            30,
            [*python, str(ROOT / "gpu/cuda/check-header.py"), str(header)] if header else None,
            reports=False,
            why_not="no cuda.h: set CUDA_HOME to a CUDA toolkit",
        ),
        Section("the driver has every call", 10, [*python, str(HERE / "driver_symbols.py")]),
        build,
        Section("omni, raw streams", 40, [str(RAW), "omni", "--seeds", "100000", "--seconds", "12"]),
        Section("context, raw streams", 40, [str(RAW), "context", "--seeds", "100000", "--seconds", "6"]),
        Section("omni, torch", 60, [*python, str(HERE / "torch_omni.py")]),
        Section("context, torch", 40, [*python, str(HERE / "torch_context.py")]),
        Section("figures: copies", 30, [str(RAW), "figures"]),
        Section("figures: host time of a step", 50, [*python, str(HERE / "torch_figures.py"), "host"]),
        Section("figures: overlap with the model", 40, [*python, str(HERE / "torch_figures.py"), "overlap"]),
    ]


def interrupt(*_: object) -> None:
    """For SIGTERM: a table of what is known is worth more than a clean death."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help=f"for everything together (default {TOTAL_S})")
    parser.add_argument("--only", action="append", metavar="TEXT", help="run sections whose name contains this text")
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="run the raw-stream checks on the simulated driver (build/cuda/libsimcuda.so) instead: no claim about a GPU",
    )
    args = parser.parse_args()
    start = time.monotonic()
    signal.signal(signal.SIGTERM, interrupt)

    environment = dict(os.environ)
    paths = [str(ROOT / "python"), str(ROOT / "python/tests"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # torch may be on the caller's
    environment["PREFIXCACHE_LIBRARY"] = str(ROOT / "build" / "libprefixcache.so")
    if args.simulated:
        driver = simulated_driver()
        if driver is None:
            print("gpu-check: no simulated driver: build it with make cuda-sim", file=sys.stderr)
            return 2
        environment["PREFIXCACHE_CUDA_DRIVER"] = str(driver)
    else:
        why = find_driver()
        if why is not None:
            print(f"gpu-check: nothing was checked, because there is no GPU here: {why}.", file=sys.stderr)
            return 3
    missing = missing_files(args.simulated)
    if missing:
        print("gpu-check: missing: " + ", ".join(missing) + " (see --help)", file=sys.stderr)
        return 2

    report = Report(describe(args.simulated))
    chosen = sections(args.simulated)
    if args.only:
        chosen = [s for s in chosen if s.always or any(text in s.name for text in args.only)]
    stopped = False
    for i, section in enumerate(chosen):
        left = args.seconds - (time.monotonic() - start)
        before = len(report.rows)
        try:
            if stopped:
                report.rows.append({"kind": "not run", "name": section.name, "detail": "the check was interrupted"})
            else:
                run_section(section, min(section.seconds, left), environment, report)
        except KeyboardInterrupt:
            stopped = True
            report.rows.append({"kind": "check", "name": section.name, "ok": False, "detail": "interrupted"})
        for line in report.verdicts(before):
            print(f"gpu-check: {line}", file=sys.stderr, flush=True)
        if args.out:
            args.out.write_text(report.markdown([s.name for s in chosen[i + 1 :]]))
    if args.simulated:
        for row in report.rows:  # what a simulation cannot show is no failure of one
            row["optional"] = row["kind"] == "not run"
    text = report.markdown()
    print(text, end="", flush=True)
    if args.out:
        args.out.write_text(text)
    for name in report.failed():
        print(f"gpu-check: failed or not run: {name}", file=sys.stderr)
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
