"""Every command, program, file name, error text and link of the documents.

Fenced blocks are found by their info string:

    python               run where only the wheel is installed
    python torch         run with the interpreter of the tests, which has torch
    python vllm-omni     likewise, with a real vllm-omni at hand
    cpp [file=NAME]      compiled with all warnings, linked, run
    c [file=NAME]        likewise, as C99
    cpp scratch          for the shell blocks of its page, which compile it; with file=NAME
    sh                   run by bash in the checkout, with the wheel's `bin` in front
    sh scratch           likewise, in a folder with the page's cpp files
    sh dry-run           `make` targets that are too long to run here: they have to exist
    text output          what the block before it prints
    text                 drawings
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from test_vllm_omni import fetch
from wheel_host import REPOSITORY, clean_environment, environment, run

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(f"docs/{p.name}" for p in (REPOSITORY / "docs").glob("*.md")),
]
KINDS = (
    "python",
    "python torch",
    "python vllm-omni",
    "cpp",
    "cpp scratch",
    "c",
    "sh",
    "sh scratch",
    "sh dry-run",
    "text",
    "text output",
)
LIBRARY = REPOSITORY / "build" / "libprefixcache.so"


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    file: str | None
    code: str
    output: str | None


@functools.cache
def blocks(page: str) -> tuple[Block, ...]:
    """The fenced blocks of a page, each with the output that is written below it."""
    found: list[Block] = []
    lines = (REPOSITORY / page).read_text().splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        info = lines[start - 1][3:]
        file = re.search(r"file=(\S+)", info)
        kind = re.sub(r"\s*file=\S+", "", info).strip()
        code = "\n".join(lines[start : number - 1]) + "\n"
        if kind == "text output":
            found[-1] = found[-1]._replace(output=code)
        found.append(Block(page, start, kind, file and file[1], code, None))
        start = None
    assert start is None, f"{page}:{start}: a block without an end"
    return tuple(found)


def of_kind(*kinds: str) -> list:
    return [pytest.param(b, id=f"{b.page}:{b.line}") for page in PAGES for b in blocks(page) if b.kind in kinds]


def check(block: Block, done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout}{done.stderr}"
    if block.output is not None:
        assert done.stdout == block.output, f"{block.page}:{block.line}"


# --------------------------------------------------------------------- blocks


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_tested(page):
    assert {b.kind for b in blocks(page)} <= set(KINDS)
    text = re.sub(r"^```.*?^```", "", (REPOSITORY / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    assert not indented, "indented code would escape the test: use a fenced block"


@pytest.mark.parametrize("block", of_kind("python"))
def test_python_with_nothing_but_the_wheel(block):
    check(block, run(environment() / "python", "-c", block.code, cwd="/"))


@pytest.mark.parametrize("block", of_kind("python torch"))
def test_python_with_torch(block):
    check(block, run(sys.executable, "-c", block.code, env=clean_environment(PYTHONPATH=REPOSITORY / "python")))


@pytest.mark.parametrize("block", of_kind("python vllm-omni"))
def test_python_with_vllm_omni(block):
    prelude = f"from vllm_omni_host import stand_in_modules; stand_in_modules({str(fetch('0.30.0'))!r})\n"
    path = os.pathsep.join(str(REPOSITORY / "python" / p) for p in (".", "tests"))
    check(block, run(sys.executable, "-c", prelude + block.code, env=clean_environment(PYTHONPATH=path)))


@pytest.mark.parametrize("block", of_kind("cpp", "c"))
def test_c_and_cpp(block, tmp_path):
    compiler = ("g++", "-std=c++17") if block.kind == "cpp" else ("gcc", "-std=c99")
    source, program = tmp_path / f"block.{block.kind}", tmp_path / "block"
    source.write_text(block.code)
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
    where = (
        f"-I{REPOSITORY / 'include'}",
        f"-L{LIBRARY.parent}",
        "-lprefixcache",
        f"-Wl,-rpath,{LIBRARY.parent}",
        "-ldl",
    )
    compiled = run(*compiler, *warnings, source, "-o", program, *where)
    assert compiled.returncode == 0, compiled.stderr
    check(block, run(program, env=clean_environment(PREFIXCACHE_LIBRARY=str(LIBRARY))))


def shell(page: str, home: Path) -> dict[str, str]:
    """Environment of a shell block: the wheel's commands first, and a home of its own."""
    names = ("GOENV", "GOPATH", "GOCACHE", "GOMODCACHE")  # Go keeps these in the home otherwise
    go = run("go", "env", *names).stdout.splitlines()
    for block in blocks(page):
        if block.file:
            (home / block.file).write_text(block.code)
    return clean_environment(
        PATH=f"{environment()}:{os.environ['PATH']}", HOME=str(home), **dict(zip(names, go, strict=True))
    )


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.kind in ("sh", "sh scratch") for b in blocks(p))])
def test_shell(page, tmp_path):
    # In the order of the page: a later block uses what an earlier one made.
    env = shell(page, tmp_path)
    for block in blocks(page):
        if block.kind in ("sh", "sh scratch"):
            where = tmp_path if block.kind == "sh scratch" else REPOSITORY
            check(block, run("bash", "-euo", "pipefail", "-c", block.code, cwd=where, env=env))


