"""The context part of the C ABI from the side of a caller who gets things wrong.

Every mistake is an error whose text names the argument, and changes nothing. What can be
said of all functions at once is tested for all of them, from the header's prototypes.
"""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest
from abi import ROOT
from abi_context import (
    BAD_HANDLE,
    BUSY,
    HEADER,
    INVALID,
    NOT_FOUND,
    OK,
    PROTOTYPES,
    REQUEST_FAILED,
    STAGES,
    TOO_SMALL,
    UNSUPPORTED,
    WRONG_STATE,
    World,
    address,
    hashes,
    i32,
    i64,
    out,
)
from context_host import Kind, prompt

from prefixcache.context import _abi

NAMES = sorted(PROTOTYPES)

# Pointers that may be null, by function.
NULLABLE = {
    "digest_sequence": {"prefix"},
    "manager_acquire": {"base_pages", "draft_pages"},
    "manager_advance": {"base_pages", "draft_pages", "publication"},
    "manager_destroy": {"manager"},
    "manager_flush": {"removed"},
    "manager_grow": {"base_pages", "draft_pages"},
    "manager_invalidate": {"generation", "removed"},
    "manager_publish": {"publication"},
    "manager_publish_hybrid": {"publication"},
    "manager_publish_hybrid_keys": {"publication"},
    "manager_publish_keys": {"publication"},
    "manager_references": {"active", "cached"},
    "manager_release": {"lease"},
    "context_destroy": {"context"},
    "table_destroy": {"table"},
    "table_upload": {"uploaded"},
}
# A zero handle that means "nothing to do".
ZERO_IS_LEGAL = {("context_finish", "request"), ("context_abandon", "request")}


def structs():
    return {
        s.__doc__.rstrip("."): s
        for s in vars(_abi).values()
        if isinstance(s, type) and issubclass(s, ctypes.Structure) and s is not ctypes.Structure
    }


@pytest.fixture
def world():
    return World()


def refused(world, name, values, expected, says, **replaced):
    """The call fails as expected, says why, and changes nothing."""
    before = world.snapshot()
    assert world.call(name, values, **replaced) == expected, world.error()
    assert re.search(says, world.error()), f"{name} says {world.error()!r}, expected {says!r}"
    assert world.snapshot() == before


# --------------------------------------------------------------------- declarations


def test_every_function_is_bound_with_its_arguments():
    assert len(NAMES) > 50
    assert _abi._FUNCTIONS.keys() == PROTOTYPES.keys()
    for name, arguments in _abi._FUNCTIONS.items():
        assert len(arguments) == len(PROTOTYPES[name]), name
        for bound, (c_type, argument) in zip(arguments, PROTOTYPES[name], strict=True):
            if "*" in c_type:
                assert bound is ctypes.c_void_p, (name, argument)
            else:
                assert ctypes.sizeof(bound) == (4 if "32" in c_type else 8), (name, argument)


def test_layout_of_every_struct_is_the_compilers(tmp_path):
    lines, expected = [], []
    for c_name, s in structs().items():
        lines.append(f'printf("%zu\\n", sizeof({c_name}));')
        expected.append(ctypes.sizeof(s))
        for field, _ in s._fields_:
            lines.append(f'printf("%zu %zu\\n", offsetof({c_name}, {field}), sizeof((({c_name} *)0)->{field}));')
            at = getattr(s, field)
            expected.append((at.offset, at.size))
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "prefixcache.h"\nint main(void) {' + "\n".join(lines) + "return 0;}"
    )
    binary = tmp_path / "layout"
    subprocess.run(["gcc", "-I", str(ROOT / "include"), str(source), "-o", str(binary)], check=True)
    printed = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(structs()) > 20
    assert [str(e) if isinstance(e, int) else f"{e[0]} {e[1]}" for e in expected] == printed


def test_enums_have_the_numbers_of_the_header():
    import prefixcache.context as pc

    numbers = {name: int(value.rstrip("u")) for name, value in re.findall(r"\b(PC_[A-Z0-9_]+) = (\d+u?)\b", HEADER)}
    for prefix, enum in {
        "PC_LOOKUP_": pc.ContextCacheLookupPolicy,
        "PC_DEPLOY_": pc.ContextCacheDeploymentKind,
        "PC_EXECUTE_": pc.ContextCacheExecutionMode,
        "PC_REASON_": pc.NoReuseReason,
        "PC_REPLAY_": pc.SpecReplayMode,
        "PC_PHASE_": pc.Phase,
        "PC_LAYER_": pc.LayerKind,
        "PC_SPECULATIVE_": pc.SpeculativeMode,
    }.items():
        wanted = {name.removeprefix(prefix): n for name, n in numbers.items() if name.startswith(prefix)}
        assert {e.name: e.value for e in enum} == wanted
    assert numbers["PC_PLAN_SPEC"] == pc.ReusePlanMode.SPEC
    assert numbers["PC_PLAN_FULL_INPUT_REWIND"] == pc.ReusePlanKind.FULL_INPUT_REWIND
    assert numbers["PC_COMMIT_PREFILL_ONLY"] == pc.ContextCacheCommitPolicy.PREFILL_ONLY
    assert numbers["PC_EXISTING_RECORD"] == pc.PublishStatus.EXISTING_RECORD
    assert numbers["PC_RESOURCE_PARTIAL_KV"] == pc.CacheResourceType.PARTIAL_KV_SNAPSHOT
    assert numbers["PC_TYPE_INT8"] == pc.DataType.INT8
    assert (numbers["PC_REQUEST_FAILED"], numbers["PC_POISONED"]) == (1, 2)


# ------------------------------------------------------------------- for all functions


@pytest.mark.parametrize("name", NAMES)
def test_good_arguments_are_good(world, name):
    assert world.call(name, world.good(name)) == OK, world.error()
    assert world.error() == ""


