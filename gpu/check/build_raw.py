"""Builds raw_check, the program for raw streams, file by file and several at a time.

Only g++ (or $CXX) is needed: the driver API comes from our own cuda.h and is opened at
run time, and so is the library.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environment import ROOT
from report import check

SOURCE = ROOT / "gpu" / "check" / "raw"
OUT = ROOT / "build" / "gpu-check"
PROGRAM = OUT / "raw_check"
CXX = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = [
    *("-std=c++17", "-O1", "-Wall", "-Wextra", "-DPREFIXCACHE_NO_CUDA_HEADERS"),
    *(f"-I{ROOT / folder}" for folder in ("gpu/cuda/include", "include")),
]


def build() -> str:
    """What took how long; raises with the compiler's text."""
    start = time.monotonic()
    sources = sorted(SOURCE.glob("*.cpp"))
    headers = [
        *SOURCE.glob("*.hpp"),
        *(ROOT / "include").rglob("*.h*"),
        ROOT / "gpu/cuda/include/cuda.h",
        Path(__file__),
    ]
    newest = max(path.stat().st_mtime for path in headers)
    objects = {OUT / f"{source.stem}.o": source for source in sources}
    stale = [o for o, source in objects.items() if _age(o) <= max(newest, source.stat().st_mtime)]
    OUT.mkdir(parents=True, exist_ok=True)
    if stale:
        PROGRAM.unlink(missing_ok=True)  # an old one must not pass for this one
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda o: _run([*CXX, *FLAGS, "-c", str(objects[o]), "-o", str(o)]), stale))
    if stale or not PROGRAM.exists():
        _run([*CXX, *map(str, objects), "-o", str(PROGRAM), "-ldl", "-pthread"])
    return f"{len(stale)} of {len(objects)} files compiled in {time.monotonic() - start:.1f} s"


def _age(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[-3]).name}: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    check("raw streams: build raw_check", build)
    sys.exit(0 if PROGRAM.exists() else 1)
