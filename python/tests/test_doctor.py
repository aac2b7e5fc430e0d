"""What `prefixcache doctor` says about machines that are not as they should be."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_omni_threads import run_python

import prefixcache
from prefixcache import __main__ as command
from prefixcache import _ffi, doctor
from prefixcache.doctor import Finding, Level

SIMULATED_DRIVER = Path(__file__).resolve().parents[2] / "build" / "cuda" / "libsimcuda.so"
SOURCES = {".c", ".cpp", ".go", ".hpp", ".md", ".py", ".sh"}
NAMES = ["python", "library", "version", "abi", "kernel", "memory", "huge pages", "address space"]
NAMES += ["driver", "torch", "vllm-omni"]


def only(check: Callable) -> Finding:
    findings = list(check())
    assert len(findings) == 1, findings
    return findings[0]


def run_doctor(*, torch: bool = False, **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own; importing torch takes most of its time."""
    without = "" if torch else "sys.modules['torch'] = None; "
    code = f"import sys; {without}from prefixcache.__main__ import main; sys.exit(main(['doctor']))"
    return run_python(code, **environment)


# ------------------------------------------------------------------- the command


def test_every_line_has_a_level_and_the_last_counts_them():
    done = run_doctor(torch=True, PREFIXCACHE_CUDA_DRIVER="none", VLLM_WORKER_MULTIPROC_METHOD="spawn")
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    lines = [line for line in lines if not line.startswith(" ")]
    levels = [line.split()[0] for line in lines]
    assert last == f"{levels.count('ok')} ok, {levels.count('warning')} warning, 0 failed"
    assert [line[9:23].rstrip() for line in lines][: len(NAMES)] == NAMES
    assert "context cache" in done.stdout and "omni cache" in done.stdout


@pytest.mark.parametrize("file", ["missing", "no library"])
def test_a_library_that_cannot_be_loaded_is_a_failure_with_the_next_step(tmp_path, file):
    path = tmp_path / "libprefixcache.so"
    if file != "missing":
        path.write_text(file)
    done = run_doctor(PREFIXCACHE_LIBRARY=str(path))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("failed   library"))
    assert str(path) in lines[at]
    assert "->" in lines[at + 1] and "PREFIXCACHE_LIBRARY" in lines[at + 1]
    assert "context cache" not in done.stdout  # nothing to try it with
    assert lines[-1].endswith("1 failed")


def test_warnings_do_not_fail():
    done = run_doctor(PREFIXCACHE_KERNEL="abacus", VLLM_WORKER_MULTIPROC_METHOD="fork")
    assert done.returncode == 0, done.stdout
    assert "warning  kernel" in done.stdout and "PREFIXCACHE_KERNEL is abacus" in done.stdout
    assert "warning  start method" in done.stdout and "PC_ERROR_FORKED" in done.stdout


def test_a_check_that_breaks_is_a_failed_line_and_not_the_end(monkeypatch, capsys):
    def check_moon():
        raise RuntimeError("eclipse")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (check_moon, doctor.check_python))
    monkeypatch.setattr(doctor, "TRIALS", ())
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "failed   moon" in out and "eclipse" in out
    assert "ok       python" in out


def test_unknown_options_end_with_2(capsys):
    with pytest.raises(SystemExit) as e:
        doctor.main(["--fix"])
    assert e.value.code == 2
    assert "--fix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "stream", "text"),
    [
        ([], 0, "out", "doctor"),
        (["--help"], 0, "out", "replay"),
        (["--version"], 0, "out", prefixcache.__version__),
        (["repaly"], 2, "err", "repaly: no such command, expected one of doctor, replay"),
    ],
)
def test_the_command_line(monkeypatch, capsys, arguments, status, stream, text):
    monkeypatch.setattr(sys, "argv", ["prefixcache", *arguments] if arguments else ["prefixcache", "--help"])
    assert command.main(arguments or None) == status
    assert text in getattr(capsys.readouterr(), stream)


def test_no_command_shows_the_commands_and_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prefixcache"])
    assert command.main() == 2
    assert "doctor" in capsys.readouterr().out


def test_a_part_whose_package_is_missing_names_it():
    code = """
        import sys
        sys.modules["torch"] = None
        from prefixcache.__main__ import main
        sys.exit(main(["replay", "--requests", "2", *{arguments}]))
        """
    done = run_python(code.replace("{arguments}", "['--part', 'omni']"))
    assert done.returncode == 2
    assert "--part omni needs torch: pip install torch" in done.stderr
    done = run_python(code.replace("{arguments}", "[]"))
    assert done.returncode == 0 and "every page was right" in done.stdout
    assert "the omni part is left out: it needs torch (pip install torch)" in done.stderr


