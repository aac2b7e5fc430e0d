"""gpu/cuda/check-header.py: what it takes for a difference between our cuda.h and NVIDIA's.

A toolkit's header is played by our own with a change in it. ``make cuda-check`` looks at a real one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "gpu" / "cuda"
OURS = (FOLDER / "include" / "cuda.h").read_text()
RESERVED = "    unsigned char reserved[64]; /* 0; newer toolkits have names for some of it */\n"


def checked(header: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "cuda.h").write_text(header)
    return subprocess.run([sys.executable, FOLDER / "check-header.py", folder], capture_output=True, text=True)


@pytest.mark.parametrize("version", [12000, 13000])
@pytest.mark.parametrize(
    "fields",
    [
        "unsigned char reserved[64];",  # 12.0 to 12.5
        "size_t maxSize; unsigned short usage; unsigned char reserved[54];",
        "size_t maxSize; unsigned short usage; unsigned char rdma; unsigned char reserved[53];",  # 13.4
    ],
)
def test_names_for_what_was_reserved_are_no_difference(fields, version, tmp_path):
    assert OURS.count(RESERVED) == 1
    header = OURS.replace("#define CUDA_VERSION 12000", f"#define CUDA_VERSION {version}")
    done = checked(header.replace(RESERVED, fields), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"CUDA {version // 1000}.0" in done.stdout and "0 differ" in done.stdout


def test_a_flag_more_is_no_difference(tmp_path):
    mask = "CU_CTX_FLAGS_MASK = 0xFF"
    assert OURS.count(mask) == 1
    done = checked(OURS.replace(mask, "CU_CTX_FLAGS_MASK = 0x1FF"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "old, new, named",
    [
        (RESERVED, "unsigned char reserved[72];", "size CUmemPoolProps"),
        ("CUDA_ERROR_NOT_READY = 600", "CUDA_ERROR_NOT_READY = 601", "value CUDA_ERROR_NOT_READY"),
        ("unsigned int value, elementSize;", "unsigned int elementSize, value;", "field CUDA_MEMSET_NODE_PARAMS.value"),
        ("#define cuCtxDestroy cuCtxDestroy_v2", "#define cuCtxDestroy cuCtxDestroy_v9", "symbol cuCtxDestroy"),
    ],
)
def test_anything_else_is_one_and_is_named(old, new, named, tmp_path):
    assert OURS.count(old) == 1
    done = checked(OURS.replace(old, new), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"ours: {named} " in done.stdout


@pytest.mark.parametrize(
    "old, new, named",
    [
        ("cuEventQuery(CUevent ", "cuEventQuery(CUstream ", "cuEventQuery: parameters differ"),
        ("void *win32SecurityAttributes;", "void *security;", "win32SecurityAttributes"),
    ],
)
def test_what_does_not_compile_is_told_in_the_compilers_words(old, new, named, tmp_path):
    assert OURS.count(old) == 1
    done = checked(OURS.replace(old, new), tmp_path)
    assert done.returncode == 1
    assert named in done.stdout.splitlines()[-1] and "Traceback" not in done.stderr
