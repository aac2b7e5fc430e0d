"""Faults that users of comparable caches reported, and their siblings.

One script each, named after the report. 128 tokens a page. The rig checks the content of
everything that is reused, so "start" is never the only thing that is looked at.
"""

from __future__ import annotations

import random

import pytest
from context_host import Kind, Rig, Status, prompt, sequence

from prefixcache import PrefixCacheError
from prefixcache.context import (
    AcquireStatus,
    AdapterIdentity,
    BlockKeyExtras,
    BlockKeySequence,
    CacheResourceType,
    ContextCacheManager,
    ContextCacheSequenceAdvance,
    Hash128,
    MediaSpan,
    NoReuseReason,
    PublishStatus,
    ReusePlanMode,
)

A, B, C = Hash128(1, 2), Hash128(3, 4), Hash128(5, 6)


def adapter(id_: Hash128, generation: int = 1) -> BlockKeyExtras:
    return BlockKeyExtras(adapter=AdapterIdentity(id_, generation))


def image(digest: Hash128 | None, before: int = 10, count: int = 200, after: int = 60):
    """Text, placeholders of one image, text."""
    tokens = prompt(before) + [151655] * count + prompt(after, 9)
    media = [None] * before + [digest] * count + [None] * after if digest else ()
    return sequence(tokens, media=media)


# ------------------------------------------------------------------------- identity


@pytest.mark.parametrize("kind", list(Kind))
def test_vllm_12621_content_is_compared_not_a_hash(kind):
    """GHSA-rm76-4mrf-v9r8: with a hash that always collides, a crafted prompt gets nothing."""
    rig = Rig(kind, weak_hash=True)
    rig.publish(prompt(257))
    for at in (0, 1, 63, 127):
        other = prompt(260)
        other[at] += 1
        assert rig.hit(other) == 0, at
    assert rig.hit(prompt(260)) == {Kind.VANILLA: 256, Kind.EAGLE: 128}.get(kind, 257)
    assert rig.manager.metrics()["hash_collisions"] > 0
    rig.emptied()


@pytest.mark.parametrize("weak", [True, False])
def test_openvino_genai_3722_difference_in_the_second_block_only(weak):
    rig = Rig(weak_hash=weak)
    rig.publish(prompt(385))
    for at in (128, 200, 255):
        other = prompt(385)
        other[at] ^= 1 << 20
        assert rig.hit(other) == 128, at
    assert rig.hit(prompt(385)) == 384


def test_vllm_44701_extras_are_separate_domains():
    extras = {
        "none": None,
        "adapter": BlockKeyExtras(adapter=AdapterIdentity(A)),
        "isolation": BlockKeyExtras(isolation_digest=A),
        "embedding": BlockKeyExtras(custom_embedding_digest=A),
        "position": BlockKeyExtras(position_digest=A),
        "adapter zero": BlockKeyExtras(adapter=AdapterIdentity(Hash128(0, 0))),
        "isolation zero": BlockKeyExtras(isolation_digest=Hash128(0, 0)),
        "embedding zero": BlockKeyExtras(custom_embedding_digest=Hash128(0, 0)),
        "position zero": BlockKeyExtras(position_digest=Hash128(0, 0)),
    }
    rig = Rig()
    for done, (name, e) in enumerate(extras.items()):
        assert rig.hit(sequence(prompt(200), e)) == 0, f"{name} hits one of {list(extras)[:done]}"
        rig.publish(sequence(prompt(200), e))
    for name, e in extras.items():
        assert rig.hit(sequence(prompt(200), e)) == 128, name
    assert len(rig.manager.records()) == len(extras)
    rig.emptied()


def test_vllm_3264_adapter_is_part_of_the_identity():
    rig = Rig()
    rig.publish(sequence(prompt(200), adapter(A)))
    assert rig.hit(sequence(prompt(200), adapter(B))) == 0
    assert rig.hit(prompt(200)) == 0
    assert rig.reason(prompt(200)) == "extras_unknown"
    assert rig.hit(sequence(prompt(200), adapter(A))) == 128


