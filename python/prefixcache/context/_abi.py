"""Structs and functions of the context part of include/prefixcache.h, for ctypes.

The header is their documentation. Functions are bound on the first call of
:func:`load`, on the library that :mod:`prefixcache._ffi` has loaded.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

from prefixcache import _ffi

ORIGINAL_RECENCY = 1
BLOCK_KEYS = 2
HOST_MEMORY = 4
WEAK_HASH = 8
SHORTEN_VICTIMS = 16
ZERO_ON_RELEASE = 32

EXTRA_ADAPTER, EXTRA_POSITION, EXTRA_EMBEDDING, EXTRA_ISOLATION = 1, 2, 4, 8

WORK_SYNCHRONIZE, WORK_RESET_LENGTHS, WORK_COMPACT_SLOTS, WORK_SET_BATCH = 1, 2, 3, 4
WORK_DONE, WORK_FAILED, WORK_SYNC_FAILED = 0, 1, 2
MAX_WORK = 8

BASE, DRAFT = 0, 1


def _each(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    """Fields of one type."""
    return tuple((name, kind) for name in names.split())


class Hash(ctypes.Structure):
    """pc_hash128."""

    _fields_ = (("high", c_uint64), ("low", c_uint64))


class Extras(ctypes.Structure):
    """pc_extras."""

    _fields_ = (
        ("present", c_uint32),
        ("reserved0", c_uint32),
        ("adapter", Hash),
        ("adapter_generation", c_uint64),
        ("position", Hash),
        ("embedding", Hash),
        ("isolation", Hash),
    )


class Span(ctypes.Structure):
    """pc_media_span."""

    _fields_ = (
        ("content", Hash),
        ("placement", Hash),
        ("offset", c_int32),
        ("order", c_int32),
        ("modality", c_uint32),
        ("reserved0", c_uint32),
    )


class Checkpoint(ctypes.Structure):
    """pc_checkpoint."""

    _fields_ = (("digest", Hash), ("length", c_int64))


class Sequence(ctypes.Structure):
    """pc_sequence."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved0", c_uint32),
        ("tokens", c_void_p),
        ("num_tokens", c_int64),
        ("media", c_void_p),
        ("extras", POINTER(Extras)),
        ("spans", c_void_p),
        ("num_spans", c_uint64),
        ("keys", c_void_p),
        ("num_keys", c_uint64),
        ("checkpoints", c_void_p),
        ("num_checkpoints", c_uint64),
    )


class ManagerOptions(ctypes.Structure):
    """pc_manager_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        *_each(c_int32, "tokens_per_page max_records base_pages draft_pages"),
        ("recurrent_slots", c_int32),
        ("partial_slots", c_int32),
        ("reserved", c_uint64 * 4),
        *_each(c_uint32, "tenant_quota reserved1"),
    )


class Tenant(ctypes.Structure):
    """pc_tenant."""

    _fields_ = (
        ("isolation", Hash),
        *_each(c_uint32, "present quota"),
        *_each(c_uint64, "quota_pages pages active_pages records snapshots leases query_tokens hit_tokens"),
        *_each(c_uint64, "evicted evicted_by_others evicted_others refused"),
    )


class Plan(ctypes.Structure):
    """pc_plan."""

    _fields_ = (
        *_each(c_uint32, "struct_size mode kind replay reason"),
        *_each(c_int32, "matched reuse bound_base bound_draft demand_base demand_draft"),
        *_each(c_int32, "recurrent_slot partial_slot partial_tokens dependency"),
        ("reserved0", c_uint32),
        ("record", c_uint64),
        ("reserved", c_uint64 * 2),
    )


class Publication(ctypes.Structure):
    """pc_publication."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("status", c_uint32),
        ("record", c_uint64),
        ("blocks", c_int32),
        ("stale", c_uint32),
    )


class Record(ctypes.Structure):
    """pc_record."""

    _fields_ = (
        ("id", c_uint64),
        *_each(c_int32, "blocks exact_length base_pages draft_pages"),
        ("recurrent_slot", c_int32),
        ("partial_slot", c_int32),
    )


