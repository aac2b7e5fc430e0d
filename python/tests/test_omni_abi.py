"""The omni structs and functions as Python has them, against the header."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from prefixcache import _cache, _ffi

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADER = (INCLUDE / "prefixcache.h").read_text()

# C struct -> what Python packs it with, and the fields in that order.
PACKED = {
    "pc_omni_rows": _cache._ROWS,
    "pc_omni_read": _cache._READ,
    "pc_omni_new_request": _cache._NEW_REQUEST,
    "pc_omni_save_args": _cache._SAVE_ARGS,
}
STRUCTS = {
    "pc_omni_options": _ffi.OmniOptions,
    "pc_omni_stats": _ffi.OmniStats,
    "pc_omni_slot_state": _ffi.SlotState,
    "pc_buffer_stats": _ffi.BufferStats,
    "pc_label": _ffi.Label,
    "pc_metrics_source": _ffi.MetricsSource,
}


def fields_of(name: str) -> list[str]:
    """Fields of a struct of the header in order; an array counts once."""
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", HEADER, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return re.findall(r"(\w+)(?:\[\w+\])?\s*;", body)


def compiled(tmp_path: Path, expressions: list[str]) -> list[int]:
    """Values of integer constant expressions over the header."""
    source, program = tmp_path / "print.c", tmp_path / "print"
    lines = "\n".join(f'printf("%zu\\n", (size_t)({e}));' for e in expressions)
    source.write_text(f'#include <stdio.h>\n#include "prefixcache.h"\nint main(void) {{ {lines} return 0; }}\n')
    subprocess.run(["gcc", "-I", str(INCLUDE), str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return [int(line) for line in printed.stdout.split()]


def test_layout_of_every_struct(tmp_path):
    expressions, expected = [], []
    for name, s in STRUCTS.items():
        assert [f for f, _ in s._fields_] == fields_of(name), name
        for field, _ in s._fields_:
            expressions += [f"offsetof({name}, {field})", f"sizeof((({name} *)0)->{field})"]
            expected += [getattr(s, field).offset, getattr(s, field).size]
        expressions.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(s))
    assert compiled(tmp_path, expressions) == expected


@pytest.mark.parametrize("name", PACKED)
def test_layout_of_what_is_packed(tmp_path, name):
    # Formats have no padding of their own ("="), so offsets follow from the sizes.
    expected, at = [], 0
    for count, letter in re.findall(r"(\d*)([A-Za-z])", PACKED[name].format):
        expected.append(at)
        at += int(count or 1) * {"I": 4, "q": 8, "Q": 8}[letter]
    fields = fields_of(name)
    assert len(fields) == len(expected)
    assert compiled(tmp_path, [f"offsetof({name}, {f})" for f in fields] + [f"sizeof({name})"]) == [*expected, at]


def test_words_are_written_and_read_where_they_are(tmp_path):
    words = {
        "offsetof(pc_omni_save_args, slots)": _cache._SLOTS_WORD,
        "offsetof(pc_omni_save_args, step)": _cache._STEP_WORD,
        "offsetof(pc_omni_rows, rows)": _cache.ADDRESS_WORD,
        "offsetof(pc_omni_rows, dst)": _cache.TARGET_WORD,
        "sizeof(pc_omni_rows)": _cache.ROWS_WORDS,
    }
    assert compiled(tmp_path, list(words)) == [8 * word for word in words.values()]


def test_every_bound_function_has_the_arguments_of_the_header():
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
    for name, arguments in _ffi._STATUS_FUNCTIONS.items():
        parameters = re.search(rf"PC_API pc_status {name}\(([^)]*)\)", text)[1].split(",")
        assert len(parameters) == len(arguments), name
        for parameter, bound in zip(parameters, arguments, strict=True):
            words = parameter.split()
            size = 8 if "*" in parameter or words[0] in ("pc_handle", "size_t", "uint64_t", "pc_log_fn") else 4
            assert ctypes.sizeof(bound) == size, (name, parameter)
