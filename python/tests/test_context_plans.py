"""The tables of reuse plans through the C ABI."""

from __future__ import annotations

import pytest
from context_host import prompt, sequence

from prefixcache.context import (
    AdapterIdentity,
    BlockKeyExtras,
    BlockKeySequence,
    ContextCacheLookupPolicy,
    ContextCacheManager,
    Hash128,
    HybridCheckpointKey,
    NoReuseReason,
    PublishStatus,
    ReusePlanKind,
    ReusePlanMode,
    SpecReplayMode,
)

P = 128
STANDARD, NO_PREFIX, REWIND = ReusePlanKind.STANDARD, ReusePlanKind.NO_REUSABLE_PREFIX, ReusePlanKind.FULL_INPUT_REWIND
VANILLA, HYBRID, SPEC = ReusePlanMode.VANILLA, ReusePlanMode.HYBRID, ReusePlanMode.SPEC


def cache(**sizes) -> ContextCacheManager:
    return ContextCacheManager(
        **{"base_pages": 64, "draft_pages": 64, "recurrent_slots": 8, "partial_slots": 8, **sizes}
    )


def publish(m, tokens, mode=VANILLA):
    with m.acquire(tokens, mode).lease as lease:
        return m.publish(lease, len(tokens))


def checkpoint(m, tokens, mode=HYBRID):
    """A snapshot of the whole of ``tokens``."""
    attention = m.capacity(0) > 0
    with m.acquire(tokens, mode).lease as lease:
        held = m.reserve(lease, attention and len(tokens) % P != 0)
        out = m.publish_hybrid(lease, len(tokens), held)
        m.retire(lease, held)
        return out


