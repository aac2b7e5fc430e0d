"""What crosses from Python: token buffers, identities, digests, configuration, metrics."""

from __future__ import annotations

import hashlib
import struct
from array import array

import numpy as np
import pytest
from context_host import STREAM, Kind, Rig, Status, prompt, sequence

import prefixcache
from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.context import (
    AcquireStatus,
    AdapterIdentity,
    AttentionShape,
    BlockKeyExtras,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheDeploymentKind,
    ContextCacheManager,
    ContextCachePhysicalResources,
    DeploymentConfig,
    Hash128,
    HostCacheManager,
    HybridCacheManager,
    KVPageTable,
    LayerKind,
    MediaSpan,
    ModelConfig,
    RecurrentShape,
    SpecConfig,
    SpeculativeMode,
    digest_bytes,
    digest_sequence,
    validate_context_cache_deployment,
)

A, B = Hash128(1, 2), Hash128(3, 4)


def manager(**sizes):
    return ContextCacheManager(**{"base_pages": 16, "tokens_per_page": 4, **sizes})


# ---------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        lambda t: array("i", t),
        lambda t: array("q", t),
        lambda t: np.array(t, dtype=np.int32),
        lambda t: np.array(t, dtype=np.int64),
        lambda t: np.array(t * 2, dtype=np.int32)[::2] * 0 + np.array(t, dtype=np.int32),
        lambda t: np.repeat(np.array(t, dtype=np.int32), 2)[::2],
        lambda t: memoryview(array("i", t)),
        iter,
        range,
    ],
)
def test_token_ids_of_any_kind_are_the_same_prompt(make):
    m = manager()
    tokens = prompt(9)
    with m.acquire(tokens).lease as lease:
        m.publish(lease, 9)
    given = range(9) if make is range else make(tokens)
    assert m.lookup(given).reuse_token_length == 8


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (np.zeros((2, 4), np.int32), r"\(2, 4\)"),
        (np.zeros((2, 1), np.int64), r"\(2, 1\)"),
        (np.zeros((), np.int32), r"\(\)"),
        (memoryview(bytes(16)).cast("i", (2, 2)), r"\(2, 2\)"),
    ],
    ids=["2-D", "column", "0-D", "memoryview"],
)
def test_token_ids_of_another_shape_name_it(given, shape):
    with pytest.raises(PrefixCacheArgumentError, match=f"^token_ids: shape {shape}, expected one dimension"):
        manager().acquire(given)