# ------------------------------------------------------------------- this package


def test_an_old_glibc_is_a_failure(monkeypatch):
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.31"))
    finding = only(doctor.check_python)
    assert finding.level is Level.FAILED and "2.34" in finding.advice


def test_a_library_of_another_release_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "__version__", "99.0.0")
    version = next(f for f in doctor.check_library() if f.what == "version")
    assert version.level is Level.WARNING and "99.0.0" in version.text


def test_an_older_abi_is_a_failure(monkeypatch):
    monkeypatch.setattr(_ffi, "_library", None)
    monkeypatch.setattr(_ffi, "ABI_VERSION", 1000)
    finding = only(doctor.check_library)
    assert (finding.level, finding.what) == (Level.FAILED, "library")
    assert "ABI version" in finding.text


@pytest.mark.parametrize(
    ("kernel", "wanted", "flags", "level"),
    [
        ("avx2", "", "sse2 avx2", Level.OK),
        ("avx2", "auto", "sse2 avx2", Level.OK),
        ("sse2", "", "sse2", Level.OK),
        ("sse2", "sse2", "sse2 avx2", Level.OK),
        ("avx2", "avx512", "sse2 avx2", Level.WARNING),
        ("generic", "", "sse2 avx2", Level.WARNING),
    ],
)
def test_kernels(monkeypatch, tmp_path, kernel, wanted, flags, level):
    info = tmp_path / "cpuinfo"
    info.write_text(f"model name\t: any\nflags\t\t: fpu {flags} bmi2\nbugs\t\t: none\n")
    monkeypatch.setattr(doctor, "_CPU_INFO", info)
    assert only(lambda: doctor.check_kernel(kernel, wanted)).level is level


# ------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("own", "limits", "limit"),
    [
        ("0::/a/b\n", {}, ""),
        ("0::/a/b\n", {"a/b/memory.max": "max"}, ""),
        ("0::/a/b\n", {"a/b/memory.max": 6 << 30}, "6.0 GiB"),
        ("0::/a/b\n", {"a/b/memory.max": 6 << 30, "a/memory.max": 3 << 30}, "3.0 GiB"),
        ("0::/\n", {"memory.max": 1 << 30}, "1.0 GiB"),
        ("0::/../seen/from/inside\n", {"memory.max": 1 << 30}, "1.0 GiB"),
        ("3:cpu:/x\n4:memory,blkio:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": 2 << 30}, "2.0 GiB"),
        ("4:memory:/of/the/host\n", {"memory/memory.limit_in_bytes": 2 << 30}, "2.0 GiB"),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": 1 << 62}, ""),
    ],
)
def test_memory(monkeypatch, tmp_path, own, limits, limit):
    (tmp_path / "meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {5 << 20} kB\n")
    (tmp_path / "cgroup").write_text(own)
    for name, value in limits.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    monkeypatch.setattr(doctor, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(doctor, "_OWN_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(doctor, "_CGROUPS", tmp_path / "groups")
    finding = only(doctor.check_memory)
    assert finding.level is Level.OK
    assert finding.text == "8.0 GiB, 5.0 GiB of it available" + (limit and f"; limited to {limit} by the control group")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("[always] madvise never\n", Level.OK),
        ("always [madvise] never\n", Level.OK),
        ("always madvise [never]\n", Level.WARNING),
        (None, Level.WARNING),
    ],
)
def test_huge_pages(monkeypatch, tmp_path, text, level):
    path = tmp_path / "enabled"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(doctor, "_HUGE_PAGES", path)
    finding = only(doctor.check_huge_pages)
    assert finding.level is level
    assert level is Level.OK or str(path) in finding.advice


@pytest.mark.parametrize(
    ("limit", "overcommit", "level"),
    [
        (resource.RLIM_INFINITY, "0\n", Level.OK),
        (resource.RLIM_INFINITY, "2\n", Level.WARNING),
        (4 << 30, "0\n", Level.WARNING),
    ],
)
def test_address_space(monkeypatch, tmp_path, limit, overcommit, level):
    path = tmp_path / "overcommit_memory"
    path.write_text(overcommit)
    monkeypatch.setattr(doctor, "_OVERCOMMIT", path)
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (limit, limit))
    finding = only(doctor.check_address_space)
    assert finding.level is level
    assert limit == resource.RLIM_INFINITY or "4096 MiB" in finding.text


