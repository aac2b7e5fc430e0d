"""Regressions of the original's defects (D-n) on whole requests."""

from __future__ import annotations

import ctypes
from array import array

import pytest
from context_host import Kind, Rig, Status, prompt, sequence

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.context import ContextCacheSequenceAdvance, Hash128

A = Hash128(1, 2)


def advances(*pairs):
    return [ContextCacheSequenceAdvance(tokens, committed) for tokens, committed in pairs]


def test_d1_media_of_another_length_is_refused():
    rig = Rig()
    for size in (1, 299, 301):
        with pytest.raises(PrefixCacheArgumentError, match="per_position_media_hash"):
            rig.begin(sequence(prompt(300), media=[A] * size))
    rig.begin(sequence(prompt(300), media=[A] * 300)).request.close()
    rig.emptied()


@pytest.mark.parametrize("kind", [Kind.VANILLA, Kind.EAGLE])
def test_d3_trimmed_pages_are_not_bound(kind):
    media = [None] * 100 + [A] * 60 + [None] * 140  # 128 splits the run
    rig = Rig(kind)
    rig.publish(sequence(prompt(300), media=media))
    live = rig.begin(sequence(prompt(300), media=media))
    assert live.starts[0] in (0, 256)
    again = rig.manager.lookup(sequence(prompt(140), media=media[:140]))
    assert (again.reuse_token_length, again.bound_base_pages) == (0, 0)
    live.request.close()
    live = rig.begin(sequence(prompt(140), media=media[:140]))
    page = live.request.inspect().sequences[0].base_pages[0]
    assert all(page not in record.base_pages for record in rig.manager.records())
    before = rig.coordinator.metrics()
    assert before["hit_sequences"] >= 1
    live.prefill().finish()
    rig.hit(sequence(prompt(300), media=media))  # its pages were not rewritten
    rig.emptied()


@pytest.mark.parametrize("kind", [Kind.HYBRID, Kind.PURE_RECURRENT])
def test_d4_a_checkpoint_inside_a_media_run_is_a_miss(kind):
    media = [None] * 120 + [A] * 60 + [None] * 120
    rig = Rig(kind)
    rig.publish(sequence(prompt(130), media=media[:130]))
    live = rig.begin(sequence(prompt(300), media=media))
    assert live.starts == [0]
    assert live.sequences[0].reason.name == "MEDIA_BOUNDARY"
    live.prefill().finish()  # 300: text on both sides
    assert rig.hit(sequence([*prompt(300), 1], media=[*media, None])) == 300
    rig.emptied()


def test_d5_draft_lengths_are_those_of_the_batch():
    rig = Rig(Kind.EAGLE, max_batch=4, draft_batch=2)
    live = rig.begin(prompt(200), prompt(200, 1))
    live.prepare()
    assert rig.draft.log == [("reset", [0, 0], [0, 1])]
    live.request.close()
    with pytest.raises(PrefixCacheError, match="batch"):
        rig.begin(*[prompt(9, i) for i in range(3)])
    with pytest.raises(PrefixCacheError, match="slot"):
        rig.begin(prompt(9), slots=[2])
    rig.emptied()


@pytest.mark.parametrize("publish", [[2], [-1], [0, 0], [0, 1, 0]])
@pytest.mark.parametrize("kind", list(Kind))
def test_d6_bad_publishable_slots_change_nothing(kind, publish):
    rig = Rig(kind)
    live = rig.begin(prompt(255), prompt(200, 1)).prefill()
    live.prepare_decode()
    before, dump = live.request.inspect(), rig.manager.dump()
    common = [255, 200] if kind == Kind.EAGLE else None
    with pytest.raises(PrefixCacheArgumentError, match="publish"):
        rig.coordinator.complete_decode_step(live.request, advances(([5], 256), ([5], 201)), publish, common)
    assert (live.request.inspect(), rig.manager.dump()) == (before, dump)
    assert live.complete([[5], [5]], [0, 1]) is Status.OK
    live.finish()
    rig.emptied()