def test_a_column_of_a_torch_tensor_is_no_prompt():
    """Its rows are taken for integers by torch."""
    torch = pytest.importorskip("torch")
    with pytest.raises(PrefixCacheArgumentError, match=r"shape \(3, 1\)"):
        manager().acquire(torch.ones(3, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    "bad",
    [
        [1, 2**31],
        [-(2**31) - 1],
        [1.0],
        ["1"],
        [None],
        "123",
        5,
        None,
        np.zeros(3, np.float32),
        np.zeros((2, 2), np.int32),
    ],
)
def test_token_ids_that_are_none(bad):
    m = manager()
    with pytest.raises(PrefixCacheArgumentError, match="token_ids"):
        m.acquire(bad)
    lease = m.acquire(prompt(9)).lease
    before = m.dump()
    with pytest.raises(PrefixCacheArgumentError, match="token_ids"):
        m.append(lease, bad)
    assert m.dump() == before


def test_tokens_are_copied():
    m = manager()
    tokens = np.array(prompt(9), dtype=np.int32)
    lease = m.acquire(tokens).lease
    tokens[:] = -1
    m.publish(lease, 9)
    assert m.lookup(prompt(9)).reuse_token_length == 8


@pytest.mark.parametrize(
    "extras",
    [
        BlockKeyExtras(adapter=AdapterIdentity(Hash128(2**64, 0))),
        BlockKeyExtras(adapter=AdapterIdentity(A, -1)),
        BlockKeyExtras(isolation_digest=Hash128(0, -1)),
        BlockKeyExtras(position_digest=Hash128(0, "1")),
        BlockKeyExtras(media_spans=[MediaSpan(A, modality=256)]),
        BlockKeyExtras(media_spans=[MediaSpan(A, modality=-1)]),
        BlockKeyExtras(media_spans=[MediaSpan(A, offset=2**31)]),
        BlockKeyExtras(media_spans=[MediaSpan(A, offset=-1)]),
        BlockKeyExtras(media_spans=[MediaSpan(A, item_order=-1)]),
    ],
)
def test_identities_out_of_range(extras):
    m, rig = manager(), Rig()
    with pytest.raises(PrefixCacheArgumentError):
        m.acquire(sequence(prompt(9), extras))
    with pytest.raises(PrefixCacheArgumentError):
        rig.begin(sequence(prompt(9), extras))
    assert m.metrics()["acquires"] == 0


@pytest.mark.parametrize("bad", [[(1, 2, 3)], [5], [Hash128(2**64, 0)], [Hash128(-1, 0)], ["ab" * 8]])
def test_media_digests_out_of_range(bad):
    with pytest.raises(PrefixCacheArgumentError, match="per_position_media_hash"):
        manager().acquire(sequence([1], media=bad))


def test_a_zero_media_digest_means_the_token():
    m = manager()
    with m.acquire(sequence(prompt(9), media=[None] * 8 + [Hash128(0, 0)])).lease as lease:
        m.publish(lease, 9)
    assert m.lookup(prompt(9)).reuse_token_length == 8


@pytest.mark.parametrize("count", [2**31, -(2**31) - 1, 2**64, "1", 1.5, None])
def test_numbers_are_never_cut_to_size(count):
    m = manager()
    lease = m.acquire(prompt(9)).lease
    before = m.dump()
    with pytest.raises(PrefixCacheArgumentError):
        m.grow(lease, count)
    assert m.dump() == before
    rig = Rig()
    live = rig.begin(prompt(9)).prefill()
    with pytest.raises(PrefixCacheArgumentError):
        rig.coordinator.prepare_decode_step(live.request, count)
    live.request.close()
    with pytest.raises(PrefixCacheArgumentError):
        rig.coordinator.begin_request(rig.admission(prompt(9)), 1 << 64)
    for policy in ("execution_mode", "lookup_policy", "commit_policy"):
        admission = rig.admission(prompt(9))
        setattr(admission, policy, 2**32)  # would be 0 after a cut
        with pytest.raises(PrefixCacheArgumentError, match=policy):
            rig.coordinator.begin_request(admission)


def test_a_stream_that_is_not_the_coordinators():
    rig = Rig()
    with pytest.raises(PrefixCacheArgumentError, match="stream"):
        rig.coordinator.begin_request(rig.admission(prompt(9)), STREAM + 1)
    begun = rig.coordinator.begin_request(rig.admission(prompt(9)))
    assert begun.status is Status.OK
    begun.admission.request.close()


@pytest.mark.parametrize("sequences", [[], [[]], [prompt(9), []], [prompt(9)] * 5, [prompt(16 * 128 + 1)]])
def test_batches_that_cannot_be_admitted(sequences):
    rig = Rig()
    with pytest.raises(PrefixCacheError) as e:
        rig.begin(*sequences)
    assert e.value.status == -1
    assert rig.coordinator.metrics()["active_requests"] == 0
    rig.begin(prompt(9)).request.close()
    rig.emptied()


# --------------------------------------------------------------------------- digests


def test_digests_of_bytes():
    values = [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab"]
    digests = [digest_bytes(v) for v in values]
    assert len(set(digests)) == len(values)
    assert Hash128(0, 0) not in digests
    assert digest_bytes(bytearray(b"ab")) == digest_bytes(memoryview(b"ab")) == digests[-1]
    assert digest_bytes(np.frombuffer(b"ab", np.uint8)) == digests[-1]
    with pytest.raises(PrefixCacheError, match="data: 'text', expected a buffer of bytes"):
        digest_bytes("text")


def test_digests_of_sequences():
    blocks, prefix = digest_sequence(prompt(10), 4)
    assert len(blocks) == 2
    assert prefix not in blocks
    assert digest_sequence(prompt(8), 4) == (blocks, blocks[-1]), "C-9 and the aligned case"
    other = prompt(10)
    other[0] = -1
    assert not set(digest_sequence(other, 4)[0]) & set(blocks), "C-2: the parent changes every descendant"
    salted = digest_sequence(sequence(prompt(10), BlockKeyExtras(isolation_digest=A)), 4)[0]
    assert not set(salted) & set(blocks)
    media = digest_sequence(sequence(prompt(10), media=[A] + [None] * 9), 4)[0]
    assert media[0] != blocks[0]
    assert digest_sequence(sequence(prompt(10), media=[None] * 10), 4)[0] == blocks
    with pytest.raises(PrefixCacheError, match="tokens_per_page"):
        digest_sequence(prompt(10), 0)


def test_digests_are_the_same_on_every_host():
    """Known answers, from the form of a block written down a second time."""

    def cut(data: bytes) -> Hash128:
        return Hash128(*struct.unpack(">QQ", hashlib.sha256(data).digest()[:16]))

    def block(parent: Hash128, tokens: list[int]) -> Hash128:
        no_media, no_extras = bytes(1), bytes(4 + 4)  # four things absent, no span
        return cut(b"\1" + struct.pack(f"<QQQ{len(tokens)}i", *parent, len(tokens), *tokens) + no_media + no_extras)

    first = block(Hash128(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F), [1, 2, 3, 4])
    assert digest_sequence([1, 2, 3, 4, 5, -6], 4) == ([first], block(first, [5, -6]))
    assert digest_bytes(b"abc") == cut(b"\2" + struct.pack("<Q", 3) + b"abc")


# -------------------------------------------------------------------------- the gate


def attention_model(**fields):
    return ModelConfig(
        **{
            "max_batch_size": 2,
            "capacity_tokens": 256,
            "num_pages": 4,
            "layers": [LayerKind.ATTENTION, LayerKind.STATELESS],
            "kv_layers": [(2, 64)],
            "hidden_size": 128,
            **fields,
        }
    )


STATE = RecurrentShape(heads=1, head_dim=2, state_size=3, conv_dim=4, conv_kernel=2)
RECURRENT = {"layers": [LayerKind.RECURRENT], "num_recurrent_layers": 1, "recurrent": STATE, "kv_layers": []}


def eagle(**fields):
    base = attention_model(is_spec_base=True)
    draft = attention_model(is_eagle=True, base_hidden_size=256)
    deployment = {
        "base": base,
        "draft": draft,
        "spec": SpecConfig(3, 2, 1, [0, 1]),
        "speculative_mode": SpeculativeMode.EAGLE,
    }
    return DeploymentConfig(**{**deployment, **fields})


def test_the_gate_tells_the_kind():
    check = validate_context_cache_deployment
    both = {**RECURRENT, "layers": [LayerKind.SLIDING_WINDOW, LayerKind.RECURRENT], "kv_layers": [(1, 8)]}
    assert check(DeploymentConfig(attention_model())) is ContextCacheDeploymentKind.VANILLA
    assert check(DeploymentConfig(attention_model(**RECURRENT))) is ContextCacheDeploymentKind.PURE_RECURRENT
    assert check(DeploymentConfig(attention_model(**both))) is ContextCacheDeploymentKind.HYBRID
    assert check(eagle()) is ContextCacheDeploymentKind.EAGLE


@pytest.mark.parametrize(
    "deployment",
    [
        DeploymentConfig(attention_model(), has_diffusion_backbone=True),
        DeploymentConfig(attention_model(), has_bidirectional_vision=True),
        DeploymentConfig(attention_model(kv_type=3)),
        DeploymentConfig(attention_model(layers=[LayerKind.STATELESS], kv_layers=[])),
        DeploymentConfig(attention_model(kv_layers=[])),
        DeploymentConfig(attention_model(kv_layers=[(0, 64)])),
        DeploymentConfig(attention_model(num_pages=3)),
        DeploymentConfig(attention_model(kv_donors=[0])),
        DeploymentConfig(attention_model(**{**RECURRENT, "recurrent": None})),
        DeploymentConfig(attention_model(is_spec_base=True)),
        DeploymentConfig(attention_model(), spec=SpecConfig(3, 2, 1, [0])),
        DeploymentConfig(attention_model(), spec=SpecConfig(0, 0, 0)),
        DeploymentConfig(attention_model(), draft=attention_model()),
        DeploymentConfig(attention_model(), speculative_mode=SpeculativeMode.OTHER),
        eagle(draft=None),
        eagle(spec=None),
        eagle(spec=SpecConfig(3, 2, 1, [])),
        eagle(spec=SpecConfig(3, 2, 1, [0, 0])),
        eagle(spec=SpecConfig(3, 2, 1, [0, 2])),
        eagle(base=attention_model()),
        eagle(draft=attention_model(base_hidden_size=256)),
        eagle(draft=attention_model(is_eagle=True, base_hidden_size=255)),
    ],
)
def test_the_gate_refuses_what_is_not_known_to_be_right(deployment):
    with pytest.raises(PrefixCacheError) as e:
        validate_context_cache_deployment(deployment)
    assert e.value.status in (-5, -1)
    assert len(str(e.value)) > 10


# --------------------------------------------------------------------- configuration


def test_an_unconfigured_cache_does_not_come_up():
    cache = HostCacheManager(num_pages=16, max_batch_size=2, max_pages_per_seq=4, attention=[AttentionShape(1, 1)])
    table = KVPageTable(2, 4, 16)
    resources = ContextCachePhysicalResources(cache, table)
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))

    def make(**fields):
        config = ContextCacheConfig(**{"enabled": True, **fields})
        return ContextCacheCoordinator(config, deployment, Kind.VANILLA, resources)

    for bad in (
        {"enabled": False},
        {"max_records": -1},
        {"tokens_per_page": 0},
        {"tokens_per_page": 64},
        {"max_requests": 0},
        {"recurrent_snapshot_budget_bytes": -1},
    ):
        with pytest.raises(PrefixCacheArgumentError):
            make(**bad)
    with pytest.raises(PrefixCacheArgumentError, match="base_page_table"):
        ContextCacheCoordinator(
            ContextCacheConfig(enabled=True), deployment, Kind.VANILLA, ContextCachePhysicalResources(cache)
        )
    with make() as coordinator:
        assert coordinator.metrics()["pools"]["base_pages"]["capacity"] == 16
        with pytest.raises(PrefixCacheError) as e:
            make()
        assert e.value.status == -36, "the table is taken"
    make().close()


