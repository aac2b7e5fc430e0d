"""The texts that hosts match on, and that a refused call changed nothing."""

from __future__ import annotations

import pytest
import torch
from omni_host import eventually, rows, same

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.omni import (
    ModelCachePolicy,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
)


def test_error_classes():
    assert issubclass(OmniPrefixCacheUnmatchError, RuntimeError)
    assert issubclass(OmniPrefixCacheStagingTimeoutError, OmniPrefixCacheUnmatchError)
    assert issubclass(PrefixCacheArgumentError, RuntimeError)
    assert issubclass(PrefixCacheArgumentError, ValueError)


def test_hit_not_block_aligned(host):
    host.arrive("B", [0, 1], hit=3)
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"prefix hit not block aligned.*req B"):
        host.begin({"B": 1})


def test_block_list_too_short(host):
    host.arrive("B", [0], hit=8)
    with pytest.raises(OmniPrefixCacheUnmatchError, match="req B"):
        host.begin({"B": 1})


def test_a_refused_step_start_leaves_nothing(host):
    # S-5, S-16: finishes and earlier arrivals of the refused output are not applied.
    host.arrive("A", [0])
    host.go({"A": 4})
    host.finish("A")
    host.arrive("B", [0, 1], hit=4)
    host.arrive("C", [0, 2], hit=3)
    before = host.manager.stats()
    with pytest.raises(OmniPrefixCacheUnmatchError, match="req C"):
        host.begin({"B": 1, "C": 1})
    assert host.manager.stats() == before
    host._arrivals[1].num_computed_tokens = 4
    host.view.computed["C"] = 4
    out = host.go({"B": 1, "C": 1})
    assert same(out.hidden_states["B"][:4], rows("A", 0, 4))
    assert same(out.hidden_states["C"][:4], rows("A", 0, 4))


@pytest.mark.parametrize("slots", [[], [0], [0, 1, 2]])
def test_slot_mapping_covers(host, slots):
    host.arrive("A", [0])
    host.begin({"A": 2})
    host.view.step_slots_cpu = lambda *_: torch.tensor(slots, dtype=torch.int64)
    with pytest.raises(OmniPrefixCacheUnmatchError, match=rf"slot mapping covers {len(slots)} of 2"):
        host.save()


def test_slot_mapping_covers_another_number_than_the_counts(host):
    host.arrive("A", [0])
    host.begin({"A": 2})
    host.view.batch = ["A"]
    host.view.step_slots_cpu = lambda *_: torch.arange(3)
    with pytest.raises(OmniPrefixCacheUnmatchError, match="slot mapping covers"):
        host.manager.save_outputs(torch.zeros(3, 6), None, num_tokens_unpadded=3, num_tokens_padded=3)


@pytest.mark.parametrize(("hidden", "have"), [(torch.zeros(1, 6), 1), (torch.zeros(12), 0), (torch.tensor(1.0), 0)])
def test_hidden_states_has(host, hidden, have):
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=f"hidden_states has {have} rows, need 2"):
        host.save(hidden=hidden)


def test_staging_capacity(make_host):
    host = make_host(staging_capacity_tokens=3)
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="staging capacity is 3"):
        host.save()
    host.begin({"A": 3})
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 3))


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.05])
def test_unconsumed_step_contexts(make_host, timeout):
    host = make_host(staging_depth=2, staging_claim_timeout_s=timeout)
    host.arrive("A", [0, 1])
    steps = [host.run({"A": 1}), host.run({"A": 1})]
    host.begin({"A": 1})
    with pytest.raises(OmniPrefixCacheStagingTimeoutError, match=r"unconsumed step contexts") as e:
        host.save()
    assert all(str(s) in str(e.value) for s in steps)
    host.manager.discard_step(steps[0])
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 2, 3))
    assert same(host.read(steps[1], "A").hidden_states["A"], rows("A", 1, 2))


@pytest.mark.parametrize("call", ["materialize", "discard_step"])
@pytest.mark.parametrize("first", ["materialize", "discard_step"])
def test_step_context_missing(host, first, call):
    host.arrive("A", [0])
    step = host.run({"A": 1})
    use = {"materialize": lambda s: host.read(s, "A"), "discard_step": host.manager.discard_step}
    use[first](step)
    for bad in (step, step + 1, 0, -1):
        with pytest.raises(OmniPrefixCacheUnmatchError, match=f"step context {bad} missing"):
            use[call](bad)


