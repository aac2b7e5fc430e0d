#!/usr/bin/env python3
"""Run every test suite of the project and count.

Suites: Go (plain and under the race detector), Python (pytest), C++ (CTest),
and the gates: the ABI, the built library, coverage, dependencies.
Each suite's output goes to build/test/<suite>.log; failures are printed. The last
line is 'N passed, N failed', with ', N skipped' when a test was skipped. Ctrl-C ends
the run with the count of the suites that are done.

usage: run_tests.py [--only NAME]...
"""

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "gates"))

import coverage  # noqa: E402

LOGS = ROOT / "build" / "test"


def run(name, command, env=None):
    """Run a command with its output in a log file; return (exit code, log path)."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    start = time.monotonic()
    with open(log, "w") as f:
        code = subprocess.call(
            command,
            cwd=ROOT,
            stdout=f,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    print(f"{name}: exit {code} after {time.monotonic() - start:.0f} s ({log.relative_to(ROOT)})", flush=True)
    return code, log


def go(name, *arguments, env=None):
    """One `go test -json` run, counted test by test."""
    # The limit is for a test that hangs: the slowest package takes a minute, on a busy machine ten.
    code, log = run(name, ["go", "test", "-json", "-timeout=40m", *arguments], env)
    counts = {"pass": 0, "fail": 0, "skip": 0}
    output, failed = {}, []
    for line in log.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            print(f"  {line}")
            continue
        key = (event.get("Package") or event.get("ImportPath"), event.get("Test"))
        if event["Action"] in ("output", "build-output"):
            output.setdefault(key, []).append(event["Output"])
        elif event["Action"] in counts and event.get("Test"):
            counts[event["Action"]] += 1
            if event["Action"] == "fail":
                failed.append(key)
        elif event["Action"] in ("fail", "build-fail"):
            failed.append(key)
    for key in failed:
        print(f"--- {key[0]} {key[1] or ''}\n{''.join(output.get(key, []))}")
    if code != 0 and counts["fail"] == 0:
        counts["fail"] += 1  # a package that did not build or crashed
    return counts


def junit(name, command, report, env=None):
    """One command that writes a JUnit report."""
    report.unlink(missing_ok=True)
    code, log = run(name, command, env)
    counts = {"pass": 0, "fail": 0, "skip": 0}
    if report.exists():
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                counts["fail"] += 1
            elif case.find("skipped") is not None:
                counts["skip"] += 1
            else:
                counts["pass"] += 1
    if code != 0:
        counts["fail"] = max(1, counts["fail"])
        print("".join(f"  {line}\n" for line in log.read_text().splitlines()[-80:]))
    if counts["pass"] == 0 and code == 0:
        counts["fail"] += 1
        print(f"{name}: no test ran")
    return counts


def suites():
    """Name -> function, in the order in which they run."""
    jobs = str(min(4, os.cpu_count() or 2))
    cmake = ROOT / "build" / "cpp"

    def cpp():
        for name, command in (
            ("cmake-configure", ["cmake", "-S", ".", "-B", str(cmake), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]),
            ("cmake-build", ["cmake", "--build", str(cmake), "-j", jobs]),
        ):
            code, log = run(name, command)
            if code != 0:
                print(log.read_text()[-6000:])
                return {"pass": 0, "fail": 1, "skip": 0}
        report = LOGS / "ctest.xml"
        return junit(
            "ctest",
            ["ctest", "--test-dir", str(cmake), "--output-on-failure", "-j", jobs, "--output-junit", str(report)],
            report,
        )

    def python(name, folder):
        report = LOGS / f"{name}.xml"
        return junit(
            name,
            [sys.executable, "-m", "pytest", folder, "-q", "-ra", "-p", "no:cacheprovider", f"--junit-xml={report}"],
            report,
            {"PYTHONPATH": str(ROOT / "python")},
        )

    def core():
        """The packages of core, each with the others counted; then the coverage."""
        profile = LOGS / "core.cover"
        profile.unlink(missing_ok=True)
        packages = [f"./{p}" for p in coverage.PACKAGES]
        counts = go("go-core", "-count=1", f"-coverpkg={','.join(packages)}", f"-coverprofile={profile}", *packages)
        if counts["fail"]:
            return counts
        code, log = run("coverage", [sys.executable, "gates/coverage.py", str(profile)])
        print(log.read_text(), end="")
        counts["fail" if code else "pass"] += 1
        return counts

    return {
        "go-core": core,
        "go": lambda: go("go", "-count=1", "./capi", "./gpu/...", env={"GODEBUG": "cgocheck=1"}),
        # Poisoned memory, and 8 million operations of each machine.
        "simulation": lambda: go(
            "simulation", "-count=1", "-tags=invariants", "./core/simulation", "-sim.operations=8000000"
        ),
        # Every Go pointer that reaches C, and every one that is written where C can see it.
        "go-cgocheck2": lambda: go(
            "go-cgocheck2", "-count=1", "-short", "./capi", "./gpu/...", env={"GOEXPERIMENT": "cgocheck2"}
        ),
        "go-noasm": lambda: go("go-noasm", "-count=1", "-short", "-tags=noasm", "./core/rows", "./core/prefix"),
        "go-race": lambda: go("go-race", "-count=1", "-race", "-short", "./core/..."),
        "python": lambda: python("pytest", "python/tests"),
        # Apart, because the simulated CUDA driver is the driver of its process.
        "python-device": lambda: python("pytest-device", "python/device_tests"),
        "cpp": cpp,
        "gates": lambda: python("gates", "gates"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(suites()), help="run this suite only (may repeat)")
    args = parser.parse_args()
    total = {"pass": 0, "fail": 0, "skip": 0}
    waiting = {n: suite for n, suite in suites().items() if not args.only or n in args.only}
    ended = ""
    while waiting:
        name = next(iter(waiting))
        try:
            counts = waiting[name]()
        except KeyboardInterrupt:
            rest = list(waiting)[1:]
            print(f"interrupted in {name}" + (f"; not run: {', '.join(rest)}" if rest else ""))
            ended = f", and {len(waiting)} suite{'s' if rest else ''} not done"
            break
        del waiting[name]
        print(f"{name}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped", flush=True)
        for k in total:
            total[k] += counts[k]
    skipped = f", {total['skip']} skipped" if total["skip"] else ""
    print(f"{total['pass']} passed, {total['fail']} failed{skipped}{ended}")
    if ended:
        return 130
    return 1 if total["fail"] or not total["pass"] else 0


if __name__ == "__main__":
    sys.exit(main())