@pytest.mark.parametrize("block", of_kind("sh dry-run"))
def test_make_targets_exist(block):
    for line in block.code.splitlines():
        command = line.partition("#")[0].split()
        assert command[:1] == ["make"], f"{block.page}:{block.line}: only make can be tried without running"
        check(block, run("make", "-n", *command[1:], cwd=REPOSITORY))


# --------------------------------------------------------------------- names


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```", "", (REPOSITORY / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def quoted(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(page)))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose(page)):
        assert "://" in target or (REPOSITORY / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_links_into_pages_lead_to_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", prose(page)):
        there = (REPOSITORY / page).parent / target if target else REPOSITORY / page
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}, anchor


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page):
    tops = ("capi", "core", "cpp_tests", "docs", "gpu", "include", "python", "scripts", "gates", "abi")
    for name in quoted(page):
        if re.fullmatch(rf"({'|'.join(tops)})/[\w./-]*", name):
            assert (REPOSITORY / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_c_interface_exist(page):
    header = (REPOSITORY / "include" / "prefixcache.h").read_text()
    names = {n for q in [*quoted(page), *(b.code for b in blocks(page))] for n in re.findall(r"\b(?:pc|PC)_\w+", q)}
    for name in names - {"pc_", "PC_", "pc_x"}:
        # With a star the beginning is meant: pc_manager_*, PC_REASON_*.
        assert re.search(rf"\b{name}" + ("" if name.endswith("_") else r"\b"), header), name


@pytest.mark.parametrize("page", PAGES)
def test_environment_variables_exist(page):
    names = {n for q in quoted(page) for n in re.findall(r"\bPREFIXCACHE_[A-Z_]+\b", q)}
    source = sources()
    for name in names - {"PREFIXCACHE_BUILD_TESTS"}:
        assert (
            f'"{name}"' in source
            or f"{name}"
            in (REPOSITORY / "capi" / "libprefixcache.map").read_text()
            + (REPOSITORY / "include" / "prefixcache" / "library.hpp").read_text()
        ), name


@functools.cache
def sources() -> str:
    """All code that writes an error text, with its strings joined."""
    parts = []
    for pattern in (
        "capi/*.go",
        "capi/*.c",
        "core/*/*.go",
        "gpu/*.go",
        "gpu/cuda/stub/*.c",
        "python/prefixcache/**/*.py",
    ):
        parts += [p.read_text() for p in REPOSITORY.glob(pattern) if not p.name.endswith("_test.go")]
    parts += [p.read_text() for p in (REPOSITORY / "include" / "prefixcache").glob("*.hpp")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(parts))


def error_texts() -> list[str]:
    """First column of the tables that begin with 'Text'."""
    found, inside = [], False
    for line in (REPOSITORY / "docs/troubleshooting.md").read_text().splitlines():
        inside = line.startswith("| Text |") or (inside and line.startswith("|"))
        if inside and line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split("|")[1])
    return found


@pytest.mark.parametrize("text", error_texts())
def test_error_texts_are_those_of_the_code(text):
    assert text in sources()


def test_stats_that_are_explained_exist():
    header = (REPOSITORY / "include" / "prefixcache.h").read_text()
    page = (REPOSITORY / "docs/integrating-vllm-omni.md").read_text().partition("## What to watch")[2]
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert names
    body = textwrap.dedent(header.partition("typedef struct pc_omni_stats {")[2].partition("} pc_omni_stats;")[0])
    for name in names:
        assert re.search(rf"uint64_t {name};", body), name
