"""Trace files: one JSON object a line, as the public Mooncake traces have it.

    {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}

A hash id stands for 512 tokens of the prompt (the last one for the rest) and
identifies its whole prefix: equal ids mean equal prompts up to that point.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Tokens that one hash id stands for.
TOKENS_PER_ID = 512

_MAX_LENGTH = 2**31 - 1
_MAX_TIME = 2**53  # what a page's script can count


class TraceError(ValueError):
    """A line of a trace file is not what it should be; the text has the line number."""


class TraceRequest(NamedTuple):
    """One request of a trace. Lengths in tokens, ``timestamp`` in milliseconds."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: str | Path, limit: int | None = None) -> list[TraceRequest]:
    """The first ``limit`` requests of a file, all of them when it is None.

    Raises OSError when the file cannot be read and TraceError for a bad line, or for a
    file without requests: a replay of nothing would pass.
    """
    with open(path, encoding="utf-8") as lines:
        requests = list(itertools.islice(_parse(lines), limit))
    if not requests:
        raise TraceError("has no request, expected a JSON object a line")
    return requests


def write_trace(path: str | Path, requests: Iterable[TraceRequest]) -> None:
    """Write requests in the format that :func:`read_trace` reads."""
    with open(path, "w", encoding="utf-8") as out:
        for request in requests:
            out.write(json.dumps({**request._asdict(), "hash_ids": list(request.hash_ids)}) + "\n")


def _parse(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            request = TraceRequest(
                int(raw.get("timestamp", 0)),
                int(raw["input_length"]),
                int(raw["output_length"]),
                tuple(int(i) for i in raw["hash_ids"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as e:
            raise TraceError(f"line {number}: not a request ({type(e).__name__}: {e}): {line[:80]!r}") from e
        if not (1 <= request.input_length <= _MAX_LENGTH and 1 <= request.output_length <= _MAX_LENGTH):
            raise TraceError(f"line {number}: lengths must be in 1 .. 2^31 - 1")
        if not 0 <= request.timestamp <= _MAX_TIME:
            raise TraceError(f"line {number}: timestamp must be in 0 .. 2^53 milliseconds")
        needed = -(-request.input_length // TOKENS_PER_ID)
        if len(request.hash_ids) < needed or any(not 0 <= i < 1 << 48 for i in request.hash_ids):
            raise TraceError(
                f"line {number}: {request.input_length} tokens need {needed} hash ids in 0 .. 2^48, "
                f"found {len(request.hash_ids)}"
            )
        yield request
