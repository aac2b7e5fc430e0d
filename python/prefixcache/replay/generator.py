"""A trace of our own, with the shape of the public conversation traces.

Three kinds of traffic share a few system prompts, whose use is very uneven:

    conversations   each turn repeats the former turns and adds to them
    single shots    a system prompt and one question
    bursts          the same prompt several times in a row, as a retry or a
                    best-of-n client sends it; these hit rows of their own step

Lengths are log-normal. Everything follows from the seed.
"""

from __future__ import annotations

import random

from prefixcache.replay.traces import TOKENS_PER_ID, TraceRequest

_SYSTEM_PROMPTS = 12


def generate_trace(count: int, seed: int = 0, *, mean_prompt: int = 4000, mean_output: int = 200) -> list[TraceRequest]:
    """``count`` requests in order of arrival.

    The two means, in tokens, are those of a conversation's first prompt and of
    an answer.
    """
    return _Generator(seed, mean_prompt, mean_output).run(count)


class _Generator:
    def __init__(self, seed: int, mean_prompt: int, mean_output: int) -> None:
        self.rng = random.Random(seed)
        self.mean_prompt, self.mean_output = mean_prompt, mean_output
        self.next_id = 0
        self.clock = 0.0
        self.systems = [self.fresh_ids(self.rng.randint(1, 4)) for _ in range(_SYSTEM_PROMPTS)]
        # Open conversations: full blocks of history, and the length of all of it.
        self.open: list[tuple[list[int], int]] = []

    def run(self, count: int) -> list[TraceRequest]:
        requests: list[TraceRequest] = []
        while len(requests) < count:
            self.clock += self.rng.expovariate(1 / 300)
            kind = self.rng.random()
            if kind < 0.55 and self.open:
                requests.append(self.next_turn())
            elif kind < 0.80:
                requests.append(self.first_turn(keep=True))
            elif kind < 0.92:
                requests.append(self.first_turn(keep=False))
            else:
                one = self.first_turn(keep=False)
                requests += [one._replace(output_length=self.output()) for _ in range(self.rng.randint(2, 6))]
        return requests[:count]

    def first_turn(self, *, keep: bool) -> TraceRequest:
        # Zipf-like: the first system prompts serve most requests.
        system = self.systems[min(int(self.rng.paretovariate(1.0)) - 1, _SYSTEM_PROMPTS - 1)]
        length = len(system) * TOKENS_PER_ID + self.length(self.mean_prompt, 0.9)
        return self.make(list(system), length, keep)

    def next_turn(self) -> TraceRequest:
        history, length = self.open.pop(self.rng.randrange(len(self.open)))
        return self.make(history, length + self.length(self.mean_prompt / 8, 0.7), self.rng.random() < 0.75)

    def make(self, shared: list[int], length: int, keep: bool) -> TraceRequest:
        """A prompt of `length` tokens that begins with the full blocks `shared`."""
        full = length // TOKENS_PER_ID
        history = shared + self.fresh_ids(full - len(shared))
        rest = self.fresh_ids(1) if length % TOKENS_PER_ID else []
        output = self.output()
        if keep and len(self.open) < 400:
            # The next turn has the answer in its history, as blocks of its own.
            self.open.append((history, length + output))
        return TraceRequest(int(self.clock), length, output, tuple(history + rest))

    def fresh_ids(self, count: int) -> list[int]:
        first = self.next_id
        self.next_id += max(0, count)
        return list(range(first, self.next_id))

    def length(self, mean: float, sigma: float) -> int:
        return max(16, min(60_000, int(self.rng.lognormvariate(0.0, sigma) * mean / 1.4)))

    def output(self) -> int:
        return max(1, min(2_000, int(self.rng.lognormvariate(0.0, 0.9) * self.mean_output / 1.5)))