HANDLES = [(n, a) for n in NAMES for t, a in PROTOTYPES[n] if t == "pc_handle"]


@pytest.mark.parametrize("name, argument", HANDLES)
def test_handles_that_are_none(world, name, argument):
    values = world.good(name)
    other = world.table().handle if not name.startswith("table") else world.manager().handle
    for handle in (1, 2**64 - 1, 0x0123456789ABCDEF, (1 << 56) | 5, values[argument] ^ (1 << 20), other):
        refused(world, name, values, BAD_HANDLE, argument, **{argument: handle})
    if (name, argument) not in ZERO_IS_LEGAL:
        refused(world, name, values, BAD_HANDLE, argument, **{argument: 0})
    assert world.call(name, values) == OK, "the good call is still good: " + world.error()


def test_zero_requests_are_legal_where_the_header_says_so(world):
    for name, argument in ZERO_IS_LEGAL:
        assert world.call(name, world.good(name), **{argument: 0}) == OK


@pytest.mark.parametrize("name", [n for n in NAMES if n.split("_")[1] not in ("create", "validate")])
def test_stale_objects(world, name):
    group = name.split("_")[0]
    if group == "digest":
        return
    values = world.good(name)
    if name.endswith("destroy"):
        handle = ctypes.c_uint64(values[group].value)
        assert world.call(name, values) == OK
        assert values[group].value == 0, "destroy clears the handle"
        assert world.call(name, values) == OK, "a zero handle is legal"
        assert world.call(name, values, **{group: handle}) == BAD_HANDLE
        assert group in world.error()
        return
    for thing in world.objects[::-1]:
        if group == "context" and hasattr(thing, "live"):
            thing.live.request.close()
            thing.coordinator.close()
        elif group != "context":
            thing.release() if hasattr(thing, "release") and hasattr(thing, "manager") else thing.close()
    assert world.call(name, values) == BAD_HANDLE
    assert group in world.error()


@pytest.mark.parametrize("name", [n for n in NAMES if ("pc_handle", "lease") in PROTOTYPES[n]])
def test_leases_of_another_manager_and_released_ones(world, name):
    values, stranger = world.good(name), world.good(name)
    refused(world, name, values, BAD_HANDLE, "lease", lease=stranger["lease"])
    lease = next(o for o in world.objects if getattr(o, "handle", 0) == values["lease"])
    lease.release()
    refused(world, name, values, BAD_HANDLE, "lease")


@pytest.mark.parametrize("name", [n for n in NAMES if ("pc_handle", "request") in PROTOTYPES[n]])
def test_requests_of_another_coordinator_and_ended_ones(world, name):
    values, stranger = world.good(name), world.good(name)
    refused(world, name, values, BAD_HANDLE, "request", request=stranger["request"])
    world.objects[0].live.request.close()
    refused(world, name, values, BAD_HANDLE, "request")


POINTERS = [(n, a) for n in NAMES for t, a in PROTOTYPES[n] if "*" in t]


@pytest.mark.parametrize("name, argument", POINTERS)
def test_null_pointers(world, name, argument):
    values = world.good(name)
    if argument in NULLABLE.get(name, ()):
        assert world.call(name, values, **{argument: None}) == OK, world.error()
    else:
        refused(world, name, values, INVALID, argument, **{argument: None})
        assert world.call(name, values) == OK, world.error()


STRUCTS = [
    (n, a, t.rstrip("*"))
    for n in NAMES
    for t, a in PROTOTYPES[n]
    if t.rstrip("*") in structs() and "struct_size" in dict(structs()[t.rstrip("*")]._fields_)
]
INPUTS = {"options", "sequence", "deployment", "admission", "advance"}


@pytest.mark.parametrize("name, argument, c_name", STRUCTS)
def test_struct_sizes(world, name, argument, c_name):
    values = world.good(name)
    value = values[argument]
    size = ctypes.sizeof(value)
    for wrong in (0, 4, 7, 2**32 - 1, 2**31) + ((size - 1,) if argument in INPUTS else ()):
        value.struct_size = wrong
        refused(world, name, values, UNSUPPORTED, f"{argument}.struct_size")
    # A host with a newer header: what this library does not know must be zero.
    newer = (ctypes.c_uint8 * (size + 16))()
    value.struct_size = size + 16
    ctypes.memmove(newer, address(value), size)
    if argument in INPUTS:
        newer[size + 3] = 1
        refused(world, name, values, UNSUPPORTED, argument, **{argument: newer})
        newer[size + 3] = 0
    else:
        newer[size:] = [0xAB] * 16
    assert world.call(name, values, **{argument: newer}) == OK, world.error()
    if argument not in INPUTS:
        assert bytes(newer[size:]) == b"\xab" * 16, "an output was written beyond what the library knows"


RESERVED = [
    (name, argument, field)
    for name, argument, c_name in STRUCTS
    if argument in INPUTS
    for field, _ in structs()[c_name]._fields_
    if field.startswith("reserved")
]


@pytest.mark.parametrize("name, argument, field", RESERVED)
def test_reserved_fields(world, name, argument, field):
    values = world.good(name)
    kind = type(getattr(values[argument], field))
    if issubclass(kind, ctypes.Array):
        for i in range(kind._length_):
            getattr(values[argument], field)[i] = 1
            refused(world, name, values, UNSUPPORTED, "reserved")
            getattr(values[argument], field)[i] = 0
    else:
        setattr(values[argument], field, 1)
        refused(world, name, values, UNSUPPORTED, "reserved")


# ------------------------------------------------------------------------- one by one

MAX64, HUGE = 2**64 - 1, 2**62