def both(m, tokens, mode=VANILLA):
    """The plan of a lookup, which is that of an acquire."""
    before = m.dump()
    looked = m.lookup(tokens, mode)
    assert m.dump() == before, "a lookup changed something"
    acquired = m.acquire(tokens, mode)
    assert acquired.plan == looked
    with acquired.lease as lease:
        pages = lease.base_pages()
        n = tokens.token_count if isinstance(tokens, BlockKeySequence) else len(tokens)
        if m.capacity(0):
            assert (
                len(pages) == looked.bound_base_pages + looked.demand_base_pages == -(-n // m.tokens_per_page)
            )  # C-45
        assert looked.reuse_token_length < n  # C-44
        m.check_invariants()
    return looked


# ------------------------------------------------------------------------ 8.1 vanilla


@pytest.mark.parametrize(
    "n, cached, bound, matched, reuse, demand, kind",
    [
        (130, 128, 1, 128, 128, 1, STANDARD),
        (128, 128, 0, 128, 0, 1, REWIND),
        (256, 256, 1, 256, 128, 1, REWIND),
        (257, 256, 2, 256, 256, 1, STANDARD),
        (384, 256, 2, 256, 256, 1, STANDARD),  # the third is missing
        (257, 0, 0, 0, 0, 3, NO_PREFIX),
        (100, 0, 0, 0, 0, 1, NO_PREFIX),
    ],
)
def test_vanilla(n, cached, bound, matched, reuse, demand, kind):
    m = cache()
    if cached:
        publish(m, prompt(cached))
    plan = both(m, prompt(n))
    assert (plan.bound_base_pages, plan.matched_token_length, plan.reuse_token_length) == (bound, matched, reuse)
    assert (plan.demand_base_pages, plan.kind, plan.mode) == (demand, kind, VANILLA)


def test_vanilla_with_a_hole():
    """384 tokens, the first and the third block cached: the match ends at the hole (C-24)."""
    m = cache()
    other = prompt(384)
    other[200] = -1
    publish(m, other)
    plan = both(m, prompt(384))
    assert (plan.bound_base_pages, plan.matched_token_length, plan.reuse_token_length) == (1, 128, 128)
    assert (plan.demand_base_pages, plan.kind) == (2, STANDARD)
    assert plan.reason is NoReuseReason.DIVERGED


# ------------------------------------------------------------- 8.2 hybrid and recurrent


@pytest.mark.parametrize(
    "n, lengths, reuse, bound, demand, partial",
    [
        (131, [130], 130, 1, 1, 2),
        (130, [130], 0, 0, 2, 0),  # equal length is excluded
        (130, [130, 128], 128, 1, 1, 0),
        (300, [129], 129, 1, 2, 1),
        (300, [129, 257], 257, 2, 1, 1),
        (258, [257, 256, 128], 257, 2, 1, 1),
        (257, [257, 256, 128], 256, 2, 1, 0),
        (256, [257, 256, 128], 128, 1, 1, 0),
    ],
)
def test_hybrid(n, lengths, reuse, bound, demand, partial):
    m = cache()
    for length in lengths:
        assert checkpoint(m, prompt(length)).status is PublishStatus.PUBLISHED
    plan = both(m, prompt(n), HYBRID)
    assert (plan.reuse_token_length, plan.bound_base_pages, plan.demand_base_pages) == (reuse, bound, demand)
    assert plan.matched_token_length == reuse
    assert plan.kind is (STANDARD if reuse else NO_PREFIX)
    assert plan.partial_tokens == partial
    assert (plan.recurrent_slot is not None, plan.partial_kv_slot is not None) == (reuse > 0, partial > 0)


def test_hybrid_with_a_longer_checkpoint_of_other_content():
    """300 tokens, checkpoints at 129 and 257, but that of 257 is of another sequence."""
    m = cache()
    checkpoint(m, prompt(129))
    other = prompt(257)
    other[256] = -1  # the tail only: all full blocks agree
    checkpoint(m, other)
    plan = both(m, prompt(300), HYBRID)
    assert (plan.reuse_token_length, plan.bound_base_pages, plan.demand_base_pages, plan.partial_tokens) == (
        129,
        1,
        2,
        1,
    )


def test_pure_recurrent():
    m = cache(base_pages=0, draft_pages=0, partial_slots=0)
    checkpoint(m, prompt(3))
    plan = both(m, prompt(4), HYBRID)
    assert (plan.reuse_token_length, plan.bound_base_pages, plan.demand_base_pages) == (3, 0, 0)
    assert plan.partial_kv_slot is None
    assert both(m, prompt(3), HYBRID).reuse_token_length == 0


@pytest.mark.parametrize("first", ["blocks", "snapshot"])
def test_d17_a_snapshot_over_an_ordinary_record_of_the_same_path(first):
    """Both orders are legal and leave one of each, or one that serves both."""
    m = cache()
    steps = [lambda: publish(m, prompt(256)), lambda: checkpoint(m, prompt(256))]
    for step in steps if first == "blocks" else steps[::-1]:
        step()
        m.check_invariants()
    assert m.lookup(prompt(300)).reuse_token_length == 256
    plan = m.lookup(prompt(300), HYBRID)
    assert plan.reuse_token_length in (0, 256)
    assert publish(m, prompt(256)).status is PublishStatus.EXISTING_RECORD
    m.check_invariants()


# ------------------------------------------------------------------------ 8.3 EAGLE


@pytest.mark.parametrize(
    "n, paired, matched, reuse, demand, kind, dependency",
    [
        (257, 2, 256, 128, 2, STANDARD, 2),
        (256, 2, 256, 128, 1, REWIND, 2),
        (129, 1, 128, 0, 2, NO_PREFIX, 0),
        (128, 1, 128, 0, 1, REWIND, 0),
        (1000, 5, 640, 512, 4, STANDARD, 5),
    ],
)
def test_spec(n, paired, matched, reuse, demand, kind, dependency):
    m = cache()
    publish(m, prompt(paired * P), SPEC)
    plan = both(m, prompt(n), SPEC)
    assert (plan.matched_token_length, plan.reuse_token_length, plan.kind) == (matched, reuse, kind)
    assert plan.demand_base_pages == plan.demand_draft_pages == demand
    assert plan.bound_base_pages == plan.bound_draft_pages == paired - 1
    assert plan.dependency_blocks == dependency
    assert (plan.record is not None) == (dependency > 0)
    assert plan.replay_mode is SpecReplayMode.FULL_PAGE


def test_spec_with_base_pages_only():
    """C-49: state without its draft is never used by an EAGLE request."""
    m = cache()
    publish(m, prompt(256))
    plan = both(m, prompt(257), SPEC)
    assert (plan.matched_token_length, plan.reuse_token_length, plan.demand_base_pages) == (0, 0, 3)
    assert (plan.kind, plan.replay_mode, plan.record) == (NO_PREFIX, SpecReplayMode.NONE, None)
    assert plan.reason is NoReuseReason.NO_DRAFT
    assert both(m, prompt(257)).reuse_token_length == 256


def test_c56_draft_upgrade():
    m = cache()
    publish(m, prompt(256))
    record = m.records()[0]
    assert publish(m, prompt(256), SPEC).status is PublishStatus.PUBLISHED
    upgraded = m.records()[0]
    assert (upgraded.id, upgraded.base_pages) == (record.id, record.base_pages)
    assert len(upgraded.draft_pages) == 2
    assert publish(m, prompt(256), SPEC).status is PublishStatus.EXISTING_RECORD
    assert both(m, prompt(257), SPEC).reuse_token_length == 128


# --------------------------------------------------------------------------- reasons


def test_why_no_reuse():
    m = cache()
    salted = BlockKeyExtras(adapter=AdapterIdentity(Hash128(1, 2)))
    media = [None] * 100 + [Hash128(9, 9)] * 60 + [None] * 140
    assert m.lookup(prompt(300)).reason is NoReuseReason.EXTRAS_UNKNOWN
    publish(m, prompt(300))
    publish(m, prompt(600, 2), SPEC)
    with m.acquire(sequence(prompt(300, 3), media=media)).lease as lease:
        m.publish(lease, 300)
    for expected, tokens, mode in [
        ("none", prompt(300), VANILLA),
        ("prompt_too_short", prompt(100), VANILLA),
        ("extras_unknown", sequence(prompt(300), salted), VANILLA),
        ("first_block", prompt(300, 1), VANILLA),
        ("diverged", prompt(400), VANILLA),
        ("full_input", prompt(256), VANILLA),
        ("media_boundary", sequence(prompt(140, 3), media=media[:140]), VANILLA),
        ("no_draft", prompt(300), SPEC),
        ("replay", prompt(600, 2), SPEC),
        ("no_checkpoint", prompt(300), HYBRID),
    ]:
        assert m.lookup(tokens, mode).reason.name.lower() == expected
    publish(m, prompt(1000, 2))
    assert m.lookup(prompt(1000, 2), SPEC).reason is NoReuseReason.DRAFT_SHORTER
    checkpoint(m, prompt(150))
    assert m.lookup(prompt(150), HYBRID).reason is NoReuseReason.CHECKPOINT_LONG
    assert m.lookup(prompt(300), HYBRID).reason is NoReuseReason.CHECKPOINT_SHORT
    bypassed = m.acquire(prompt(300), lookup=ContextCacheLookupPolicy.BYPASS)
    assert (bypassed.plan.reason, bypassed.plan.kind) == (NoReuseReason.BYPASS, NO_PREFIX)
    bypassed.lease.release()
    reasons = m.metrics()["reasons"]
    assert reasons["bypass"] == 1
    assert sum(reasons.values()) == m.metrics()["acquires"], "lookups are not counted"


# -------------------------------------------------------------------------- block keys


def test_block_keys():
    """The same plans for callers that hash blocks themselves."""
    m = ContextCacheManager(base_pages=16, recurrent_slots=4, partial_slots=4, tokens_per_page=4, block_keys=True)
    keys = [Hash128(7, i) for i in range(8)]
    first = m.acquire(BlockKeySequence(10, keys[:2]))
    assert first.plan.kind is NO_PREFIX
    assert m.publish_keys(first.lease, 0, keys[:2], 10).blocks == 2
    assert m.grow(first.lease, 1)
    out = m.publish_keys(first.lease, 2, keys[2:3], 12)
    assert (out.status, out.blocks) == (PublishStatus.PUBLISHED, 3)
    first.lease.release()
    plan = both(m, BlockKeySequence(14, keys[:3]))
    assert (plan.reuse_token_length, plan.bound_base_pages, plan.demand_base_pages) == (12, 3, 1)
    assert both(m, BlockKeySequence(12, keys[:3])).kind is REWIND
    assert both(m, BlockKeySequence(14, [*keys[:2], Hash128(8, 2)])).reuse_token_length == 8
    assert both(m, BlockKeySequence(14)).reuse_token_length == 0
    m.check_invariants()


def test_block_keys_with_checkpoints():
    m = ContextCacheManager(base_pages=16, recurrent_slots=4, partial_slots=4, tokens_per_page=4, block_keys=True)
    keys = [Hash128(7, i) for i in range(3)]
    point = HybridCheckpointKey(10, Hash128(1, 10))
    with m.acquire(BlockKeySequence(10, keys[:2]), HYBRID).lease as lease:
        held = m.reserve(lease, True)
        assert m.publish_hybrid_keys(lease, 0, keys[:2], point, held).status is PublishStatus.PUBLISHED
        m.retire(lease, held)
    plan = both(m, BlockKeySequence(14, keys, [point]), HYBRID)
    assert (plan.reuse_token_length, plan.partial_tokens, plan.bound_base_pages) == (10, 2, 2)
    other = HybridCheckpointKey(10, Hash128(1, 11))
    assert both(m, BlockKeySequence(14, keys, [other]), HYBRID).reuse_token_length == 0
    assert both(m, BlockKeySequence(14, keys), HYBRID).reuse_token_length == 0
    assert both(m, BlockKeySequence(14, keys, [other, point]), HYBRID).reuse_token_length == 10


# ----------------------------------------------------------------------- the one call


def test_advance_is_append_publish_and_grow():
    one, three = cache(tokens_per_page=4), cache(tokens_per_page=4)
    a, b = (m.acquire(prompt(7)).lease for m in (one, three))
    for step in range(40):
        resident = 8 + step
        grow = int(resident % 4 == 0)
        publication, grew = one.advance(a, [step], resident_length=resident, base=grow)
        three.append(b, [step])
        assert publication == three.publish(b, resident)
        assert grew == three.grow(b, grow)
        assert one.dump().replace(f"{a.handle:#x}", "lease") == three.dump().replace(f"{b.handle:#x}", "lease")
    assert one.advance(a, []) == (None, True)
    publication, grew = one.advance(a, [99] * 4, resident_length=48, base=2**31 - 1)
    assert (publication.blocks, grew) == (12, False)