def test_vllm_42125_adapter_reloaded_under_the_same_name():
    rig = Rig()
    rig.publish(sequence(prompt(200), adapter(A, 1)))
    assert rig.hit(sequence(prompt(200), adapter(A, 2))) == 0
    rig.publish(sequence(prompt(200), adapter(A, 2)))
    rig.publish(sequence(prompt(200), adapter(B, 1)))
    rig.publish(prompt(200))
    assert rig.manager.invalidate(A) == 2
    assert rig.hit(sequence(prompt(200), adapter(A, 1))) == 0
    assert rig.hit(sequence(prompt(200), adapter(A, 2))) == 0
    assert rig.hit(sequence(prompt(200), adapter(B, 1))) == 128
    assert rig.hit(prompt(200)) == 128
    rig.emptied()


def test_vllm_42495_invalidation_of_one_generation_with_a_request_in_flight():
    rig = Rig(requests=2)
    rig.publish(sequence(prompt(200), adapter(A, 1)))
    live = rig.begin(sequence(prompt(383), adapter(A, 1)), slots=[1]).prefill()
    pages = live.request.inspect().sequences[0].base_pages
    assert rig.manager.invalidate(A, 2) == 0
    assert rig.manager.invalidate(A, 1) == 2
    rig.publish(sequence(prompt(2000, 5)))  # wants most of the pool
    live.decode([[1]], [0]).check()  # its pages are its own to the end
    assert live.request.inspect().sequences[0].base_pages == pages
    live.finish()
    assert rig.hit(sequence(prompt(390), adapter(A, 1))) == 0, "what it published later is stale"
    assert rig.manager.metrics()["stale_publications"] > 0
    rig.emptied()


@pytest.mark.parametrize("report", ["LMCache 690", "sglang-omni 260", "ATOM 1358", "vllm-mlx 718"])
def test_one_placeholder_id_for_all_images(report):
    rig = Rig()
    rig.publish(image(A))
    assert rig.hit(image(B)) == 0
    assert rig.hit(image(None)) == 0
    # 270 tokens, boundaries at 128 and 256; 256 lies in the text after the image.
    assert rig.hit(image(A)) == 256
    assert rig.reason(image(B)) == "first_block"


def test_sglang_omni_146_a_boundary_inside_the_image_is_no_boundary():
    rig = Rig()
    rig.publish(image(A, 10, 300, 60))  # 370 tokens: 128 and 256 both split the image
    live = rig.begin(image(A, 10, 300, 60))
    assert live.starts == [0]
    assert live.sequences[0].reason is NoReuseReason.MEDIA_BOUNDARY
    live.request.close()
    rig.publish(image(A, 130, 100, 60))  # here 128 lies before it, 256 after it
    assert rig.hit(image(A, 130, 100, 60)) == 256
    assert rig.hit(image(A, 130, 100, 0)) == 128  # 230 tokens: one block, all text
    rig.emptied()


def test_skipped_media_positions_are_told():
    """D-12: what follows a reused image must not be given its embeddings."""
    tokens = [5] * 20 + [9] * 80 + [5] * 100 + [9] * 80 + [5] * 20
    media = [None] * 20 + [A] * 80 + [None] * 100 + [B] * 80 + [None] * 20
    rig = Rig()
    rig.publish(sequence(tokens, media=media))
    live = rig.begin(sequence(tokens, media=media))
    assert live.starts == [128]  # 256 would split the second image
    assert live.sequences[0].skipped_media_positions == 80
    live.request.close()
    assert rig.coordinator.metrics()["skipped_media_positions"] == 80


def test_ours_d2_text_media_equals_media_text():
    rig = Rig(tokens_per_page=2)
    x = sequence([0x00030213, 777, 1], media=[None, Hash128(0x1122334455667788, 0x99AABBCCDDEEFF00), None])
    y = sequence([888, 0x99AABBCC - 2**32, 1], media=[Hash128(0x5566778813000302, 0xDDEEFF0011223344), None, None])
    rig.publish(x)
    assert rig.hit(y) == 0
    assert rig.hit(x) == 2


