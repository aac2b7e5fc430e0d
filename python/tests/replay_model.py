"""A manager that is simple enough to be right: rows in one array per key, no delays.

It has the interface of ``prefixcache.omni`` and can be told to make the mistakes
that a real cache could make, so that the replay's checker is checked as well.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from prefixcache.replay.checker import leftover_of

HIDDEN_KEY = "__hidden_states__"


@dataclass
class PrefixCacheConfig:
    num_blocks: int
    block_size: int
    gpu_staging_bytes: int = 0
    staging_depth: int = 4
    staging_capacity_tokens: int = 1024


@dataclass
class ModelCachePolicy:
    deferred_keys: frozenset[str] = field(default_factory=frozenset)


class StageCacheOutputs(NamedTuple):
    hidden_states: dict[str, torch.Tensor] | None
    mm_outputs: dict[str, dict[str, Any]]


class OmniPrefixCacheManager:
    def __init__(self, config, view, *, eager=None):
        self.config, self.view = config, view
        self.pool, self.steps, self.live, self.hits = {}, {}, set(), {}
        self.lock = threading.Lock()
        self.next_step = 1

    def register_policy(self, policy):
        self.policy = policy

    def new_step_starts(self, output):
        self.live -= set(output.finished_req_ids)
        self.hits = {}
        for request in output.scheduled_new_reqs:
            if request.req_id not in self.live and request.num_computed_tokens:
                self.hits[request.req_id] = (request.num_computed_tokens, list(request.block_ids[0]))
            self.live.add(request.req_id)
        self.counts = output.num_scheduled_tokens

    def save_outputs(self, hidden, mm, *, num_tokens_unpadded, num_tokens_padded):
        n, size = num_tokens_unpadded, self.config.block_size
        ids = self.view.batch_req_ids()
        slots = self.view.step_slots_cpu(ids, self.counts)
        assert len(slots) == n
        spans, end = {}, 0
        for req in ids:
            spans[req] = (end, end + self.counts[req])
            end += self.counts[req]
        values = {HIDDEN_KEY: hidden, **mm}
        is_rows = lambda v: isinstance(v, torch.Tensor) and v.ndim >= 2 and v.shape[0] in (n, num_tokens_padded)  # noqa: E731
        rows = {k: v[:n].clone() for k, v in values.items() if is_rows(v)}
        rest = {k: cloned(v) for k, v in values.items() if k not in rows}
        with self.lock:
            for key, new in rows.items():
                if key not in self.pool:
                    self.pool[key] = torch.zeros(self.config.num_blocks * size, new.shape[1], dtype=new.dtype)
            for key, pool in self.pool.items():
                pool[slots] = rows.get(key, 0)
            prefixes = {
                (req, key): self.pool[key].view(-1, size, self.pool[key].shape[1])[blocks[: hit // size]].flatten(0, 1)
                for req, (hit, blocks) in self.hits.items()
                for key in rows
            }
            step, self.next_step = self.next_step, self.next_step + 1
            self.steps[step] = (spans, rows, prefixes, rest)
        return step

    def materialize(self, step, ids):
        with self.lock:
            spans, rows, prefixes, rest = self.steps.pop(step)
        merged = {
            key: {
                req: torch.cat([prefixes[req, key], new[slice(*spans[req])]])
                if (req, key) in prefixes
                else new[slice(*spans[req])]
                for req in ids
            }
            for key, new in rows.items()
        }
        total = max((end for _, end in spans.values()), default=0)
        for key, value in rest.items():
            merged[key] = {req: leftover_of(value, *spans[req], total) for req in ids}
        return StageCacheOutputs(merged.pop(HIDDEN_KEY), merged)

    def discard_step(self, step):
        with self.lock:
            del self.steps[step]

    def shutdown(self):
        self.steps.clear()


def cloned(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(cloned(v) for v in value)
    return value
