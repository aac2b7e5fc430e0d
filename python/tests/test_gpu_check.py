"""The check for machines with a GPU, as far as it can be tested without one.

Its program for raw streams runs here on the simulated driver, and its torch sections on
host tensors: that they can be carried out, while what they say is for a GPU to say. Besides
that, that the script cannot pass by doing nothing, and keeps what it knows when it is stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "gpu" / "check"
SCRIPT = CHECK / "gpu_check.py"
SIMULATED = ROOT / "build" / "cuda" / "libsimcuda.so"
sys.path.insert(0, str(CHECK))

from driver_symbols import HEADER, NOBODY_CALLS, calls  # noqa: E402
from output_builder import OutputBuilder  # noqa: E402
from report import Report, parse  # noqa: E402
from sections import Section, run_section  # noqa: E402


def script(*arguments: str, driver: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PREFIXCACHE_CUDA_DRIVER"}
    if driver is not None:
        env["PREFIXCACHE_CUDA_DRIVER"] = driver
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def simulated() -> Path:
    """The simulated driver; made when it is missing."""
    if not SIMULATED.exists():
        subprocess.run(["make", "-s", "-C", str(ROOT), "cuda-sim"], check=True)
    return SIMULATED


def undocumented(names: Iterable[str]) -> list[str]:
    """The checks of these names that docs/gpu-check.md has no row for. What is in brackets is variants."""
    text = (ROOT / "docs" / "gpu-check.md").read_text()
    known, section = set(), ""
    for line in text.partition("| Row |")[2].partition("\n\n")[0].splitlines():
        name = line.split(" | ")[0].removeprefix("| ")
        if name.startswith("… "):
            name = f"{section}: {name[2:]}"
        else:
            section = name.partition(": ")[0]
        known.add(name)
    return [name for name in names if name.partition(" (")[0] not in known]


# ----------------------------------------------------------------- no GPU here


def test_without_a_driver_it_says_so_in_one_sentence():
    done = script(driver="/nowhere/libcuda.so.1")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and "there is no GPU here" in done.stderr and "/nowhere" in done.stderr


def test_the_simulated_driver_does_not_pass_for_a_gpu(simulated):
    done = script(driver=str(simulated))
    assert done.returncode == 3
    assert done.stdout == ""
    assert "--simulated" in done.stderr


# ------------------------------------------------------------ simulated driver


def test_raw_streams_on_the_simulated_driver(simulated):
    done = script("--simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no claim about a GPU" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    passed = {r[0].removeprefix("| ") for r in rows if r[1] == "ok"}
    for what in (
        "omni, raw streams: save does not wait for the producer",
        "omni, raw streams: materialize waits for its own step only",
        "omni, raw streams: a cache comes and goes beside a capture of another thread",
        "omni, raw streams: an event that was recorded into a graph is refused",
        "omni, raw streams: random requests, static buffers overwritten behind each save",
        "context, raw streams: a page table and a coordinator come and go beside a capture of another thread",
        "context, raw streams: every page-table upload arrives, in order",
        "context, raw streams: random requests, every reused byte read back (vanilla)",
        "context, raw streams: random requests, every reused byte read back (hybrid)",
    ):
        assert what in passed
    assert undocumented(r[0].removeprefix("| ") for r in rows[2:]) == []


def test_the_figures_can_be_taken(simulated):
    # That the program runs to its end; a simulated driver has no speed.
    subprocess.run([sys.executable, str(CHECK / "build_raw.py")], check=True, capture_output=True)
    env = {"PREFIXCACHE_CUDA_DRIVER": str(simulated), "PREFIXCACHE_LIBRARY": str(ROOT / "build" / "libprefixcache.so")}
    program = str(ROOT / "build" / "gpu-check" / "raw_check")
    done = subprocess.run([program, "figures", "--rounds", "1"], capture_output=True, text=True, env=os.environ | env)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(r["ok"] for r in rows if r["kind"] == "check")
    assert sum(r["kind"] == "figure" for r in rows) == 17


# ------------------------------------------------------- what it makes of sections


def report_of(code: str, *, seconds: float = 200, budget: float = 200) -> Report:
    report = Report()
    run_section(Section("it", seconds, [sys.executable, "-c", code]), budget, dict(os.environ), report)
    return report


ROW = """print('{"kind": "check", "name": "first", "ok": %s}', flush=True)\n"""


def test_a_section_that_passes():
    report = report_of(ROW % "true")
    assert report.failed() == []
    assert "| first | ok |" in report.markdown()


@pytest.mark.parametrize(
    "code, detail",
    [
        (ROW % "false" + "raise SystemExit(1)", ""),
        (ROW % "false", ""),
        ("", "reported nothing"),
        ("raise SystemExit(5)", "exit status 5"),
        (ROW % "true" + "import os; os.abort()", "exit status -6"),
        (ROW % "true" + "raise ValueError('out of luck')", "ValueError: out of luck"),
    ],
)
def test_a_section_that_fails_crashes_or_says_nothing(code, detail):
    report = report_of(code)
    assert report.failed()
    assert detail in report.markdown()


def test_a_section_that_hangs_is_stopped_and_what_it_reported_is_kept(monkeypatch):
    reported, wait = threading.Event(), subprocess.Popen.wait

    def parsed(line: str) -> dict | None:
        row = parse(line)
        reported.set()
        return row

    def waits(process: subprocess.Popen, timeout: float | None = None) -> int:
        reported.wait(60)  # its time begins when it has reported, so that it has on a slow machine, too
        return wait(process, timeout)

    monkeypatch.setattr("sections.parse", parsed)
    monkeypatch.setattr(subprocess.Popen, "wait", waits)
    report = report_of(ROW % "true" + "import time; time.sleep(300)", budget=2, seconds=2)
    assert report.failed() == ["it"]
    assert "| first | ok |" in report.markdown()
    assert "stopped after 2 s, after: first" in report.markdown()


def test_without_time_or_without_the_means_it_was_not_run():
    report = report_of(ROW % "true", budget=1)
    run_section(Section("header", 20, None, why_not="no cuda.h"), 20, {}, report)
    run_section(Section("program", 20, ["/nowhere/raw_check"]), 20, {}, report)
    assert report.failed() == ["it", "header", "program"]
    assert [r["kind"] for r in report.rows] == ["not run"] * 3


def test_what_is_known_is_kept_when_it_is_stopped(simulated, tmp_path):
    # A machine is lent for minutes: whoever kills the check at its limit still has a table.
    env = os.environ | {"PREFIXCACHE_CUDA_DRIVER": str(simulated)}
    table = tmp_path / "table.md"
    hanging = """