def test_ours_d1_media_request_with_generated_tokens():
    rig = Rig()
    media = [None] * 20 + [A] * 200 + [None] * 35
    live = rig.begin(sequence(prompt(255), media=media)).prefill()
    live.decode([[11]], [0]).finish()
    history = [*prompt(255), 7]
    again = sequence([*history, 11], media=[*media, None, None])
    assert rig.hit(again) == 256
    again = sequence([*history, 11, 12], media=[*media, None, None, None])
    assert rig.hit(again) == 256
    assert rig.hit(sequence([*history, 11], media=[*media, A, None])) == 0, "a media position is no token"
    rig.emptied()


def test_media_spans_are_identity_in_every_field_and_in_order():
    spans = [MediaSpan(A, B, 3, 1, 1), MediaSpan(B, A, 9, 2, 2)]
    variants = [
        (),
        spans[:1],
        spans[::-1],
        [MediaSpan(C, B, 3, 1, 1), spans[1]],
        [MediaSpan(A, C, 3, 1, 1), spans[1]],
        [MediaSpan(A, B, 4, 1, 1), spans[1]],
        [MediaSpan(A, B, 3, 2, 1), spans[1]],
        [MediaSpan(A, B, 3, 1, 2), spans[1]],
    ]
    rig = Rig()
    rig.publish(sequence(prompt(200), BlockKeyExtras(media_spans=spans)))
    for other in variants:
        assert rig.hit(sequence(prompt(200), BlockKeyExtras(media_spans=other))) == 0, other
    assert rig.hit(sequence(prompt(200), BlockKeyExtras(media_spans=spans))) == 128


# --------------------------------------------------------------------------- lengths


@pytest.mark.parametrize("report", ["vllm 11186", "vllm 17999", "nano-vllm 199", "LMCache 3322"])
def test_prompt_fully_cached(report):
    rig = Rig()
    rig.publish(prompt(256))
    assert rig.hit(prompt(256)) == 128
    assert rig.reason(prompt(256)) == "full_input"
    rig.publish(prompt(256))
    m = rig.coordinator.metrics()
    assert m["existing_publications"] == 1
    assert m["records"] == 1
    assert rig.hit(prompt(257)) == 256
    rig.emptied()


@pytest.mark.parametrize("kind", [Kind.HYBRID, Kind.PURE_RECURRENT])
def test_lmcache_5249_checkpoint_as_long_as_the_prompt(kind):
    rig = Rig(kind)
    rig.publish(prompt(130))
    assert rig.hit(prompt(130)) == 0
    assert rig.reason(prompt(130)) == "checkpoint_long"
    rig.publish(prompt(129))
    assert rig.hit(prompt(130)) == 129
    assert rig.hit(prompt(131)) == 130
    live = rig.begin(prompt(131)).prefill()  # the state of 130 came back byte for byte
    live.decode([[1]], [0]).finish()
    rig.emptied()


def test_tensorrt_llm_8813_a_partial_page_is_never_bound_to_another():
    rig = Rig()
    first = rig.begin(prompt(200)).prefill()
    tail = first.request.inspect().sequences[0].base_pages[1]
    first.finish()
    other = [*prompt(129), 999]
    live = rig.begin(other).prefill()
    assert live.starts == [128]
    live.check()
    live.finish()
    for record in rig.manager.records():
        assert tail not in record.base_pages, "a partial tail is published"
    _, cached = rig.manager.references(CacheResourceType.BASE_PAGE)
    assert cached[tail] == 0


@pytest.mark.parametrize("report", ["TensorRT-LLM 10875", "TensorRT-LLM 10183"])
def test_base_and_draft_match_different_lengths(report):
    rig = Rig(Kind.EAGLE)
    rig.publish(prompt(384))  # three blocks in both
    rig.publish(prompt(650), eagle=False)  # five in base
    live = rig.begin(prompt(650))
    assert live.starts == [256]
    assert live.sequences[0].matched_token_length == 384
    assert live.sequences[0].reason is NoReuseReason.DRAFT_SHORTER
    record = rig.manager.records()[0]
    mine = live.request.inspect().sequences[0]
    shared = set(mine.base_pages) & {p for r in rig.manager.records() for p in r.base_pages}
    assert shared == set(mine.base_pages[:2]), "base pages from 2 on are private"
    assert set(mine.draft_pages) & set(record.draft_pages) <= set(mine.draft_pages[:2])
    live.prefill().decode([[1, 2]], [0]).check()
    live.finish()
    rig.emptied()


