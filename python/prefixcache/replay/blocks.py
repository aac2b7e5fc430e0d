"""KV blocks as vLLM's block pool keeps them.

    free, no hash ---- take ----> in use ---- publish ----> in use, can be hit
          ^                         |                         |
          +------- release ---------+        release (hash stays, oldest first out)
                                                              v
                   take (hash is forgotten) <------ free, can be hit

A free block with a hash is still a hit until somebody takes it. The free list
is in order of release; a request gives its last block back first, so that the
tail of a prefix is lost before its head. Block 0 is never given out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Reference counts, hashes and the free list of ``num_blocks`` blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.references = [0] * num_blocks
        self.hash_of = [0] * num_blocks  # 0: none
        self.block_of: dict[int, int] = {}
        self.published_in = [0] * num_blocks  # step in which the block got its hash
        self.cached = 0  # free blocks that can be hit
        self.evicted = 0  # blocks that were taken while they could be hit

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest known prefix, at most ``limit``."""
        found = []
        get = self.block_of.get
        for value in hashes[:limit]:
            block = get(value)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these are on the free list."""
        references = self.references
        return sum(1 for b in blocks if not references[b])

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for blocks that were matched."""
        references, free = self.references, self.free
        for block in blocks:
            if not references[block]:
                del free[block]
                self.cached -= 1  # it was matched, so it has a hash
            references[block] += 1

    def take(self, count: int) -> list[int]:
        """The ``count`` blocks that are free for longest; they forget their hash."""
        references, hash_of, block_of, pop = self.references, self.hash_of, self.block_of, self.free.popitem
        taken = []
        for _ in range(count):
            block = pop(last=False)[0]
            value = hash_of[block]
            if value:
                if block_of.get(value) == block:
                    del block_of[value]
                hash_of[block] = 0
                self.cached -= 1
                self.evicted += 1
            references[block] = 1
            taken.append(block)
        return taken

    def publish(self, blocks: Sequence[int], hashes: Sequence[int], step: int) -> None:
        """Make full blocks known by their content, before their rows exist."""
        hash_of, block_of, published_in = self.hash_of, self.block_of, self.published_in
        for block, value in zip(blocks, hashes, strict=True):
            if value not in block_of:
                block_of[value] = block
                hash_of[block] = value
                published_in[block] = step

    def release(self, blocks: Sequence[int]) -> None:
        """One user less; blocks without any go to the end of the free list."""
        references, free = self.references, self.free
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None
                self.cached += self.hash_of[block] != 0
