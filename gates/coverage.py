#!/usr/bin/env python3
"""Statement coverage of core/ by its own Go tests: at least 95 % of every package.

Reads a profile of `go test -coverprofile`; with several test binaries in it a
statement counts when one of them reached it.

usage: coverage.py PROFILE [--uncovered]
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

GOAL = 95.0
PACKAGES = ("core/coordinator", "core/omni", "core/prefix", "core/rows", "core/status")
LINE = re.compile(r"libprefixcache/(?P<file>.+):(?P<from>\d+)\.\d+,(?P<to>\d+)\.\d+ (?P<statements>\d+) (?P<count>\d+)")


def read(profile: str) -> dict[tuple[str, int, int], tuple[int, bool]]:
    """(file, first line, last line) of each block -> (statements, reached)."""
    blocks: dict[tuple[str, int, int], tuple[int, bool]] = {}
    for line in profile.splitlines()[1:]:
        m = LINE.fullmatch(line)
        if not m:
            raise SystemExit(f"coverage: cannot read {line!r}")
        # Blocks of one line are told apart by their columns: by the whole position.
        at = (line.partition(" ")[0], int(m["from"]), int(m["to"]))
        statements, reached = blocks.get(at, (int(m["statements"]), False))
        blocks[at] = (statements, reached or int(m["count"]) > 0)
    return blocks


def by_package(profile: str) -> dict[str, tuple[int, int]]:
    """Package -> (statements reached, statements)."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (position, _, _), (statements, reached) in read(profile).items():
        package = position.removeprefix("libprefixcache/").rpartition("/")[0]
        r, n = found[package]
        found[package] = (r + statements * reached, n + statements)
    return dict(found)


def below(profile: str) -> list[str]:
    """What keeps the goal from being met, one line each; empty: it is met."""
    packages = by_package(profile)
    wrong = []
    for name in PACKAGES:
        reached, all_of_it = packages.get(name, (0, 0))
        if all_of_it == 0:
            wrong.append(f"{name}: no statement in the profile")
        elif 100 * reached < GOAL * all_of_it:
            wrong.append(f"{name}: {100 * reached / all_of_it:.1f} %, expected at least {GOAL} %")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("profile")
    parser.add_argument("--uncovered", action="store_true", help="list what no test reaches")
    args = parser.parse_args()
    profile = Path(args.profile).read_text()
    if args.uncovered:
        for (position, first, last), (_, reached) in sorted(read(profile).items()):
            if not reached:
                print(f"{position.partition(':')[0].removeprefix('libprefixcache/')}:{first}-{last}")
    for name, (reached, n) in sorted(by_package(profile).items()):
        print(f"coverage: {name} {100 * reached / n:.1f} % of {n} statements")
    wrong = below(profile)
    print(*(f"coverage: TOO LOW: {w}" for w in wrong), sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