class ManagerStats(ctypes.Structure):
    """pc_manager_stats."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved0", c_uint32),
        *_each(c_uint64, "records leases base_blocks draft_blocks"),
        *_each(c_uint64 * 4, "capacity free active"),
        *_each(c_uint64, "acquires infeasible evicted_records"),
        ("reclaimed", c_uint64 * 4),
        ("stale_publications", c_uint64),
        ("hash_collisions", c_uint64),
        ("reasons", c_uint64 * 16),
        *_each(c_uint64, "query_tokens hit_tokens shortened_records leases_peak"),
        ("active_peak", c_uint64 * 4),
        ("lock_waits", c_uint64),
        ("lock_wait_nanoseconds", c_uint64),
    )


class TableOptions(ctypes.Structure):
    """pc_table_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        *_each(c_int32, "max_batch row_width num_pages reserved1"),
        ("device_address", c_uint64),
        ("reserved", c_uint64 * 2),
    )


class TableInfo(ctypes.Structure):
    """pc_table_info."""

    _fields_ = (
        ("struct_size", c_uint32),
        *_each(c_int32, "max_batch row_width num_pages"),
        ("is_identity", c_uint32),
        ("dirty_rows", c_uint32),
        ("device_address", c_uint64),
    )


class AttentionLayer(ctypes.Structure):
    """pc_attention_layer."""

    _fields_ = (
        ("k_address", c_uint64),
        ("v_address", c_uint64),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("type", c_uint32),
        ("reserved0", c_uint32),
    )


class RecurrentLayer(ctypes.Structure):
    """pc_recurrent_layer."""

    _fields_ = (
        ("state_address", c_uint64),
        ("conv_address", c_uint64),
        *_each(c_int32, "heads head_dim state_size"),
        ("state_type", c_uint32),
        ("conv_dim", c_int32),
        ("conv_kernel", c_int32),
        ("conv_type", c_uint32),
        ("reserved0", c_uint32),
    )


class CacheResources(ctypes.Structure):
    """pc_cache_resources."""

    _fields_ = (
        ("table", c_uint64),
        *_each(c_int32, "num_pages max_batch capacity_tokens reserved0"),
        ("attention", c_void_p),
        ("num_attention", c_uint64),
        ("recurrent", c_void_p),
        ("num_recurrent", c_uint64),
    )


class ContextOptions(ctypes.Structure):
    """pc_context_options."""

    _fields_ = (
        *_each(c_uint32, "struct_size flags kind"),
        *_each(c_int32, "tokens_per_page max_batch draft_max_batch max_records max_requests"),
        *_each(c_int32, "verify_size drafting_step drafting_top_k future_tokens"),
        ("recurrent_budget", c_int64),
        ("partial_budget", c_int64),
        ("stream", c_uint64),
        ("base", CacheResources),
        ("draft", CacheResources),
        ("reserved", c_uint64 * 4),
        *_each(c_uint32, "tenant_quota reserved1"),
    )


class Model(ctypes.Structure):
    """pc_model."""

    _fields_ = (
        ("max_batch", c_int32),
        ("capacity_tokens", c_int32),
        ("num_pages", c_int64),
        ("layers", c_void_p),
        ("num_layers", c_uint64),
        ("attention", c_void_p),
        ("num_attention", c_uint64),
        ("kv_donors", c_void_p),
        ("num_kv_donors", c_uint64),
        ("recurrent", c_void_p),
        ("num_recurrent", c_uint64),
        ("hidden_size", c_int32),
        ("base_hidden_size", c_int32),
        ("spec_base", c_uint32),
        ("eagle", c_uint32),
    )