@pytest.mark.parametrize("name", ["original_recency", "block_keys", "shorten_victims", "weak_hash", "zero_on_release"])
def test_flags_of_a_manager_are_truth_values(name):
    with pytest.raises(PrefixCacheArgumentError, match=f"^{name}: 'no', expected True or False"):
        manager(**{name: "no"})
    manager(**{name: np.bool_(True)}).close()


@pytest.mark.parametrize(
    "name", ["enabled", "original_recency", "shorten_victims", "host_memory", "weak_hash", "zero_on_release"]
)
def test_flags_of_a_coordinator_are_truth_values(name):
    config = ContextCacheConfig(**{"enabled": True, name: "no"})
    resources = ContextCachePhysicalResources(HostCacheManager(max_batch_size=1))
    with pytest.raises(PrefixCacheArgumentError, match=rf"^config\.{name}: 'no', expected True or False"):
        ContextCacheCoordinator(config, DeploymentConfig(ModelConfig()), Kind.PURE_RECURRENT, resources)


def test_the_flag_of_a_table_is_a_truth_value():
    with pytest.raises(PrefixCacheArgumentError, match=r"^host_memory: 'no', expected True or False"):
        KVPageTable(2, 4, 16, host_memory="no")


class Partial:
    """A cache of a runtime that lacks one member."""

    num_pages, max_batch_size, padded_capacity = 16, 2, 512

    def __init__(self, without=""):
        for name in ("reset_for_new_sequences", "compact_slot_state", "set_active_batch_size"):
            if name != without:
                setattr(self, name, lambda *_: None)


