"""The library as the loader sees it: what it exports, what it needs, how large it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import abi_snapshot as abi
import pytest

LIBRARY = Path(os.environ.get("PREFIXCACHE_LIBRARY") or abi.ROOT / "build" / "libprefixcache.so")
MAX_BYTES = 8 << 20
MAX_TLS_BYTES = 16  # the loader keeps little static TLS for libraries that are dlopened


def tool(*command: object) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def dynamic() -> dict[str, list[str]]:
    """The dynamic section: tag -> values."""
    found: dict[str, list[str]] = {}
    for tag, value in re.findall(r"\((\w+)\)\s+(.*)", tool("readelf", "-dW", LIBRARY)):
        found.setdefault(tag, []).append(value.strip())
    return found


def test_it_exports_what_the_header_declares_and_nothing_else():
    lines = [line.split() for line in tool("nm", "-D", "--defined-only", LIBRARY).splitlines()]
    exported = {line[-1] for line in lines if line[-2] != "A"}  # A: the name of the version itself
    declared = abi.function_names(abi.HEADER.read_text())
    assert len(declared) > 80
    assert exported == {f"{name}@@PREFIXCACHE_0" for name in declared}


def test_it_needs_libc_only(dynamic):
    needed = {re.search(r"\[(.*)\]", v)[1] for v in dynamic["NEEDED"]}
    # libpthread, libdl and libresolv are part of libc; newer ones have them inside.
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libresolv.so.2", "ld-linux-x86-64.so.2"}, needed


def test_it_looks_for_nothing_beside_itself(dynamic):
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert "TEXTREL" not in dynamic


def test_its_soname_is_that_of_the_version_script(dynamic):
    assert dynamic["SONAME"] == ["Library soname: [libprefixcache.so.0]"]
    assert "PREFIXCACHE_0 {" in (abi.ROOT / "capi" / "libprefixcache.map").read_text()


def test_every_symbol_is_bound_at_load(dynamic):
    assert "NOW" in dynamic["FLAGS_1"][0].split()
    assert "GNU_RELRO" in tool("readelf", "-lW", LIBRARY)


def test_its_stack_is_not_executable():
    stack = re.search(r"GNU_STACK.*", tool("readelf", "-lW", LIBRARY))
    assert stack
    assert " RW " in stack[0], stack[0]


def test_thread_local_memory_is_small():
    tls = re.findall(r"^\s+TLS\s.*", tool("readelf", "-lW", LIBRARY), re.MULTILINE)
    assert len(tls) <= 1
    assert all(int(line.split()[5], 16) <= MAX_TLS_BYTES for line in tls), tls


def test_it_is_small():
    assert 1 << 20 < LIBRARY.stat().st_size <= MAX_BYTES