ARGUMENTS = [
    ("digest_bytes", {"size": MAX64}, INVALID, "data"),
    ("digest_sequence", {"tokens_per_page": 0}, INVALID, "tokens_per_page"),
    ("digest_sequence", {"tokens_per_page": -4}, INVALID, "tokens_per_page"),
    ("digest_sequence", {"num_digests": 1}, INVALID, "num_digests"),
    ("digest_sequence", {"num_digests": 3}, INVALID, "num_digests"),
    ("digest_sequence", {"num_digests": MAX64}, INVALID, "digests"),
    ("manager_acquire", {"mode": 3}, INVALID, "mode"),
    ("manager_acquire", {"mode": 2**32 - 1}, INVALID, "mode"),
    ("manager_acquire", {"lookup": 2}, INVALID, "lookup"),
    ("manager_acquire", {"num_base": 2}, TOO_SMALL, "base_pages"),
    ("manager_acquire", {"num_base": 0}, TOO_SMALL, "base_pages"),
    ("manager_acquire", {"mode": 2, "num_draft": 2}, TOO_SMALL, "draft_pages"),
    ("manager_append", {"num_tokens": MAX64}, INVALID, "tokens"),
    ("manager_append", {"num_tokens": HUGE}, INVALID, "tokens"),
    ("manager_advance", {"num_tokens": HUGE}, INVALID, "tokens"),
    ("manager_advance", {"base": -1}, INVALID, "base"),
    ("manager_advance", {"draft": -1}, INVALID, "draft"),
    ("manager_grow", {"base": -1}, INVALID, "base"),
    ("manager_grow", {"base": -(2**31)}, INVALID, "base"),
    ("manager_grow", {"draft": -1}, INVALID, "draft"),
    ("manager_grow", {"draft": 1}, WRONG_STATE, "draft"),
    ("manager_grow", {"base": 17}, REQUEST_FAILED, "capacity"),
    ("manager_grow", {"base": 2**31 - 1}, REQUEST_FAILED, "capacity"),
    ("manager_publish", {"resident": -1}, INVALID, "resident"),
    ("manager_publish", {"resident": -(2**63)}, INVALID, "resident"),
    ("manager_publish", {"resident": 0}, INVALID, "resident"),
    ("manager_publish", {"resident": 3}, INVALID, "resident"),
    ("manager_publish", {"resident": 11}, INVALID, "resident"),
    ("manager_publish", {"resident": 2**63 - 1}, INVALID, "resident"),
    ("manager_publish_keys", {"first": 3}, INVALID, "first"),
    ("manager_publish_keys", {"first": MAX64}, INVALID, "first"),
    ("manager_publish_keys", {"num_keys": HUGE}, INVALID, "keys"),
    ("manager_publish_keys", {"resident": -1}, INVALID, "resident"),
    ("manager_reserve", {"need_partial": 2}, INVALID, "need_partial"),
    ("manager_publish_hybrid", {"length": 0}, INVALID, "length"),
    ("manager_publish_hybrid", {"length": -1}, INVALID, "length"),
    ("manager_publish_hybrid", {"length": 11}, INVALID, "length"),
    ("manager_publish_hybrid", {"length": 2**63 - 1}, INVALID, "length"),
    ("manager_publish_hybrid", {"length": 2**32 + 10}, INVALID, "length"),
    ("manager_publish_hybrid", {"recurrent_slot": -1}, INVALID, "recurrent slot"),
    ("manager_publish_hybrid", {"recurrent_slot": 4}, WRONG_STATE, "recurrent slot"),
    ("manager_publish_hybrid", {"partial_slot": -1}, INVALID, "partial"),
    ("manager_publish_hybrid", {"partial_slot": 3}, WRONG_STATE, "partial"),
    ("manager_publish_hybrid", {"length": 8}, INVALID, "partial"),
    ("manager_publish_hybrid_keys", {"first": 1}, INVALID, "first"),
    ("manager_publish_hybrid_keys", {"num_keys": 1}, INVALID, "keys|blocks"),
    ("manager_publish_hybrid_keys", {"recurrent_slot": 2}, WRONG_STATE, "recurrent slot"),
    ("manager_retire", {"recurrent_slot": -1}, WRONG_STATE, "recurrent slot"),
    ("manager_retire", {"recurrent_slot": 3}, WRONG_STATE, "recurrent slot"),
    ("manager_retire", {"partial_slot": 3}, WRONG_STATE, "partial slot"),
    ("manager_retire", {"partial_slot": -2}, WRONG_STATE, "partial slot"),
    ("manager_lease_pages", {"model": 2}, INVALID, "model"),
    ("manager_lease_pages", {"first": 4}, INVALID, "first"),
    ("manager_lease_pages", {"first": MAX64}, INVALID, "first"),
    ("manager_lease_pages", {"space": HUGE}, INVALID, "pages"),
    ("manager_lookup", {"mode": 3}, INVALID, "mode"),
    ("manager_evict", {"record": 0}, NOT_FOUND, "record 0"),
    ("manager_evict", {"record": MAX64}, NOT_FOUND, "record"),
    ("manager_records", {"space": HUGE}, INVALID, "records"),
    ("manager_record_pages", {"record": 99}, NOT_FOUND, "record 99"),
    ("manager_record_pages", {"model": 2}, INVALID, "model"),
    ("manager_record_pages", {"first": 3}, INVALID, "first"),
    ("manager_references", {"resource": 4}, INVALID, "resource"),
    ("manager_references", {"first": 17}, INVALID, "first"),
    ("manager_references", {"first": 1}, INVALID, "count"),
    ("manager_references", {"count": 17}, INVALID, "count"),
    ("manager_references", {"first": 1, "count": MAX64}, INVALID, "count"),
    ("manager_dump", {"space": HUGE}, INVALID, "text"),
    ("table_set_rows", {"num_rows": 5}, INVALID, "num_rows"),
    ("table_set_rows", {"num_rows": HUGE}, INVALID, "slots"),
    ("table_set_rows", {"slots": i32(0, 0)}, INVALID, "slot 0"),
    ("table_set_rows", {"slots": i32(0, 4)}, INVALID, "slot 4"),
    ("table_set_rows", {"slots": i32(-1, 1)}, INVALID, "slot -1"),
    ("table_set_rows", {"pages": i32(3, 4, 16)}, INVALID, "16"),
    ("table_set_rows", {"pages": i32(3, -1, 4)}, INVALID, "-1"),
    ("table_set_rows", {"pages": i32(*range(9)), "offsets": i64(0, 5, 9)}, INVALID, "5 pages"),
    ("table_set_rows", {"offsets": i64(1, 2, 3)}, INVALID, "offsets"),
    ("table_set_rows", {"offsets": i64(0, 2, 1)}, INVALID, "offsets"),
    ("table_set_rows", {"offsets": i64(0, -1, 3)}, INVALID, "offsets"),
    ("table_set_rows", {"offsets": i64(0, 1, 2**62)}, INVALID, "pages"),
    ("table_compact_rows", {"count": 5}, INVALID, "5 entries"),
    ("table_compact_rows", {"count": HUGE}, INVALID, "old_to_new"),
    ("table_compact_rows", {"new_batch": -1}, INVALID, "new batch"),
    ("table_compact_rows", {"new_batch": 5}, INVALID, "new batch"),
    ("table_compact_rows", {"new_batch": 1}, INVALID, "moves to 1"),
    ("table_compact_rows", {"old_to_new": i32(0, 0, -1)}, INVALID, "two slots"),
    ("table_compact_rows", {"old_to_new": i32(0, -2, 1)}, INVALID, "-2"),
    ("table_compact_rows", {"old_to_new": i32(0, -1, -1)}, INVALID, "covers"),
    ("table_get_row", {"slot": 4}, INVALID, "slot"),
    ("table_get_row", {"slot": -1}, INVALID, "slot"),
    ("context_report", {"outcome": 3}, INVALID, "outcome"),
    ("context_report", {"outcome": 2}, INVALID, "outcome"),  # no synchronisation is in hand
    ("context_prepare_decode", {"base_headroom": -1}, INVALID, "headroom"),
    ("context_prepare_decode", {"draft_headroom": -1}, INVALID, "headroom"),
    ("context_prepare_decode", {"draft_headroom": 1}, INVALID, "headroom"),
    ("context_begin_compaction", {"count": 1}, INVALID, "mapping"),
    ("context_begin_compaction", {"count": HUGE}, INVALID, "old_to_new"),
    ("context_begin_compaction", {"new_batch": -1}, INVALID, "new batch"),
    ("context_begin_compaction", {"new_batch": 2}, INVALID, "mapping"),
    ("context_begin_compaction", {"old_to_new": i32(1, 0), "new_batch": 2}, INVALID, "moves to 1"),
    ("context_begin_compaction", {"old_to_new": i32(0, 2), "new_batch": 2}, INVALID, "moves to 2"),
    ("context_begin_compaction", {"old_to_new": i32(0, -2)}, INVALID, "-2"),
    ("context_abandon", {"drained": 2}, INVALID, "drained"),
    ("context_shutdown", {"drained": 2}, INVALID, "drained"),
    ("context_get_sequence", {"index": 2}, INVALID, "sequence|index"),
    ("context_get_sequence", {"index": 2**32 - 1}, INVALID, "sequence|index"),
    ("context_sequence_pages", {"index": 2}, INVALID, "sequence|index"),
    ("context_sequence_pages", {"model": 7}, INVALID, "model"),
    ("context_sequence_pages", {"first": 4}, INVALID, "first"),
    ("context_sequence_tokens", {"first": 12}, INVALID, "first"),
    ("context_sequence_tokens", {"first": MAX64}, INVALID, "first"),
    ("context_sequence_tokens", {"space": HUGE}, INVALID, "tokens"),
    ("context_finalize_prefill", {"request": 0}, BAD_HANDLE, "request"),
]