class Derived(Partial, HybridCacheManager):
    """The same, and what it lacks is inherited from the protocol, where it does nothing."""


@pytest.mark.parametrize(
    ("cache", "missing"),
    [
        (object(), "num_pages, max_batch_size, padded_capacity, reset_for_new_sequences"),
        (None, "num_pages"),
        (Partial("compact_slot_state"), "a HybridCacheManager, which has compact_slot_state$"),
        (Derived("compact_slot_state"), "a HybridCacheManager, which has compact_slot_state$"),
    ],
)
def test_resources_without_a_member_name_it(cache, missing):
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
    resources = ContextCachePhysicalResources(cache, KVPageTable(2, 4, 16))
    with pytest.raises(PrefixCacheArgumentError, match=rf"^resources\.base_cache: .*, expected .*{missing}"):
        ContextCacheCoordinator(ContextCacheConfig(enabled=True), deployment, Kind.VANILLA, resources)


def test_layers_are_asked_for_where_they_are_looked_at():
    """Of a vanilla model nobody asks for them; those of a hybrid one name what they lack."""
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
    table = KVPageTable(2, 4, 16)
    for own in (Partial(), Derived()):
        ContextCacheCoordinator(
            ContextCacheConfig(enabled=True), deployment, Kind.VANILLA, ContextCachePhysicalResources(own, table)
        ).close()

    def hybrid(cache):
        ContextCacheCoordinator(
            ContextCacheConfig(enabled=True), deployment, Kind.HYBRID, ContextCachePhysicalResources(cache, table)
        )

    cache = Partial()
    with pytest.raises(PrefixCacheArgumentError, match=r"which has attention_layers, recurrent_layers$"):
        hybrid(cache)
    cache.attention_layers, cache.recurrent_layers = (lambda: [AttentionShape(1, 2)]), list
    with pytest.raises(PrefixCacheArgumentError, match=r"attention_layers\(\)\[0\]: .*, expected a.* k_base"):
        hybrid(cache)
    cache.attention_layers, cache.recurrent_layers = list, lambda: [STREAM]
    with pytest.raises(PrefixCacheArgumentError, match=r"recurrent_layers\(\)\[0\]: .*, expected a.* state_base"):
        hybrid(cache)


