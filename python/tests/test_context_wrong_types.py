"""Every public call of the context package with values of every wrong type and size.

Whatever cannot be meant is a PrefixCacheError that names the argument; nothing is an
AttributeError from inside, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from context_host import Kind, Rig

from prefixcache import PrefixCacheError
from prefixcache.context import (
    AdapterIdentity,
    AttentionLayerBuffers,
    AttentionShape,
    BlockKeyExtras,
    BlockKeySequence,
    CacheResourceType,
    ContextCacheBatchAdmission,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheManager,
    ContextCachePhysicalResources,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    DeploymentConfig,
    Hash128,
    HostCacheManager,
    HybridCheckpointKey,
    HybridSnapshotReservation,
    KVPageTable,
    MediaSpan,
    ModelConfig,
    RecurrentLayerBuffers,
    RecurrentShape,
    SpecConfig,
    digest_bytes,
    digest_sequence,
    validate_context_cache_deployment,
)
from prefixcache.metrics import PrometheusCollector, prometheus_text

WRONG = [
    None,
    "x",
    1.5,
    object(),
    -1,
    2**31,
    2**63,
    2**64,
    2**70,
    [],
    {},
    [None],
    ["x"],
    [1.5],
    b"ab",
    (1, 2),
    [[1]],
    int,
]
HASH = Hash128(1, 2)
SLOTS = HybridSnapshotReservation(0, None)
Sequence, Batch = ContextCacheSequenceAdmission, ContextCacheBatchAdmission


def make_manager(**settings: Any) -> ContextCacheManager:
    sizes = {"base_pages": 16, "draft_pages": 8, "recurrent_slots": 4, "partial_slots": 4, "tokens_per_page": 4}
    return ContextCacheManager(**(sizes | settings))


def acquire(**extras: Any) -> None:
    with make_manager() as m:
        m.acquire(Sequence([1, 2], key_extras=BlockKeyExtras(**extras)))


def by_lease(name: str, **settings: Any) -> Callable[..., Any]:
    """A method of the manager that takes a lease; the one given is made for the call."""

    def call(lease: Any, **arguments: Any) -> None:
        with make_manager(**settings) as m:
            sequence = BlockKeySequence(5, [HASH]) if settings else list(range(10))
            own = m.acquire(sequence).lease
            getattr(m, name)(own if lease == "own" else lease, **arguments)

    return call


def by_manager(name: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> None:
        with make_manager() as m:
            getattr(m, name)(**arguments)

    return call


def by_keys(**sequence: Any) -> None:
    with make_manager(block_keys=True) as m:
        m.acquire(BlockKeySequence(**({"token_count": 5, "keys": [HASH]} | sequence)))


def by_table(name: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> None:
        with KVPageTable(4, 4, 16) as table:
            getattr(table, name)(**arguments)

    return call


def by_request(name: str) -> Callable[..., Any]:
    def call(request: Any, **arguments: Any) -> None:
        rig = Rig(Kind.VANILLA)
        own = rig.coordinator.begin_request(Batch([Sequence([1, 2, 3])])).admission.request
        try:
            getattr(rig.coordinator, name)(own if request == "own" else request, **arguments)
        finally:
            own.close()
            rig.close()

    return call


def coordinator(**arguments: Any) -> None:
    rig = Rig(Kind.VANILLA)
    try:
        rig.coordinator.begin_request(**arguments)
    finally:
        rig.close()


def make_cache(**members: Any) -> HostCacheManager:
    """A cache of a runtime, some of whose members are others."""
    cache = HostCacheManager(
        num_pages=4,
        max_batch_size=2,
        max_pages_per_seq=2,
        tokens_per_page=4,
        attention=[AttentionShape(1, 1)],
        recurrent=[RecurrentShape(1, 1, 1, 1, 2)],
    )
    for name, value in members.items():
        setattr(cache, name, value)
    return cache


def make_coordinator(synchronizer: Any = None, **members: Any) -> None:
    config = ContextCacheConfig(enabled=True, tokens_per_page=4, recurrent_snapshot_budget_bytes=64)
    config.partial_kv_snapshot_budget_bytes = 64
    with KVPageTable(2, 2, 4) as table:
        resources = ContextCachePhysicalResources(make_cache(**members), table)
        deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
        ContextCacheCoordinator(config, deployment, Kind.HYBRID, resources, synchronizer=synchronizer).close()


def attention(**fields: Any) -> None:
    make_coordinator(attention_layers=lambda: [AttentionLayerBuffers(**fields)])


def recurrent(**fields: Any) -> None:
    make_coordinator(recurrent_layers=lambda: [RecurrentLayerBuffers(**fields)])


def shapes(kind: str, shape: type) -> Callable[..., Any]:
    return lambda **fields: HostCacheManager(max_batch_size=2, num_pages=1, **{kind: [shape(**fields)]})


def move_slot_state(**arguments: Any) -> None:
    rig = Rig(Kind.VANILLA)
    try:
        rig.coordinator.move_slot_state(**arguments)
    finally:
        rig.close()


def validate(**model: Any) -> None:
    validate_context_cache_deployment(DeploymentConfig(ModelConfig(**model)))


def text(**arguments: Any) -> None:
    with make_manager() as m:
        cache = arguments.pop("caches", m)
        prometheus_text((m, arguments.pop("own")) if "own" in arguments else cache, **arguments)


ADVANCE = [ContextCacheSequenceAdvance([1], 3)]
SIZES = dict.fromkeys(("heads", "head_dim", "state_size", "conv_dim", "conv_kernel"), 2) | {
    "state_type": 2,
    "conv_type": 0,
}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "manager": (
        lambda **k: make_manager(**k).close(),
        dict.fromkeys(("base_pages", "draft_pages", "recurrent_slots", "tokens_per_page", "max_records"), 4)
        | {"tenant_quota": 10},
    ),
    "acquire": (by_manager("acquire"), {"sequence": [1, 2, 3], "mode": 0, "lookup": 0}),
    "lookup": (by_manager("lookup"), {"sequence": [1, 2, 3], "mode": 0}),
    "admission": (
        lambda **k: by_manager("acquire")(sequence=Sequence(**k)),
        {"token_ids": [1], "per_position_media_hash": [], "key_extras": None},
    ),
    "extras": (
        acquire,
        {"adapter": None, "position_digest": None, "isolation_digest": None, "media_spans": ()},
    ),
    "adapter": (lambda **k: acquire(adapter=AdapterIdentity(**k)), {"id": HASH, "generation": 1}),
    "span": (
        lambda **k: acquire(media_spans=[MediaSpan(**k)]),
        {"content": HASH, "placement": HASH, "offset": 0, "item_order": 0, "modality": 0},
    ),
    "keys": (by_keys, {"token_count": 5, "keys": [HASH], "checkpoints": []}),
    "checkpoint": (
        lambda **k: by_keys(checkpoints=[HybridCheckpointKey(**k)]),
        {"token_length": 4, "digest": HASH},
    ),
    "append": (by_lease("append"), {"lease": "own", "token_ids": [1]}),
    "grow": (by_lease("grow"), {"lease": "own", "base": 1, "draft": 0}),
    "publish": (by_lease("publish"), {"lease": "own", "resident_length": 4}),
    "advance": (by_lease("advance"), {"lease": "own", "token_ids": [1], "resident_length": 4, "base": 0, "draft": 0}),
    "publish_keys": (
        by_lease("publish_keys", block_keys=True),
        {"lease": "own", "first": 0, "keys": [HASH], "resident_length": 4},
    ),
    "reserve": (by_lease("reserve"), {"lease": "own", "need_partial": True}),
    "publish_hybrid": (by_lease("publish_hybrid"), {"lease": "own", "length": 4, "reservation": SLOTS}),
    "publish_hybrid_keys": (
        by_lease("publish_hybrid_keys", block_keys=True),
        {
            "lease": "own",
            "first": 0,
            "keys": [HASH],
            "checkpoint": HybridCheckpointKey(4, HASH),
            "reservation": SLOTS,
        },
    ),
    "retire": (by_lease("retire"), {"lease": "own", "reservation": SLOTS}),
    "slots": (
        lambda **k: by_lease("retire")("own", reservation=HybridSnapshotReservation(**k)),
        {"recurrent_slot": 0, "partial_kv_slot": None},
    ),
    "release_restored": (by_lease("release_restored"), {"lease": "own"}),
    "release": (by_lease("release"), {"lease": "own"}),
    "record_pages": (by_manager("record_pages"), {"record": 1, "model": 0}),
    "references": (by_manager("references"), {"resource": CacheResourceType.BASE_PAGE}),
    "capacity": (by_manager("capacity"), {"resource": 0}),
    "free": (by_manager("free"), {"resource": 0}),
    "invalidate": (by_manager("invalidate"), {"adapter": HASH, "generation": None}),
    "evict": (by_manager("evict"), {"record": 1}),
    "set_quota": (by_manager("set_quota"), {"isolation": None, "quota": 10}),
    "digest_bytes": (digest_bytes, {"data": b"a"}),
    "digest_sequence": (digest_sequence, {"sequence": [1, 2], "tokens_per_page": 4}),
    "table": (
        lambda **k: KVPageTable(**k).close(),
        {"max_batch_size": 4, "max_pages_per_seq": 4, "num_pages": 16, "device_address": 0},
    ),
    "set_row": (by_table("set_row"), {"slot": 0, "pages": [1]}),
    "set_rows": (by_table("set_rows"), {"updates": [(0, [1])]}),
    "compact_rows": (by_table("compact_rows"), {"old_to_new": [0, 1, 2, 3], "new_batch": 4}),
    "row": (by_table("row"), {"slot": 0}),
    "device_row": (by_table("device_row"), {"slot": 0}),
    "host_cache": (
        HostCacheManager,
        {
            "num_pages": 4,
            "max_batch_size": 2,
            "max_pages_per_seq": 2,
            "tokens_per_page": 4,
            "attention": [AttentionShape(1, 1)],
            "recurrent": [RecurrentShape(1, 1, 1, 1, 1)],
        },
    ),
    "validate": (
        validate_context_cache_deployment,
        {"deployment": DeploymentConfig(ModelConfig()), "tokens_per_page": 4},
    ),
    "deployment": (
        lambda **k: validate_context_cache_deployment(DeploymentConfig(**k)),
        {"base": ModelConfig(), "draft": None, "spec": None, "speculative_mode": 0, "has_diffusion_backbone": False},
    ),
    "model": (
        validate,
        dict.fromkeys(("max_batch_size", "capacity_tokens", "num_pages", "hidden_size"), 4)
        | {"kv_type": 0, "layers": [], "kv_layers": [], "kv_donors": [], "num_recurrent_layers": 1}
        | {"recurrent": RecurrentShape(1, 1, 1, 1, 1), "is_eagle": False},
    ),
    "spec": (
        lambda **k: validate_context_cache_deployment(DeploymentConfig(ModelConfig(), spec=SpecConfig(**k))),
        {"verify_size": 1, "drafting_step": 1, "drafting_top_k": 1, "conditioning_layers": []},
    ),
    "begin_request": (coordinator, {"admission": Batch([Sequence([1])]), "stream": 0}),
    "batch": (
        lambda **k: coordinator(admission=Batch(**k)),
        {"sequences": [Sequence([1])], "execution_mode": 0, "lookup_policy": 0, "commit_policy": 0, "slots": None},
    ),
    "prepare_prefill": (by_request("prepare_prefill"), {"request": "own"}),
    "enqueue_prefill_captures": (by_request("enqueue_prefill_captures"), {"request": "own"}),
    "finalize": (
        by_request("finalize_prefill_publication"),
        {"request": "own", "advances": ADVANCE, "common_state_lengths": None},
    ),
    "prepare_decode": (by_request("prepare_decode_step"), {"request": "own", "base_headroom": 0, "draft_headroom": 0}),
    "complete_decode": (
        by_request("complete_decode_step"),
        {"request": "own", "advances": ADVANCE, "publishable_completed_slots": (), "common_state_lengths": None},
    ),
    "compaction": (
        by_request("begin_batch_compaction"),
        {"request": "own", "old_to_new": [0], "new_batch_size": 1, "device_batch_mapping": None},
    ),
    "compact_batch": (by_request("compact_batch"), {"request": "own"}),
    "finish": (by_request("finish"), {"request": "own"}),
    "coordinator": (
        ContextCacheCoordinator,
        {"config": None, "deployment": None, "deployment_kind": 0, "resources": None, "stream": 0},
    ),
    "made": (
        make_coordinator,
        {"synchronizer": None, "num_pages": 4, "max_batch_size": 2, "padded_capacity": 8}
        | dict.fromkeys(("reset_for_new_sequences", "compact_slot_state", "set_active_batch_size"), print)
        | {"attention_layers": make_cache().attention_layers, "recurrent_layers": make_cache().recurrent_layers},
    ),
    "attention_layers": (lambda **k: make_coordinator(attention_layers=lambda: k["layers"]), {"layers": []}),
    "recurrent_layers": (lambda **k: make_coordinator(recurrent_layers=lambda: k["layers"]), {"layers": []}),
    "attention_buffers": (attention, {"k_base": 4096, "kv_heads": 1, "head_dim": 2, "type": 0}),
    "recurrent_buffers": (recurrent, {"state_base": 4096, "conv_base": 8192} | SIZES),
    "attention_shape": (shapes("attention", AttentionShape), {"kv_heads": 1, "head_dim": 1, "type": 0}),
    "recurrent_shape": (shapes("recurrent", RecurrentShape), SIZES),
    "k_token": (make_cache().k_token, {"page": 7, "index": 3, "layer": 0}),
    "state_of": (make_cache().state_of, {"slot": 1, "layer": 0}),
    "conv_of": (make_cache().conv_of, {"slot": 1, "layer": 0}),
    "token_bytes": (make_cache().token_bytes, {"layer": 0}),
    "page_bytes": (make_cache().page_bytes, {"layer": 0}),
    "state_bytes": (make_cache().state_bytes, {"layer": 0}),
    "conv_bytes": (make_cache().conv_bytes, {"layer": 0}),
    "move_slot_state": (move_slot_state, {"old_to_new": [0], "draft": False, "lengths": 0}),
    "metrics": (text, {"caches": None, "labels": None, "own": {}}),
    "collector": (PrometheusCollector, {"labels": {}}),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_named(name: str) -> None:
    call, good = CALLS[name]
    refused = 0
    for argument in good:
        for wrong in WRONG:
            try:
                call(**good | {argument: wrong})
            except PrefixCacheError:
                refused += 1
            except BaseException as e:
                raise AssertionError(f"{name}: {argument}={wrong!r} gave {type(e).__name__}: {e}") from e
    assert refused >= len(good)


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("publish", "lease", "lease: None, expected a CacheRequestLease"),
        ("retire", "reservation", "reservation: None, expected a HybridSnapshotReservation"),
        ("begin_request", "admission", "admission: None, expected a ContextCacheBatchAdmission"),
        ("prepare_prefill", "request", "request: None, expected a RequestHandle"),
        ("invalidate", "adapter", "adapter: None, expected a pair of unsigned 64-bit integers"),
        ("capacity", "resource", "resource: None, expected a CacheResourceType"),
        ("validate", "deployment", "deployment: None, expected a DeploymentConfig"),
        ("coordinator", "config", "config: None, expected a ContextCacheConfig"),
        ("set_rows", "updates", "updates: None, expected pairs of a slot and its pages"),
        ("digest_bytes", "data", "data: None, expected a buffer of bytes"),
        ("append", "token_ids", "token_ids: None, expected integers of 32 bits"),
        ("attention_shape", "kv_heads", r"attention\[0\].kv_heads: None, expected an integer"),
        ("recurrent_buffers", "conv_base", "conv_base: None, expected an integer"),
        ("recurrent_layers", "layers", r"resources.base_cache.recurrent_layers\(\): None, expected a sequence of"),
        ("made", "compact_slot_state", "resources.base_cache: .*, expected a .*, which has compact_slot_state"),
    ],
)
def test_the_text_says_argument_value_and_expectation(name: str, argument: str, expected: str) -> None:
    call, good = CALLS[name]
    with pytest.raises(PrefixCacheError, match=f"^{expected}"):
        call(**good | {argument: None})


@pytest.mark.parametrize(
    ("name", "argument", "value", "expected"),
    [
        ("append", "token_ids", [1, 2**31], r"token_ids\[1\]: 2147483648, expected integers of 32 bits"),
        ("append", "token_ids", (1, 2, "x"), r"token_ids\[2\]: 'x', expected integers of 32 bits"),
        ("append", "token_ids", (t for t in (1, 2.5)), "token_ids: <generator .*, expected integers of 32 bits"),
        ("set_row", "pages", [0, None], r"pages\[1\]: None, expected integers of 32 bits"),
        ("model", "layers", [1, -1], r"layers\[1\]: -1, expected integers of 32 bits"),
        (
            "admission",
            "per_position_media_hash",
            [(1, -1)],
            r"per_position_media_hash\[0\]: \(1, -1\), expected a pair",
        ),
        ("keys", "keys", [HASH, "x"], r"keys\[1\]: 'x', expected a pair of unsigned 64-bit integers"),
        ("made", "synchronizer", 0, "synchronizer: 0, expected a function of the stream, or None"),
        ("attention_buffers", "k_base", 2**64 + 4096, "k_base: 18446744073709555712, expected 0 to"),
        ("k_token", "page", -1, "page: -1, expected 0 to 7"),
        ("k_token", "index", 4, "index: 4, expected 0 to 3"),
        ("state_of", "slot", 2, "slot: 2, expected 0 to 1"),
        ("conv_of", "layer", 1, "layer: 1, expected 0 to 0"),
    ],
)
def test_one_value_among_many_is_named(name: str, argument: str, value: Any, expected: str) -> None:
    call, good = CALLS[name]
    with pytest.raises(PrefixCacheError, match=f"^{expected}"):
        call(**good | {argument: value})
