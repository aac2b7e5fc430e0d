"""The coverage gate itself: what it counts, and that it can fail."""

from __future__ import annotations

from pathlib import Path

import coverage
import pytest


def profile(**covered: int) -> str:
    """A profile of 100 statements in each package; all are reached but where a number is given."""
    lines = ["mode: set"]
    for package in coverage.PACKAGES:
        n = covered.get(package.rpartition("/")[2], 100)
        lines.append(f"libprefixcache/{package}/file.go:1.1,9.2 {n} 1")
        lines.append(f"libprefixcache/{package}/file.go:10.1,20.2 {100 - n} 0")
    return "\n".join(lines)


def test_the_goal_is_95_percent_of_every_package():
    assert coverage.below(profile()) == []
    assert coverage.below(profile(omni=95)) == []
    assert coverage.below(profile(omni=94)) == ["core/omni: 94.0 %, expected at least 95.0 %"]


def test_a_package_without_tests_fails():
    only = "\n".join(line for line in profile().splitlines() if "core/rows" not in line)
    assert coverage.below(only) == ["core/rows: no statement in the profile"]


def test_a_statement_counts_when_one_test_binary_reached_it():
    missed = profile(prefix=50)
    reached = missed.replace("core/prefix/file.go:10.1,20.2 50 0", "core/prefix/file.go:10.1,20.2 50 3").splitlines()[
        1:
    ]
    assert coverage.below("\n".join([missed, *reached])) == []
    assert coverage.by_package("\n".join([missed, *reached]))["core/prefix"] == (100, 100)


def test_blocks_of_one_line_are_two():
    text = "mode: set\nlibprefixcache/core/rows/a.go:3.1,3.9 1 1\nlibprefixcache/core/rows/a.go:3.10,3.20 1 0"
    assert coverage.by_package(text) == {"core/rows": (1, 2)}


def test_a_profile_that_cannot_be_read_is_no_pass():
    with pytest.raises(SystemExit):
        coverage.below("mode: set\nwhat is this")


def test_every_go_package_with_tests_is_run_and_those_of_core_are_measured():
    """A new package has to be named in scripts/run_tests.py; in core it counts."""
    root = Path(coverage.__file__).resolve().parent.parent
    tested = {p.parent.relative_to(root) for d in ("core", "gpu", "capi") for p in (root / d).rglob("*_test.go")}
    runner = (root / "scripts" / "run_tests.py").read_text()
    for folder in map(str, tested):
        assert folder in coverage.PACKAGES or f'"./{folder}"' in runner or folder.startswith("gpu"), folder
    code = {p.parent.relative_to(root) for p in (root / "core").rglob("*.go") if not p.name.endswith("_test.go")}
    helpers = {"core/omni/omnitest", "core/simulation"}  # they are tests themselves
    assert {str(p) for p in code} - helpers == set(coverage.PACKAGES)
