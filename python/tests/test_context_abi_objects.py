"""The context ABI across calls: windows of queries, overlapping outputs, objects that belong
to others, steps out of order, and what a coordinator's physical description may say.
"""

from __future__ import annotations

import ctypes
import re

import pytest
from abi_context import (
    BAD_HANDLE,
    BUSY,
    INVALID,
    NOT_FOUND,
    OK,
    PROTOTYPES,
    STAGES,
    UNSUPPORTED,
    WRONG_STATE,
    World,
    address,
    i32,
    out,
)
from context_host import Kind, prompt

from prefixcache.context import _abi


@pytest.fixture
def world():
    return World()


NAMES = sorted(PROTOTYPES)


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
    world.refused(name, values, INVALID, "overlap", **replaced, **{two: values[one]})


def test_a_coordinators_manager_takes_queries_only(world):
    values = world.good("context_manager")
    assert world.call("context_manager", values) == OK
    handle = values["manager"].value
    for name in NAMES:
        if ("pc_handle", "manager") not in PROTOTYPES[name]:
            continue
        allowed = re.search("lookup|invalidate|flush|evict|record|references|stats|check|dump|tenants", name)
        status = world.call(name, world.good(name), manager=handle)
        if name == "manager_set_quota":
            assert status == WRONG_STATE and "tenant_quota is 0" in world.error()  # allowed, but this one counts none
        elif not allowed:
            assert status == WRONG_STATE, name
            assert "coordinator" in world.error()
        else:
            assert status in (OK, NOT_FOUND, INVALID), (name, world.error())
    world.refused("manager_destroy", values, WRONG_STATE, "coordinator", manager=ctypes.c_uint64(handle))


def test_a_coordinators_table_is_its_own(world):
    values = world.good("context_begin")  # with a live request
    table = world.objects[0].table.handle
    for name in ("table_set_identity", "table_set_rows", "table_compact_rows", "table_upload"):
        world.refused(name, world.good(name), BUSY, "table", table=table)
    world.refused("table_destroy", values | {"table": ctypes.c_uint64(table)}, BUSY, "table")
    create = world.good("context_create")
    create["options"].base.table = table
    world.refused("context_create", create, BUSY, "table")


def test_destroy_with_a_live_request(world):
    values = world.good("context_begin")
    handle = ctypes.c_uint64(values["context"])
    world.refused("context_destroy", values | {"context": handle}, BUSY, "live|request")
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
    world.refused("context_create", values, INVALID, "draft")


def test_reserved_fields_inside_resources(world):
    values = world.good("context_create")
    values["options"].base.reserved0 = 1
    world.refused("context_create", values, UNSUPPORTED, "base.reserved0")


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
    world.refused("context_create", values, expected, text)
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
    world.refused("context_create", values, INVALID, "budget|slots")


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
    world.refused("context_report", values, WRONG_STATE, "no work outstanding")


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
                world.refused(name, arguments, WRONG_STATE, "expected|stage|legal")
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


@pytest.mark.parametrize("generation", [None, 0, 2**64 - 1])
def test_an_adapter_that_nobody_used(world, generation):
    values = world.good("manager_invalidate")
    given = None if generation is None else ctypes.c_uint64(generation)
    before = world.snapshot()
    assert world.call("manager_invalidate", values, generation=given) == OK
    assert values["removed"].value == 0
    assert world.snapshot() == before
