"""The wheel: what is in it, what it says of itself, and that it is all one needs."""

from __future__ import annotations

import re
import subprocess
import zipfile

import pytest
from wheel_host import REPOSITORY, environment, run, wheel

import prefixcache

MAX_LIBRARY_BYTES = 8 << 20


@pytest.fixture(scope="module")
def names() -> list[str]:
    return zipfile.ZipFile(wheel()).namelist()


def read(name: str) -> str:
    with zipfile.ZipFile(wheel()) as z:
        return z.read(next(n for n in z.namelist() if n.endswith(name))).decode()


def test_one_wheel_for_every_python_and_glibc_from_2_34_on():
    # `make wheel` has auditwheel confirm the tag, and fails otherwise.
    assert wheel().name == f"prefixcache-{prefixcache.__version__}-py3-none-manylinux_2_34_x86_64.whl"
    assert "Root-Is-Purelib: false" in read(".dist-info/WHEEL")


def test_the_library_is_inside_and_small(names):
    assert [n for n in names if n.endswith(".so")] == ["prefixcache/libprefixcache.so"]
    with zipfile.ZipFile(wheel()) as z:
        info = z.getinfo("prefixcache/libprefixcache.so")
        assert 1 << 20 < info.file_size <= MAX_LIBRARY_BYTES
        assert z.read(info) == (REPOSITORY / "build" / "libprefixcache.so").read_bytes()


def test_every_module_and_nothing_else(names):
    source = REPOSITORY / "python"
    kinds = {".py", ".css", ".js"}
    modules = {str(p.relative_to(source)) for p in (source / "prefixcache").rglob("*") if p.suffix in kinds}
    rest = {n for n in names if not n.startswith(f"prefixcache-{prefixcache.__version__}.dist-info/")}
    assert rest == modules | {"prefixcache/py.typed", "prefixcache/libprefixcache.so"}


def test_the_command_and_the_plug_in_are_entry_points():
    entries = read("entry_points.txt")
    assert "[console_scripts]\nprefixcache = prefixcache.__main__:main" in entries
    assert "[vllm.general_plugins]\nprefixcache = prefixcache.vllm_omni:register" in entries


def test_licenses_of_everything_that_is_linked_in():
    text = read("THIRD_PARTY_LICENSES")
    library = REPOSITORY / "build" / "libprefixcache.so"
    done = subprocess.run(["go", "version", "-m", str(library)], capture_output=True, text=True, check=True)
    modules = re.findall(r"^\tdep\t(\S+)\t(\S+)", done.stdout, re.MULTILINE)
    assert modules
    for module, version in modules:
        assert f"==== {module} {version} ====" in text, "run scripts/third_party_licenses.sh >THIRD_PARTY_LICENSES"
    assert "==== Go ====" in text
    assert "Apache License" in read("licenses/LICENSE")


def test_header_package_and_cmake_have_one_version():
    header = (REPOSITORY / "include" / "prefixcache.h").read_text()
    numbers = [re.search(rf"#define PC_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    cmake = re.search(r"project\(PrefixCache VERSION ([\d.]+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    assert ".".join(numbers) == cmake == prefixcache.__version__


def test_it_needs_nothing_else():
    listed = run(environment() / "pip", "list", "--format=freeze").stdout
    assert {line.split("==")[0] for line in listed.split()} <= {"prefixcache", "pip", "setuptools"}
    code = """
import sys
import prefixcache, prefixcache.context, prefixcache.vllm_omni
assert not {"torch", "numpy"} & set(sys.modules), "imported by the package"
from prefixcache import _ffi
assert _ffi._library is None, "loaded at import"
print(_ffi.load().path)
"""
    done = run(environment() / "python", "-c", code, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(environment().parent / "lib"))
    assert done.stdout.strip().endswith("site-packages/prefixcache/libprefixcache.so")


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["prefixcache", "--version"], 0, prefixcache.__version__),
        (["prefixcache", "doctor"], 0, "32 of 40 tokens were found again"),
        (["python", "-m", "prefixcache", "--help"], 0, "doctor"),
        (["prefixcache", "replay", "--part", "omni"], 2, "needs torch"),
    ],
)
def test_the_console_script(command, status, text):
    done = run(environment() / command[0], *command[1:], cwd="/")
    assert done.returncode == status, done.stdout + done.stderr
    assert text in done.stdout + done.stderr