@pytest.mark.parametrize("name, replaced, expected, text", ARGUMENTS)
def test_arguments(world, name, replaced, expected, text):
    values = world.good(name)
    refused(world, name, values, expected, text, **replaced)
    assert world.call(name, values) == OK, "the good call is still good: " + world.error()


EXTRA, SPAN = _abi.Extras, _abi.Span

FIELDS = [
    # pc_sequence
    ("manager_acquire", "sequence", {"num_tokens": 0}, INVALID, "num_tokens"),
    ("manager_acquire", "sequence", {"num_tokens": -1}, INVALID, "num_tokens"),
    ("manager_acquire", "sequence", {"num_tokens": 2**31}, INVALID, "num_tokens"),
    ("manager_acquire", "sequence", {"num_tokens": 2**63 - 1}, INVALID, "num_tokens"),
    ("manager_acquire", "sequence", {"tokens": None}, INVALID, "tokens"),
    ("manager_acquire", "sequence", {"num_keys": 1}, INVALID, "keys"),
    ("manager_acquire", "sequence", {"num_checkpoints": 1}, INVALID, "keys|checkpoints"),
    ("manager_acquire", "sequence", {"num_spans": 1}, INVALID, "spans"),
    ("manager_acquire", "sequence", {"num_spans": MAX64}, INVALID, "spans"),
    ("manager_lookup", "sequence", {"num_tokens": 0}, INVALID, "num_tokens"),
    ("digest_sequence", "sequence", {"num_tokens": 0}, INVALID, "num_tokens"),
    ("digest_sequence", "sequence", {"num_keys": 1}, INVALID, "keys"),
    # pc_manager_options
    ("manager_create", "options", {"flags": 4}, UNSUPPORTED, "flags"),
    ("manager_create", "options", {"flags": 1 << 31}, UNSUPPORTED, "flags"),
    ("manager_create", "options", {"tokens_per_page": -1}, INVALID, "tokens_per_page"),
    ("manager_create", "options", {"tokens_per_page": 2**31 - 1}, INVALID, "tokens_per_page"),
    ("manager_create", "options", {"max_records": -2}, INVALID, "max_records"),
    ("manager_create", "options", {"base_pages": -1}, INVALID, "base_pages"),
    ("manager_create", "options", {"draft_pages": -1}, INVALID, "draft_pages"),
    ("manager_create", "options", {"recurrent_slots": -1}, INVALID, "recurrent_slots"),
    ("manager_create", "options", {"partial_slots": -1}, INVALID, "partial_slots"),
    ("manager_create", "options", {"base_pages": 2**31 - 1}, INVALID, "base_pages"),
    # pc_table_options
    ("table_create", "options", {"flags": 1}, UNSUPPORTED, "flags"),
    ("table_create", "options", {"max_batch": 0}, INVALID, "max_?[bB]atch"),
    ("table_create", "options", {"max_batch": -1}, INVALID, "max_?[bB]atch"),
    ("table_create", "options", {"row_width": 0}, INVALID, "width"),
    ("table_create", "options", {"num_pages": 0}, INVALID, "pages"),
    ("table_create", "options", {"num_pages": 2**30}, INVALID, "pages"),
    ("table_create", "options", {"max_batch": 2**31 - 1, "row_width": 2**31 - 1}, INVALID, "2147483647"),
    ("table_create", "options", {"device_address": 2}, INVALID, "device_address"),
    # pc_context_options
    ("context_create", "options", {"flags": 2}, UNSUPPORTED, "flags"),
    ("context_create", "options", {"kind": 4}, INVALID, "kind"),
    ("context_create", "options", {"kind": 3}, INVALID, "draft"),
    ("context_create", "options", {"kind": 1}, INVALID, "recurrent"),
    ("context_create", "options", {"tokens_per_page": -1}, INVALID, "tokens.per.page"),
    ("context_create", "options", {"tokens_per_page": 5}, INVALID, "capacity"),
    ("context_create", "options", {"max_batch": 0}, INVALID, "max.batch"),
    ("context_create", "options", {"max_batch": 3}, INVALID, "max.batch"),
    ("context_create", "options", {"max_batch": -1}, INVALID, "max.batch"),
    ("context_create", "options", {"draft_max_batch": 4}, INVALID, "draft"),
    ("context_create", "options", {"max_records": -2}, INVALID, "max_records"),
    ("context_create", "options", {"max_requests": -1}, INVALID, "max.requests"),
    ("context_create", "options", {"max_requests": 2**31 - 1}, INVALID, "max.requests"),
    ("context_create", "options", {"verify_size": 3}, INVALID, "verify"),
    ("context_create", "options", {"drafting_step": 3}, INVALID, "drafting"),
    ("context_create", "options", {"future_tokens": -1}, INVALID, "future.tokens"),
    ("context_create", "options", {"recurrent_budget": -1}, INVALID, "budget"),
    ("context_create", "options", {"partial_budget": -1}, INVALID, "budget"),
    # pc_deployment
    ("context_validate_deployment", "deployment", {"speculative": 9}, UNSUPPORTED, "speculative"),
    ("context_validate_deployment", "deployment", {"diffusion_backbone": 2}, UNSUPPORTED, "diffusion"),
    ("context_validate_deployment", "deployment", {"tokens_per_page": -1}, UNSUPPORTED, "tokens.per.page"),
    ("context_validate_deployment", "deployment", {"num_conditioning_layers": 2}, INVALID, "conditioning_layers"),
    # pc_admission
    ("context_begin", "admission", {"num_sequences": 0}, INVALID, "num_sequences"),
    ("context_begin", "admission", {"num_sequences": 5}, INVALID, "num_sequences"),
    ("context_begin", "admission", {"num_sequences": 2**32 - 1}, INVALID, "num_sequences"),
    ("context_begin", "admission", {"execution": 2}, INVALID, "execution"),
    ("context_begin", "admission", {"execution": 1}, INVALID, "execution"),
    ("context_begin", "admission", {"lookup": 2}, INVALID, "lookup"),
    ("context_begin", "admission", {"commit": 2}, INVALID, "commit"),
    ("context_begin", "admission", {"stream": 1}, INVALID, "stream"),
    ("context_begin", "admission", {"tokens": None}, INVALID, "tokens"),
    ("context_begin", "admission", {"token_offsets": None}, INVALID, "token_offsets"),
    ("context_begin", "admission", {"token_offsets": i64(1, 5)}, INVALID, "token_offsets"),
    ("context_begin", "admission", {"token_offsets": i64(0, -5)}, INVALID, "token_offsets"),
    ("context_begin", "admission", {"token_offsets": i64(0, 0)}, INVALID, "tokens"),
    ("context_begin", "admission", {"token_offsets": i64(0, 2**62)}, INVALID, "tokens"),
    ("context_begin", "admission", {"media": hashes(1)}, INVALID, "media_offsets"),
    ("context_begin", "admission", {"media_offsets": i64(0, 1)}, INVALID, "media"),
    ("context_begin", "admission", {"media": hashes(1, 2), "media_offsets": i64(0, 2)}, INVALID, "media"),
    ("context_begin", "admission", {"span_offsets": i64(0, 1)}, INVALID, "spans"),
    ("context_begin", "admission", {"spans": (SPAN * 1)()}, INVALID, "span_offsets"),
    ("context_begin", "admission", {"spans": (SPAN * 1)(), "span_offsets": i64(0, -1)}, INVALID, "span_offsets"),
    ("context_begin", "admission", {"extras": (EXTRA * 1)(EXTRA(present=16))}, UNSUPPORTED, "extras"),
    ("context_begin", "admission", {"extras": (EXTRA * 1)(EXTRA(reserved0=1))}, UNSUPPORTED, "reserved0"),
    ("context_begin", "admission", {"slots": i32(4)}, INVALID, "slot"),
    ("context_begin", "admission", {"slots": i32(-1)}, INVALID, "slot"),
    ("context_begin", "admission", {"slots": i32(1)}, INVALID, "slot 1"),  # of the live request
    ("context_begin", "admission", {"slots": None}, INVALID, "slot 0"),
    # pc_advance
    ("context_finalize_prefill", "advance", {"num_sequences": 0}, INVALID, "num_sequences"),
    ("context_finalize_prefill", "advance", {"num_sequences": 1}, INVALID, "1 advances|advances"),
    ("context_finalize_prefill", "advance", {"num_sequences": 2**32 - 1}, INVALID, "num_sequences"),
    ("context_finalize_prefill", "advance", {"tokens": None}, INVALID, "tokens"),
    ("context_finalize_prefill", "advance", {"token_offsets": i64(0, 2, 1)}, INVALID, "token_offsets"),
    ("context_finalize_prefill", "advance", {"token_offsets": i64(0, 0, 1)}, INVALID, "accepted 0|0 tokens"),
    ("context_finalize_prefill", "advance", {"token_offsets": i64(0, 2, 2)}, INVALID, "tokens"),
    ("context_finalize_prefill", "advance", {"committed": None}, INVALID, "committed"),
    ("context_finalize_prefill", "advance", {"committed": i32(10, 8)}, INVALID, "committed"),
    ("context_finalize_prefill", "advance", {"committed": i32(10, -9)}, INVALID, "committed"),
    ("context_finalize_prefill", "advance", {"common": i32(10, 9)}, INVALID, "common"),
    ("context_finalize_prefill", "advance", {"publish": i32(0), "num_publish": 1}, INVALID, "publish"),
    ("context_complete_decode", "advance", {"committed": i32(11, 11)}, INVALID, "committed"),
    ("context_complete_decode", "advance", {"committed": i32(2**31 - 1, 10)}, INVALID, "committed"),
    ("context_complete_decode", "advance", {"common": i32(10, 9)}, INVALID, "common"),
    ("context_complete_decode", "advance", {"publish": None, "num_publish": 1}, INVALID, "publish"),
    ("context_complete_decode", "advance", {"publish": i32(0, 2), "num_publish": 2}, INVALID, "publish"),
    ("context_complete_decode", "advance", {"publish": i32(-1), "num_publish": 1}, INVALID, "publish"),
    ("context_complete_decode", "advance", {"publish": i32(1, 1), "num_publish": 2}, INVALID, "publish"),
    ("context_complete_decode", "advance", {"publish": i32(1), "num_publish": HUGE}, INVALID, "publish"),
]


