"""Memory that runs out, advice that is refused, and what is left in memory.

Each test is a process of its own: limits cannot be taken back.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from limits_host import FILL

HANG_S = 300  # nothing but a fault takes longer
HERE = Path(__file__).resolve().parent


def start(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    return subprocess.Popen(
        [sys.executable, str(HERE / "limits_host.py"), *arguments],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err[-3000:]}"
    return out.splitlines()


def test_an_address_space_limit_is_an_error_that_names_the_bytes():
    lines = run("address_space")
    assert f"cannot reserve {(1 << 24) * 8192} bytes (mirror)" in lines[0]
    assert f"cannot reserve {1 << 40} bytes (result)" in lines[1]


def test_refused_system_calls_are_one_error_or_one_warning():
    lines = run("refused_calls")
    assert "bytes (mirror): mmap: cannot allocate memory" in lines[0]
    warnings = lines[1:]
    assert all(line.startswith("2 ") for line in warnings), warnings
    for kind in ("huge pages are not available", "cannot be kept out of core dumps", "children of fork"):
        assert sum(kind in line for line in warnings) == 1, warnings
    assert len(warnings) == 3


def rows_in(pid: int) -> int:
    """How often 256 bytes of a row are found in the memory of a process."""
    needle, found = bytes([FILL]) * 256, 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, access = line.split()[:2]
            if "rw" not in access:
                continue
            at, end = (int(x, 16) for x in place.split("-"))
            while at < end:
                memory.seek(at)
                try:
                    part = memory.read(min(end - at, 1 << 20))
                except OSError:
                    break  # guard pages
                if not part:
                    break
                found += part.count(needle)
                at += len(part)
    return found


def test_tables_that_do_not_fit_are_refused_before_they_are_made():
    lines = run("tables")
    assert "a manager of 536870912 base and 0 draft pages needs 10737418240 bytes" in lines[0]
    assert "page table of 16384 rows of 32768 pages needs 8590082048 bytes" in lines[1]


@pytest.mark.parametrize("scenario, least", [("residue", 2 * 64), ("tokens", 20)])
@pytest.mark.parametrize("flag", ["zero", "keep"])
def test_what_was_released_is_gone_from_memory_when_that_is_wanted(scenario, least, flag):
    process = start(scenario, flag)
    seen = {}

    def step(line):
        assert process.stdout.readline().strip() == line, process.communicate()[1][-3000:]
        seen.setdefault(line, []).append(rows_in(process.pid))
        process.stdin.write("\n")
        process.stdin.flush()

    for line in ("live", "live", "released", "destroyed"):
        step(line)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert all(n >= least for n in seen["live"]), seen  # it is there while it can be read
    if flag == "zero":
        assert seen["released"] == [0] and seen["destroyed"] == [0], seen
    else:  # the test can see rows that nobody may read
        assert seen["released"][0] > 0, seen


def test_a_mirror_is_warmed_as_far_as_asked():
    (megabytes,) = run("warm")
    assert 64 <= int(megabytes) <= 72


def test_nothing_is_warmed_where_it_may_not_fit():
    (at_once, later), (_, after_the_first_key) = (map(int, line.split()) for line in run("warm_beyond"))
    assert at_once <= 32 and later <= 8 and after_the_first_key <= 8
