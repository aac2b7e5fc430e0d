"""docs/rules.md lists exactly the rules that code and tests cite, and each promise has a test with its number."""

from __future__ import annotations

import re

from wheel_host import REPOSITORY

PAGE = REPOSITORY / "docs" / "rules.md"
FOLDERS = ("core", "capi", "gpu", "python", "cpp_tests", "include", "scripts")
SUFFIXES = (".go", ".py", ".cpp", ".hpp", ".c", ".h", ".txt")

CITED = re.compile(r"\b([OCDRS])-(\d{1,3})\b")
# TestO10_O32_TheRest in Go; TEST(Eagle, C48_TheRest) in C++.
NAMED = re.compile(r"(?:Test|_|\b)([OCDRS])(\d{1,3})(?=_)")

Rules = set[tuple[str, int]]


def rules(pattern: re.Pattern, text: str) -> Rules:
    return {(letter, int(number)) for letter, number in pattern.findall(text)}


def listed() -> Rules:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return rules(CITED, "\n".join(rows))


def sources():
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.name != "test_rules.py":
                yield path, path.read_text()


def is_test(path) -> bool:
    return path.name.endswith(("_test.go", "_test.cpp")) or path.name.startswith("test_")


def test_the_rules_that_are_cited_are_listed():
    cited: dict[tuple[str, int], str] = {}
    for path, text in sources():
        for rule in rules(CITED, text) | (rules(NAMED, text) if is_test(path) else set()):
            cited[rule] = str(path.relative_to(REPOSITORY))
    have = listed()
    assert len(have) > 200
    assert {r: p for r, p in cited.items() if r not in have} == {}, "cited there, and not in docs/rules.md"
    assert have - set(cited) == set(), "in docs/rules.md, and cited nowhere"


def test_every_promise_has_a_test_with_its_number():
    tested: Rules = set()
    for path, text in sources():
        if is_test(path):
            tested |= rules(CITED, text) | rules(NAMED, text)
    assert {r for r in listed() if r[0] in "OC"} - tested == set()
