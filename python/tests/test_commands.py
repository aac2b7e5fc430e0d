"""make, cmake and the scripts, as somebody calls them who does not know them yet.

What they refuse, they refuse at once and by name; --help starts nothing; Ctrl-C ends
them with what was done so far. The work itself is replaced by something that takes no time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from wheel_host import REPOSITORY, clean_environment, run

FOLDERS = ("scripts", "gpu/check", "cpp_tests")
SCRIPTS = sorted(p for folder in FOLDERS for p in (REPOSITORY / folder).glob("*.sh") if p.name != "run.sh")  # see below


# ------------------------------------------------------------------ the folder


@pytest.fixture
def spaced(tmp_path):
    there = tmp_path / "a folder"
    there.mkdir()
    for name in ("Makefile", "CMakeLists.txt"):
        shutil.copy(REPOSITORY / name, there)
    return there


@pytest.mark.parametrize("target", ["all", "help", "test"])
def test_make_in_a_folder_with_a_space_says_so(spaced, target):
    done = run("make", target, cwd=spaced)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and f"{spaced} has a space in its path" in done.stderr, done.stderr


def test_cmake_in_a_folder_with_a_space_says_so(spaced, tmp_path):
    done = run("cmake", "-S", spaced, "-B", tmp_path / "b")
    assert done.returncode == 1
    assert f"{spaced} has a space in its path" in " ".join(done.stderr.split()), done.stderr


# ------------------------------------------------------------------ cmake and the library


@pytest.fixture
def checkout(tmp_path):
    """What is needed to install, with a Makefile that makes a new library in no time."""
    there = tmp_path / "checkout"
    (there / "build").mkdir(parents=True)
    for name in ("CMakeLists.txt", "LICENSE", "THIRD_PARTY_LICENSES"):
        shutil.copy(REPOSITORY / name, there)
    for name in ("cmake", "include"):
        shutil.copytree(REPOSITORY / name, there / name)
    (there / "Makefile").write_text("build/libprefixcache.so: source\n\tcp source $@\n")
    (there / "source").write_text("new")
    library = there / "build" / "libprefixcache.so"
    library.write_text("old")
    os.utime(library, (1, 1))
    return there


def installed(checkout: Path, *options: str) -> str:
    build, prefix = checkout / "build" / "cpp", checkout / "prefix"
    for command in (
        ("-S", checkout, "-B", build, "-DPREFIXCACHE_BUILD_TESTS=OFF", *options),
        ("--build", build),
        ("--install", build, "--prefix", prefix),
    ):
        done = run("cmake", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    (library,) = prefix.glob("lib*/**/libprefixcache.so")
    return library.read_text()


def test_cmake_installs_the_library_of_these_sources(checkout):
    """Not one that was built before the last change, beside the headers of today."""
    assert installed(checkout) == "new"


def test_cmake_makes_the_library_when_it_is_missing(checkout):
    (checkout / "build" / "libprefixcache.so").unlink()
    assert installed(checkout) == "new"


def test_cmake_installs_a_library_that_was_named_as_it_is(checkout, tmp_path):
    named = tmp_path / "named.so"
    named.write_text("named")
    assert installed(checkout, f"-DPREFIXCACHE_LIBRARY={named}") == "named"
    assert (checkout / "build" / "libprefixcache.so").read_text() == "old"


def test_cmake_names_a_library_that_is_not_there(checkout, tmp_path):
    done = run("cmake", "-S", checkout, "-B", tmp_path / "b", f"-DPREFIXCACHE_LIBRARY={tmp_path}/none.so")
    assert done.returncode == 1
    assert f"PREFIXCACHE_LIBRARY is {tmp_path}/none.so" in " ".join(done.stderr.split())


# ------------------------------------------------------------------ options


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_help_of_a_script_is_its_first_comment_and_starts_nothing(script, option, tmp_path):
    """On a PATH where there is nothing to start."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sed", "dirname"):
        (programs / name).symlink_to(shutil.which(name))
    done = run("bash", script, option, cwd="/", env={"PATH": str(programs)})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first = script.read_text().splitlines()[1]
    assert done.stdout.startswith(first.removeprefix("# ") + "\n") and "usage: " in done.stdout
    assert "#" not in done.stdout


def test_help_of_a_run_is_that_of_the_replay_and_starts_no_second_half():
    done = run("bash", "scripts/run.sh", "--help", cwd=REPOSITORY, env=clean_environment(PYTHON=sys.executable))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "--sweep" in done.stdout and "context cache: the C++" not in done.stdout


@pytest.mark.parametrize("name", ["bench", "hosts", "lint", "third_party_licenses", "wheel", "bundle"])
def test_a_script_without_arguments_refuses_one(name):
    (script,) = (p for p in SCRIPTS if p.stem == name)
    done = run("bash", script, "now", cwd=REPOSITORY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{name}: the argument is 'now', expected none\n"


def test_make_help_has_every_target_that_the_pages_name():
    shown = set(re.findall(r"^(\S+)", run("make", "help", cwd=REPOSITORY).stdout, re.MULTILINE))
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]
    named = {n for p in pages for n in re.findall(r"(?:`|\n|\()make (?:-s )?([a-z-]+)", p.read_text())}
    assert {"cuda-env", "cuda-sim", "run", "test"} <= named
    assert named <= shown