def test_model_optimizer_1577_bypass_starts_at_zero_and_publishes_nothing():
    for kind in Kind:
        rig = Rig(kind)
        rig.publish(prompt(300))
        records = rig.manager.records()
        live = rig.begin(prompt(300), bypass=True)
        assert live.starts == [0]
        assert live.sequences[0].reason is NoReuseReason.BYPASS
        if kind != Kind.PURE_RECURRENT:
            mine = live.request.inspect().sequences[0].base_pages
            assert len(mine) == 3
            assert not set(mine) & {p for r in records for p in r.base_pages}
        live.prefill().decode([[1]], [0]).check()
        live.finish()
        assert rig.manager.records() == records
        rig.emptied()


def test_vllm_43090_attention_pages_without_recurrent_state():
    rig = Rig(Kind.HYBRID, snapshots=2)
    rig.publish(prompt(130))
    rig.publish(prompt(260))
    shorter, longer = rig.manager.records()
    assert rig.manager.evict(shorter.id)
    assert rig.manager.lookup(prompt(200), ReusePlanMode.HYBRID).reuse_token_length == 0
    assert rig.hit(prompt(200)) == 0, "the pages of one block are there, a state is not"
    assert rig.reason(prompt(200)) == "no_checkpoint"
    assert rig.hit(prompt(261)) == 260
    assert longer.base_pages == rig.manager.records()[0].base_pages
    rig.emptied()


def test_vllm_53084_no_record_for_a_snapshot_that_was_never_written():
    rig = Rig(Kind.HYBRID, snapshots=1)
    live = rig.begin(prompt(130), prompt(140, 1)).prefill()  # one slot for two captures
    assert len(rig.manager.records()) == 1
    assert rig.coordinator.metrics()["hybrid_snapshot_pressure_skips"] == 1
    live.finish()
    assert rig.hit(prompt(131)) == 130
    assert rig.hit(prompt(141, 1)) == 0
    # Not captured at all: nothing to publish.
    rig = Rig(Kind.HYBRID)
    live = rig.begin(prompt(130))
    live.prepare()
    live.compute()
    assert live.finalize() is Status.OK
    assert rig.manager.records() == []
    live.finish()
    # The manager level: publication without a reservation is refused.
    m = ContextCacheManager(base_pages=8, recurrent_slots=2, partial_slots=2)
    lease = m.acquire(prompt(130), ReusePlanMode.HYBRID).lease
    held = m.reserve(lease, True)
    m.retire(lease, held)
    with pytest.raises(PrefixCacheError, match="not reserved"):
        m.publish_hybrid(lease, 130, held)
    assert m.records() == []


@pytest.mark.parametrize("kind", list(Kind))
def test_vllm_29387_second_sequence_of_the_same_batch(kind):
    rig = Rig(kind)
    live = rig.begin(prompt(300), prompt(300))
    assert live.starts == [0, 0]
    if kind == Kind.EAGLE:
        live.prefill().decode([[1], [1]])
    else:
        live.prefill()
    assert len(rig.manager.records()) == 1
    live.decode([[1], [1]], [0, 1])
    live.check()
    live.finish()
    rig.emptied()


def test_vllm_17137_last_draft_block_is_replayed():
    rig = Rig(Kind.EAGLE)
    rig.publish(prompt(260))
    live = rig.begin([*prompt(256), *[5] * 10])  # the next token differs: block 2 must not be taken as it is
    assert live.starts == [128]
    live.prefill().decode([[1, 2, 3]]).decode([[4]], [0]).check()
    live.finish()
    assert rig.hit([*prompt(128), 4, 4]) == 0
    rig.emptied()


