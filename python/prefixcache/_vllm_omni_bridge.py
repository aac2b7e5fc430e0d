"""The classes that :mod:`prefixcache.vllm_omni` puts in place of vllm-omni's.

They add nothing to the cache: constructor and call forms of the release at hand,
and errors that are instances of vllm-omni's classes as well as of ours, so that
a host which catches either kind keeps working.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from prefixcache._errors import OmniPrefixCacheStagingTimeoutError, OmniPrefixCacheUnmatchError
from prefixcache.omni import OmniPrefixCacheManager
from prefixcache.view import FullAttentionGroupView


@functools.cache
def _joined(ours: type[OmniPrefixCacheUnmatchError], theirs: type[Exception]) -> Any:
    """One class of errors that are both."""
    body = {"__module__": __name__, "__reduce__": _reduce}
    return type(ours.__name__, (ours, theirs), body)


def _reduce(error: OmniPrefixCacheUnmatchError) -> tuple[Any, ...]:
    """For pickle, which finds both classes by their names and the joined one by none."""
    return _made_again, (*type(error).__bases__, str(error), error.status)


def _made_again(
    ours: type[OmniPrefixCacheUnmatchError], theirs: type[Exception], text: str, status: int
) -> OmniPrefixCacheUnmatchError:
    error: OmniPrefixCacheUnmatchError = _joined(ours, theirs)(text, status)
    return error


class HostErrors:
    """Our two error classes, each joined with the host's class of that name."""

    def __init__(self, interface: Any) -> None:
        self.unmatch = _joined(OmniPrefixCacheUnmatchError, interface.OmniPrefixCacheUnmatchError)
        self.timeout = _joined(OmniPrefixCacheStagingTimeoutError, interface.OmniPrefixCacheStagingTimeoutError)

    def raising(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` with our errors turned into the joined ones, text and status kept."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except OmniPrefixCacheUnmatchError as e:
                if isinstance(e, (self.unmatch, self.timeout)):
                    raise
                joined = self.timeout if isinstance(e, OmniPrefixCacheStagingTimeoutError) else self.unmatch
                raise joined(str(e), e.status) from e

        return call


def make_group_view(errors: HostErrors) -> type:
    """The block-table view, refusing with the host's error class."""
    return type(
        "FullAttentionGroupView",
        (FullAttentionGroupView,),
        {"__module__": __name__, "__doc__": FullAttentionGroupView.__doc__, "error_type": errors.unmatch},
    )


def make_manager(errors: HostErrors, adapter: Any = None) -> type:
    """The manager in the form of the host's release.

    ``adapter`` is the host's adapter module, None for releases without one.
    """
    base = OmniPrefixCacheManager if adapter is None else _adapter_manager(errors, adapter)
    names = (
        "__init__",
        "register_policy",
        "new_step_starts",
        "save_outputs",
        "materialize",
        "discard_step",
        "shutdown",
    )
    body = {name: errors.raising(getattr(base, name)) for name in names}
    return type("OmniPrefixCacheManager", (base,), {"__module__": __name__, "__doc__": base.__doc__, **body})


class _LayoutView:
    """The group view of the adapter interface: whatever layout the save brought."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.req_ids: list[str] = []
        self.slots: torch.Tensor | None = None

    def batch_req_ids(self) -> list[str]:
        return self.req_ids

    def step_slots_cpu(self, req_ids: list[str], num_scheduled_tokens: dict[str, int]) -> torch.Tensor:
        return self.slots if self.slots is not None else torch.empty(0, dtype=torch.int64, device="cpu")


def _adapter_manager(errors: HostErrors, adapter: Any) -> type:
    step_type = adapter.PrefixCacheStep
    started = adapter.PrefixCacheEventKind.STARTED
    ended = (adapter.PrefixCacheEventKind.FINISHED, adapter.PrefixCacheEventKind.ABORTED)

    class AdapterManager(OmniPrefixCacheManager):
        """The manager that vllm-omni's scheduler adapter drives with step events.

        RESUMED and EXTENDED events open no hit, as in the host's own manager.
        """

        def __init__(self, config: Any, *, eager: bool | None = None) -> None:
            self._layout_view = _LayoutView(int(config.block_size))
            self._step_counts: dict[str, int] = {}
            super().__init__(config, self._layout_view, eager=eager)

        def new_step_starts(self, step: Any) -> None:
            if not isinstance(step, step_type):
                raise TypeError(f"new_step_starts requires a PrefixCacheStep, got {type(step).__name__}")
            finished, arrivals = [], []
            for event in step.events:
                if event.kind in ended:
                    finished.append(event.req_id)
                elif event.kind is started:
                    arrivals.append(
                        SimpleNamespace(
                            req_id=event.req_id,
                            num_computed_tokens=event.hit_end,
                            block_ids=[list(group) for group in event.block_ids],
                        )
                    )
            counts = dict(step.scheduled_tokens)
            super().new_step_starts(
                SimpleNamespace(finished_req_ids=finished, scheduled_new_reqs=arrivals, num_scheduled_tokens=counts)
            )
            self._step_counts = counts

        def save_outputs(  # type: ignore[override]  # the host's form has one argument more
            self,
            hidden_states: torch.Tensor | None,
            mm_outputs: dict[str, Any] | None,
            *,
            num_tokens_unpadded: int,
            num_tokens_padded: int,
            write_layout: Any,
        ) -> int:
            if write_layout is None:
                raise errors.unmatch("save_outputs requires an adapter-produced write_layout, got None")
            if num_tokens_unpadded > 0 and write_layout.slots_cpu is None:
                raise errors.unmatch("write_layout is missing its CPU slot snapshot (slots_cpu is None)")
            # The manager lays the step out by the counts of new_step_starts, one request
            # behind the other. A layout with other counts, or in another order, would give
            # requests the rows of others.
            counts, ids, row = self._step_counts, [], 0
            for write in write_layout.writes:
                if write.row_start != row:
                    raise errors.unmatch(
                        f"write_layout begins req {write.req_id} at row {write.row_start}, expected {row},"
                        " where the one before it ends"
                    )
                row = write.row_end
                rows, expected = row - write.row_start, counts.get(write.req_id, 0)
                if rows != expected:
                    raise errors.unmatch(
                        f"scheduled token count mismatch for req {write.req_id}: step={expected}, layout={rows}"
                    )
                ids.append(write.req_id)
            view = self._layout_view
            view.req_ids, view.slots = ids, write_layout.slots_cpu
            try:
                return super().save_outputs(
                    hidden_states,
                    mm_outputs,
                    num_tokens_unpadded=num_tokens_unpadded,
                    num_tokens_padded=num_tokens_padded,
                )
            finally:
                view.slots = None

    return AdapterManager
