"""Stable names for blocks, media, adapters and tenants.

SHA-256 cut to 128 bits, equal on every host. For events, remote tiers and routers: the
cache itself compares content and needs none.
"""

from __future__ import annotations

import ctypes
from typing import Any

from prefixcache import PrefixCacheArgumentError
from prefixcache.context import _abi
from prefixcache.context._arguments import SequenceArgument, from_hash, int32
from prefixcache.context.types import ContextCacheSequenceAdmission, Hash128, Tokens


def digest_bytes(data: Any) -> Hash128:
    """Digest of bytes (any contiguous buffer). Length and trailing zeros matter; never zero."""
    try:
        raw = bytes(memoryview(data))
    except (TypeError, BufferError) as e:
        raise PrefixCacheArgumentError(f"data: {data!r}, expected a buffer of bytes") from e
    library, out = _abi.load(), _abi.Hash()
    library.check(library.digest_bytes(raw or None, len(raw), ctypes.byref(out)))
    return from_hash(out)


def digest_sequence(
    sequence: ContextCacheSequenceAdmission | Tokens, tokens_per_page: int = 128
) -> tuple[list[Hash128], Hash128]:
    """Chained digests of the full blocks, and the digest of the whole prefix.

    Without a partial tail the second equals the last of the first.
    """
    library, argument, prefix = _abi.load(), SequenceArgument(sequence), _abi.Hash()
    size = int32("tokens_per_page", tokens_per_page)
    blocks = (_abi.Hash * (argument.struct.num_tokens // size if size > 0 else 0))()
    library.check(
        library.digest_sequence(ctypes.byref(argument.struct), size, blocks, len(blocks), ctypes.byref(prefix))
    )
    return [from_hash(block) for block in blocks], from_hash(prefix)