# ------------------------------------------------------------------- variables


@pytest.fixture
def variables(monkeypatch) -> pytest.MonkeyPatch:
    """An environment in which nobody has set a variable of the package."""
    for name in list(os.environ):
        if name.startswith("PREFIXCACHE_"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_without_variables_the_doctor_says_so(variables):
    finding = only(doctor.check_variables)
    assert (finding.level, finding.text) == (Level.OK, "none is set")


def test_variables_that_are_set_are_shown(variables):
    variables.setenv("PREFIXCACHE_VLLM_OMNI", "0")
    variables.setenv("PREFIXCACHE_COPY_THREADS", "2")
    finding = only(doctor.check_variables)
    assert (finding.level, finding.text) == (Level.OK, "PREFIXCACHE_COPY_THREADS=2, PREFIXCACHE_VLLM_OMNI=0")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("PREFIXCACHE_LIBARY", "did you mean PREFIXCACHE_LIBRARY?"),
        ("PREFIXCACHE_COPYTHREADS", "did you mean PREFIXCACHE_COPY_THREADS?"),
        ("PREFIXCACHE_X", "known are PREFIXCACHE_COPY_THREADS, PREFIXCACHE_CUDA_DRIVER, PREFIXCACHE_KERNEL, "),
        ("prefixcache_kernel", "did you mean PREFIXCACHE_KERNEL?"),
    ],
)
def test_a_variable_that_nobody_reads_is_a_warning(variables, name, advice):
    variables.setenv(name, "1")
    finding = only(doctor.check_variables)
    assert (finding.level, finding.text) == (Level.WARNING, f"{name} is none that this package reads")
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize("value", ["false", "off", " 0"])
def test_a_switch_that_is_neither_on_nor_off_is_a_warning(variables, value):
    variables.setenv("PREFIXCACHE_VLLM_OMNI", value)
    finding, *_ = doctor.check_variables()
    assert (finding.level, finding.text) == (Level.WARNING, f"PREFIXCACHE_VLLM_OMNI is {value}, expected 0 or 1")


@pytest.mark.parametrize("threads", ["abc", "65", "-1", ""])
def test_a_number_of_threads_that_every_cache_refuses_is_a_failure(variables, threads):
    variables.setenv("PREFIXCACHE_COPY_THREADS", threads)
    finding = only(doctor.check_variables)
    assert (finding.level, finding.text) == (Level.FAILED, f"PREFIXCACHE_COPY_THREADS is {threads}, expected 0 to 64")


def test_every_variable_of_the_sources_is_known():
    root = Path(__file__).resolve().parents[2]
    files = [
        f for folder in ("core", "capi", "gpu", "scripts", "python", "cpp_tests") for f in (root / folder).rglob("*")
    ]
    files += [*(root / "include").rglob("*.hpp"), *(root / "docs").glob("*.md")]
    read = re.compile(
        r"""(?:getenv|Getenv|environ\S*|_VARIABLE =|\$\{?|monkeypatch.setenv|^\| `)\W*(PREFIXCACHE_[A-Z_]+)""", re.M
    )
    own = Path(__file__)
    names = {n for f in files if f.suffix in SOURCES and f != own for n in read.findall(f.read_text())}
    assert {"PREFIXCACHE_LIBRARY", "PREFIXCACHE_KERNEL", "PREFIXCACHE_BROWSER"} <= names  # the search finds them
    assert names <= {*doctor.VARIABLES, *doctor.VARIABLES_OF_TESTS}


# ------------------------------------------------------------------- CUDA


def test_a_machine_without_a_driver_is_in_order(monkeypatch):
    monkeypatch.setenv("PREFIXCACHE_CUDA_DRIVER", "none")
    finding = only(doctor.check_driver)
    assert finding.level is Level.OK and "host memory" in finding.text


@pytest.mark.parametrize("path", ["/nowhere/libcuda.so.1", "libc.so.6"])
def test_a_driver_that_cannot_be_used_is_a_warning(monkeypatch, path):
    monkeypatch.setenv("PREFIXCACHE_CUDA_DRIVER", path)
    finding = only(doctor.check_driver)
    assert finding.level is Level.WARNING and path in finding.text


def test_driver_and_devices_of_the_simulated_driver():
    done = run_doctor(PREFIXCACHE_CUDA_DRIVER=str(SIMULATED_DRIVER))
    assert f"ok       driver         {SIMULATED_DRIVER}, CUDA 12." in done.stdout, done.stdout
    assert "ok       device         0: " in done.stdout


