"""Arguments and fields of the context ABI out of range, one by one.

Each is refused with a text that names it, changes nothing, and the good call is good
afterwards.
"""

from __future__ import annotations

import ctypes

import pytest
from abi_context import (
    BAD_HANDLE,
    INVALID,
    NOT_FOUND,
    OK,
    REQUEST_FAILED,
    TOO_SMALL,
    UNSUPPORTED,
    WRONG_STATE,
    World,
    address,
    hashes,
    i32,
    i64,
)

from prefixcache.context import _abi


@pytest.fixture
def world():
    return World()


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
    ("manager_tenants", {"space": HUGE}, INVALID, "tenants"),
    ("manager_set_quota", {"quota": 1001}, INVALID, "quota"),
    ("manager_set_quota", {"quota": 2**32 - 1}, INVALID, "quota"),
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
    ("context_begin_compaction", {"device_mapping": 1}, INVALID, "device_mapping: 0x1, expected a multiple of 4"),
    ("context_move_slots", {"lengths": 2}, INVALID, "lengths: 0x2, expected a multiple of 4"),
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
    world.refused(name, values, expected, text, **replaced)
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
    world.refused(name, values, expected, text)
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
    world.refused("manager_acquire", values, INVALID, r"spans\[1\]")
    values = world.good("context_begin")
    cuts = i64(0, 2)
    values["admission"].spans, values["admission"].span_offsets = address(span), address(cuts)
    world.refused("context_begin", values, INVALID, r"spans\[1\]")


@pytest.mark.parametrize("fields", [{"present": 16}, {"present": 2**32 - 1}, {"reserved0": 1}])
def test_extras(world, fields):
    for name in ("manager_acquire", "manager_lookup", "digest_sequence"):
        values = world.good(name)
        values["sequence"].extras = ctypes.pointer(EXTRA(**fields))
        world.refused(name, values, UNSUPPORTED, "extras|reserved0")


def test_keys_and_tokens_do_not_mix(world):
    keyed, plain = world.good("manager_publish_keys"), world.good("manager_acquire")
    with_keys = world.sequence(keys=hashes(1, 2), num_keys=2, num_tokens=10)
    world.refused("manager_acquire", plain, INVALID, "keys", sequence=with_keys)
    other = dict(plain, manager=keyed["manager"])
    world.refused("manager_acquire", other, INVALID, "tokens")
    for fields, text in (
        ({"num_keys": 3}, "[kK]eys"),
        ({"num_keys": MAX64}, "keys"),
        ({"num_checkpoints": 1}, "checkpoints"),
        ({"num_tokens": -1}, "num_tokens"),
    ):
        bad = world.sequence(keys=hashes(1, 2, 3), **{"num_keys": 2, "num_tokens": 10, **fields})
        world.refused("manager_acquire", other, INVALID, text, sequence=bad)
    world.refused("manager_publish", dict(world.good("manager_publish"), **_own(keyed)), WRONG_STATE, "KEYS")
    world.refused("manager_append", dict(world.good("manager_append"), **_own(keyed)), WRONG_STATE, "KEYS")
    world.refused("manager_publish_keys", dict(keyed, **_own(world.good("manager_publish"))), WRONG_STATE, "KEYS")


def _own(values):
    return {"manager": values["manager"], "lease": values["lease"]}


def test_calls_for_the_other_kind_of_lease(world):
    vanilla, hybrid = world.good("manager_publish"), world.good("manager_reserve")
    for name in ("manager_reserve", "manager_publish_hybrid", "manager_retire", "manager_release_restored"):
        world.refused(name, dict(world.good(name), **_own(vanilla)), WRONG_STATE, "hybrid")
    world.refused("manager_publish", dict(vanilla, **_own(hybrid)), WRONG_STATE, "hybrid")