import sys
import gpu_check

sections = gpu_check.sections

def with_one_that_hangs(simulated):
    found = sections(simulated)
    assert found[-1].name == "context, raw streams"
    found[-1].command, found[-1].seconds = [sys.executable, "-c", "import time; time.sleep(300)"], 300
    return found

gpu_check.sections = with_one_that_hangs
sys.exit(gpu_check.main())
"""
    env["PYTHONPATH"] = os.pathsep.join([str(CHECK), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", hanging, "--simulated", "--out", str(table)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        for line in process.stderr:
            if line.startswith("gpu-check: context, raw streams (at most"):
                break
        between = table.read_text()
        process.terminate()
        stdout, stderr = process.communicate(timeout=300)
    assert "| omni, raw streams: save does not wait for the producer | ok |" in between
    assert "Unfinished. Still to come: context, raw streams" in between
    assert process.returncode == 1, stderr
    assert "| omni, raw streams: save does not wait for the producer | ok |" in stdout
    assert "| context, raw streams | FAILED | interrupted |" in stdout
    assert table.read_text() == stdout


# --------------------------------------------------------------- the other sections


@pytest.mark.parametrize(
    "name, checks, figures", [("torch_omni", 10, 0), ("torch_context", 2, 0), ("torch_figures", 0, 12)]
)
def test_the_torch_sections_can_be_carried_out(name, checks, figures):
    here = Path(__file__).parent
    path = os.pathsep.join(str(p) for p in (ROOT / "python", here, CHECK))
    done = subprocess.run(
        [sys.executable, str(here / "cuda_stand_in.py"), name],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    rows = [row for line in done.stdout.splitlines() if (row := parse(line))]
    assert [r["detail"] for r in rows if r["kind"] == "check" and not r["ok"]] == []
    assert sum(r["kind"] == "check" for r in rows) == checks
    assert sum(r["kind"] == "figure" and "original manager" not in r["name"] for r in rows) == figures
    assert undocumented(r["name"] for r in rows if r["kind"] != "figure" and not r.get("optional")) == []


def test_what_a_builder_thread_meets_comes_out_of_its_block():
    read: list[int] = []

    def work(step: int) -> None:
        read.append(step)
        assert step != 1, "a wrong row"

    with pytest.raises(AssertionError, match="a wrong row"), OutputBuilder(work) as builder:
        for step in range(3):
            builder._jobs.put((step,))  # as when the engine is ahead: put() itself may meet the error
    assert read == [0, 1, 2]
    with pytest.raises(AssertionError, match="a wrong row"), OutputBuilder(work) as builder:
        while True:
            builder.put(1)


def test_a_builder_thread_ends_when_the_engine_raises():
    with pytest.raises(ValueError, match="no slot"), OutputBuilder(lambda step: None) as builder:
        builder.put(1)
        raise ValueError("no slot")
    assert not builder._thread.is_alive()


def test_a_builder_thread_that_hangs_is_not_waited_for_for_good(monkeypatch):
    monkeypatch.setattr("output_builder.PATIENCE_S", 0.1)
    release = threading.Event()
    with pytest.raises(TimeoutError, match="not done"), OutputBuilder(release.wait) as builder:
        builder.put()
    assert builder._thread.daemon
    release.set()


def test_the_calls_that_a_driver_must_have_are_found_in_our_header():
    text = HEADER.read_text()
    found = {symbol for _, symbol, _ in calls(text)}
    assert {"cuInit", "cuMemcpyDtoHAsync_v2", "cuStreamIsCapturing"} <= found
    assert text.count(NOBODY_CALLS) == 1
