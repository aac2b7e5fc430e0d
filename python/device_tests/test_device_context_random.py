"""Random requests on a device, of every kind, with and without trouble with its driver.

Queued work runs early, late or in between, as the seed has it. Whatever a request reuses,
and whatever it has committed, is compared on the device with the model of context_host.
``GPU_SEEDS`` makes it longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from context_host import VERIFY, Kind, Live, Status, sequence
from device_context import DeviceRig, Trouble
from sim_driver import ANY, ENQUEUE, OUT_OF_MEMORY, WAIT, Driver

from prefixcache import PrefixCacheError
from prefixcache._errors import DEVICE, WRONG_STATE
from prefixcache.context import BlockKeyExtras, Hash128

SEEDS = int(os.environ.get("GPU_SEEDS", "250"))
STEPS = 50
PAGE, WIDTH, BATCH = 4, 8, 3
LAUNCH_FAILED = 719
NAMES = {OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY", LAUNCH_FAILED: "CUDA_ERROR_LAUNCH_FAILED"}
CALLS = [ANY, ANY, ENQUEUE, WAIT]  # those that fail
TROUBLED_STEPS = [
    "prepare_prefill",
    "enqueue_prefill_captures",
    "prepare_decode_step",
    "complete_decode_step",
    "begin_batch_compaction",
    "compact_batch",
    "finish",
    "close",
]

TENANT = BlockKeyExtras(isolation_digest=Hash128(0, 1))

# What a request does next. It returns what comes after that; None: the request is over.
Step = Callable[[Live], "Step | None"]


class Walk:
    """Requests side by side; each step is of a random one."""

    def __init__(self, driver: Driver, kind: Kind, seed: int, trouble: bool) -> None:
        driver.reset(seed, policy=seed % 3)
        self.driver, self.kind = driver, kind
        self.random = r = random.Random(seed)
        self.requests = r.choice([1, 1, 2, 3])
        self.rig = DeviceRig(
            driver,
            kind,
            pages=BATCH * WIDTH + r.choice([0, 4, 30]),  # room for every request, and for some records
            max_batch=BATCH,
            width=WIDTH,
            tokens_per_page=PAGE,
            snapshots=r.choice([2, 4, 8]),
            requests=self.requests,
        )
        self.rig.sync.by_library = r.random() < 0.5
        self.live: list[tuple[Live, Step]] = []
        self.prompts: list[list[int]] = []
        self.steps_in_peace = r.randrange(STEPS // 2) if trouble else STEPS
        self.troubled_step = r.choice(TROUBLED_STEPS)
        self.capture = r.random() < 0.3 and self.troubled_step != "close"
        self.reused = self.raised = 0

    def run(self) -> None:
        for i in range(STEPS):
            if i >= self.steps_in_peace and self.rig.met is None:
                self.rig.trouble = self.draw_trouble()
            if self.live and self.random.random() < 0.8:
                self.advance(*self.random.choice(self.live))
            else:
                self.begin()
            self.rig.verify()
            if self.poisoned():
                break
            self.driver.step(self.random.choice([0, 0, 1, 5]))
        self.rig.trouble = None
        self.end()

    def draw_trouble(self) -> Trouble:
        r = self.random
        if self.capture:
            return Trouble(self.troubled_step, r.randrange(3), capture=True)
        return Trouble(self.troubled_step, r.choice([1, 1, 2, 3, 5, 8]), r.choice(CALLS), r.choice(list(NAMES)))

    def poisoned(self) -> bool:
        poisoned = self.rig.coordinator.metrics()["poisoned"]
        assert poisoned == self.rig.sync.failed, "poisoned by a failed wait, and by nothing else"
        return poisoned

    def end(self) -> None:
        """Everything can be ended and is given back."""
        for live, _ in self.live:
            self.random.choice([self.finish, self.drop])(live)
        if self.poisoned():
            assert self.rig.refused([1]) is Status.POISONED
        assert self.rig.coordinator.shutdown() is Status.OK
        self.rig.emptied()
        self.rig.close()
        assert not self.driver.faults(), self.driver.faults()
        assert not self.driver.leaks(), self.driver.leaks()

    # ----------------------------------------------------------------- requests

    def begin(self) -> None:
        r = self.random
        taken = {slot for live, _ in self.live for slot in live.slots}
        free = [slot for slot in range(BATCH) if slot not in taken]
        if not free or len(self.live) == self.requests or self.is_compacting():
            return
        slots = free[: r.randint(1, len(free))]
        live = self.rig.begin(
            *[sequence(self.prompt(), r.choice([None, None, None, TENANT])) for _ in slots],
            slots=slots,
            eagle=self.kind == Kind.EAGLE and r.random() < 0.8,
            bypass=r.random() < 0.1,
            prefill_only=r.random() < 0.1,
        )
        self.reused += sum(live.starts)
        self.live.append((live, self.prepare))

    def is_compacting(self) -> bool:
        """Whether trouble has left a compaction begun: nobody moves in meanwhile."""
        states = [live.request.inspect() for live, _ in self.live if self.raised]
        return any(state.pending_compaction_batch_size >= 0 for state in states)

    def prompt(self) -> list[int]:
        """Often one that begins like an earlier one."""
        r, tokens = self.random, []
        if self.prompts and r.random() < 0.8:
            old = r.choice(self.prompts)
            tokens = old[: r.choice([len(old), r.randint(1, len(old))])]
        tokens = tokens[: PAGE * (WIDTH - 4)] + [r.randrange(3) for _ in range(r.randint(1, 8))]
        self.prompts.append(tokens)
        return tokens

    def advance(self, live: Live, step: Step) -> None:
        self.live.remove((live, step))
        if self.random.random() < 0.05:
            step = self.random.choice([self.finish, self.drop])
        try:
            after = step(live)
        except PrefixCacheError as e:
            self.check_error(e)
            after = self.random.choice([self.finish, self.drop])  # in a while: the others go on
        if after is not None:
            self.live.append((live, after))

    def check_error(self, e: PrefixCacheError) -> None:
        """It tells of the trouble that was met in this step."""
        met = self.rig.met
        self.raised += 1
        if met is None or self.raised > 1:
            raise e
        status, part = (WRONG_STATE, "captured") if met.capture else (DEVICE, NAMES[met.code])
        if e.status != status or part not in str(e):
            raise e

    # -------------------------------------------------------------------- steps

    def prepare(self, live: Live) -> Step | None:
        self.rig.looking = self.random.random() < 0.5
        try:
            return self.then(live.prepare(), self.prefill)
        finally:
            self.rig.looking = True

    def prefill(self, live: Live) -> Step | None:
        live.compute()
        return self.then(live.capture(), self.finalize)

    def finalize(self, live: Live) -> Step | None:
        after = self.then(live.finalize(self.random.randrange(3)), self.settled)
        live.check()  # with all that it reused, whether it was looked at or not
        return after

    def settled(self, live: Live) -> Step | None:
        r = self.random
        if r.random() < 0.3:
            live.check()
        alone = not self.live and live.slots == list(range(len(live.slots)))
        if alone and r.random() < 0.3:
            return self.compact(live)
        return r.choice([self.decode, self.decode, self.decode, self.finish])(live)

    def decode(self, live: Live) -> Step | None:
        status = live.prepare_decode()
        if status is Status.REQUEST_FAILED:  # the row is full
            return self.finish
        return self.then(status, self.complete)

    def complete(self, live: Live) -> Step | None:
        r = self.random
        most = VERIFY if live.eagle else 1
        accepted = [[r.randrange(3) for _ in range(r.randint(1, most))] for _ in live.rows]
        publish = [i for i in range(len(live.rows)) if r.random() < 0.5]
        self.prompts += [live.rows[i].tokens + accepted[i] for i in publish]
        return self.then(live.complete(accepted, publish), self.settled)

    def compact(self, live: Live) -> Step | None:
        mapping, kept = [], 0
        for _ in live.rows:
            stays = self.random.random() < 0.7
            mapping.append(kept if stays else -1)
            kept += stays
        caches = [self.rig.base, self.rig.draft] if live.eagle else [self.rig.base]
        lengths = [[cache.lengths[slot] for slot in live.slots if mapping[slot] >= 0] for cache in caches]
        status = live.begin_compaction(mapping, self.rig.mapping)
        if status is Status.OK:
            status = live.end_compaction(mapping)
        if status is Status.OK:
            assert [cache.lengths[:kept] for cache in caches] == lengths
            assert all(cache.active_batch == kept for cache in caches)
            live.check()
        return self.then(status, self.settled if kept else self.finish)

    def finish(self, live: Live) -> Step | None:
        return self.then(live.finish(), None)

    def drop(self, live: Live) -> None:
        live.request.close()

    def then(self, status: Status, step: Step | None) -> Step | None:
        """A poisoned request is gone."""
        if status is Status.POISONED:
            return None
        assert status is Status.OK
        return step


FAILED: list[BaseException] = []  # what they refer to must not go, with calls of the driver, in another test


def walks(driver: Driver, kind: Kind, trouble: bool) -> list[Walk]:
    done = []
    for seed in range(SEEDS):
        walk = Walk(driver, kind, seed, trouble)
        try:
            walk.run()
        except BaseException as e:
            FAILED.append(e)
            driver.reset(0)
            e.add_note(f"seed {seed}, {walk.rig.met}")
            raise
        done.append(walk)
    return done


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_late_and_early_work_reuses_nothing_wrong(driver, kind):
    done = walks(driver, kind, trouble=False)
    assert not any(walk.rig.sync.failed for walk in done)
    assert sum(walk.reused for walk in done) > 4 * SEEDS


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_trouble_is_survived(driver, kind):
    """An error, or at worst a poisoned coordinator; the request ends, the others go on, all is given back."""
    done = walks(driver, kind, trouble=True)
    assert sum(walk.raised for walk in done) > SEEDS // 4
    assert any(walk.rig.sync.failed for walk in done)