@pytest.mark.parametrize("name, argument, fields, expected, text", FIELDS)
def test_fields(world, name, argument, fields, expected, text):
    values = world.good(name)
    good = bytes(values[argument])
    for field, value in fields.items():
        setattr(values[argument], field, address(value) if isinstance(value, ctypes.Array) else value)
    refused(world, name, values, expected, text)
    ctypes.memmove(address(values[argument]), good, len(good))
    assert world.call(name, values) == OK, "the good call is still good: " + world.error()


SPANS = [{"modality": 256}, {"offset": -1}, {"order": -1}, {"reserved0": 1}, {"modality": 2**32 - 1}]


@pytest.mark.parametrize("fields", SPANS)
def test_media_spans(world, fields):
    values = world.good("manager_acquire")
    span = (SPAN * 2)()
    for field, value in fields.items():
        setattr(span[1], field, value)
    values["sequence"].spans, values["sequence"].num_spans = address(span), 2
    refused(world, "manager_acquire", values, INVALID, r"spans\[1\]")
    values = world.good("context_begin")
    cuts = i64(0, 2)
    values["admission"].spans, values["admission"].span_offsets = address(span), address(cuts)
    refused(world, "context_begin", values, INVALID, r"spans\[1\]")


@pytest.mark.parametrize("fields", [{"present": 16}, {"present": 2**32 - 1}, {"reserved0": 1}])
def test_extras(world, fields):
    for name in ("manager_acquire", "manager_lookup", "digest_sequence"):
        values = world.good(name)
        values["sequence"].extras = ctypes.pointer(EXTRA(**fields))
        refused(world, name, values, UNSUPPORTED, "extras|reserved0")


