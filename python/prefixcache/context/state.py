"""The state of a live request, read from the library for tests and diagnosis."""

from __future__ import annotations

import ctypes

from prefixcache import _ffi
from prefixcache.context import _abi
from prefixcache.context.types import ContextCacheExecutionMode, Phase, RequestState, SequenceState


def read_request(library: _ffi.Library, context: int, request: int) -> RequestState:
    """Everything about a request, by value."""
    info = _abi.sized(_abi.RequestInfo)
    library.check(library.context_get_request(context, request, ctypes.byref(info)))
    return RequestState(
        phase=Phase(info.phase),
        device_work_pending=bool(info.pending),
        spec_awaiting_first_completion=bool(info.awaiting_draft),
        execution_mode=ContextCacheExecutionMode(info.execution),
        pending_compaction_batch_size=info.compaction_batch,
        sequences=[read_sequence(library, context, request, i) for i in range(info.num_sequences)],
    )


def read_sequence(library: _ffi.Library, context: int, request: int, index: int) -> SequenceState:
    """State of sequence ``index`` of a live request."""
    info = _abi.sized(_abi.SequenceInfo)
    library.check(library.context_get_sequence(context, request, index, ctypes.byref(info)))
    count = ctypes.c_uint64()
    tokens = (ctypes.c_int32 * info.tokens)()
    library.check(library.context_sequence_tokens(context, request, index, 0, tokens, len(tokens), ctypes.byref(count)))
    pages = []
    for model, size in ((_abi.BASE, info.base_pages), (_abi.DRAFT, info.draft_pages)):
        out = (ctypes.c_int32 * size)()
        library.check(library.context_sequence_pages(context, request, index, model, 0, out, size, ctypes.byref(count)))
        pages.append(list(out))
    return SequenceState(
        slot=info.slot,
        token_ids=list(tokens),
        base_pages=pages[0],
        draft_pages=pages[1],
        reuse_token_length=info.prefill_start,
        committed_state_length=info.committed,
        common_state_length=info.common,
        published_full_block_count=info.published_blocks,
        published_exact_length=info.published_length,
        frozen_spec_prefill_length=info.frozen_length if info.frozen_length >= 0 else None,
        staged_hybrid_publication=bool(info.staged),
    )
