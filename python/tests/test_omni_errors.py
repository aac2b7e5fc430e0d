"""The texts that hosts match on, and that a refused call changed nothing."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from omni_host import eventually, rows, same

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.omni import (
    ModelCachePolicy,
    OmniPrefixCacheManager,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheConfig,
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


@pytest.mark.parametrize(
    ("hidden", "text"),
    [
        (torch.zeros(1, 6), "1 rows, need 2"),
        (torch.zeros(12), r"shape \(12,\), expected \(rows, width\) with 2 rows or more"),
        (torch.tensor(1.0), r"shape \(\), expected \(rows, width\) with 2 rows or more"),
    ],
)
def test_hidden_states_has(host, hidden, text):
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(OmniPrefixCacheUnmatchError, match=f"hidden_states has {text}"):
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


def test_a_key_whose_name_looks_like_a_request_number_keeps_it(make_host):
    host = make_host(staging_capacity_tokens=1)
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="step has 2 rows of key feat#1 to stage"):
        host.save({"feat#1": torch.zeros(2, 3)}, hidden=None)


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
    steps = [host.run({"A": 1}) for _ in range(3)]
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
    with pytest.raises(OmniPrefixCacheUnmatchError, match="write failed"):
        host.read(steps[1], "Z")  # of two errors the one that matters
    for step in steps[2:]:
        host.manager.discard_step(step)


def test_policy_after_the_first_step(host):
    host.arrive("A", [0])
    host.go({"A": 1})
    with pytest.raises(PrefixCacheError):
        host.manager.register_policy(ModelCachePolicy(False))


def test_deferred_keys_after_the_first_step(make_host):
    """A key that is open keeps its schedule, so another set would be taken and have no effect."""
    host = make_host(policy=ModelCachePolicy(deferred_keys=frozenset({"d"})))
    host.arrive("A", [0])
    host.go({"A": 1}, ("d", "k"))
    for keys in (frozenset(), {"k"}, {"d", "k"}):
        with pytest.raises(PrefixCacheError, match=r"deferred_keys is .* after 1 saved steps, expected \['d'\]"):
            host.manager.register_policy(ModelCachePolicy(deferred_keys=keys))
    with pytest.raises(PrefixCacheError, match="after 1 saved steps"):
        host.manager.register_policy(ModelCachePolicy(False, frozenset({"d"})))
    host.manager.register_policy(ModelCachePolicy(deferred_keys={"d"}))  # the same, of another type
    host.go({"A": 1}, ("d", "k"))
    assert host.manager.stats()["pending_writes"] == 1


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


# Arguments that no caller can mean: each error says which, what it was, and what was expected.


def output(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**{"num_scheduled_tokens": {}, **fields})


@pytest.mark.parametrize(
    ("scheduler_output", "text"),
    [
        (None, "scheduler_output is None, expected an object with num_scheduled_tokens"),
        (SimpleNamespace(finished_req_ids=()), "expected an object with num_scheduled_tokens"),
        (output(scheduled_new_reqs=[None]), r"scheduled_new_reqs\[0\] is None, expected an object with req_id"),
        (output(scheduled_new_reqs=["A"]), r"scheduled_new_reqs\[0\] is 'A', expected an object with req_id"),
        (output(scheduled_new_reqs=[SimpleNamespace(req_id=[1])]), r"req_id of scheduled_new_reqs\[0\] is \[1\]"),
        (output(scheduled_new_reqs="AB"), "scheduled_new_reqs is a str, expected an iterable"),
        (output(finished_req_ids=["A", {}]), r"finished_req_ids has \{\}, expected ids that can be hashed"),
        (output(finished_req_ids="A"), "finished_req_ids is a str, expected an iterable"),
    ],
)
def test_a_scheduler_output_that_cannot_be_meant(host, scheduler_output, text):
    host.arrive("A", [0])
    host.go({"A": 1})
    with pytest.raises(PrefixCacheArgumentError, match=text):
        host.manager.new_step_starts(scheduler_output)
    assert host.manager.stats()["live_requests"] == 1
    assert same(host.go({"A": 1}).hidden_states["A"], rows("A", 1, 2))


@pytest.mark.parametrize("ids", [None, 5, "A", [["A"]], [{}]])
def test_a_batch_that_cannot_be_meant(host, ids):
    host.arrive("A", [0])
    host.begin({"A": 1})
    good, host.view.batch_req_ids = host.view.batch_req_ids, lambda: ids
    with pytest.raises(PrefixCacheArgumentError, match=r"batch_req_ids\(\) (is a|has) .*, expected"):
        host.save()
    host.view.batch_req_ids = good
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 1))


@pytest.mark.parametrize("ids", [None, 5, "A", [["A"]], [{}]])
def test_ids_to_materialize_that_cannot_be_meant(host, ids):
    host.arrive("A", [0])
    step = host.run({"A": 1})
    with pytest.raises(PrefixCacheArgumentError, match=r"req_ids (is a|has) .*, expected"):
        host.manager.materialize(step, ids)


@pytest.mark.parametrize(
    "policy",
    [
        None,
        frozenset({"d"}),
        ModelCachePolicy(deferred_keys="codes"),
        ModelCachePolicy(deferred_keys=None),
        ModelCachePolicy(deferred_keys=7),
        ModelCachePolicy(deferred_keys=[["codes"]]),
        ModelCachePolicy(needs_full_hidden_states="no"),
        ModelCachePolicy(needs_full_hidden_states=2),
    ],
)
def test_a_policy_that_cannot_be_meant(host, policy):
    with pytest.raises(PrefixCacheArgumentError, match=r"policy.* is .*, expected"):
        host.manager.register_policy(policy)
    assert host.manager._policy == host.policy


@pytest.mark.parametrize("names", ["codes", 7, [["codes"]]])
def test_deferred_names_of_a_model_are_a_set_of_names(names):
    # Of one text that would be a set of its letters, which would defer nothing.
    model = SimpleNamespace(deferred_prefix_cache_mm_keys=names)
    with pytest.raises(
        PrefixCacheArgumentError, match=rf"deferred_prefix_cache_mm_keys is {re.escape(repr(names))}, expected a set"
    ):
        ModelCachePolicy.from_model(model)


@pytest.mark.parametrize("config", [None, 16, {"num_blocks": 4, "block_size": 4}])
def test_a_configuration_that_is_none(host, config):
    with pytest.raises(PrefixCacheArgumentError, match=r"config is .*, expected a PrefixCacheConfig"):
        OmniPrefixCacheManager(config, host.view)


def test_configuration_and_policy_may_be_of_the_host_s_own_classes(host):
    config = SimpleNamespace(num_blocks=8, block_size=4, staging_depth=1, staging_claim_timeout_s=0)
    manager = OmniPrefixCacheManager(config, host.view, eager=True)
    manager.register_policy(SimpleNamespace(needs_full_hidden_states=False, deferred_keys={"d"}))
    assert manager.stats()["staging_depth"] == 1
    host.manager = manager
    host.arrive("A", [0])
    assert host.go({"A": 2}, ("d",)).hidden_states is None
    assert host.manager.stats()["pending_writes"] == 1


@pytest.mark.parametrize(
    "view", [None, object(), SimpleNamespace(batch_req_ids=list), SimpleNamespace(batch_req_ids=list, step_slots_cpu=5)]
)
def test_a_view_that_is_none(view):
    with pytest.raises(PrefixCacheArgumentError, match=r"view is .*, expected batch_req_ids and step_slots_cpu"):
        OmniPrefixCacheManager(PrefixCacheConfig(num_blocks=4, block_size=4), view)


@pytest.mark.parametrize("size", [4.5, "16", [4], float("nan")])
@pytest.mark.parametrize("name", ["num_blocks", "block_size", "staging_depth", "gpu_staging_bytes", "warm_bytes"])
def test_sizes_are_not_rounded_or_read_from_text(host, name, size):
    config = PrefixCacheConfig(**{"num_blocks": 4, "block_size": 4, name: size})
    with pytest.raises(PrefixCacheArgumentError, match=f"PrefixCacheConfig.{name} is .*, expected an integer"):
        OmniPrefixCacheManager(config, host.view)
