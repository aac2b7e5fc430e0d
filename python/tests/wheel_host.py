"""A wheel of this checkout, and an environment with nothing but it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / "build" / "test" / "wheel"


def clean_environment(**more: str) -> dict[str, str]:
    """Variables of a new shell: nothing of the test run decides which package is found."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("PREFIXCACHE_")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(*command: object, **settings: object) -> subprocess.CompletedProcess:
    settings = {"capture_output": True, "text": True, "timeout": 1800, "env": clean_environment(), **settings}
    return subprocess.run([str(c) for c in command], check=False, **settings)


@functools.cache
def wheel() -> Path:
    """`make wheel`, once. Its tools come from the package index the first time."""
    done = run("make", "wheel", cwd=REPOSITORY, env=clean_environment(PYTHON=sys.executable))
    if done.returncode != 0:
        reason = f"make wheel failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        if os.environ.get("PREFIXCACHE_OFFLINE") == "1" and "package index" in done.stderr:
            pytest.skip(reason)
        pytest.fail(f"{reason}\n(PREFIXCACHE_OFFLINE=1 skips these tests where there is no network)", pytrace=False)
    (path,) = (REPOSITORY / "dist").glob("prefixcache-*.whl")
    return path


@functools.cache
def environment() -> Path:
    """`bin` of a virtual environment that the wheel alone was installed into."""
    path = wheel()
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    for command in (
        (REPOSITORY / "build" / "wheel-tools" / "bin" / "python", "-m", "venv", ENVIRONMENT),
        (ENVIRONMENT / "bin" / "pip", "install", "--quiet", "--no-index", path),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    return ENVIRONMENT / "bin"