@pytest.mark.parametrize("part", ["base", "draft", "spec"])
def test_a_deployment_with_a_part_of_another_kind_names_it(part):
    deployment = DeploymentConfig(**{"base": ModelConfig(max_batch_size=2), part: "x"})
    resources = ContextCachePhysicalResources(Partial(), KVPageTable(2, 4, 16))
    with pytest.raises(PrefixCacheArgumentError, match=rf"^deployment\.{part}: 'x', expected a (Model|Spec)Config"):
        ContextCacheCoordinator(ContextCacheConfig(enabled=True), deployment, Kind.VANILLA, resources)


def test_record_limit_zero_keeps_nothing():
    rig = Rig(max_records=0)
    rig.publish(prompt(300))
    m = rig.coordinator.metrics()
    assert (m["committed_publications"], m["records"]) == (1, 0)
    assert rig.hit(prompt(300)) == 0
    with manager(max_records=0) as one, one.acquire(prompt(9)).lease as lease:
        assert one.publish(lease, 9).record is None


@pytest.mark.parametrize("original", [False, True])
def test_recency_of_a_vanilla_hit(original):
    """C-53: the original refreshed nothing; a flag brings that back."""
    m = manager(original_recency=original, max_records=2)
    for seed in (1, 2):
        with m.acquire(prompt(9, seed)).lease as lease:
            m.publish(lease, 9)
    with m.acquire(prompt(9, 1)).lease:
        pass
    with m.acquire(prompt(9, 3)).lease as lease:
        m.publish(lease, 9)
    survivor = 2 if original else 1
    assert m.lookup(prompt(9, survivor)).reuse_token_length == 8
    assert m.lookup(prompt(9, 3 - survivor)).reuse_token_length == 0


