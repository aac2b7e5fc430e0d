"""``prefixcache doctor``: look at the machine and the installation, a line for each thing.

A line is ok, a warning (works, but slower or less than it could) or failed (something
of this package cannot work here); the last two say what to do. Exit status: 0 nothing
failed, 1 something did, 2 bad arguments.

The checks run in a process of their own, so that they may load the library, initialise
the CUDA driver and import torch. Nothing on the machine is changed.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from prefixcache import PrefixCacheError, __version__, _ffi, vllm_omni
from prefixcache._console import heard

_TORCH_OLDEST = (1, 13)
_GLIBC_OLDEST = (2, 34)
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY_INFO = Path("/proc/meminfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """One line: what was looked at, what is there, and what to do when it is not ok."""

    level: Level
    what: str
    text: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def ok(what: str, text: str) -> Finding:
    return Finding(Level.OK, what, text)


def warning(what: str, text: str, advice: str) -> Finding:
    return Finding(Level.WARNING, what, text, advice)


def failed(what: str, text: str, advice: str) -> Finding:
    return Finding(Level.FAILED, what, text, advice)


# ----------------------------------------------------------------- this package


def check_python() -> Iterator[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    name, version = platform.libc_ver()
    if name == "glibc":
        text += f", glibc {version}"
        if tuple(int(n) for n in version.split(".")[:2]) < _GLIBC_OLDEST:
            yield failed("python", text, f"the library needs glibc {_GLIBC_OLDEST[0]}.{_GLIBC_OLDEST[1]} or newer")
            return
    yield ok("python", text)


def check_library() -> Iterator[Finding]:
    """The library's file, its versions, and the row kernel."""
    try:
        library = _ffi.load()
    except PrefixCacheError as e:
        yield failed(
            "library",
            str(e),
            f"{_ffi.ENVIRONMENT_VARIABLE} decides when it is set; otherwise the wheel brings the file, or make builds it",
        )
        return
    size = library.path.stat().st_size / (1 << 20)
    yield ok("library", f"{library.path} ({size:.1f} MiB)")

    version = library.version().decode()
    text = f"library {version}, package {__version__}"
    if version.split(".")[:2] == __version__.split(".")[:2]:
        yield ok("version", text)
    else:
        yield warning("version", text, "install the library and the package of one release")
    yield ok("abi", f"table {library.abi_version()}, this package needs {_ffi.ABI_VERSION}")
    yield from check_kernel(library.kernel_name().decode(), os.environ.get("PREFIXCACHE_KERNEL", ""))


def check_kernel(kernel: str, wanted: str) -> Iterator[Finding]:
    """What moves rows, against what was asked for and what the CPU has."""
    flags = _read(_CPU_INFO).partition("flags")[2].partition("\n")[0].split()
    if wanted not in ("", "auto", kernel):
        yield warning("kernel", f"{kernel}, though PREFIXCACHE_KERNEL is {wanted}", "unset it: the best one is chosen")
    elif wanted not in ("", "auto") or kernel == "avx2" or "avx2" not in flags:
        yield ok("kernel", kernel + (", set by PREFIXCACHE_KERNEL" if wanted == kernel else ""))
    else:
        yield warning("kernel", f"{kernel}, on a CPU with AVX2", "build without the tags noasm and purego")


# ----------------------------------------------------------------- memory


