"""The ABI gate: the header keeps its promise, and the gate sees when it does not."""

from __future__ import annotations

import re
from pathlib import Path

import abi_snapshot as abi
import pytest

TEXT = abi.HEADER.read_text()
STATS = "    uint64_t recycled;       /* of these, without fresh memory */\n"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of the header as it is, so that these tests need no fresh one in the repository."""
    out = tmp_path_factory.mktemp("abi") / "now.abi"
    abi.snapshot(out)
    return out


def edit(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def test_the_header_is_compatible_with_the_snapshot():
    broken, _ = abi.compare(abi.SNAPSHOT, TEXT)
    assert not broken, "\n".join([*broken, "see `python3 gates/abi_snapshot.py check`"])


BREAKING = {
    "field: another type, same size": (
        "    int64_t num_blocks;              /* blocks",
        "    uint64_t num_blocks;              /* blocks",
    ),
    "field: wider": ("    uint32_t reserved0;\n    uint64_t in_use_bytes;", "    uint64_t in_use_bytes;"),
    "field: renamed": ("uint64_t recycled; ", "uint64_t reused; "),
    "field: removed": (STATS, ""),
    "field: inserted": ("    uint64_t in_use_bytes; ", "    uint64_t more;\n    uint64_t in_use_bytes; "),
    "field: two of one type change places": (
        "    uint64_t acquired;       /* buffers handed out so far */\n" + STATS,
        "    uint64_t recycled;\n    uint64_t acquired;\n",
    ),
    "field: appended to the element of an array": (
        "    int64_t num_blocks;    /* entries of blocks; at least hit_tokens / block_size */\n",
        "    int64_t num_blocks;\n    int64_t more;\n",
    ),
    "field: a shorter array": (
        "    uint64_t reserved[4];\n    uint64_t event;",
        "    uint64_t reserved[3];\n    uint64_t event;",
    ),
    "field: a longer array": (
        "    uint64_t reserved[4];\n    uint64_t event;",
        "    uint64_t reserved[5];\n    uint64_t event;",
    ),
    "enum: another value": ("PC_ERROR_BUSY = -36", "PC_ERROR_BUSY = -38"),
    "enum: two change places": (
        "    PC_OMNI_JOIN_NEXT_STEP = 0, /* with the step that computed them */\n    PC_OMNI_JOIN_ON_FINISH = 1 ",
        "    PC_OMNI_JOIN_NEXT_STEP = 1,\n    PC_OMNI_JOIN_ON_FINISH = 0 ",
    ),
    "enum: removed": ("    PC_ERROR_BUSY = -36,          /* the handle is in use by another call */\n", ""),
    "macro: another value": ("#define PC_MAX_WORK 8", "#define PC_MAX_WORK 9"),
    "macro: another number of no key": ("PC_OMNI_NO_KEY 0xFFFFFFFFu", "PC_OMNI_NO_KEY 0xFFFFFFFEu"),
    "function: removed": ("PC_API pc_status pc_buffer_release(pc_handle buffer);", ""),
    "function: one more parameter": ("pc_buffer_release(pc_handle buffer);", "pc_buffer_release(pc_handle buffer, int more);"),
    "function: a parameter of another type": (
        "pc_status pc_reserve_threads(uint32_t threads);",
        "pc_status pc_reserve_threads(int32_t threads);",
    ),
    "function: another result": ("PC_API uint32_t pc_abi_version(void);", "PC_API uint64_t pc_abi_version(void);"),
    "typedef: wider": ("typedef int32_t pc_status;", "typedef int64_t pc_status;"),
    "callback: another parameter": (
        "typedef void (*pc_log_fn)(void *user, int32_t level,",
        "typedef void (*pc_log_fn)(void *user, int64_t level,",
    ),
    "table: two entries of one type change places": (
        "    pc_status (*omni_shutdown)(pc_handle cache);\n    pc_status (*omni_destroy)(pc_handle *cache);",
        "    pc_status (*omni_destroy)(pc_handle *cache);\n    pc_status (*omni_shutdown)(pc_handle cache);",
    ),
    "table: an entry is replaced by one of its type": ("(*omni_shutdown)(pc_handle cache);", "(*omni_check2)(pc_handle cache);"),
    "table: a new entry without a new version": ("\n} pc_api;", "\n    pc_status (*more)(pc_handle cache);\n} pc_api;"),
}  # fmt: skip


@pytest.mark.parametrize("change", BREAKING)
def test_a_breaking_change_fails(snapshot, change):
    broken, _ = abi.compare(snapshot, edit(*BREAKING[change]))
    assert broken


def test_the_version_of_the_table_does_not_go_back(snapshot):
    broken, _ = abi.compare(snapshot, re.sub(r"(#define PC_ABI_VERSION) \d+u", r"\1 0u", TEXT))
    assert broken


APPENDED = {
    "field of a result": (STATS, STATS + "    uint64_t more;\n", "pc_buffer_stats.more"),
    "field of options": (
        "\n} pc_omni_options;",
        "\n    uint64_t more[2];\n} pc_omni_options;",
        "pc_omni_options.more",
    ),
    "number of an enum": ("PC_ERROR_CLOSED = -37", "PC_ERROR_CLOSED = -37, PC_ERROR_MORE = -38", "PC_ERROR_MORE"),
    "macro": ("#define PC_MAX_WORK 8", "#define PC_MAX_WORK 8\n#define PC_MORE 9", "pc_macro_PC_MORE"),
    "function": (
        "PC_API uint32_t pc_abi_version(void);",
        "PC_API uint32_t pc_abi_version(void);\nPC_API pc_status pc_more(pc_handle cache);",
        None,
    ),
    "release": ("#define PC_VERSION_MINOR 1", "#define PC_VERSION_MINOR 2", None),
}


@pytest.mark.parametrize("what", APPENDED)
def test_what_is_appended_is_compatible(snapshot, what):
    old, new, name = APPENDED[what]
    broken, appended = abi.compare(snapshot, edit(old, new))
    assert broken == []
    assert appended == ([name] if name else [])


def test_a_table_entry_is_appended_with_a_new_version(snapshot):
    header = edit("\n} pc_api;", "\n    pc_status (*more)(pc_handle cache);\n} pc_api;")
    header = re.sub(r"(#define PC_ABI_VERSION) \d+u", r"\1 1000u", header)
    assert abi.compare(snapshot, header) == ([], ["pc_api.more"])


def test_a_comment_changes_nothing(snapshot):
    assert abi.compare(snapshot, edit("/* null, negative, out of range,", "/* no")) == ([], [])


def test_the_snapshot_is_of_the_whole_header(tmp_path):
    """Every function, struct with its fields, and number: nothing escapes the comparison."""
    tree = abi.read_abi(TEXT, tmp_path)
    code = abi.strip_comments(TEXT)
    assert {s.get("name") for s in tree.iter("elf-symbol") if s.get("type") == "func-type"} == set(
        re.findall(r"^PC_API [\w *]*?\b(pc_\w+)\(", code, re.MULTILINE)
    )
    numbers = {v.get("name") for v in tree.iter("enumerator")}
    assert set(re.findall(r"\b(PC_\w+) =", code)) <= numbers
    structs = {
        s.get("name"): [m.find("var-decl").get("name") for m in s.findall("data-member")]
        for s in tree.iter("class-decl")
    }
    declared = dict(re.findall(r"^typedef struct (\w+) \{(.*?)^\} \1;", code, re.MULTILINE | re.DOTALL))
    assert len(declared) > 20
    assert len(declared) == len(re.findall(r"\bstruct\b", code)), "a struct that is declared in another way"
    for name, body in declared.items():
        fields = re.findall(r"\(\*(\w+)\)\(|\b(\w+)(?:\[\w+\])?;", re.sub(r"\)\([^;]*;", ")(;", body))
        assert structs[name] == [a or b for a, b in fields], name
