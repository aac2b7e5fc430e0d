"""Value types of the omni cache: configuration, model policy, result."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from prefixcache import _ffi
from prefixcache._errors import PrefixCacheArgumentError
from prefixcache._values import truth_of

# Reserved name of the hidden state; multimodal names are flat dotted strings.
HIDDEN_KEY = "__hidden_states__"

COPY_THREADS_VARIABLE = "PREFIXCACHE_COPY_THREADS"
_NO_WAIT = -1  # claim_timeout_ns below zero: fail at once instead of waiting
_MAX_TIMEOUT_NS = 1 << 62
_MAX_SIZE = (1 << 62) - 1
# The library's own limits; zero, which means "default" to it, is none of ours.
_LIMITS = {
    "num_blocks": (1 << 31) - 1,
    "block_size": (1 << 31) - 1,
    "staging_depth": 4096,
    "staging_capacity_tokens": 1 << 28,
}


def truth(name: str, value: Any, expected: str = "True or False") -> bool:
    """``value`` as a bool. Raises PrefixCacheArgumentError for what equals none."""
    answer = truth_of(value)
    if answer is None:
        raise PrefixCacheArgumentError(f"{name} is {value!r}, expected {expected}")
    return answer


@dataclass(frozen=True)
class PrefixCacheConfig:
    """Size and flow control of one cache.

    Nothing is checked here; :meth:`options` and the library check when a manager
    is created.
    """

    # KV blocks mirrored: the scheduler's num_gpu_blocks. Memory is used row by row.
    num_blocks: int
    # Tokens of a block: the scheduler's, or slots will not match.
    block_size: int
    # Cap on bytes that were saved and are not in the cache yet: host memory, since no
    # row waits on a device. Lower saves memory and makes deferred keys write earlier;
    # a single larger step is still admitted, so with 0 or less one step at a time is.
    gpu_staging_bytes: int = 512 << 20
    # Steps that may be saved and not yet consumed. One more save waits.
    staging_depth: int = 4
    # Rows of one step at most; a larger step is an error, never cut.
    staging_capacity_tokens: int = 1024
    # Bound of every wait but one for work on a device, in seconds. 0 or less: do not wait.
    staging_claim_timeout_s: float = 30.0
    # Largest single copy of deferred rows to their slots. 0 or less: the smallest there is.
    copy_chunk_bytes: int = 16 << 20
    # Memory of all keys together that is made present before rows need it, in the
    # background: the first row in fresh memory costs some hundred microseconds.
    warm_bytes: int = 0
    # Threads that share a copy of 4 MiB or more, the caller's included. 0: what
    # PREFIXCACHE_COPY_THREADS says, or half the CPUs, at least 2 and at most 4.
    copy_threads: int = 0
    # Clear rows, staging and result buffers once nobody can read them any more.
    zero_on_release: bool = False

    @classmethod
    def from_vllm_config(
        cls,
        num_blocks: int,
        block_size: int,
        scheduler_config: Any = None,
        model_config: Any = None,
    ) -> PrefixCacheConfig:
        """Sizes a staging slot for the largest step that the scheduler can make.

        The capacity is the first usable one of the scheduler's
        ``max_num_batched_tokens``, its ``max_model_len``, the model's
        ``max_model_len``, and 1024; at least 1. Attributes may be missing.
        """
        capacity = (
            getattr(scheduler_config, "max_num_batched_tokens", None)
            or getattr(scheduler_config, "max_model_len", None)
            or getattr(model_config, "max_model_len", None)
            or 1024
        )
        try:
            tokens = int(capacity)
        except (TypeError, ValueError, OverflowError):
            tokens = 1024
        return cls(num_blocks=num_blocks, block_size=block_size, staging_capacity_tokens=max(1, tokens))

    @classmethod
    def of(cls, config: Any) -> PrefixCacheConfig:
        """A configuration of the host's own class as ours: its fields, and our defaults for the rest.

        Raises PrefixCacheArgumentError for anything else.
        """
        if isinstance(config, cls):
            return config
        if not hasattr(config, "num_blocks") or not hasattr(config, "block_size"):
            raise PrefixCacheArgumentError(f"config is {config!r}, expected a PrefixCacheConfig")
        return cls(**{f.name: getattr(config, f.name) for f in fields(cls) if hasattr(config, f.name)})

    def options(self, eager: bool) -> _ffi.OmniOptions:
        """The same as the library's struct, where zero would mean "default".

        Raises PrefixCacheArgumentError for a value that cannot be meant.
        """
        for name, limit in _LIMITS.items():
            self._within(name, 1, limit)
        timeout = self._timeout()
        zero = truth("PrefixCacheConfig.zero_on_release", self.zero_on_release)
        options = _ffi.OmniOptions()
        options.struct_size = ctypes.sizeof(options)
        options.flags = (_ffi.OMNI_EAGER if eager else 0) | (_ffi.OMNI_ZERO_ON_RELEASE if zero else 0)
        options.num_blocks = int(self.num_blocks)
        options.block_size = int(self.block_size)
        # A cap of nothing still admits one step at a time, which 1 byte expresses.
        options.staging_bytes = min(max(1, self._integer("gpu_staging_bytes")), _MAX_SIZE)
        options.staging_depth = int(self.staging_depth)
        options.staging_capacity_tokens = int(self.staging_capacity_tokens)
        options.claim_timeout_ns = max(1, int(min(timeout * 1e9, _MAX_TIMEOUT_NS))) if timeout > 0 else _NO_WAIT
        options.copy_chunk_bytes = min(max(1, self._integer("copy_chunk_bytes")), _MAX_SIZE)
        options.warm_bytes = self._within("warm_bytes", 0, _MAX_SIZE)
        options.copy_threads = self._copy_threads()
        return options

    def _copy_threads(self) -> int:
        name, threads = "PrefixCacheConfig.copy_threads", self._integer("copy_threads")
        given: object = threads
        if threads == 0 and COPY_THREADS_VARIABLE in os.environ:
            name, given = COPY_THREADS_VARIABLE, os.environ[COPY_THREADS_VARIABLE]
            threads = int(given) if given.isdecimal() else -1
        if not 0 <= threads <= _ffi.MAX_COPY_THREADS:
            raise PrefixCacheArgumentError(f"{name} is {given}, expected 0 to {_ffi.MAX_COPY_THREADS}")
        return threads

    def _timeout(self) -> float:
        given = self.staging_claim_timeout_s
        try:
            timeout = math.nan if isinstance(given, str | bytes | bytearray) else float(given)
        except (TypeError, ValueError, OverflowError):
            timeout = math.nan
        if timeout != timeout:
            raise PrefixCacheArgumentError(
                f"PrefixCacheConfig.staging_claim_timeout_s is {given!r}, expected seconds as a number"
            )
        return timeout

    def _within(self, name: str, low: int, high: int) -> int:
        number = self._integer(name)
        if not low <= number <= high:
            raise PrefixCacheArgumentError(f"PrefixCacheConfig.{name} is {number}, expected {low} to {high}")
        return number

    def _integer(self, name: str) -> int:
        value = getattr(self, name)
        try:
            number = int(value)  # 2e9 bytes are fine, 4.5 blocks or the text "16" are not
            if number == value:
                return number
        except (TypeError, ValueError, OverflowError):
            pass
        raise PrefixCacheArgumentError(f"PrefixCacheConfig.{name} is {value!r}, expected an integer")


@dataclass(frozen=True)
class ModelCachePolicy:
    """What a model wants cached. Register it at model load, before the first step."""

    # Whether hidden rows are cached, and merged into results.
    needs_full_hidden_states: bool = True
    # Multimodal names whose rows reach the cache when the request finishes.
    deferred_keys: frozenset[str] = frozenset()

    @property
    def hidden_key(self) -> str | None:
        """HIDDEN_KEY, or None when the model opted out."""
        return HIDDEN_KEY if self.needs_full_hidden_states else None

    def get_hit_keys(self, keys: Iterable[str]) -> list[str]:
        """Keys that a hit is read for: hidden first (if wanted), then names in order."""
        names = sorted(set(keys) - {HIDDEN_KEY})
        return [HIDDEN_KEY, *names] if self.needs_full_hidden_states else names

    def skip_immediate_mm(self, key: str) -> bool:
        """True for names that the immediate schedule must not take."""
        return key == HIDDEN_KEY or key in self.deferred_keys

    @classmethod
    def from_model(cls, model: Any) -> ModelCachePolicy:
        """Reads ``requires_full_prefix_cached_hidden_states`` (default True) and
        ``deferred_prefix_cache_mm_keys`` (iterable or None) of a model."""
        keys = getattr(model, "deferred_prefix_cache_mm_keys", None) or ()
        return cls(
            needs_full_hidden_states=bool(getattr(model, "requires_full_prefix_cached_hidden_states", True)),
            deferred_keys=_names("deferred_prefix_cache_mm_keys", keys),
        )

    @classmethod
    def of(cls, policy: Any) -> ModelCachePolicy:
        """A policy of the host's own class as ours. Raises PrefixCacheArgumentError for anything else."""
        if not hasattr(policy, "needs_full_hidden_states") or not hasattr(policy, "deferred_keys"):
            raise PrefixCacheArgumentError(f"policy is {policy!r}, expected a ModelCachePolicy")
        return cls(
            needs_full_hidden_states=truth("policy.needs_full_hidden_states", policy.needs_full_hidden_states),
            deferred_keys=_names("policy.deferred_keys", policy.deferred_keys),
        )


def _names(argument: str, keys: Any) -> frozenset[str]:
    if not isinstance(keys, str):  # a text would be a set of letters
        with suppress(TypeError):
            return frozenset(keys)
    raise PrefixCacheArgumentError(f"{argument} is {keys!r}, expected a set of names")


class StageCacheOutputs(NamedTuple):
    """One step's outputs, request by request; cached prefix rows come first."""

    # request id -> (hit + new, width...); None when no hidden rows were saved.
    hidden_states: dict[str, torch.Tensor] | None
    # name -> request id -> rows, or whatever was not a tensor of step tokens.
    mm_outputs: dict[str, dict[str, Any]]
