"""What this machine has: a driver with a device, a toolkit's header, the files we need."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_NEEDED = (
    "build/libprefixcache.so",
    "include/prefixcache.h",
    "include/prefixcache/context_cache_coordinator.hpp",
    "gpu/cuda/include/cuda.h",
    "gpu/check/raw/main.cpp",
)
_NEEDED_ON_GPU = (
    "python/prefixcache/omni.py",
    "python/tests/omni_host.py",
    "python/tests/omni_trace.py",
    "gpu/cuda/check-header.py",
)


def missing_files(simulated: bool) -> list[str]:
    return [f for f in (_NEEDED if simulated else _NEEDED + _NEEDED_ON_GPU) if not (ROOT / f).exists()]


def simulated_driver() -> Path | None:
    path = Path(os.environ.get("PREFIXCACHE_CUDA_DRIVER") or ROOT / "build" / "cuda" / "libsimcuda.so")
    return path.resolve() if path.is_file() and _is_simulated(ctypes.CDLL(str(path))) else None


def open_driver() -> ctypes.CDLL:
    """The driver that the library would open. Raises OSError."""
    return ctypes.CDLL(os.environ.get("PREFIXCACHE_CUDA_DRIVER") or "libcuda.so.1")


def _is_simulated(driver: ctypes.CDLL) -> bool:
    return hasattr(driver, "simcuda_reset")


def find_driver() -> str | None:
    """None when a GPU can be used; else why not."""
    try:
        driver = open_driver()
    except OSError as e:
        return f"the CUDA driver cannot be opened ({e})"
    if _is_simulated(driver):
        return "PREFIXCACHE_CUDA_DRIVER names the simulated driver, which --simulated is for"
    code = driver.cuInit(0)
    if code != 0:
        return f"cuInit returned {code}"
    count = ctypes.c_int(0)
    code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0 or count.value == 0:
        return f"the driver knows {count.value} devices (cuDeviceGetCount returned {code})"
    return None


def find_header_folder() -> Path | None:
    """A folder with NVIDIA's cuda.h."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.append(str(Path(nvcc).resolve().parent.parent))
    homes.append("/usr/local/cuda")
    folders = [Path(h) / "include" for h in homes if h]
    for site in sys.path:
        folders += sorted(Path(site).glob("nvidia/*/include")) if site else []
    return next((f for f in folders if (f / "cuda.h").is_file()), None)


def describe(simulated: bool) -> list[str]:
    """Lines that say what the figures were taken on."""
    lines = [f"libprefixcache {_library_version()}, {platform.machine()}, Python {platform.python_version()}"]
    if simulated:
        return [*lines, "simulated CUDA driver: no claim about a GPU"]
    query = "name,driver_version,memory.total"
    try:
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
        lines.append("GPU: " + "; ".join(out.stdout.split("\n")).strip("; "))
    except (OSError, subprocess.SubprocessError) as e:
        lines.append(f"GPU: nvidia-smi did not answer ({type(e).__name__})")
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    try:
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        lines.append("torch (and its CUDA): " + (out.stdout.strip() or "not here"))
    except subprocess.SubprocessError as e:
        lines.append(f"torch: {type(e).__name__}")
    lines.append(f"CPUs: {os.cpu_count()}, {_processor()}")
    return lines


def _library_version() -> str:
    library = ctypes.CDLL(str(ROOT / "build" / "libprefixcache.so"))
    library.pc_version.restype = ctypes.c_char_p
    version: str = library.pc_version().decode()
    return version


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