class Deployment(ctypes.Structure):
    """pc_deployment."""

    _fields_ = (
        *_each(c_uint32, "struct_size diffusion_backbone vision_bidirectional speculative"),
        *_each(c_int32, "tokens_per_page verify_size drafting_step drafting_top_k"),
        ("conditioning_layers", c_void_p),
        ("num_conditioning_layers", c_uint64),
        ("base", POINTER(Model)),
        ("draft", POINTER(Model)),
        ("reserved", c_uint64 * 2),
    )


class Admission(ctypes.Structure):
    """pc_admission."""

    _fields_ = (
        *_each(c_uint32, "struct_size num_sequences execution lookup commit reserved0"),
        ("stream", c_uint64),
        *_each(c_void_p, "tokens token_offsets media media_offsets extras spans span_offsets"),
        ("slots", c_void_p),
        ("reserved", c_uint64 * 4),
    )


class SequenceStart(ctypes.Structure):
    """pc_sequence_start."""

    _fields_ = (
        ("prefill_start", c_int32),
        ("matched", c_int32),
        ("kind", c_uint32),
        ("reason", c_uint32),
        ("forced_cold", c_uint32),
        ("skipped_media", c_int32),
    )


class WorkItem(ctypes.Structure):
    """pc_work_item."""

    _fields_ = (
        ("op", c_uint32),
        ("model", c_uint32),
        ("count", c_int32),
        ("reserved0", c_int32),
        ("values", POINTER(c_int32)),
        ("slots", POINTER(c_int32)),
        ("device_values", c_uint64),
    )


class Work(ctypes.Structure):
    """pc_work."""

    _fields_ = (("struct_size", c_uint32), ("count", c_uint32), ("items", WorkItem * MAX_WORK))


