#!/usr/bin/env python3
"""Take each guard out of the code, one at a time, and see that the simulator notices.

The guards are in scripts/guards.txt: a name, the test that has to fail, and the lines
that are replaced. A guard's code is replaced by an overlay of the Go build, so the tree
is not touched. Exits with 1 when a change no longer applies or is not found within the
budget of CI.

usage: mutation.py [--only TEXT] [--write] [--jobs N]
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUARDS = ROOT / "scripts" / "guards.txt"
TABLE = ROOT / "docs" / "simulation.md"
BEGIN, END = "<!-- guards -->", "<!-- end of guards -->"
BUDGET = 8_000_000  # operations of each machine, as many as `make test` plays
LIMIT_S = 240


@dataclass
class Hunk:
    file: str
    lines: list = field(default_factory=list)  # (mark, text): - goes, + comes, = stays and begins like this


@dataclass
class Guard:
    name: str
    package: str = ""
    test: str = ""
    hunks: list = field(default_factory=list)


def parse(text):
    """The guards of the file, in its order."""
    guards, file, hunk = [], "", None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            guards.append(Guard(line[3:].strip()))
            hunk = None
        elif line.startswith("run "):
            guards[-1].package, guards[-1].test = line[4:].split()
        elif line.startswith("in "):
            file, hunk = line[3:].strip(), None
        elif line.startswith(("-", "+", "=")):
            if hunk is None:
                hunk = Hunk(file)
                guards[-1].hunks.append(hunk)
            hunk.lines.append((line[0], line[1:].strip()))
        elif not line.strip():
            hunk = None
        elif guards:
            raise ValueError(f"guards.txt:{number}: {line!r}, expected ##, run, in, - or +")
    return guards


def apply(hunk, text):
    """The text with the hunk's lines replaced; they must be there exactly once.

    Indentation does not count, so that a guard survives being moved into a block.
    """
    lines = text.split("\n")
    old = [(mark, want) for mark, want in hunk.lines if mark != "+"]

    def here(i):
        return all(
            line.strip() == want if mark == "-" else line.strip().startswith(want)
            for line, (mark, want) in zip(lines[i:], old, strict=False)
        )

    found = [i for i in range(len(lines) - len(old) + 1) if here(i)]
    if not old or len(found) != 1:
        raise ValueError(f"{hunk.file}: {len(found)} places have the lines {[want for _, want in old]}, expected one")
    out, at = lines[: found[0]], found[0]
    for mark, want in hunk.lines:
        if mark == "+":
            out.append(want)
            continue
        if mark == "=":
            out.append(lines[at])
        at += 1
    return "\n".join(out + lines[at:])


def overlay(guard, folder):
    """Files with the guard taken out, and the overlay that puts them in place."""
    texts = {}
    for hunk in guard.hunks:
        texts[hunk.file] = apply(hunk, texts.get(hunk.file) or (ROOT / hunk.file).read_text())
    replace = {}
    for i, (file, text) in enumerate(texts.items()):
        changed = folder / f"{i}_{Path(file).name}"
        changed.write_text(text)
        replace[str(ROOT / file)] = str(changed)
    path = folder / "overlay.json"
    path.write_text(json.dumps({"Replace": replace}))
    return path


def environment():
    """With the CUDA flags, which gpu and capi need."""
    env = dict(os.environ)
    flags = subprocess.run(["make", "-s", "cuda-env"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return env | dict(re.findall(r"""(\w+)="([^"\n]*)\"""", flags))


running = set()  # processes
stopping = threading.Event()


def start(command, **settings):
    """Run a command to its end, or until main() stops all of them."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **settings
    ) as process:
        running.add(process)
        if stopping.is_set():
            process.kill()
        out, err = process.communicate()
        running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def attempt(guard, env, quick):
    """(found, what was seen) of one guard."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            path = overlay(guard, folder)
        except (ValueError, OSError) as error:
            return False, f"does not apply: {error}"
        binary = folder / "test"
        build = start(
            ["go", "test", "-c", "-tags=invariants", "-overlay", str(path), "-o", str(binary), "./" + guard.package],
            cwd=ROOT,
            env=env,
        )
        if build.returncode:
            return False, "does not build: " + build.stderr.strip()[-500:]
        command = [str(binary), "-test.run", f"^{guard.test}$", "-test.v", f"-test.timeout={LIMIT_S}s"]
        if guard.package == "core/simulation":
            command += ["-sim.noshrink", f"-sim.operations={2_000_000 if quick else BUDGET}"]
        began = time.monotonic()
        run = start(command, cwd=ROOT / guard.package, env=env)
        out = run.stdout + run.stderr
        if run.returncode == 0:
            return False, f"survived {time.monotonic() - began:.0f} s"
        if hit := re.search(r"found after (\d+) operations: seed (\d+), operation \d+: (.*)", out):
            return True, f"{int(hit[1]):,} | {hit[2]} | {hit[3][:110]}"
        if "test timed out" in out:
            return True, "hangs | | the test ran into its time limit"
        if hit := re.search(r"^\s*\S+\.go:\d+: (.*)|^(?:panic|fatal error|SIGSEGV): ?(.*)", out, re.M):
            seed = re.search(r"failed at seed (\d+)", out)
            return True, f"| {seed[1] if seed else ''} | {(hit[1] or hit[2])[:110]}"
        return True, "| | " + out.strip().splitlines()[-1][:110]


def row(guard, seen):
    """One line of the table in docs/simulation.md."""
    files = ", ".join(dict.fromkeys(f"`{h.file}`" for h in guard.hunks))
    text = seen.replace("`", "'").replace("<", "&lt;")
    return f"| {guard.name} | {files} | {guard.test} | {text} |"


def write_table(rows):
    """Put the rows between the marks of the document."""
    text = TABLE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    head = "| Guard | File | Found by | Operations | Seed | As |\n|---|---|---|---|---|---|\n"
    TABLE.write_text(before + BEGIN + "\n" + head + "\n".join(rows) + "\n" + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", help="guards whose name or file has this text (may repeat)")
    parser.add_argument("--write", action="store_true", help="write the table of docs/simulation.md")
    parser.add_argument("--quick", action="store_true", help="2 million operations for each guard")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    guards = parse(GUARDS.read_text())
    if args.only:
        guards = [g for g in guards if any(t in g.name or any(t in h.file for h in g.hunks) for t in args.only)]
    if not guards:
        sys.exit("mutation: no guard has that name")
    env, lost, rows, began = environment(), 0, [], time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            results = pool.map(lambda g: attempt(g, env, args.quick), guards)
            for guard, (found, seen) in zip(guards, results, strict=True):
                lost += not found
                rows.append(row(guard, seen))
                print(f"{'found ' if found else 'NOT   '} {guard.name}: {seen}", flush=True)
        except KeyboardInterrupt:
            stopping.set()
            for process in list(running):
                process.kill()
            pool.shutdown(cancel_futures=True)
            needed = f"{lost} of them not found" if lost else "all of them needed"
            print(f"interrupted: {len(rows)} of {len(guards)} guards tried, {needed}; no table written")
            return 130
    print(f"{len(guards) - lost} of {len(guards)} guards are needed, and it shows; {time.monotonic() - began:.0f} s")
    if args.write and not lost and not args.only:
        write_table(rows)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
