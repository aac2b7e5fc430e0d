"""Random request traffic, and what a correct cache answers to it.

:class:`Traffic` is a small scheduler with a block cache: requests share prefixes, blocks
are freed, kept for hits and given away again, prompts come in chunks, requests are aborted
and preempted. :class:`RowModel` is the cache as a dictionary. Neither knows how the
library works.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from omni_host import HIDDEN, rows

BLOCK = 4


class RowModel:
    """(key, slot) -> the row of the slot's present owner, None where it has none."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], torch.Tensor | None] = {}
        self.keys: set[str] = set()

    def save(self, slots: list[int], outputs: dict[str, torch.Tensor]) -> None:
        self.keys |= outputs.keys()
        for key in self.keys:
            for i, slot in enumerate(slots):
                self.rows[key, slot] = outputs[key][i] if key in outputs else None

    def prefix(self, key: str, slots: list[int], like: torch.Tensor) -> torch.Tensor | None:
        """Cached rows of a hit; None when hidden rows are missing, which is an error."""
        found = [self.rows.get((key, slot)) for slot in slots]
        if key == HIDDEN and None in [r if r is None else 0 for r in found]:
            return None
        return torch.stack([torch.zeros_like(like[0]) if r is None else r for r in found])


@dataclass
class Request:
    name: str
    tokens: list[object]  # contents; equal prefixes may share blocks
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    decode: int = 0  # tokens still to be generated


@dataclass
class Step:
    """One scheduler output, with everything that the model and the checks need."""

    output: SimpleNamespace
    batch: list[str]
    slots: list[int]
    starts: dict[str, int]  # first new position of each request
    hits: dict[str, list[int]]  # slots of the hit of each arrival that has one
    outputs: dict[str, torch.Tensor]  # key -> rows; the hidden state among them
    leftover: torch.Tensor


class Traffic:
    """Steps of random traffic.

    same_step: hits on blocks that are being written in the same step are allowed.
    sparse: steps leave out keys, and now and then the hidden rows.
    """

    def __init__(
        self,
        seed: int,
        *,
        num_blocks: int = 24,
        keys: tuple[str, ...] = ("k", "d"),
        same_step: bool = True,
        sparse: bool = True,
        preempt: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.keys, self.same_step, self.sparse, self.preempt = keys, same_step, sparse, preempt
        self.free = list(range(num_blocks))  # least recently used first
        self.holders = [0] * num_blocks
        self.content: dict[int, tuple] = {}  # block -> what it holds
        self.cached: dict[tuple, int] = {}
        self.live: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.gone: list[str] = []
        self.count = 0

    def step(self) -> Step:
        pick = self.random
        fresh: set[int] = set()
        arrivals, scheduled, starts, hits = [], {}, {}, {}
        for r in list(self.live.values()):
            if pick.random() < 0.04:
                self._leave(r)  # an abort
            elif self.preempt and pick.random() < 0.04:
                self._drop_blocks(r)
                r.computed = 0
        for r in list(self.live.values()):
            if pick.random() < 0.9:
                self._advance(r, scheduled, starts, fresh)
        while len(self.live) < 6 and pick.random() < 0.6:
            r = self._new_request()
            hit = self._match(r, fresh)
            if not self._advance(r, scheduled, starts, fresh):
                self._drop_blocks(r)
                break
            self.live[r.name] = r
            arrivals.append(SimpleNamespace(req_id=r.name, num_computed_tokens=hit, block_ids=(list(r.blocks),)))
            if hit:
                hits[r.name] = [b * BLOCK + i for b in r.blocks[: hit // BLOCK] for i in range(BLOCK)]
        # A finish may be announced a step after its blocks were given to another request.
        late = [r for r in self.gone if pick.random() < 0.2]
        finished, self.gone = set(self.gone) - set(late), late
        for r in list(self.live.values()):
            if r.computed >= len(r.tokens) and r.decode <= 0:
                self._leave(r)
        batch = list(scheduled)
        pick.shuffle(batch)
        slots = [s for r in batch for s in self.slots_of[r]]
        return Step(
            SimpleNamespace(num_scheduled_tokens=scheduled, finished_req_ids=finished, scheduled_new_reqs=arrivals),
            batch,
            slots,
            starts,
            hits,
            self._outputs(batch, scheduled, starts),
            torch.arange(float(len(slots))),
        )

    # -- requests

    def _new_request(self) -> Request:
        pick = self.random
        # An id may come back after its request is gone.
        self.count += 1
        name = f"r{pick.randrange(40)}"
        if name in self.live or name in self.gone:
            name = f"n{self.count}"
        shared = pick.choice((0, 4, 8, 8, 12, 16)) + pick.randrange(BLOCK)
        family = pick.randrange(2)
        tokens: list[object] = [(family, i) for i in range(shared)]
        tokens += [(name, self.count, i) for i in range(pick.randrange(1, 8))]
        return Request(name, tokens, decode=pick.randrange(0, 8))

    def _leave(self, r: Request) -> None:
        del self.live[r.name]
        self._drop_blocks(r)
        self.gone.append(r.name)  # announced later; the blocks are free now

    def _advance(self, r: Request, scheduled: dict, starts: dict, fresh: set[int]) -> bool:
        """Schedule some tokens of a request; False when there are no blocks."""
        left = len(r.tokens) - r.computed
        n = min(left, self.random.randrange(1, 12)) if left > 0 else 1
        while len(r.blocks) * BLOCK < r.computed + n:
            if not self.free:
                return False
            block = self.free.pop(0)
            self.cached.pop(self.content.pop(block, ()), None)
            self.holders[block] = 1
            r.blocks.append(block)
        if left <= 0:
            r.tokens.append((r.name, self.count, "generated", len(r.tokens)))
            r.decode -= 1
        if not scheduled:
            self.slots_of: dict[str, list[int]] = {}
        self.slots_of[r.name] = [r.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(r.computed, r.computed + n)]
        starts[r.name], scheduled[r.name] = r.computed, n
        r.computed += n
        # Full blocks can be hit from now on, before their rows exist.
        for i in range(r.computed // BLOCK):
            content = tuple(r.tokens[: (i + 1) * BLOCK])
            if r.blocks[i] not in self.content and content not in self.cached:
                self.content[r.blocks[i]] = content
                self.cached[content] = r.blocks[i]
                fresh.add(r.blocks[i])
        return True

    # -- blocks

    def _match(self, r: Request, fresh: set[int]) -> int:
        """Take the longest cached prefix; its tokens."""
        for i in range((len(r.tokens) - 1) // BLOCK):
            block = self.cached.get(tuple(r.tokens[: (i + 1) * BLOCK]))
            if block is None or (block in fresh and not self.same_step):
                break
            if self.holders[block] == 0:
                self.free.remove(block)
            self.holders[block] += 1
            r.blocks.append(block)
        r.computed = len(r.blocks) * BLOCK
        return r.computed

    def _drop_blocks(self, r: Request) -> None:
        for block in reversed(r.blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free.append(block)
        r.blocks = []

    # -- model

    def _outputs(self, batch: list[str], scheduled: dict, starts: dict) -> dict[str, torch.Tensor]:
        pick = self.random
        keys = [HIDDEN, *self.keys]
        if self.sparse:
            keys = [k for k in keys if pick.random() < (0.97 if k == HIDDEN else 0.7)]
        if not batch:
            return {}
        # A request's rows differ from those of an earlier one with its name.
        salt = self.count * 100_000
        return {
            k: torch.cat([rows(r, starts[r], starts[r] + scheduled[r], k, dtype=torch.float64) + salt for r in batch])
            for k in keys
        }