def test_d8_a_decode_step_that_is_broken_off_is_drained():
    """Pages grow and rows go to the device before the step ends: work is pending then."""
    rig = Rig()
    live = rig.begin(prompt(256)).prefill()
    assert live.prepare_decode() is Status.OK
    assert live.request.inspect().device_work_pending
    live.request.close()
    assert rig.sync.calls == 1
    rig.emptied()


def test_d12_media_positions_before_the_start_are_counted():
    media = [None] * 20 + [A] * 50 + [None] * 30 + [Hash128(3, 4)] * 20 + [None] * 80
    rig = Rig()
    rig.publish(sequence(prompt(200), media=media))
    live = rig.begin(sequence(prompt(200), media=media), prompt(200, 1))
    assert [s.skipped_media_positions for s in live.sequences] == [70, 0]
    live.request.close()


def test_d13_a_refused_batch_counts_and_evicts_nothing():
    rig = Rig(pages=8, width=8)
    rig.publish(prompt(300))
    records, before = rig.manager.records(), rig.coordinator.metrics()
    assert rig.refused(prompt(300), prompt(900, 1)) is Status.REQUEST_FAILED
    after = rig.coordinator.metrics()
    for m in (before, after):
        m.pop("planning_nanoseconds")
        m.pop("acquires")
        m.pop("infeasible")
    assert after == before
    assert rig.manager.records() == records
    assert rig.hit(prompt(300)) == 256
    rig.emptied()


@pytest.mark.parametrize(
    "kind, bad, common",
    [
        (Kind.VANILLA, [([7], 300), ([], 200)], None),
        (Kind.VANILLA, [([7], 300), ([7], 199)], None),
        (Kind.VANILLA, [([7], 300), ([7], 201)], None),
        (Kind.VANILLA, [([7], 300), ([7, 8], 200)], None),
        (Kind.VANILLA, [([7], 300)], None),
        (Kind.VANILLA, [([7], 300), ([7], 200)], [300, 200]),
        (Kind.HYBRID, [([7], 300), ([7], 199)], None),
        (Kind.EAGLE, [([7], 300), ([7], 200)], None),
        (Kind.EAGLE, [([7], 300), ([7], 200)], [300]),
        (Kind.EAGLE, [([7], 300), ([7], 200)], [300, 199]),
        (Kind.EAGLE, [([7], 300), ([7], 200)], [300, 201]),
        (Kind.EAGLE, [([7], 300), ([7], 200)], [-1, 200]),
    ],
)
def test_d14_every_argument_of_finalize_is_checked_before_any_change(kind, bad, common):
    rig = Rig(kind)
    live = rig.begin(prompt(300), prompt(200, 1))
    live.prepare()
    live.compute()
    live.capture()
    before, dump = live.request.inspect(), rig.manager.dump()
    with pytest.raises(PrefixCacheArgumentError):
        rig.coordinator.finalize_prefill_publication(live.request, advances(*bad), common)
    assert (live.request.inspect(), rig.manager.dump()) == (before, dump)
    assert live.request.inspect().device_work_pending
    assert live.finalize() is Status.OK  # and can be repeated
    live.finish()
    rig.emptied()


@pytest.mark.parametrize("target", [array("i", [0]), bytes(64), array("q", [0] * 4), "abcd", array("f", [0] * 4)])
def test_d15_a_compaction_that_cannot_begin_leaves_nothing_begun(target):
    rig = Rig()
    live = rig.begin(prompt(300), prompt(200, 1)).prefill()
    with pytest.raises(PrefixCacheArgumentError, match="device_batch_mapping"):
        rig.coordinator.begin_batch_compaction(live.request, [0, -1], 1, target)
    assert live.request.inspect().pending_compaction_batch_size == -1
    with pytest.raises(PrefixCacheError):
        rig.coordinator.compact_batch(live.request)
    live.decode([[5], [5]]).finish()
    rig.emptied()