def test_vllm_50897_publication_that_disagrees_with_the_replayed_block():
    m = ContextCacheManager(base_pages=16, draft_pages=16, block_keys=True)
    keys = [Hash128(1, i) for i in range(4)]
    first = m.acquire(BlockKeySequence(384, keys[:3]), ReusePlanMode.SPEC).lease
    assert m.publish_keys(first, 0, keys[:3], 384).status is PublishStatus.PUBLISHED
    first.release()
    hit = m.acquire(BlockKeySequence(400, keys[:3]), ReusePlanMode.SPEC)
    assert hit.plan.reuse_token_length == 256
    assert hit.plan.dependency_blocks == 3
    with pytest.raises(PrefixCacheError, match=r"block 2|key of block"):
        m.publish_keys(hit.lease, 0, [*keys[:2], Hash128(9, 9)], 384)
    with pytest.raises(PrefixCacheError, match="replayed"):
        m.publish_keys(hit.lease, 0, keys[:2], 384)
    m.check_invariants()
    assert m.publish_keys(hit.lease, 0, keys[:3], 384).status is PublishStatus.EXISTING_RECORD


# ------------------------------------------------------------------- leaks and evictions


def test_vllm_43569_aborted_before_anything_was_written():
    rig = Rig()
    live = rig.begin(prompt(300))
    live.prepare()
    live.request.close()
    assert rig.sync.calls == 1
    assert rig.manager.records() == []
    assert rig.hit(prompt(300)) == 0
    rig.emptied()


def test_xllm_828_ten_thousand_requests_leak_nothing():
    rig = Rig(tokens_per_page=4, pages=24, width=6, max_records=5)
    random_ = random.Random(1)
    c = rig.coordinator
    for _ in range(10_000):
        tokens = [random_.randrange(3) for _ in range(random_.randint(1, 20))]
        begun = c.begin_request(rig.admission(tokens), 0x51)
        request = begun.admission.request
        c.prepare_prefill(request)
        c.enqueue_prefill_captures(request)
        c.finalize_prefill_publication(request, [ContextCacheSequenceAdvance([7], len(tokens))])
        assert c.finish(request) is Status.OK
        m = rig.manager.metrics()
        pool = m["pools"]["base_pages"]
        assert pool["active"] == 0
        assert pool["free"] + m["base_blocks"] == pool["capacity"]
    rig.emptied()


def test_atlas_373_pages_of_a_live_request_are_never_handed_out():
    rig = Rig(pages=12, width=8, requests=2)
    rig.publish(prompt(260))
    live = rig.begin(prompt(260), slots=[3]).prefill()
    mine = set(live.request.inspect().sequences[0].base_pages)
    for seed in range(1, 7):  # each evicts what was cached before it
        other = rig.begin(prompt(1000, seed), slots=[0])
        assert not mine & set(other.request.inspect().sequences[0].base_pages)
        other.prefill().finish()
        live.decode([[seed]]).check()
    assert len(rig.manager.records()) < 7
    live.finish()
    rig.emptied()


def test_kvcached_362_an_evicted_block_loses_its_identity():
    rig = Rig(pages=8, width=8)
    rig.publish(prompt(130))
    taken = set(rig.manager.records()[0].base_pages)
    rig.publish(prompt(1024, 1))  # takes the whole pool
    assert taken <= set(rig.manager.records()[0].base_pages), "the page has a new owner"
    assert rig.manager.lookup(prompt(130)).reuse_token_length == 0
    assert rig.hit(prompt(1024, 1)) == 896
    assert rig.hit(prompt(130)) == 0
    rig.emptied()


def test_mini_sglang_52_the_deepest_block_of_a_hit_is_pinned():
    rig = Rig(pages=8, width=8, requests=2)
    rig.publish(prompt(513))  # four blocks
    live = rig.begin(prompt(513), slots=[1])
    assert live.starts == [512]
    mine = live.request.inspect().sequences[0].base_pages
    assert len(mine) == 5
    assert rig.refused(prompt(512, 2)) is Status.REQUEST_FAILED  # would need a pinned page
    rig.publish(prompt(384, 3))
    live.prefill().check()
    assert live.request.inspect().sequences[0].base_pages == mine
    live.finish()
    rig.emptied()