def check_memory() -> Iterator[Finding]:
    """What the machine has, and what this process may use of it: beyond that the kernel ends it."""
    sizes = dict(line.split(":", 1) for line in _read(_MEMORY_INFO).splitlines() if ":" in line)
    total, available = (int(sizes[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    text = f"{_gib(total)}, {_gib(available)} of it available"
    limit = min((n for n in _memory_limits() if n < total), default=None)
    yield ok("memory", text if limit is None else f"{text}; limited to {_gib(limit)} by the control group")


def _memory_limits() -> Iterator[int]:
    """The limits, in bytes, of this process's control group and of those around it."""
    for line in _read(_OWN_CGROUPS).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # one hierarchy for all controllers
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        here = root / group.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                break
            if (text := _read(folder / name).strip()).isdecimal():  # else "max", or not ours to see
                yield int(text)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def check_huge_pages() -> Iterator[Finding]:
    text = _read(_HUGE_PAGES)
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        yield ok("huge pages", chosen)
    else:
        yield warning(
            "huge pages",
            chosen or "not offered by this kernel",
            f"rows move 1.3 to 1.8 times slower; as root on the host: echo madvise >{_HUGE_PAGES}",
        )


def check_address_space() -> Iterator[Finding]:
    """Mirrors reserve address space for every slot, and memory only for rows that came."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        yield warning(
            "address space",
            f"limited to {limit >> 20} MiB",
            "a mirror reserves num_blocks * block_size * row bytes for each key: ulimit -v unlimited",
        )
    elif _read(_OVERCOMMIT).strip() == "2":
        yield warning(
            "address space",
            "vm.overcommit_memory is 2, so reservations count as memory",
            "sysctl vm.overcommit_memory=0, or a commit limit of num_blocks * block_size * row bytes more",
        )
    else:
        yield ok("address space", "unlimited")


# ----------------------------------------------------------------- CUDA


def check_driver() -> Iterator[Finding]:
    """The driver as the library looks for it, and its devices."""
    path = _ffi.cuda_driver()
    if path == "none":
        yield ok("driver", "switched off by PREFIXCACHE_CUDA_DRIVER=none; everything stays in host memory")
        return
    try:
        driver = ctypes.CDLL(path)
        code = driver.cuInit(0)
    except (OSError, AttributeError) as e:
        if path == "libcuda.so.1" and not Path("/dev/nvidiactl").exists():
            yield ok("driver", "none; everything stays in host memory")
        else:
            yield warning("driver", f"{path} cannot be used: {e}", "the library works as on a machine without a GPU")
        return
    if code != 0:
        advice = "the library works as on a machine without a GPU; nvidia-smi says more"
        if code == 100:  # CUDA_ERROR_NO_DEVICE
            advice = "no device is visible to this process: look at CUDA_VISIBLE_DEVICES and the container's devices"
        yield warning("driver", f"{path}: cuInit returned {code}", advice)
        return
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    yield ok("driver", f"{path}, CUDA {version.value // 1000}.{version.value % 1000 // 10}")
    yield from _devices(driver)


def _devices(driver: ctypes.CDLL) -> Iterator[Finding]:
    count, device, name, size = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        yield warning("devices", "none", "look at CUDA_VISIBLE_DEVICES and the container's devices")
    for i in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), i)
        driver.cuDeviceGetName(name, len(name), device)
        text = f"{i}: {name.value.decode('utf-8', 'replace')}"
        if hasattr(driver, "cuDeviceTotalMem_v2"):
            driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
            text += f", {size.value / (1 << 30):.0f} GiB"
        yield ok("device", text)


# ----------------------------------------------------------------- hosts


def check_torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield ok("torch", "not installed; prefixcache.omni and the omni part of the replay need it, nothing else")
        return
    try:
        torch = importlib.import_module("torch")
    except Exception as e:
        yield failed("torch", f"cannot be imported: {e}", "prefixcache.omni cannot work; repair the torch installation")
        return
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs"
    text = f"{torch.__version__}, {built}, CUDA {'available' if torch.cuda.is_available() else 'not available'}"
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if tuple(int(n) for n in numbers) < _TORCH_OLDEST:
        yield failed("torch", text, f"prefixcache.omni needs torch {_TORCH_OLDEST[0]}.{_TORCH_OLDEST[1]} or newer")
    else:
        yield ok("torch", text)


def check_vllm_omni() -> Iterator[Finding]:
    """Whether vLLM-Omni is there, is a release we know, and will load the plug-in."""
    try:
        version = importlib.metadata.version("vllm-omni")
    except importlib.metadata.PackageNotFoundError:
        yield ok("vllm-omni", "not installed")
        return
    try:
        vllm_omni._check_version(version, False)
    except vllm_omni.UnsupportedVllmOmniError as e:
        yield warning("vllm-omni", str(e), "vLLM-Omni keeps its own cache")
        return
    yield ok("vllm-omni", version)

    wanted = os.environ.get("VLLM_PLUGINS")
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    if not any(point.name == "prefixcache" for point in points):
        yield warning(
            "plug-in",
            "not registered: this package runs from a folder and is not installed",
            "pip install the wheel into this environment, or call prefixcache.vllm_omni.install() in every process",
        )
    elif os.environ.get("PREFIXCACHE_VLLM_OMNI", "1") == "0":
        yield warning("plug-in", "switched off by PREFIXCACHE_VLLM_OMNI=0", "unset it to use this library's cache")
    elif wanted is not None and "prefixcache" not in wanted.split(","):
        yield warning("plug-in", f"left out by VLLM_PLUGINS={wanted}", "add prefixcache to that list")
    else:
        yield ok("plug-in", "registered: vLLM loads it in each of its processes")


def check_start_method() -> Iterator[Finding]:
    """The library refuses every call in a child of a fork after its loading."""
    method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
    if method:
        text = f"{method}, set by VLLM_WORKER_MULTIPROC_METHOD"
    elif _has_vllm_omni():
        method, text = "spawn", "spawn, which vLLM-Omni sets for its processes"
    else:
        method = text = multiprocessing.get_start_method()
    if method != "fork":
        yield ok("start method", text)
    else:
        yield warning(
            "start method",
            text,
            "a process forked after the first cache was made cannot use the library (PC_ERROR_FORKED): "
            'multiprocessing.set_start_method("spawn")',
        )


def _has_vllm_omni() -> bool:
    try:
        return bool(importlib.metadata.version("vllm-omni"))
    except importlib.metadata.PackageNotFoundError:
        return False


# ----------------------------------------------------------------- variables

# What a host may set, and what only the scripts and tests of a checkout read.
VARIABLES = (
    "PREFIXCACHE_COPY_THREADS",
    "PREFIXCACHE_CUDA_DRIVER",
    "PREFIXCACHE_KERNEL",
    "PREFIXCACHE_LIBRARY",
    "PREFIXCACHE_VLLM_OMNI",
)
VARIABLES_OF_TESTS = (
    "PREFIXCACHE_BROWSER",
    "PREFIXCACHE_HOSTS_SCALE",
    "PREFIXCACHE_OFFLINE",
    "PREFIXCACHE_RANDOM_SEED",
    "PREFIXCACHE_RANDOM_STEPS",
    "PREFIXCACHE_TRACE",
)


def check_variables() -> Iterator[Finding]:
    """Those of this package that are set: one that is misspelt changes nothing, and nobody says so."""
    given = sorted(name for name in os.environ if name.upper().startswith("PREFIXCACHE_"))
    known = [name for name in given if name in VARIABLES or name in VARIABLES_OF_TESTS]
    for name in given:
        if name not in known:
            like = difflib.get_close_matches(name.upper(), VARIABLES, 1, 0.8)
            advice = f"did you mean {like[0]}?" if like else f"known are {', '.join(VARIABLES)}"
            yield warning("variables", f"{name} is none that this package reads", advice)
    switch = os.environ.get("PREFIXCACHE_VLLM_OMNI", "1")
    if switch not in ("", "0", "1"):
        yield warning("variables", f"PREFIXCACHE_VLLM_OMNI is {switch}, expected 0 or 1", "0 turns the plug-in off")
    threads = os.environ.get("PREFIXCACHE_COPY_THREADS", "0")
    if not (threads.isdecimal() and int(threads) <= _ffi.MAX_COPY_THREADS):
        text = f"PREFIXCACHE_COPY_THREADS is {threads}, expected 0 to {_ffi.MAX_COPY_THREADS}"
        yield failed("variables", text, "unset it, or no omni cache can be made without copy_threads of its own")
    elif known or not given:
        yield ok("variables", ", ".join(f"{name}={os.environ[name]}" for name in known) or "none is set")


# ----------------------------------------------------------------- trying it


def check_context() -> Iterator[Finding]:
    """A prefix goes into a context cache and is found again."""
    try:
        from prefixcache.context import ContextCacheManager

        prompt = list(range(40))
        with ContextCacheManager(base_pages=8, tokens_per_page=16) as manager:
            for _ in range(2):
                acquired = manager.acquire(prompt)
                assert acquired.lease is not None
                manager.publish(acquired.lease, len(prompt))
                acquired.lease.release()
            reused = acquired.plan.reuse_token_length
        yield _tried("context cache", reused == 32, f"{reused} of {len(prompt)} tokens were found again")
    except Exception as e:
        yield failed("context cache", f"{type(e).__name__}: {e}", "see docs/troubleshooting.md")


def check_omni() -> Iterator[Finding]:
    """Two rows go into an omni cache and come back in front of a third."""
    try:
        if importlib.util.find_spec("torch") is None:
            return
        torch: Any = importlib.import_module("torch")
        from types import SimpleNamespace as Output

        from prefixcache.omni import OmniPrefixCacheManager, PrefixCacheConfig

        batch, slots = ["a"], torch.tensor([0, 1])
        view: Any = Output(batch_req_ids=lambda: batch, step_slots_cpu=lambda _ids, _counts: slots)
        manager = OmniPrefixCacheManager(PrefixCacheConfig(num_blocks=4, block_size=2), view)
        first = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        arrival = Output(req_id="a", num_computed_tokens=0, block_ids=([0],))
        manager.new_step_starts(Output(num_scheduled_tokens={"a": 2}, scheduled_new_reqs=[arrival]))
        manager.materialize(manager.save_outputs(first, {}, num_tokens_unpadded=2, num_tokens_padded=2), ["a"])

        batch, slots, last = ["b"], torch.tensor([2]), torch.tensor([[5.0, 6.0]])
        arrival = Output(req_id="b", num_computed_tokens=2, block_ids=([0, 1],))
        manager.new_step_starts(
            Output(num_scheduled_tokens={"b": 1}, scheduled_new_reqs=[arrival], finished_req_ids=["a"])
        )
        step = manager.save_outputs(last, {}, num_tokens_unpadded=1, num_tokens_padded=1)
        hidden = manager.materialize(step, ["b"]).hidden_states
        manager.shutdown()
        right = hidden is not None and torch.equal(hidden["b"], torch.cat([first, last]))
        yield _tried("omni cache", right, "a prefix hit gave back the rows that were saved")
    except Exception as e:
        yield failed("omni cache", f"{type(e).__name__}: {e}", "see docs/troubleshooting.md")


def _tried(what: str, right: bool, text: str) -> Finding:
    return ok(what, text) if right else failed(what, "gave a wrong result", "report this, with the output of make test")


# ----------------------------------------------------------------- the command

CHECKS: tuple[Check, ...] = (
    check_python,
    check_library,
    check_memory,
    check_huge_pages,
    check_address_space,
    check_driver,
    check_torch,
    check_vllm_omni,
    check_start_method,
    check_variables,
)
# Only with a library that loads.
TRIALS: tuple[Check, ...] = (check_context, check_omni)


def examine() -> Iterator[Finding]:
    """Every check in order. A check that fails itself is a failed line, not the end."""
    usable = True
    for check in (*CHECKS, *TRIALS):
        if check in TRIALS and not usable:
            continue
        try:
            for finding in check():
                usable = usable and not (finding.what == "library" and finding.level is Level.FAILED)
                yield finding
        except Exception as e:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            yield failed(name, f"could not be looked at: {type(e).__name__}: {e}", "report this")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="prefixcache doctor",
        description="Look at this machine and installation, a line for each thing, and say what to change.",
        epilog="Exit status: 0 nothing failed, 1 something did, 2 bad arguments.",
    )
    parser.parse_args(arguments)
    return heard(parser.prog, _report)


def _report() -> int:
    counts = dict.fromkeys(Level, 0)
    for level, what, text, advice in examine():
        counts[level] += 1
        print(f"{level.value:<8} {what:<14} {text}", flush=True)
        if advice:
            print(f"{'':<8} {'':<14} -> {advice}", flush=True)
    print(", ".join(f"{count} {level.value}" for level, count in counts.items()))
    return 1 if counts[Level.FAILED] else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