class Advance(ctypes.Structure):
    """pc_advance."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("num_sequences", c_uint32),
        *_each(c_void_p, "tokens token_offsets committed common publish"),
        ("num_publish", c_uint64),
        ("reserved", c_uint64 * 2),
    )


class RequestInfo(ctypes.Structure):
    """pc_request_info."""

    _fields_ = (
        *_each(c_uint32, "struct_size phase pending awaiting_draft report_due execution"),
        ("num_sequences", c_uint32),
        ("compaction_batch", c_int32),
    )


class SequenceInfo(ctypes.Structure):
    """pc_sequence_info."""

    _fields_ = (
        ("struct_size", c_uint32),
        *_each(c_int32, "slot tokens prefill_start committed common published_blocks"),
        ("published_length", c_int32),
        ("frozen_length", c_int32),
        ("staged", c_uint32),
        ("base_pages", c_int32),
        ("draft_pages", c_int32),
        ("reserved0", c_uint32),
    )


_METRICS = _each(
    c_uint64,
    "admitted_sequences hit_sequences media_aware_sequences lookup_bypass_sequences forced_cold_sequences "
    "standard_plans no_reusable_prefix_plans full_input_rewind_plans matched_tokens reused_tokens "
    "skipped_media_positions publication_attempts committed_publications existing_publications "
    "published_endpoints hybrid_restores hybrid_snapshot_pressure_skips hybrid_capture_synchronizations "
    "spec_full_page_replays spec_pair_publications planning_nanoseconds quarantined_requests active_requests "
    "active_requests_peak uploaded_bytes captured_bytes restored_bytes moved_bytes upload_waits "
    "upload_wait_nanoseconds synchronizations synchronization_nanoseconds pinned_bytes snapshot_bytes",
)
METRICS = tuple(name for name, _ in _METRICS)


class ContextMetrics(ctypes.Structure):
    """pc_context_metrics."""

    _fields_ = (("struct_size", c_uint32), ("poisoned", c_uint32), *_METRICS)


_H, _P = c_uint64, c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "digest_sequence": (_P, c_int32, _P, c_uint64, _P),
    "digest_bytes": (_P, c_uint64, _P),
    "manager_create": (_P, _P),
    "manager_destroy": (_P,),
    "manager_acquire": (_H, c_uint32, c_uint32, _P, _P, _P, c_uint64, _P, c_uint64, _P),
    "manager_append": (_H, _H, _P, c_uint64),
    "manager_grow": (_H, _H, c_int32, c_int32, _P, _P),
    "manager_publish": (_H, _H, c_int64, _P),
    "manager_advance": (_H, _H, _P, c_uint64, c_int64, c_int32, c_int32, _P, _P, _P),
    "manager_publish_keys": (_H, _H, c_uint64, _P, c_uint64, c_int64, _P),
    "manager_reserve": (_H, _H, c_uint32, _P, _P),
    "manager_publish_hybrid": (_H, _H, c_int64, c_int32, c_int32, _P),
    "manager_publish_hybrid_keys": (_H, _H, c_uint64, _P, c_uint64, _P, c_int32, c_int32, _P),
    "manager_retire": (_H, _H, c_int32, c_int32),
    "manager_release_restored": (_H, _H),
    "manager_lease_pages": (_H, _H, c_uint32, c_uint64, _P, c_uint64, _P),
    "manager_release": (_H, _P),
    "manager_lookup": (_H, c_uint32, _P, _P),
    "manager_invalidate": (_H, _P, _P, _P),
    "manager_flush": (_H, _P),
    "manager_evict": (_H, c_uint64),
    "manager_records": (_H, _P, c_uint64, _P),
    "manager_record_pages": (_H, c_uint64, c_uint32, c_uint64, _P, c_uint64, _P),
    "manager_references": (_H, c_uint32, c_uint64, _P, _P, c_uint64),
    "manager_get_stats": (_H, _P),
    "manager_check": (_H,),
    "manager_dump": (_H, _P, c_uint64, _P),
    "manager_tenants": (_H, _P, c_uint64, _P),
    "manager_set_quota": (_H, _P, c_uint32),
    "table_create": (_P, _P),
    "table_destroy": (_P,),
    "table_set_identity": (_H,),
    "table_set_rows": (_H, _P, c_uint64, _P, _P),
    "table_compact_rows": (_H, _P, c_uint64, c_int32),
    "table_upload": (_H, c_uint64, _P),
    "table_get_row": (_H, c_int32, _P),
    "table_get_info": (_H, _P),
    "table_check": (_H,),
    "context_validate_deployment": (_P, _P),
    "context_create": (_P, _P),
    "context_destroy": (_P,),
    "context_manager": (_H, _P),
    "context_begin": (_H, _P, _P, _P),
    "context_report": (_H, _H, c_uint32, _P),
    "context_prepare_prefill": (_H, _H, _P),
    "context_capture_prefill": (_H, _H, _P),
    "context_finalize_prefill": (_H, _H, _P, _P),
    "context_prepare_decode": (_H, _H, c_int32, c_int32, _P),
    "context_complete_decode": (_H, _H, _P, _P),
    "context_begin_compaction": (_H, _H, _P, c_uint64, c_int32, c_uint64, _P),
    "context_compact": (_H, _H, _P),
    "context_move_slots": (_H, c_uint32, _P, c_uint64, c_uint64),
    "context_finish": (_H, _H, _P),
    "context_abandon": (_H, _H, c_uint32),
    "context_shutdown": (_H, c_uint32),
    "context_synchronize": (_H,),
    "context_get_request": (_H, _H, _P),
    "context_get_sequence": (_H, _H, c_uint32, _P),
    "context_sequence_pages": (_H, _H, c_uint32, c_uint32, c_uint64, _P, c_uint64, _P),
    "context_sequence_tokens": (_H, _H, c_uint32, c_uint64, _P, c_uint64, _P),
    "context_get_metrics": (_H, _P),
}


def load() -> _ffi.Library:
    """The library with the functions above bound. Any thread; binding twice is harmless."""
    library = _ffi.load()
    if "context_get_metrics" not in library.__dict__:  # the last one that is bound
        for name, arguments in _FUNCTIONS.items():
            library._bind(f"pc_{name}", c_int32, arguments)
    return library


def sized(kind: type[Any]) -> Any:
    """A zeroed struct that knows its own size."""
    return kind(struct_size=ctypes.sizeof(kind))