def test_sglang_35270_shared_pages_are_counted_once():
    m = ContextCacheManager(base_pages=10, tokens_per_page=4)
    path = prompt(20)
    for n in (4, 8, 12, 16, 20):  # five records over five pages
        with m.acquire(path[:n]).lease as lease:
            m.publish(lease, n)
    pool = m.metrics()["pools"]["base_pages"]
    assert (len(m.records()), pool["free"], pool["active"]) == (5, 5, 0)
    assert m.acquire(prompt(44, 1)).status is AcquireStatus.INSUFFICIENT_CAPACITY
    assert len(m.records()) == 5, "nothing was evicted for a request that never fits"
    with m.acquire(path[:18]).lease:  # pins four of the five
        assert m.acquire(prompt(24, 2)).status is AcquireStatus.INSUFFICIENT_CAPACITY
        with m.acquire(prompt(20, 2)).lease as lease:
            assert lease.valid()
    m.check_invariants()


@pytest.mark.parametrize("kind", list(Kind))
def test_tensorrt_llm_15018_dropped_after_each_phase(kind):
    """Pools are as before, plus what was published."""
    rig = Rig(kind)
    rig.publish(prompt(150))

    def to(live, phase):
        live.prepare() if phase >= 1 else None
        live.compute() if phase >= 2 else None
        live.capture() if phase >= 2 else None
        live.finalize() if phase >= 3 else None
        live.prepare_decode() if phase == 4 else None
        rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1) if phase == 5 else None

    for phase in range(6):
        live = rig.begin(prompt(300, 10 + phase), prompt(200))
        to(live, phase)
        live.request.close()
        assert not live.request.valid()
        rig.verify()
        assert all(pool["active"] == 0 for pool in rig.pools().values()), phase
        assert rig.coordinator.metrics()["active_requests"] == 0
        m = rig.coordinator.metrics()
        assert m["pools"]["base_pages"]["free"] + m["base_blocks"] == m["pools"]["base_pages"]["capacity"] or (
            kind == Kind.PURE_RECURRENT
        )
    rig.emptied()


@pytest.mark.parametrize("report", ["vllm 46283", "vllm-ascend 16662"])
def test_abort_while_device_work_is_pending(report):
    rig = Rig()
    live = rig.begin(prompt(300))
    live.prepare()
    owned = rig.pools()["base_pages"]["active"]
    seen = []
    rig.sync.hook = lambda: seen.append(rig.pools()["base_pages"]["active"])
    rig.sync.answer = 700
    live.request.close()
    assert seen == [owned], "pages are owned while the drain is tried"
    assert rig.pools()["base_pages"]["active"] == owned, "and after it failed"
    rig.sync.answer, rig.sync.error = 0, OSError("the driver is gone")
    assert rig.coordinator.shutdown() is Status.POISONED
    assert rig.pools()["base_pages"]["active"] == owned
    rig.sync.error = None
    assert rig.coordinator.shutdown() is Status.OK
    rig.emptied()


def test_tensorrt_llm_15546_the_device_copy_equals_the_host_at_each_launch():
    rig = Rig()
    for seed in range(3):
        live = rig.begin(prompt(300, seed), prompt(500, seed + 10)).prefill()
        for step in range(130):
            live.prepare_decode()
            for slot in (0, 1):
                assert rig.table.device_row(slot) == rig.table.row(slot)
            live.complete([[step], [step]])
        live.check()
        live.finish()
    assert rig.table.dirty_rows == 0
    rig.emptied()


def test_tensorrt_llm_1279_exhaustion_fails_the_request():
    rig = Rig(pages=4, width=4, requests=2)
    live = rig.begin(prompt(384)).prefill()  # three pages of four
    before = rig.pools(), rig.manager.records()
    assert rig.refused(prompt(200, 1), slots=[1]) is Status.REQUEST_FAILED
    assert (rig.pools(), rig.manager.records()) == before
    second = rig.begin(prompt(100, 2), slots=[1]).prefill()
    assert live.prepare_decode() is Status.REQUEST_FAILED  # page four is taken
    assert live.finish() is Status.OK
    second.decode([[1]]).finish()
    rig.emptied()


def test_tensorrt_llm_1687_a_full_row_fails_the_request():
    rig = Rig(width=2)
    live = rig.begin(prompt(255)).prefill()
    live.decode([[1]])
    assert live.prepare_decode() is Status.REQUEST_FAILED
    with pytest.raises(PrefixCacheError):
        live.prepare_decode()
    assert live.finish() is Status.OK
    rig.emptied()