# --------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("kind", list(Kind))
def test_metrics_add_up(kind):
    rig = Rig(kind)
    for n, seed in ((300, 0), (310, 0), (260, 0), (300, 1), (100, 2), (256, 0)):
        rig.publish(prompt(n, seed))
    rig.publish(prompt(300), bypass=True)
    m = rig.coordinator.metrics()
    assert m["admitted_sequences"] == 7
    assert m["standard_plans"] + m["no_reusable_prefix_plans"] + m["full_input_rewind_plans"] == 7
    assert m["lookup_bypass_sequences"] == m["reasons"]["bypass"] == 1
    assert m["matched_tokens"] >= m["reused_tokens"] > 0
    assert m["publication_attempts"] == m["published_endpoints"]
    assert m["committed_publications"] + m["existing_publications"] == m["published_endpoints"]
    assert sum(m["reasons"].values()) == m["acquires"] == 7
    assert m["planning_nanoseconds"] > 0
    assert (m["poisoned"], m["active_requests"], m["leases"]) == (False, 0, 0)
    assert (m["spec_pair_publications"] > 0) == (kind == Kind.EAGLE)
    assert (m["hybrid_restores"] > 0) == (kind in (Kind.HYBRID, Kind.PURE_RECURRENT))
    for pool in m["pools"].values():
        assert pool["free"] <= pool["capacity"]
    assert "record" in rig.manager.dump()


def test_flush_never_touches_a_page_in_use():
    rig = Rig(requests=2)
    rig.publish(prompt(300))
    live = rig.begin(prompt(300), slots=[1]).prefill()
    assert rig.manager.flush() == 1
    assert rig.manager.records() == []
    live.check()
    rig.publish(prompt(2000, 1))
    live.decode([[1]]).check()
    assert live.finish() is Status.OK
    rig.emptied()


def test_leases_release_themselves():
    m = manager()
    with m.acquire(prompt(9)).lease as lease:
        assert m.metrics()["leases"] == 1
    assert not lease.valid()
    lease.release()
    result = m.acquire(prompt(9))
    assert result.status is AcquireStatus.ACQUIRED
    del result
    assert m.metrics()["leases"] == 0
    kept = m.acquire(prompt(9)).lease
    with pytest.raises(PrefixCacheError) as e:
        manager().release(kept)
    assert e.value.status == -2
    m.close()
    m.close()
    with pytest.raises(PrefixCacheError) as e:
        m.records()
    assert e.value.status == -2


def test_errors_are_runtime_errors_with_a_status():
    with pytest.raises(RuntimeError) as e:
        manager(base_pages=-1)
    assert isinstance(e.value, ValueError)
    assert isinstance(e.value, prefixcache.PrefixCacheError)
    assert e.value.status == -1
    assert "base_pages: -1" in str(e.value)


def test_importing_it_loads_neither_library_nor_torch():
    from test_omni_threads import run_python

    done = run_python(
        """
        import sys
        import prefixcache.context
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        assert not any("libprefixcache" in line for line in open("/proc/self/maps"))
        """
    )
    assert done.returncode == 0, done.stderr