@pytest.mark.parametrize("make", [lambda: array("i", [9] * 4), lambda: (ctypes.c_int32 * 4)(*[9] * 4)])
def test_the_device_mapping_is_written_and_kept_until_the_batch_is_compacted(make):
    rig = Rig()
    live = rig.begin(prompt(300), prompt(200, 1), prompt(9, 2)).prefill()
    target = make()
    assert rig.coordinator.begin_batch_compaction(live.request, [0, -1, 1], 2, target) is Status.OK
    assert list(target) == [0, -1, 1, 9]
    assert live.request.inspect().pending_compaction_batch_size == 2
    if isinstance(target, array):
        with pytest.raises(BufferError):
            target.append(1)  # it may not move while the device reads it
    assert rig.coordinator.compact_batch(live.request) is Status.OK
    assert rig.base.log[-2:] == [("compact", [0, -1, 1], 2), ("batch", 2)]
    if isinstance(target, array):
        target.append(1)
    live.rows, live.slots = [live.rows[0], live.rows[2]], [0, 1]
    live.check()
    live.decode([[5], [6]], [0, 1]).check()
    live.finish()
    rig.emptied()


@pytest.mark.parametrize("kind", list(Kind))
def test_d16_every_stage_takes_its_own_steps_only(kind):
    """finalize and captures during decode, complete inside a compaction, and so on."""
    legal = {
        "prepare": {"admitted"},
        "capture": {"prefill"},
        "finalize": {"prefill", "captured"},
        "prepare_decode": {"settled"},
        "complete": {"decode"},
        "begin_compaction": {"settled"},
        "compact": {"compaction"},
    }
    common = kind == Kind.EAGLE
    for stage in ("admitted", "prefill", "captured", "settled", "decode", "compaction"):
        rig = Rig(kind)
        live = rig.begin(prompt(300))
        c, r = rig.coordinator, live.request
        live.prepare() if stage != "admitted" else None
        live.compute() if stage != "admitted" else None
        live.capture() if stage not in ("admitted", "prefill") else None
        live.finalize() if stage in ("settled", "decode", "compaction") else None
        live.prepare_decode() if stage == "decode" else None
        c.begin_batch_compaction(r, [0], 1) if stage == "compaction" else None
        steps = {
            "prepare": lambda c=c, r=r: c.prepare_prefill(r),
            "capture": lambda c=c, r=r: c.enqueue_prefill_captures(r),
            "finalize": lambda c=c, r=r: c.finalize_prefill_publication(
                r, advances(([7], 300)), [300] if common else None
            ),
            "prepare_decode": lambda c=c, r=r: c.prepare_decode_step(r),
            "complete": lambda c=c, r=r: c.complete_decode_step(r, advances(([7], 301)), [], [300] if common else None),
            "begin_compaction": lambda c=c, r=r: c.begin_batch_compaction(r, [0], 1),
            "compact": lambda c=c, r=r: c.compact_batch(r),
        }
        before, dump = r.inspect(), rig.manager.dump()
        for name, step in steps.items():
            if stage not in legal[name]:
                with pytest.raises(PrefixCacheError) as e:
                    step()
                assert e.value.status == -3, (stage, name)
                assert (r.inspect(), rig.manager.dump()) == (before, dump)
        assert c.finish(r) is Status.OK
        rig.emptied()


def test_eagle_walk_through():
    """Section 13.7: prompt 255, two rounds of two tokens, common lags one round."""
    rig = Rig(Kind.EAGLE)
    live = rig.begin(prompt(255)).prefill()
    s = live.request.inspect()
    assert (s.spec_awaiting_first_completion, s.device_work_pending) == (True, True)
    assert s.sequences[0].frozen_spec_prefill_length == 255
    assert rig.manager.records() == []
    live.decode([[1, 2]])
    s = live.request.inspect()
    assert (s.spec_awaiting_first_completion, s.device_work_pending) == (False, False)
    assert (s.sequences[0].committed_state_length, s.sequences[0].common_state_length) == (257, 255)
    assert [r.full_block_count for r in rig.manager.records()] == [1]
    live.decode([[3, 4]], [0])
    assert live.request.inspect().sequences[0].common_state_length == 257
    assert sorted(r.full_block_count for r in rig.manager.records()) == [1, 2]
    assert all(len(r.draft_pages) == r.full_block_count for r in rig.manager.records())
    live.finish()
    rig.emptied()


