"""The promises of docs/guarantees.md and SECURITY.md: the tests that they name exist."""

from __future__ import annotations

import functools
import re

import abi_snapshot
import pytest

ROOT = abi_snapshot.ROOT
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def promises() -> list[tuple[str, str]]:
    """(promise, its tests) of every table row under 'Kept by'."""
    found, inside = [], False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line == "| Promise | Kept by |":
            inside = True
        elif inside and not line.startswith("|---"):
            found.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return found


@functools.cache
def go_tests() -> set[str]:
    text = "\n".join(p.read_text() for d in ("core", "gpu", "capi") for p in (ROOT / d).rglob("*_test.go"))
    return set(re.findall(r"^func (Test\w+)\(", text, re.MULTILINE))


@functools.cache
def cpp_test_names() -> set[str]:
    text = "\n".join(p.read_text() for p in (ROOT / "cpp_tests").rglob("*.cpp"))
    programs = "\n".join(p.read_text() for p in (ROOT / "cpp_tests").rglob("CMakeLists.txt"))
    tests = {".".join(m) for m in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", text, re.MULTILINE)}
    return tests | set(re.findall(r"add_test\(NAME (\w+)", programs))


def exists(name: str) -> bool:
    if "::" in name:
        path, function = name.split("::")
        return (ROOT / path).is_file() and f"\ndef {function}(" in (ROOT / path).read_text()
    return name in go_tests() or name in cpp_test_names()


@pytest.mark.parametrize("promise, kept_by", promises(), ids=[p[:60] for p, _ in promises()])
def test_a_promise_names_tests_that_exist(promise, kept_by):
    names = re.findall(r"`([^`]+)`", kept_by)
    assert names, "a promise without a test"
    assert [n for n in names if not exists(n)] == []


def test_there_are_promises_and_names_that_do_not_exist_are_noticed():
    assert len(promises()) > 25
    assert all(len(p) == 2 for p in promises())
    for name in (
        "TestThatNobodyWrote",
        "Abi.NoSuchTest",
        "gates/test_library.py::test_no_such_thing",
        "gates/none.py::test_x",
    ):
        assert not exists(name), name


def test_what_is_not_promised_is_said_in_both_pages():
    security = (ROOT / "SECURITY.md").read_text()
    for word in ("timed", "process is trusted", "addresses are believed", "guarantees.md", "isolation"):
        assert word in security, word
    for heading in ("**Timing.**", "**The process is trusted.**", "**Addresses are believed.**", "**Hash flooding**"):
        assert heading in PAGE.partition("## Not promised")[2], heading
