"""The guards of scripts/guards.txt fit the code and the document, and some are taken out."""

import re
import subprocess
import sys

import pytest
from wheel_host import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

import mutation

GUARDS = mutation.parse(mutation.GUARDS.read_text())


@pytest.mark.parametrize("guard", GUARDS, ids=lambda g: g.name)
def test_the_lines_of_a_guard_are_in_the_code(guard):
    texts = {}
    for hunk in guard.hunks:
        text = texts.get(hunk.file) or (REPOSITORY / hunk.file).read_text()
        texts[hunk.file] = mutation.apply(hunk, text)
        assert texts[hunk.file] != text
    assert guard.hunks and guard.test


def test_every_guard_is_in_the_table_of_the_document():
    table = mutation.TABLE.read_text().split(mutation.BEGIN)[1].split(mutation.END)[0]
    rows = re.findall(r"^\| (.*?) \| `", table, re.MULTILINE)
    assert rows == [g.name for g in GUARDS], "run `make mutation`"


def test_an_entry_whose_lines_are_gone_or_there_twice_is_refused():
    gone = mutation.Hunk("x.go", [("-", "if a {")])
    for text in ("if b {\n", "if a {\n}\nif a {\n"):
        with pytest.raises(ValueError, match="places have the lines"):
            mutation.apply(gone, text)


def test_context_stays_and_what_comes_stands_where_it_is_written():
    hunk = mutation.Hunk("x.go", [("=", "func f"), ("-", "a()"), ("+", "b()"), ("=", "}")])
    assert mutation.apply(hunk, "func f() {\n\ta()\n}\n") == "func f() {\nb()\n}\n"


@pytest.mark.parametrize(
    "name", ["O-26 preserve before a step claims", "C-103 finish synchronises", "C-52 pin before evict: draft"]
)
def test_a_guard_that_is_taken_out_is_missed(name):
    done = subprocess.run(
        [sys.executable, mutation.__file__, "--quick", "--only", name], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0 and done.stdout.startswith("found "), done.stdout + done.stderr