@pytest.mark.parametrize(("code", "advice"), [(100, "CUDA_VISIBLE_DEVICES"), (999, "nvidia-smi")])
def test_a_driver_that_does_not_start_is_a_warning(monkeypatch, code, advice):
    class Driver:
        def __init__(self, path: str) -> None:
            pass

        def cuInit(self, flags: int) -> int:  # noqa: N802
            return code

    monkeypatch.setattr(doctor.ctypes, "CDLL", Driver)
    monkeypatch.delenv("PREFIXCACHE_CUDA_DRIVER", raising=False)
    finding = only(doctor.check_driver)
    assert finding.level is Level.WARNING and str(code) in finding.text and advice in finding.advice


# ------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("raise OSError('libtorch_cuda.so: cannot open')", "failed   torch          cannot be imported: libtorch_cuda"),
        ("__version__ = '1.9.0'", "failed   torch          1.9.0"),
        ("__version__ = '2.7.1+cu128'", "ok       torch          2.7.1+cu128"),
    ],
)
def test_torch_installations(tmp_path, module, line):
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace as N\nversion, cuda = N(cuda=None), N(is_available=lambda: False)\n" + module
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from prefixcache.doctor import main; main([])"
    assert line in run_python(code).stdout


def fake_vllm_omni(folder: Path, version: str) -> None:
    info = folder / f"vllm_omni-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-omni\nVersion: {version}\n")


def fake_plug_in(folder: Path) -> None:
    info = folder / "prefixcache-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prefixcache\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nprefixcache = prefixcache.vllm_omni:register\n")


@pytest.fixture
def site(monkeypatch, tmp_path) -> Path:
    """An environment with nothing installed but what the test puts there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("VLLM_PLUGINS", "PREFIXCACHE_VLLM_OMNI", "VLLM_WORKER_MULTIPROC_METHOD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_without_vllm_omni_there_is_nothing_to_say(site):
    assert only(doctor.check_vllm_omni).level is Level.OK


@pytest.mark.parametrize("version", ["0.20.0", "1.5.0"])
def test_a_release_of_vllm_omni_that_we_do_not_know(site, version):
    fake_vllm_omni(site, version)
    finding = only(doctor.check_vllm_omni)
    assert finding.level is Level.WARNING and version in finding.text


@pytest.mark.parametrize(
    ("installed", "environment", "level", "text"),
    [
        (True, {}, Level.OK, "registered"),
        (True, {"VLLM_PLUGINS": "other,prefixcache"}, Level.OK, "registered"),
        (True, {"VLLM_PLUGINS": "other"}, Level.WARNING, "VLLM_PLUGINS=other"),
        (True, {"PREFIXCACHE_VLLM_OMNI": "0"}, Level.WARNING, "PREFIXCACHE_VLLM_OMNI=0"),
        (False, {}, Level.WARNING, "not registered"),
    ],
)
def test_whether_vllm_will_load_the_plug_in(site, monkeypatch, installed, environment, level, text):
    fake_vllm_omni(site, "0.30.0")
    if installed:
        fake_plug_in(site)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    release, plug_in = doctor.check_vllm_omni()
    assert release.level is Level.OK
    assert plug_in.level is level and text in plug_in.text


@pytest.mark.parametrize(
    ("variable", "vllm_omni", "default", "level"),
    [
        (None, False, "fork", Level.WARNING),
        (None, False, "spawn", Level.OK),
        (None, True, "fork", Level.OK),
        ("fork", True, "spawn", Level.WARNING),
        ("spawn", False, "fork", Level.OK),
    ],
)
def test_start_methods(site, monkeypatch, variable, vllm_omni, default, level):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: default)
    if variable:
        monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", variable)
    if vllm_omni:
        fake_vllm_omni(site, "0.30.0")
    assert only(doctor.check_start_method).level is level


# ------------------------------------------------------------------- trying it


def test_a_context_cache_that_finds_nothing_is_a_failure(monkeypatch):
    from prefixcache.context import ContextCacheManager

    monkeypatch.setattr(ContextCacheManager, "publish", lambda *_: None)
    assert only(doctor.check_context).level is Level.FAILED


def test_an_omni_cache_that_gives_other_rows_is_a_failure(monkeypatch):
    from prefixcache.omni import OmniPrefixCacheManager, StageCacheOutputs

    monkeypatch.setattr(OmniPrefixCacheManager, "materialize", lambda *_: StageCacheOutputs(None, {}))
    assert only(doctor.check_omni).level is Level.FAILED
