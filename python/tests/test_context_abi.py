"""The context part of the C ABI from the side of a caller who gets things wrong.

What can be said of all functions at once is tested for all of them, from the header's
prototypes: how they are declared, and what handles, null pointers, struct sizes and
reserved fields do. Every mistake is an error whose text names the argument, and changes
nothing.
"""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest
from abi import ROOT
from abi_context import (
    BAD_HANDLE,
    HEADER,
    INVALID,
    OK,
    PROTOTYPES,
    UNSUPPORTED,
    World,
    address,
)

from prefixcache.context import _abi


@pytest.fixture
def world():
    return World()


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
    "manager_set_quota": {"isolation"},
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
        world.refused(name, values, BAD_HANDLE, argument, **{argument: handle})
    if (name, argument) not in ZERO_IS_LEGAL:
        world.refused(name, values, BAD_HANDLE, argument, **{argument: 0})
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
    world.refused(name, values, BAD_HANDLE, "lease", lease=stranger["lease"])
    lease = next(o for o in world.objects if getattr(o, "handle", 0) == values["lease"])
    lease.release()
    world.refused(name, values, BAD_HANDLE, "lease")


@pytest.mark.parametrize("name", [n for n in NAMES if ("pc_handle", "request") in PROTOTYPES[n]])
def test_requests_of_another_coordinator_and_ended_ones(world, name):
    values, stranger = world.good(name), world.good(name)
    world.refused(name, values, BAD_HANDLE, "request", request=stranger["request"])
    world.objects[0].live.request.close()
    world.refused(name, values, BAD_HANDLE, "request")


POINTERS = [(n, a) for n in NAMES for t, a in PROTOTYPES[n] if "*" in t]
TYPED = [(n, a) for n in NAMES for t, a in PROTOTYPES[n] if "*" in t and t not in ("char*", "void*")]


@pytest.mark.parametrize("name, argument", POINTERS)
def test_null_pointers(world, name, argument):
    values = world.good(name)
    if argument in NULLABLE.get(name, ()):
        assert world.call(name, values, **{argument: None}) == OK, world.error()
    else:
        world.refused(name, values, INVALID, argument, **{argument: None})
        assert world.call(name, values) == OK, world.error()


@pytest.mark.parametrize("name, argument", TYPED)
def test_misaligned_addresses(world, name, argument):
    values = world.good(name)
    value = values[argument]
    memory = (ctypes.c_uint8 * (ctypes.sizeof(value) + 16))()
    ctypes.memmove(address(memory) + 1, address(value), ctypes.sizeof(value))
    world.refused(name, values, INVALID, "aligned", **{argument: address(memory) + 1})
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
    oldest = type(value).tenant_quota.offset if hasattr(type(value), "tenant_quota") else size
    for wrong in (0, 4, 7, 2**32 - 1, 2**31) + ((oldest - 1,) if argument in INPUTS else ()):
        value.struct_size = wrong
        world.refused(name, values, UNSUPPORTED, f"{argument}.struct_size")
    # A host with a newer header: what this library does not know must be zero.
    newer = (ctypes.c_uint8 * (size + 16))()
    value.struct_size = size + 16
    ctypes.memmove(newer, address(value), size)
    if argument in INPUTS:
        newer[size + 3] = 1
        world.refused(name, values, UNSUPPORTED, argument, **{argument: newer})
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
            world.refused(name, values, UNSUPPORTED, "reserved")
            getattr(values[argument], field)[i] = 0
    else:
        setattr(values[argument], field, 1)
        world.refused(name, values, UNSUPPORTED, "reserved")
