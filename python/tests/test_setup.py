"""scripts/setup.sh on machines that lack something: what it asks for, and for whom."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ("bash", "cat", "dirname", "env", "gcc", "g++", "go", "head", "mkdir", "rm", "sed", "sort", "tail", "touch")
SCRIPT = REPOSITORY / "scripts" / "setup.sh"
# What it looks for on PATH and would install: `have TOOL || missing+=(PACKAGES)`.
TEST_TOOLS = dict(re.findall(r"^    have (\S+) \|\| missing\+=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE))


@pytest.fixture
def setup(tmp_path):
    """Runs a copy of the script where nobody is root and only these programs are on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name))

    def run(purpose: str, *tools: str, **stubs: str) -> subprocess.CompletedProcess:
        nothing = dict.fromkeys(tools, "exit 0")
        for name, body in {"id": "echo 1000", "apt-get": "exit 1", "python": "echo Python", **nothing, **stubs}.items():
            (programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (programs / name).chmod(0o755)
        env = {"PATH": str(programs), "HOME": str(tmp_path), "PYTHON": str(programs / "python"), "GOTOOLCHAIN": "local"}
        command = ["bash", "scripts/setup.sh", *([purpose] if purpose else [])]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    return run


def test_a_run_needs_no_test_tools(setup, tmp_path):
    done = setup("run")
    assert done.returncode == 0, done.stderr
    assert "ready to run" in done.stderr
    assert not any(tool in done.stderr for tool in (*TEST_TOOLS, "gtest", "hromium"))
    assert (tmp_path / "build" / "python").read_text().strip() == str(tmp_path / "bin" / "python")
    assert not (tmp_path / "build" / "test-tools").exists()


@pytest.mark.parametrize("purpose", ["test", ""])
def test_tests_name_every_missing_package_at_once(setup, purpose):
    done = setup(purpose)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "missing packages" in line)
    assert {"cmake", "ninja", "pkg-config"} <= set(TEST_TOOLS)
    for packages in TEST_TOOLS.values():
        assert packages in line.partition("(as root: apt-get install")[2]


@pytest.mark.skipif(not os.path.exists("/usr/include/gtest/gtest.h"), reason="googletest is not in /usr/include")
def test_without_a_browser_the_tests_go_on_and_its_package_is_named(setup, tmp_path):
    done = setup("test", *TEST_TOOLS)
    assert done.returncode == 0, done.stderr
    assert "as root: apt-get install chromium-headless-shell; or set PREFIXCACHE_BROWSER" in done.stderr
    assert (tmp_path / "build" / "test-tools").exists()
    assert "Chromium" not in setup("test", "chromium-headless-shell").stderr


def test_an_old_go_is_named(setup, tmp_path):
    (tmp_path / "bin" / "go").unlink()
    done = setup("run", go="echo go1.21.3")
    assert done.returncode == 1
    assert done.stderr == "setup: Go 1.21 found, expected 1.26 or newer\n"


def test_a_purpose_that_does_not_exist_is_named(setup):
    done = setup("walk")
    assert done.returncode == 2
    assert done.stderr == "setup: walk: expected run or test\n"


@pytest.mark.parametrize("there", ["build", "build/python"])
def test_it_is_ready_only_when_that_is_written_down(setup, tmp_path, there):
    """Something is in the way, so that not even root can write; a read-only folder is the same."""
    if there == "build":
        (tmp_path / there).write_text("a file")
    else:
        (tmp_path / there).mkdir(parents=True)
    done = setup("test", *TEST_TOOLS)
    assert done.returncode == 1, done.stderr
    assert "ready to" not in done.stderr and f"{tmp_path / there} cannot be written" in done.stderr
