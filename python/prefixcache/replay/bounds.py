"""What a cache of a given size can reach on a trace: two bounds to hold a hit rate against.

Both keep blocks of 512 tokens, the trace's own grain (one hash id each, the last one of
a prompt for what is left), and count the tokens of the leading blocks that are there.
Generated tokens take no room, and a request's own blocks need not fit beside others.

    least-recent   evicts the block that was used longest ago; of a request's blocks
                   the last one first, so that a prefix outlives what hangs on it
    optimal        evicts the block whose next use is farthest away, and keeps none that
                   is never used again (Belady). It knows the future: no cache of such blocks
                   hits more of them
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from prefixcache.replay.traces import TOKENS_PER_ID, TraceRequest

_NEVER = 1 << 62


class LeastRecent:
    """Blocks in the order of their last use."""

    def __init__(self, tokens: int) -> None:
        self.capacity = tokens // TOKENS_PER_ID
        self.hit_tokens = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def request(self, request: TraceRequest) -> None:
        """One request, in the order of the trace."""
        blocks, ids = self._blocks, blocks_of(request)
        self.hit_tokens += _leading(request, ids, blocks)
        for value in reversed(ids):
            blocks[value] = None
            blocks.move_to_end(value)
        while len(blocks) > self.capacity:
            blocks.popitem(last=False)


class Optimal:
    """Blocks with the request that uses them next. ``next_uses`` is that of the whole trace."""

    def __init__(self, tokens: int) -> None:
        self.capacity = tokens // TOKENS_PER_ID
        self.hit_tokens = 0
        self._next: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []  # farthest first, deepest first; may be out of date

    def request(self, request: TraceRequest, next_uses: Sequence[int]) -> None:
        """One request, in the order of the trace, with the next use of each of its blocks."""
        known, heap, ids = self._next, self._heap, blocks_of(request)
        self.hit_tokens += _leading(request, ids, known)
        for depth, (value, use) in enumerate(zip(ids, next_uses, strict=True)):
            if use == _NEVER:
                known.pop(value, None)
            else:
                known[value] = use
                heapq.heappush(heap, (-use, -depth, value))
        while len(known) > self.capacity:
            use, _, value = heapq.heappop(heap)
            if known.get(value) == -use:
                del known[value]


class Unlimited:
    """Every block that was ever seen."""

    def __init__(self) -> None:
        self.hit_tokens = 0
        self._blocks: set[int] = set()

    def request(self, request: TraceRequest) -> None:
        """One request, in the order of the trace."""
        ids = blocks_of(request)
        self.hit_tokens += _leading(request, ids, self._blocks)
        self._blocks.update(ids)


def blocks_of(request: TraceRequest) -> tuple[int, ...]:
    """The hash ids of a prompt, without any that its length does not reach."""
    return request.hash_ids[: -(-request.input_length // TOKENS_PER_ID)]


def next_uses(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """For each block of each request the number of the request that uses it next."""
    seen: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(requests) - 1, -1, -1):
        ids = blocks_of(requests[number])
        uses.append([seen.get(value, _NEVER) for value in ids])
        seen.update(dict.fromkeys(ids, number))
    uses.reverse()
    return uses


def _leading(request: TraceRequest, ids: Iterable[int], known: Container[int]) -> int:
    """Tokens of the leading blocks that are known."""
    count = 0
    for value in ids:
        if value not in known:
            break
        count += 1
    return min(count * TOKENS_PER_ID, request.input_length)