def test_keys_and_tokens_do_not_mix(world):
    keyed, plain = world.good("manager_publish_keys"), world.good("manager_acquire")
    with_keys = world.sequence(keys=hashes(1, 2), num_keys=2, num_tokens=10)
    refused(world, "manager_acquire", plain, INVALID, "keys", sequence=with_keys)
    other = dict(plain, manager=keyed["manager"])
    refused(world, "manager_acquire", other, INVALID, "tokens")
    for fields, text in (
        ({"num_keys": 3}, "[kK]eys"),
        ({"num_keys": MAX64}, "keys"),
        ({"num_checkpoints": 1}, "checkpoints"),
        ({"num_tokens": -1}, "num_tokens"),
    ):
        bad = world.sequence(keys=hashes(1, 2, 3), **{"num_keys": 2, "num_tokens": 10, **fields})
        refused(world, "manager_acquire", other, INVALID, text, sequence=bad)
    refused(world, "manager_publish", dict(world.good("manager_publish"), **_own(keyed)), WRONG_STATE, "KEYS")
    refused(world, "manager_append", dict(world.good("manager_append"), **_own(keyed)), WRONG_STATE, "KEYS")
    refused(world, "manager_publish_keys", dict(keyed, **_own(world.good("manager_publish"))), WRONG_STATE, "KEYS")


