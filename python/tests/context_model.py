"""An independent model of the manager level: a dictionary of prefixes.

Everything is counted afresh from two lists, the records in order of recency and the live
leases; nothing is kept in step. Page ids are the library's: the model says which ones a
call must share, and that the others were free.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

BASE, DRAFT, RECURRENT, PARTIAL = range(4)
VANILLA, HYBRID, SPEC = range(3)
STANDARD, NO_PREFIX, REWIND = range(3)


@dataclass
class Record:
    id: int
    salt: int
    tokens: tuple[int, ...]  # what it covers
    paths: tuple[list[int], list[int], list[int], list[int]]  # slots listed, by pool
    exact: bool = False  # hybrid
    drafted: int = 0  # when its draft path was attached; the latest is taken

    def blocks(self, p: int) -> int:
        return len(self.tokens) // p


@dataclass(eq=False)  # two may hold the same
class Lease:
    mode: int
    salt: int
    history: list[int]
    held: tuple[list[int], list[int], list[int], list[int]]  # slots owned, by pool
    stale: bool = False
    dependency: int = 0  # spec: a publication reaches at least this block (C-48, C-55)
    restored: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    reserved: list[tuple[int, int | None]] = field(default_factory=list)


class Model:
    def __init__(self, p: int, capacity: tuple[int, int, int, int], limit: int, original_recency: bool) -> None:
        self.p, self.capacity, self.limit, self.original = p, capacity, limit, original_recency
        self.records: list[Record] = []  # next victim first
        self.leases: list[Lease] = []
        self.clock = 0

    # ----------------------------------------------------------------- counting

    def active(self, pool: int) -> Counter:
        return Counter(s for lease in self.leases for s in lease.held[pool])

    def cached(self, pool: int) -> Counter:
        return Counter(s for record in self.records for s in record.paths[pool])

    def free(self, pool: int) -> int:
        return self.capacity[pool] - len(self.active(pool).keys() | self.cached(pool).keys())

    def index(self) -> dict[tuple, int]:
        """Block prefix -> canonical page (C-22)."""
        return {
            (r.salt, r.tokens[: (i + 1) * self.p]): page for r in self.records for i, page in enumerate(r.paths[BASE])
        }

    # ----------------------------------------------------------------- evictions

    def fits(self, demand: dict[int, int], pinned: dict[int, list[int]]) -> bool:
        """Free and reclaimable slots cover the demand in all pools (C-40, C-42)."""
        return all(
            n <= self.capacity[pool] - len(self.active(pool).keys() | set(pinned.get(pool, ())))
            for pool, n in demand.items()
        )

    def evict_for(self, demand: dict[int, int], spare: Record | None) -> None:
        """The shortest prefix of the order that makes room (C-41)."""
        order = [r for r in self.records if r is not spare] + ([spare] if spare else [])
        for victim in order:
            if all(n <= self.free(pool) for pool, n in demand.items()):
                return
            self.records.remove(victim)

    def touch(self, record: Record) -> None:
        if record in self.records:
            self.records.remove(record)
            self.records.append(record)

    def find(self, salt: int, tokens: tuple[int, ...], exact: bool) -> Record | None:
        return next((r for r in self.records if (r.salt, r.tokens, r.exact) == (salt, tokens, exact)), None)

    # --------------------------------------------------------------------- plans

    def plan(self, mode: int, salt: int, tokens: list[int], bypass: bool):
        """matched, reuse, kind, bound slots by pool, the record that was hit."""
        p, n, path = self.p, len(tokens), tuple(tokens)
        bound: tuple[list[int], ...] = ([], [], [], [])
        if bypass:
            return 0, 0, NO_PREFIX, bound, None
        index, k = self.index(), 0
        while (k + 1) * p <= n and (salt, path[: (k + 1) * p]) in index:
            k += 1
        pages = [index[salt, path[: (i + 1) * p]] for i in range(k)]
        if mode == VANILLA:
            hits = [r for r in self.records if r.salt == salt and r.tokens == path[: len(r.tokens)]]
            hit = max(hits, key=lambda r: len(r.tokens), default=None)
            keep = k - 1 if k and k * p == n else k
            bound[BASE].extend(pages[:keep])
            kind = REWIND if keep < k else STANDARD if k else NO_PREFIX
            return k * p, keep * p, kind, bound, None if self.original else hit
        if mode == SPEC:
            while k and not self.drafts(salt, path[: k * p]):
                k -= 1
            if k == 0:
                return 0, 0, NO_PREFIX, bound, None
            record = max(self.drafts(salt, path[: k * p]), key=lambda r: r.drafted)
            bound[BASE].extend(pages[: k - 1])
            bound[DRAFT].extend(record.paths[DRAFT][: k - 1])
            kind = REWIND if k * p == n else STANDARD if k > 1 else NO_PREFIX
            return k * p, (k - 1) * p, kind, bound, record if k > 1 else None
        points = [r for r in self.records if r.exact and r.salt == salt and r.tokens == path[: len(r.tokens)]]
        points = [r for r in points if len(r.tokens) < n]
        if not points:
            return 0, 0, NO_PREFIX, bound, None
        record = max(points, key=lambda r: len(r.tokens))
        for pool in (BASE, RECURRENT, PARTIAL):
            bound[pool].extend(record.paths[pool])
        return len(record.tokens), len(record.tokens), STANDARD, bound, record

    def drafts(self, salt: int, path: tuple[int, ...]) -> list[Record]:
        return [r for r in self.records if r.salt == salt and r.paths[DRAFT] and r.tokens[: len(path)] == path]

    # --------------------------------------------------------------- publications

    def publish(self, lease: Lease, resident: int, new_id: int | None):
        """existing, and the record that is left (None: not retained)."""
        p = self.p
        path = tuple(lease.history[: resident // p * p])
        k = len(path) // p
        draft = lease.held[DRAFT][:k] if lease.mode == SPEC else []
        record = self.find(lease.salt, path, False)
        if record is None:
            return False, self.insert(lease, path, k, draft, [], [], False, new_id)
        self.touch(record)
        if draft and not record.paths[DRAFT]:
            record.paths[DRAFT].extend(draft)
            self.clock += 1
            record.drafted = self.clock
            return False, record
        return True, record

    def publish_hybrid(self, lease: Lease, length: int, slots: tuple[int, int | None], new_id: int | None):
        path = tuple(lease.history[:length])
        record = self.find(lease.salt, path, True)
        if record is not None:
            self.touch(record)
            return True, record
        partial = [] if slots[1] is None else [slots[1]]
        return False, self.insert(lease, path, length // self.p, [], [slots[0]], partial, True, new_id)

    def insert(self, lease, path, k, draft, recurrent, partial, exact, new_id):
        index = self.index()
        base = [
            index.get((lease.salt, path[: (i + 1) * self.p]), lease.held[BASE][i])
            for i in range(k if self.capacity[BASE] else 0)
        ]
        self.clock += 1
        record = Record(new_id or -1, lease.salt, path, (base, list(draft), recurrent, partial), exact, self.clock)
        if self.limit == 0:
            return None
        self.records.append(record)
        if len(self.records) > self.limit:
            self.records.pop(0)
        return record