@pytest.mark.parametrize("kind", [Kind.VANILLA, Kind.HYBRID])
def test_prefill_only_publishes_no_generated_token(kind):
    rig = Rig(kind)
    live = rig.begin(prompt(255), prefill_only=True).prefill()
    records = rig.manager.records()
    live.decode([[5]], [0]).finish()
    assert rig.manager.records() == records
    rig.emptied()


def test_c86_vanilla_requests_on_an_eagle_deployment():
    rig = Rig(Kind.EAGLE)
    rig.publish(prompt(300))
    live = rig.begin(prompt(300), eagle=False).prefill()
    assert live.starts == [256]
    assert live.request.inspect().sequences[0].draft_pages == []
    live.decode([[1]], [0]).check()
    live.finish()
    assert len(rig.draft.log) == 1
    rig.emptied()


def test_resident_slots_and_two_requests():
    rig = Rig(requests=2)
    first = rig.begin(prompt(300), slots=[2]).prefill()
    second = rig.begin(prompt(300), prompt(200, 1), slots=[3, 0]).prefill()
    assert rig.base.log[-1] == ("reset", [256, 0], [3, 0])
    for bad in ([2, 1], [1, 1], [4, 1], [-1, 1]):
        rig2 = Rig(requests=2)
        live = rig2.begin(prompt(9), slots=[2])
        with pytest.raises(PrefixCacheArgumentError, match="slot"):
            rig2.begin(prompt(9), prompt(9), slots=bad)
        live.request.close()
    for step in range(100):
        first.decode([[step]])
        second.decode([[step], [step]])
    first.check()
    second.check()
    assert first.finish() is Status.OK
    second.check()
    assert second.finish() is Status.OK
    rig.emptied()


def test_headroom_grows_ahead():
    rig = Rig(tokens_per_page=4)
    live = rig.begin(prompt(7)).prefill()
    c, r = rig.coordinator, live.request
    assert c.prepare_decode_step(r, base_headroom=17) is Status.OK
    assert len(r.inspect().sequences[0].base_pages) == 6
    live.complete([[5]])
    with pytest.raises(PrefixCacheError, match="headroom"):
        c.prepare_decode_step(r, base_headroom=-1)
    live.decode([[6]]).finish()
    rig.emptied()


@pytest.mark.parametrize("kind", [Kind.HYBRID, Kind.PURE_RECURRENT, Kind.EAGLE])
def test_slot_state_can_be_moved_by_the_library(kind):
    """A runtime without a kernel hands the move back."""
    rig = Rig(kind)
    lengths = array("i", [11, 12, 13, 14])

    def move(cache, draft):
        def compact(old_to_new, new_batch_size, device_mapping, stream):
            at = 0 if draft else lengths.buffer_info()[0]
            rig.coordinator.move_slot_state(old_to_new, draft=draft, lengths=at)

        cache.compact_slot_state = compact

    move(rig.base, False)
    if rig.draft is not None:
        move(rig.draft, True)
    live = rig.begin(prompt(300), prompt(200, 1), prompt(130, 2)).prefill()
    live.compact([-1, 0, 1])
    assert list(lengths) == [12, 13, 13, 14]
    live.check()  # the state of the survivors came along
    live.decode([[5], [6]], [0, 1]).check()
    live.finish()
    rig.emptied()
    with pytest.raises(PrefixCacheError, match="old_to_new"):
        rig.coordinator.move_slot_state([1, 0])
    with pytest.raises(PrefixCacheError, match="count"):
        rig.coordinator.move_slot_state([-1] * 5)
