"""What the rows hold: a function of every token up to and including their own.

The fingerprint of position p is a mixed sum of (token, position) pairs 0 .. p,
64 bits, odd. Row p of a key is its fingerprint times the key's odd multipliers,
one for each 8 bytes. Multiplying by an odd number is invertible, so every word of
a row depends on every token of the prefix: a row of another position, another
request or another key differs in every word, and no row is all zeros. The whole
costs one cumulative sum per request and one product per row word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixcache.replay.traces import TOKENS_PER_ID

#: Words of rows, and fingerprints.
Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_VOCABULARY = np.uint64(150_000)
#: Generated tokens are numbered from here on, each used once: no prompt has them.
_GENERATED = 1 << 40


def mix(values: Words) -> Words:
    """The splitmix64 finaliser, in place on an uint64 array."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def prompt_tokens(hash_ids: Sequence[int], length: int) -> Words:
    """Token i of hash id h is splitmix64(h * 512 + i) % 150000."""
    ids = np.asarray(hash_ids, np.uint64) * np.uint64(TOKENS_PER_ID)
    index = (ids[:, None] + np.arange(TOKENS_PER_ID, dtype=np.uint64)).reshape(-1)[:length]
    return mix(index + _GOLDEN) % _VOCABULARY


def request_fingerprints(hash_ids: Sequence[int], prompt: int, output: int, serial: int) -> Words:
    """Fingerprints of all positions of a request, prompt and answer, uint64.

    ``serial`` is a number of the request that no other one has.
    """
    tokens = np.empty(prompt + output, np.uint64)
    tokens[:prompt] = prompt_tokens(hash_ids, prompt)
    tokens[prompt:] = np.arange(output, dtype=np.uint64) + np.uint64(_GENERATED + (serial << 20))
    # A position's place enters before the sum, so order matters.
    tokens += np.arange(1, len(tokens) + 1, dtype=np.uint64) * _GOLDEN
    sums = np.cumsum(mix(tokens))
    return mix(sums) | np.uint64(1)


class RowContent:
    """Rows of one key: ``words`` times 8 bytes from one fingerprint each."""

    def __init__(self, name: str, words: int) -> None:
        self.name = name
        self.words = words
        letters = np.frombuffer(name.encode().ljust(64, b"\0")[:64], np.uint64)
        seeds = np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN + np.bitwise_xor.reduce(letters)
        self.multipliers = mix(seeds) | np.uint64(1)
        self._inverse = pow(int(self.multipliers[0]), -1, 1 << 64)

    def fill(self, fingerprints: Words, out: Words) -> Words:
        """Rows of these fingerprints into the first rows of ``out``; returns those."""
        rows = out[: len(fingerprints)]
        if self.words > 4 or len(rows) < 512:
            return np.multiply(fingerprints[:, None], self.multipliers, out=rows)
        # Short rows: numpy's inner loop would run over a few words only.
        for word, multiplier in enumerate(self.multipliers):
            np.multiply(fingerprints, multiplier, out=rows[:, word])
        return rows

    def explain(self, row: Words) -> str:
        """What a row that should have been another one is, for the report."""
        if not row.any():
            return "zeros"
        # Solve the first word for the fingerprint; a true row agrees in all words.
        fingerprint = np.uint64(int(row[0]) * self._inverse % (1 << 64))
        if np.array_equal(self.multipliers * fingerprint, row):
            return "row of another token"
        return "no row at all"
