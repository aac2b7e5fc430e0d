"""A small engine around a manager: block tables, row contents, scheduler outputs.

The contents of every row are a function of (request, position, key), so a test can say
what it expects without having kept any tensor. Manager classes other than ours (the
original one) fit in as well.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch

from prefixcache import _ffi
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheManager, PrefixCacheConfig, StageCacheOutputs

#: Nothing but a fault takes longer.
HANG_S = 60.0
#: Go keeps threads for later, up to some for each processor.
SPARE_THREADS = 20 + 2 * (os.cpu_count() or 1)

HIDDEN = "__hidden_states__"
WIDTH = 6


class BlockTableView:
    """The batch and its block tables, as the model runner would have them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.batch: list[str] = []
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def batch_req_ids(self) -> list[str]:
        return self.batch

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        size = self.block_size
        return torch.tensor(
            [
                self.tables[r][p // size] * size + p % size
                for r in req_ids
                for p in range(self.computed[r], self.computed[r] + num_scheduled[r])
            ],
            dtype=torch.int64,
        )


def seed_of(name: str, key: str = HIDDEN) -> int:
    """A number for a (request, key) that no other pair of a test has."""
    return sum(ord(c) * 31**i for i, c in enumerate(f"{key}/{name}")) % 9973


def rows(
    name: str, start: int, end: int, key: str = HIDDEN, width: int = WIDTH, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Rows of positions [start, end) of a request. float32 has them exactly."""
    position = torch.arange(start, end, dtype=torch.int64)[:, None]
    column = torch.arange(width, dtype=torch.int64)[None]
    return (seed_of(name, key) * 1000 + position * 10 + column).to(dtype)


class Host:
    """Drives a manager the way the runner does; requests are declared as they arrive."""

    def __init__(
        self,
        *,
        eager: bool = True,
        num_blocks: int = 16,
        block_size: int = 4,
        policy: ModelCachePolicy | None = None,
        manager: type = OmniPrefixCacheManager,
        config: type = PrefixCacheConfig,
        **settings: object,
    ) -> None:
        self.view = BlockTableView(block_size)
        settings.setdefault("staging_depth", 8)
        settings.setdefault("staging_claim_timeout_s", HANG_S)
        self.manager = manager(config(num_blocks=num_blocks, block_size=block_size, **settings), self.view, eager=eager)
        self.policy = policy or ModelCachePolicy()
        self.manager.register_policy(self.policy)
        self._arrivals: list[SimpleNamespace] = []
        self._finished: list[str] = []

    # -- scheduler

    def arrive(self, name: str, blocks: list[int], hit: int = 0) -> None:
        """A new request with its block table, `hit` tokens of it computed already."""
        self.view.tables[name] = list(blocks)
        self.view.computed[name] = hit
        self._arrivals.append(SimpleNamespace(req_id=name, num_computed_tokens=hit, block_ids=(list(blocks),)))

    def finish(self, *names: str) -> None:
        self._finished += names

    def begin(self, scheduled: dict[str, int]) -> None:
        """The scheduler output of a step; a refused one can be tried again."""
        self.manager.new_step_starts(
            SimpleNamespace(
                num_scheduled_tokens=scheduled,
                scheduled_new_reqs=self._arrivals,
                finished_req_ids=set(self._finished),
            )
        )
        self.scheduled = scheduled
        self._arrivals, self._finished = [], []

    # -- model

    def outputs(self, key: str = HIDDEN, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What the model computes for one key in the step that has begun."""
        parts = [
            rows(r, self.view.computed[r], self.view.computed[r] + n, key, width, dtype)
            for r, n in self.scheduled.items()
        ]
        return torch.cat(parts) if parts else torch.empty(0, width, dtype=dtype)

    def save(
        self,
        mm: dict | None = None,
        *,
        hidden: torch.Tensor | str | None = "rows",
        padded: int = 0,
        event: object = None,
    ) -> int:
        """Save the step that has begun, with the usual hidden rows unless told otherwise."""
        n = sum(self.scheduled.values())
        if isinstance(hidden, str):
            hidden = self.outputs()
        self.view.batch = list(self.scheduled)
        step = self.manager.save_outputs(
            hidden, mm, num_tokens_unpadded=n, num_tokens_padded=max(n, padded), event=event
        )
        for r, k in self.scheduled.items():
            self.view.computed[r] += k
        return step

    def run(self, scheduled: dict[str, int], keys: tuple[str, ...] = (), *, hidden: object = "rows") -> int:
        """begin and save, with rows for `keys`."""
        self.begin(scheduled)
        return self.save({k: self.outputs(k) for k in keys}, hidden=hidden)

    def read(self, step: int, *names: str) -> StageCacheOutputs:
        return self.manager.materialize(step, list(names))

    def go(self, scheduled: dict[str, int], keys: tuple[str, ...] = ()) -> StageCacheOutputs:
        """A whole step."""
        return self.read(self.run(scheduled, keys), *scheduled)

    # -- inside

    def states(self, key: str, slots: list[int]) -> list[int]:
        """Slot states of a key: 0 absent, 1 in transit, 2 committed, 3 skipped."""
        return [s.state for s in self._inspect(key, slots)[0]]

    def versions(self, key: str, slots: list[int]) -> list[int]:
        return [s.version for s in self._inspect(key, slots)[0]]

    def stored(self, key: str, slots: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Rows as the cache holds them; zeros where a row is not committed."""
        return torch.frombuffer(bytearray(self._inspect(key, slots)[1]), dtype=dtype).view(len(slots), -1)

    def _inspect(self, key: str, slots: list[int]) -> tuple:
        lib, k = _ffi.load(), self.manager._keys.get(key)
        asked = (ctypes.c_int64 * len(slots))(*slots)
        states = (_ffi.SlotState * len(slots))()
        out = (ctypes.c_uint8 * (len(slots) * k.row_bytes))()
        lib.check(
            lib.omni_inspect(self.manager._cache.handle, k.number, asked, len(slots), states, out, ctypes.sizeof(out))
        )
        return states, bytes(out)

    def check(self) -> None:
        """Every structural invariant of the library holds."""
        lib = _ffi.load()
        lib.check(lib.omni_check(self.manager._cache.handle))

    def fail_write(self, nth: int = 1) -> None:
        lib = _ffi.load()
        lib.check(lib.omni_fail_write(self.manager._cache.handle, nth))


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal shape, dtype and bytes."""
    return got.shape == want.shape and got.dtype == want.dtype and bool(torch.equal(got, want))


def eventually(condition: Callable[[], bool]) -> None:
    """The background thread gets there."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