def _own(values):
    return {"manager": values["manager"], "lease": values["lease"]}


def test_calls_for_the_other_kind_of_lease(world):
    vanilla, hybrid = world.good("manager_publish"), world.good("manager_reserve")
    for name in ("manager_reserve", "manager_publish_hybrid", "manager_retire", "manager_release_restored"):
        refused(world, name, dict(world.good(name), **_own(vanilla)), WRONG_STATE, "hybrid")
    refused(world, "manager_publish", dict(vanilla, **_own(hybrid)), WRONG_STATE, "hybrid")


def test_lists_that_are_too_short_say_how_long(world):
    """Queries fill what there is room for and tell the whole number."""
    values = world.good("manager_lease_pages")
    assert world.call("manager_lease_pages", values, space=1) == OK
    assert values["num_pages"].value == 3
    assert list(values["pages"][1:]) == [0] * 7
    assert world.call("manager_lease_pages", values, pages=None, space=0, first=3) == OK
    values = world.good("manager_dump")
    assert world.call("manager_dump", values, space=5) == OK
    assert len(values["text"].value) == 4
    assert values["size"].value > 64
    assert world.call("manager_dump", values, text=None, space=0) == OK
    values = world.good("context_sequence_tokens")
    assert world.call("context_sequence_tokens", values, first=9, space=8) == OK
    assert values["num_tokens"].value == 11
    assert list(values["tokens"][:3]) == [9, 7, 0]


OVERLAPS = [
    ("manager_acquire", "base_pages", "draft_pages", {"mode": 2}),
    ("manager_grow", "base_pages", "draft_pages", {"draft": 1}),
    ("manager_reserve", "recurrent_slot", "partial_slot", {}),
    ("manager_references", "active", "cached", {}),
]


@pytest.mark.parametrize("name, one, two, replaced", OVERLAPS)
def test_outputs_that_overlap(world, name, one, two, replaced):
    values = world.good(name)
    if name == "manager_grow":
        m = world.objects[0]
        values["lease"] = m.acquire(prompt(4, 5), 2).lease
        world.objects.append(values["lease"])
        values["lease"] = values["lease"].handle
    refused(world, name, values, INVALID, "overlap", **replaced, **{two: values[one]})


def test_a_coordinators_manager_takes_queries_only(world):
    values = world.good("context_manager")
    assert world.call("context_manager", values) == OK
    handle = values["manager"].value
    for name in NAMES:
        if ("pc_handle", "manager") not in PROTOTYPES[name]:
            continue
        allowed = re.search("lookup|invalidate|flush|evict|record|references|stats|check|dump", name)
        status = world.call(name, world.good(name), manager=handle)
        if not allowed:
            assert status == WRONG_STATE, name
            assert "coordinator" in world.error()
        else:
            assert status in (OK, NOT_FOUND, INVALID), (name, world.error())
    refused(world, "manager_destroy", values, WRONG_STATE, "coordinator", manager=ctypes.c_uint64(handle))


def test_a_coordinators_table_is_its_own(world):
    values = world.good("context_begin")  # with a live request
    table = world.objects[0].table.handle
    for name in ("table_set_identity", "table_set_rows", "table_compact_rows", "table_upload"):
        refused(world, name, world.good(name), BUSY, "table", table=table)
    refused(world, "table_destroy", values | {"table": ctypes.c_uint64(table)}, BUSY, "table")
    create = world.good("context_create")
    create["options"].base.table = table
    refused(world, "context_create", create, BUSY, "table")


def test_destroy_with_a_live_request(world):
    values = world.good("context_begin")
    handle = ctypes.c_uint64(values["context"])
    refused(world, "context_destroy", values | {"context": handle}, BUSY, "live|request")
    assert handle.value == values["context"]


@pytest.mark.parametrize(
    "fields", ["table", "num_pages", "max_batch", "capacity_tokens", "num_recurrent", "num_attention"]
)
def test_a_draft_cache_without_eagle(world, fields):
    values = world.good("context_create")
    layer = (_abi.RecurrentLayer * 1)()
    layers = (_abi.AttentionLayer * 1)(_abi.AttentionLayer(64, 0, 1, 1))
    draft = values["options"].draft
    draft.recurrent, draft.attention = address(layer), address(layers)
    table = world.table()
    setattr(draft, fields, table.handle if fields == "table" else 1)
    refused(world, "context_create", values, INVALID, "draft")


def test_reserved_fields_inside_resources(world):
    values = world.good("context_create")
    values["options"].base.reserved0 = 1
    refused(world, "context_create", values, UNSUPPORTED, "base.reserved0")


@pytest.mark.parametrize(
    "field, value, expected, text",
    [
        ("num_pages", 15, INVALID, "pages"),
        ("num_pages", -1, INVALID, "pages"),
        ("max_batch", 3, INVALID, "batch"),
        ("capacity_tokens", 12, INVALID, "capacity"),
        ("capacity_tokens", 17, INVALID, "capacity"),
        ("table", 0, INVALID, "table"),
        ("table", 12345, BAD_HANDLE, "table"),
    ],
)
def test_base_resources(world, field, value, expected, text):
    values = world.good("context_create")
    before = getattr(values["options"].base, field)
    setattr(values["options"].base, field, value)
    refused(world, "context_create", values, expected, text)
    setattr(values["options"].base, field, before)
    assert world.call("context_create", values) == OK, "the table was given back: " + world.error()