def test_a_trace_that_is_not_there_is_named_before_the_benchmark_begins():
    done = run("bash", "scripts/bench.sh", cwd=REPOSITORY, env=clean_environment(TRACE="/no such"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bench: TRACE is '/no such', expected a file of JSON lines\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--nosuch", "--nosuch: no such option"),
        ("--requests many", "--requests is 'many', expected a number from 1"),
        ("--pages", "--pages: expected a number from 1"),
    ],
)
def test_wrong_arguments_of_the_second_half_end_a_run_before_the_first(arguments, text):
    made = run("make", "-s", "build/replay_context", cwd=REPOSITORY)
    assert made.returncode == 0, made.stderr
    env = clean_environment(CONTEXT_ARGS=arguments, PYTHON=sys.executable)
    done = run("bash", "scripts/run.sh", "--requests", "5", cwd=REPOSITORY, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"replay_context: {text}" in done.stderr


# ------------------------------------------------------------------ Ctrl-C


HANGS = "touch {}; sleep 300"  # in a shell: says that it has begun, and goes on for longer than a test waits


def interrupted(command: list[object], until: str, begun: Sequence[Path], **settings) -> tuple[int, str]:
    """Exit code and output, after Ctrl-C when a line begins with ``until`` and what hangs has begun."""
    with subprocess.Popen(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **settings,
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(until):
                break
        while not all(path.exists() for path in begun) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)  # who started it waits for it by now
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        start = time.monotonic()
        lines.append(process.stdout.read())
        assert time.monotonic() - start < 100, "what hangs was waited for"
        return process.wait(100), "".join(lines)


def test_ctrl_c_in_the_tests_says_which_suites_are_done(tmp_path):
    begun = tmp_path / "begun"
    code = (
        "import run_tests as r, sys\n"
        "def one():\n    return {'pass': 3, 'fail': 0, 'skip': 1}\n"
        f"def two():\n    r.run('slow', ['sh', '-c', {HANGS.format(begun)!r}])\n"
        "r.suites = lambda: {'one': one, 'two': two, 'three': two}\n"
        "sys.argv = ['run_tests.py']\nsys.exit(r.main())\n"
    )
    env = clean_environment(PYTHONPATH=str(REPOSITORY / "scripts"), PYTHONUNBUFFERED="1")
    status, text = interrupted([sys.executable, "-c", code], "one: 3 passed", [begun], env=env)
    assert status == 130, text
    assert text.splitlines() == [
        "one: 3 passed, 0 failed, 1 skipped",
        "interrupted in two; not run: three",
        "3 passed, 0 failed, 1 skipped, and 2 suites not done",
    ]


def test_ctrl_c_in_the_mutations_says_how_many_guards_are_done(tmp_path):
    begun = [tmp_path / name for name in ("second", "third")]  # two at once
    code = (
        "import mutation as m, sys\n"
        "guards = [m.Guard(n) for n in ('first', 'second', 'third', 'fourth')]\n"
        "m.parse = lambda text: guards\nm.environment = lambda: {}\nm.row = lambda *a: ''\n"
        "def attempt(guard, env, quick):\n"
        f"    if guard.name != 'first':\n        m.start(['sh', '-c', {HANGS!r}.format({str(tmp_path)!r} + '/' + guard.name)])\n"
        "    return True, 'seen'\n"
        "m.attempt = attempt\nsys.argv = ['mutation.py', '--jobs', '2', '--write']\nsys.exit(m.main())\n"
    )
    table = (REPOSITORY / "docs" / "simulation.md").read_text()
    env = clean_environment(PYTHONPATH=str(REPOSITORY / "scripts"), PYTHONUNBUFFERED="1")
    status, text = interrupted([sys.executable, "-c", code], "found", begun, env=env)
    assert status == 130, text
    assert text.splitlines() == [
        "found  first: seen",
        "interrupted: 1 of 4 guards tried, all of them needed; no table written",
    ]
    assert (REPOSITORY / "docs" / "simulation.md").read_text() == table


def test_ctrl_c_in_lint_says_which_checks_are_done(tmp_path):
    """With a go that hangs, and a gofmt that finds nothing."""
    begun = tmp_path / "begun"
    hangs = f"({HANGS.format(begun)}) & wait"
    for name, body in {"gofmt": "exit 0", "make": "exit 0", "go": hangs}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    status, text = interrupted(["bash", REPOSITORY / "scripts" / "lint.sh"], "lint: gofmt ok", [begun], env=env)
    assert status == 130, text
    assert text.splitlines() == ["lint: gofmt ok", "lint: interrupted in vet; done so far: gofmt"]
