"""docs/simulation.md says for each race of the omni cache what fails without its guard, and that exists."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import mutation

BEGIN, END = "<!-- races -->", "<!-- end of races -->"


def races() -> dict[str, list[str]]:
    """What each row of the table has between backticks: files of the guard, and what fails without it."""
    text = mutation.TABLE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| R-")]
    return {row[0]: row[2:] for row in rows}


def test_every_race_has_a_row():
    assert list(races()) == [f"R-{n}" for n in range(1, 22)]


def test_what_fails_without_a_guard_is_an_entry_of_the_mutation_check_or_a_test():
    guards = {guard.name for guard in mutation.parse(mutation.GUARDS.read_text())}
    code = "\n".join(
        path.read_text() for folder in ("core", "capi", "gpu") for path in mutation.ROOT.glob(f"{folder}/**/*_test.go")
    )
    tests = set(re.findall(r"^func (Test\w+)\(", code, re.MULTILINE))
    for race, (_, fails) in races().items():
        names = re.findall(r"`([^`]+)`", fails)
        assert names, f"{race} names nothing that fails"
        for name in names:
            assert name in guards | tests, f"{race}: {name}"


def test_an_entry_that_names_a_race_is_in_its_row():
    rows = races()
    for guard in mutation.parse(mutation.GUARDS.read_text()):
        if number := re.match(r"R-\d+", guard.name):
            assert f"`{guard.name}`" in rows[number[0]][1], guard.name
