"""Token ids of a trace's requests, made fast enough for a sweep, without numpy.

A hash id stands for 512 tokens and identifies its whole prefix. All 512 get one
number that no other id has, so two prompts agree in exactly the positions in which
their ids do: what a cache can reuse is what it could with any other tokens.
"""

from __future__ import annotations

from array import array

from prefixcache.replay.traces import TOKENS_PER_ID, TraceRequest


class Tokenizer:
    """Numbers hash ids in the order in which they are met, and generated tokens from the end."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}
        self._answers = 0

    def prompt(self, request: TraceRequest) -> array[int]:
        """The tokens of a prompt: int32, as the library reads them."""
        tokens = array("i")
        numbers = self._number
        for value in request.hash_ids[: -(-request.input_length // TOKENS_PER_ID)]:
            tokens.extend(array("i", (numbers.setdefault(value, len(numbers)),)) * TOKENS_PER_ID)
        del tokens[request.input_length :]
        return tokens

    def answer(self, request: TraceRequest) -> array[int]:
        """Generated tokens, which are of this request alone.

        Without the last one: a request ends when it is sampled, before it is computed.
        """
        self._answers += 1
        return array("i", (2**31 - self._answers,)) * (request.output_length - 1)