SNAPSHOT_LAYERS = [
    ("attention", {"kv_heads": 0}, "attention"),
    ("attention", {"head_dim": -1}, "attention"),
    ("attention", {"type": 5}, "attention"),
    ("attention", {"reserved0": 1}, "attention"),
    ("attention", {"k_address": 0}, "k_address|attention"),
    ("attention", {"v_address": 8}, "v_address|attention|V "),
    ("attention", {"kv_heads": 2**31 - 1, "head_dim": 2**31 - 1}, "."),
    ("recurrent", {"heads": 0}, "recurrent|heads"),
    ("recurrent", {"state_size": -1}, "recurrent|state"),
    ("recurrent", {"conv_kernel": 0}, "recurrent|conv"),
    ("recurrent", {"state_type": 9}, "recurrent|type"),
    ("recurrent", {"state_address": 0}, "state_address|recurrent"),
    ("recurrent", {"conv_address": 0}, "conv_address|recurrent"),
    ("recurrent", {"reserved0": 1}, "recurrent"),
    ("recurrent", {"heads": 2**31 - 1, "head_dim": 2**31 - 1, "state_size": 2**31 - 1}, "."),
]


def hybrid_options(world):
    values = world.good("context_create")
    memory = [(ctypes.c_uint8 * 65536)() for _ in range(3)]
    attention = (_abi.AttentionLayer * 1)(_abi.AttentionLayer(address(memory[0]), 0, 1, 2))
    recurrent = (_abi.RecurrentLayer * 2)(
        *[
            _abi.RecurrentLayer(address(memory[1]) + i * 4096, address(memory[2]) + i * 4096, 1, 1, 2, 2, 1, 2)
            for i in (0, 1)
        ]
    )
    world.keep += [memory, attention, recurrent]
    o = values["options"]
    o.kind, o.recurrent_budget, o.partial_budget = 1, 4096, 4096
    o.base.attention, o.base.num_attention = address(attention), 1
    o.base.recurrent, o.base.num_recurrent = address(recurrent), 2
    return values, {"attention": attention, "recurrent": recurrent}


@pytest.mark.parametrize("which, fields, text", SNAPSHOT_LAYERS)
def test_layers_of_hybrid_caches(world, which, fields, text):
    values, layers = hybrid_options(world)
    good = bytes(layers[which])
    for field, value in fields.items():
        setattr(layers[which][-1], field, value)
        if "address" not in field:  # the same in all layers, or the difference is what is refused
            setattr(layers[which][0], field, value)
    status = world.call("context_create", values)
    assert status in (INVALID, UNSUPPORTED), world.error()
    assert re.search(text, world.error())
    ctypes.memmove(layers[which], good, len(good))
    assert world.call("context_create", values) == OK, world.error()


@pytest.mark.parametrize("fields", [{"recurrent_budget": 0}, {"partial_budget": 0}, {"recurrent_budget": 2**63 - 1}])
def test_snapshot_budgets(world, fields):
    values, _ = hybrid_options(world)
    for field, value in fields.items():
        setattr(values["options"], field, value)
    refused(world, "context_create", values, INVALID, "budget|slots")


def test_no_step_is_legal_while_a_report_is_due(world):
    values = world.good("context_report")
    rig = world.objects[0]
    due = rig.live.request.inspect()
    for name in STAGES:
        if name == "context_report":
            continue
        arguments = {**world.good(name), **{k: values[k] for k in ("context", "request")}}
        assert world.call(name, arguments) == BUSY, (name, world.error())
    for name in ("context_begin", "context_finish", "context_shutdown"):
        arguments = {**world.good(name), "context": values["context"]}
        if name == "context_finish":
            arguments["request"] = values["request"]
        assert world.call(name, arguments) == BUSY, (name, world.error())
    assert rig.live.request.inspect() == due
    assert world.call("context_report", values) == OK
    refused(world, "context_report", values, WRONG_STATE, "no work outstanding")


def test_every_step_out_of_order_changes_nothing(world):
    """D-16: each stage takes its own steps only."""
    legal = {
        "admitted": {"context_prepare_prefill"},
        "prefill": {"context_capture_prefill", "context_finalize_prefill"},
        "captured": {"context_finalize_prefill"},
        "settled": {"context_prepare_decode", "context_begin_compaction"},
        "decode": {"context_complete_decode"},
        "compaction": {"context_compact"},
    }
    for kind in (Kind.VANILLA, Kind.HYBRID):
        for stage, allowed in legal.items():
            rig = world.rig(stage, kind)
            world.objects[:] = [rig]
            for name in STAGES.keys() - allowed - {"context_report"}:
                arguments = world.good(name) | {"context": rig.coordinator.handle, "request": rig.live.request.handle}
                world.objects[:] = [rig]
                refused(world, name, arguments, WRONG_STATE, "expected|stage|legal")
            rig.live.request.close()


def test_outputs_are_untouched_by_a_refused_call(world):
    values = world.good("manager_acquire")
    values["lease"] = out(99)
    pages = i32(*[-7] * 4)
    assert world.call("manager_acquire", values, mode=9, base_pages=pages) == INVALID
    assert (values["lease"].value, list(pages)) == (99, [-7] * 4)
    values = world.good("context_begin")
    values["request"] = out(99)
    assert world.call("context_begin", values, admission=world.admission(slots=i32(0))) == INVALID
    assert values["request"].value == 99


@pytest.mark.parametrize("generation", [None, 0, MAX64])
def test_an_adapter_that_nobody_used(world, generation):
    values = world.good("manager_invalidate")
    given = None if generation is None else ctypes.c_uint64(generation)
    before = world.snapshot()
    assert world.call("manager_invalidate", values, generation=given) == OK
    assert values["removed"].value == 0
    assert world.snapshot() == before
