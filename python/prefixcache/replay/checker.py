"""Compares what the cache gives out with what the rows must be.

Nothing is taken from the cache for that: the expected rows follow from the
request's tokens alone (see content). The one exception is a key that some steps
do not carry: there the checker keeps, for each slot, whether its present owner
was computed in a step that did.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prefixcache.replay.content import RowContent, Words

_EXAMPLES = 8


@dataclass
class StepRecord:
    """What one saved step must give back. Kept until the step is consumed."""

    step: int
    step_id: int
    ids: list[str]  # batch order
    counts: list[int]  # new rows
    fingerprints: list[Words]  # of hit rows and new rows
    hits: dict[str, int]  # tokens, of requests with a hit in this step
    keys: list[str]  # row keys that this step carries
    absent: dict[str, NDArray[np.bool_]]  # per hit: rows of the sparse key that nobody wrote
    leftovers: dict[str, Any]  # other values of this step, as they were given


@dataclass
class CheckResult:
    """Counts over all checked steps."""

    rows: int = 0
    wrong: int = 0
    values: int = 0  # leftover values
    wrong_values: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Everything that was checked was as it had to be."""
        return self.wrong == 0 and self.wrong_values == 0


class Checker:
    """Checks materialized steps; any thread, one step at a time."""

    def __init__(self, contents: dict[str, RowContent], hidden_key: str, sparse_key: str) -> None:
        self.contents = contents
        self.hidden_key = hidden_key
        self.sparse_key = sparse_key
        self.result = CheckResult()
        self._lock = threading.Lock()
        self._expected = np.empty((0, max(c.words for c in contents.values())), np.uint64)

    def check(self, record: StepRecord, ids: list[str], outputs: Any) -> None:
        """``ids`` are the requests that were asked for, in that order."""
        with self._lock:
            place = {req: i for i, req in enumerate(record.ids)}
            order = [place[req] for req in ids]
            hits = [record.hits.get(req, 0) for req in ids]
            expect = [hit + record.counts[i] for i, hit in zip(order, hits, strict=True)]
            prints = np.concatenate([record.fingerprints[i] for i in order]) if order else np.empty(0, np.uint64)
            for key in record.keys:
                by_request = outputs.hidden_states if key == self.hidden_key else outputs.mm_outputs.get(key)
                rows = self._rows(record, key, ids, expect, by_request)
                if rows is not None:
                    self._compare(record, key, ids, expect, hits, prints, rows)
            if self.sparse_key not in record.keys and self.sparse_key in outputs.mm_outputs:
                self._fail_value(record, self.sparse_key, "in the result of a step that does not carry it")
            self._check_leftovers(record, ids, order, outputs.mm_outputs)

    def _rows(self, record: StepRecord, key: str, ids: list[str], expect: list[int], by_request: Any) -> Words | None:
        """All rows of a key as one array of words; None, and counted wrong, if the shape is off."""
        words = self.contents[key].words
        self.result.rows += sum(expect)
        try:
            tensors = [by_request[req] for req in ids]
            shapes = [t.shape[0] for t in tensors]
            rows = torch.cat(tensors) if tensors else torch.empty((0, words * 8), dtype=torch.uint8)
            words_of: Words = rows.view(torch.uint8).numpy().view(np.uint64)
        except (TypeError, KeyError, AttributeError, RuntimeError, ValueError) as e:
            self._wrong(sum(expect), f"step {record.step} {key}: no usable rows ({type(e).__name__}: {e})", "missing")
            return None
        if shapes != expect or words_of.shape[1] != words:
            bad = next((i for i, (a, b) in enumerate(zip(shapes, expect, strict=True)) if a != b), 0)
            detail = (
                f"{ids[bad]} has {shapes[bad]} rows of {words_of.shape[1]} words, expected {expect[bad]} of {words}"
            )
            self._wrong(sum(expect), f"step {record.step} {key}: {detail}", "wrong shape")
            return None
        return words_of

    def _compare(
        self,
        record: StepRecord,
        key: str,
        ids: list[str],
        expect: list[int],
        hits: list[int],
        prints: Words,
        rows: Words,
    ) -> None:
        content = self.contents[key]
        if self._expected.size < len(prints) * content.words:
            self._expected = np.empty(len(prints) * content.words * 2, np.uint64)
        scratch = self._expected.reshape(-1)[: len(prints) * content.words].reshape(len(prints), content.words)
        expected = content.fill(prints, scratch)
        if key == self.sparse_key and record.absent:
            start = 0
            for req, length in zip(ids, expect, strict=True):
                absent = record.absent.get(req)
                if absent is not None:
                    expected[start : start + len(absent)][absent] = 0
                start += length
        if np.array_equal(rows, expected):
            return
        bad = np.flatnonzero((rows != expected).any(axis=1))
        ends = np.cumsum(expect)
        request = int(np.searchsorted(ends, bad[0], side="right"))
        position = int(bad[0] - (ends[request] - expect[request]))
        found = content.explain(rows[bad[0]])
        part = "prefix" if position < hits[request] else "new rows"
        self._wrong(
            len(bad),
            f"step {record.step} {key}: {len(bad)} of {len(rows)} rows; first {ids[request]} row {position} "
            f"(of {hits[request]} hit + {expect[request] - hits[request]} new): {found}",
            f"{found} in {part} of {key}",
        )

    def _check_leftovers(self, record: StepRecord, ids: list[str], order: list[int], outputs: dict[str, Any]) -> None:
        if not record.leftovers:
            return
        ends = np.cumsum(record.counts)
        for key, value in record.leftovers.items():
            by_request = outputs.get(key)
            for req, i in zip(ids, order, strict=True):
                self.result.values += 1
                want = leftover_of(value, int(ends[i]) - record.counts[i], int(ends[i]), int(ends[-1]))
                if by_request is None or req not in by_request or not same_value(by_request[req], want):
                    got = None if by_request is None else by_request.get(req)
                    self._fail_value(record, key, f"{req} got {got!r}, expected {want!r}"[:300])

    def _wrong(self, count: int, text: str, kind: str) -> None:
        self.result.wrong += count
        self.result.kinds[kind] += count
        if len(self.result.examples) < _EXAMPLES:
            self.result.examples.append(text)

    def _fail_value(self, record: StepRecord, key: str, text: str) -> None:
        self.result.wrong_values += 1
        self.result.kinds[f"value of {key}"] += 1
        if len(self.result.examples) < _EXAMPLES:
            self.result.examples.append(f"step {record.step} {key}: {text}")


def leftover_of(value: Any, start: int, end: int, total: int) -> Any:
    """A request's share of a value that is not per-token rows: the rules of the interface."""
    if isinstance(value, torch.Tensor):
        return value[start:end] if value.ndim and value.shape[0] == total else value
    if isinstance(value, dict):
        return {k: leftover_of(v, start, end, total) for k, v in value.items()}
    return value


def same_value(got: Any, want: Any) -> bool:
    """Equality of leftovers: type, shape, dtype and content."""
    if isinstance(want, torch.Tensor):
        return isinstance(got, torch.Tensor) and got.dtype == want.dtype and torch.equal(got, want)
    if type(got) is not type(want):
        return False
    if isinstance(want, dict):
        return list(got) == list(want) and all(same_value(got[k], want[k]) for k in want)
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(same_value, got, want))
    return bool(got == want)