def test_outside_the_save_snapshot(host):
    host.arrive("A", [0])
    step = host.run({"A": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"outside the save snapshot: \['X', 'Y'\]"):
        host.read(step, "Y", "A", "X")
    with pytest.raises(OmniPrefixCacheUnmatchError, match="missing"):
        host.read(step, "A")


def test_outside_the_save_snapshot_lists_eight(host):
    host.arrive("A", [0])
    step = host.run({"A": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError) as e:
        host.read(step, *(f"x{i}" for i in range(10)))
    assert "x7" in str(e.value)
    assert "x8" not in str(e.value)


def test_absent_slots_names_request_and_key(host):
    host.arrive("some-request", [3, 1], hit=4)
    step = host.run({"some-request": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="is not readable") as e:
        host.read(step, "some-request")
    text = str(e.value)
    assert "some-request" in text
    assert "__hidden_states__" in text
    assert "4 absent slots" in text


def test_hit_without_hidden_rows_in_a_step_that_has_none(host):
    host.arrive("B", [3, 1], hit=4)
    step = host.run({"B": 1}, ("k",), hidden=None)
    with pytest.raises(OmniPrefixCacheUnmatchError, match="absent slots"):
        host.read(step, "B")


def test_policy_without_hidden_has_no_such_error(make_host):
    host = make_host(policy=ModelCachePolicy(needs_full_hidden_states=False))
    host.arrive("B", [3, 1], hit=4)
    out = host.read(host.run({"B": 1}, ("k",)), "B")
    assert out.hidden_states is None
    assert same(out.mm_outputs["k"]["B"], torch.cat([torch.zeros(4, 6), rows("B", 4, 5, "k")]))


def test_shut_down(host):
    host.arrive("A", [0])
    host.begin({"A": 1})
    host.manager.shutdown()
    host.manager.shutdown()
    with pytest.raises(OmniPrefixCacheUnmatchError, match="shut down"):
        host.save()
    with pytest.raises(OmniPrefixCacheUnmatchError, match="shut down"):
        host.begin({"A": 1})


def test_a_failed_write_is_an_error_for_good(make_host):
    host = make_host()
    host.arrive("A", [0])
    steps = [host.run({"A": 1}), host.run({"A": 1})]
    host.fail_write()

    def everything() -> None:
        for _ in range(3):
            host.begin({"A": 1})
            steps.append(host.save())

    with pytest.raises(OmniPrefixCacheUnmatchError, match="write failed"):
        everything()
    for _ in range(2):
        with pytest.raises(OmniPrefixCacheUnmatchError, match="write failed"):
            host.begin({"A": 1})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="write failed"):
        host.read(steps[0], "A")
    for step in steps[1:]:
        host.manager.discard_step(step)


def test_policy_after_the_first_step(host):
    host.arrive("A", [0])
    host.go({"A": 1})
    with pytest.raises(PrefixCacheError):
        host.manager.register_policy(ModelCachePolicy(False))


def test_negative_count(host):
    host.arrive("A", [0])
    host.begin({"A": 1})
    with pytest.raises(PrefixCacheArgumentError, match="num_tokens_unpadded is -1"):
        host.manager.save_outputs(None, None, num_tokens_unpadded=-1, num_tokens_padded=0)


def test_failed_saves_leave_the_budget_and_the_staging_slots_alone(make_host):
    # S-3, S-4: after any number of refused saves the next good one works.
    host = make_host(staging_depth=2, gpu_staging_bytes=4096)
    host.arrive("A", [0, 1])
    good = host.view.step_slots_cpu
    for _ in range(20):
        host.begin({"A": 1})
        host.view.step_slots_cpu = lambda *_: torch.tensor([99])
        with pytest.raises(PrefixCacheError):
            host.save({"k": host.outputs("k")})
        host.view.step_slots_cpu = good
    host.begin({"A": 1})
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 1))
    eventually(lambda: host.manager.stats()["staged_bytes"] == 0)
