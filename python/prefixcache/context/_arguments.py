"""From Python values to the flat arrays of the C ABI.

Whatever the library cannot see is checked here: values that do not fit their C type,
lengths that do not agree. The library checks the rest. Arrays are copies, so that a
call never depends on what other threads do to the caller's lists.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import index
from types import FunctionType
from typing import Any, TypeVar

from prefixcache import PrefixCacheArgumentError
from prefixcache._values import misfit, truth_of
from prefixcache.context import _abi
from prefixcache.context.types import (
    AdapterIdentity,
    BlockKeyExtras,
    BlockKeySequence,
    ContextCacheBatchAdmission,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    Hash128,
    HybridCheckpointKey,
    MediaSpan,
    Tokens,
)

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)


def integers(argument: str, values: Tokens, code: str = "i") -> array[int]:
    """``values`` as an array of C integers; buffers of that very type are copied whole."""
    out = array(code)
    try:
        view = memoryview(values)  # type: ignore[arg-type]  # not everything is one
    except TypeError:
        view = None
    try:
        native = (
            view is not None and view.ndim == 1 and view.itemsize == out.itemsize and view.format in ("i", "l", "q")
        )
        if view is not None and native:
            out.frombytes(view.tobytes())
        else:
            shape = getattr(values, "shape", None)
            if isinstance(shape, tuple) and len(shape) != 1:  # some rows of one are taken for integers
                raise PrefixCacheArgumentError(f"{argument}: shape {tuple(shape)}, expected one dimension")
            out.extend(iter(values))
    except (TypeError, OverflowError) as e:
        raise PrefixCacheArgumentError(
            f"{argument}{misfit(values, code)}, expected integers of {8 * out.itemsize} bits"
        ) from e
    return out


def instance(argument: str, value: Any, kind: type[T]) -> T:
    """``value`` if it is of this class."""
    if not isinstance(value, kind):
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected a {kind.__name__}")
    return value


def members(argument: str, value: T, kind: type, *names: str) -> T:
    """``value`` if it has these of the members of ``kind``, which it need not be derived from.

    What it inherits from a protocol does nothing, so that it lacks that.
    """
    lacking = [name for name in names if _inherits(value, kind, name) or not hasattr(value, name)]
    calls = [name for name in names if name not in lacking and callable(getattr(kind, name, None))]
    lacking += [f"{name}()" for name in calls if not callable(getattr(value, name))]
    if lacking:
        missing = ", ".join(lacking)
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected a {kind.__name__}, which has {missing}")
    return value


def _inherits(value: Any, kind: type, name: str) -> bool:
    ours = getattr(kind, name, None)
    if isinstance(ours, property):
        return getattr(type(value), name, None) is ours
    return isinstance(ours, FunctionType) and getattr(getattr(value, name, None), "__func__", None) is ours


def listed(argument: str, values: Iterable[T], kind: type) -> list[T]:
    """``values``, which should be of this class, as a list."""
    try:
        return list(values)
    except TypeError as e:
        raise PrefixCacheArgumentError(f"{argument}: {values!r}, expected a sequence of {kind.__name__}") from e


def instances(argument: str, values: Iterable[Any], kind: type[T]) -> list[T]:
    """``values`` as a list, all of this class."""
    items = listed(argument, values, kind)
    return [instance(f"{argument}[{i}]", item, kind) for i, item in enumerate(items)]


def member(argument: str, value: Any, kind: type[E]) -> E:
    """``value`` as a member of an enumeration."""
    try:
        return kind(value)
    except (TypeError, ValueError) as e:
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected a {kind.__name__}") from e


def flag(argument: str, value: Any) -> int:
    """True or False, of any type, as 1 or 0."""
    answer = truth_of(value)
    if answer is None:
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected True or False")
    return int(answer)


def integer(argument: str, value: int, low: int, high: int) -> int:
    """``value`` if it lies in [low, high]. ctypes would cut it to size without a word."""
    try:
        number = index(value)
    except TypeError as e:
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected an integer") from e
    if not low <= number <= high:
        raise PrefixCacheArgumentError(f"{argument}: {number}, expected {low} to {high}")
    return number


def int32(argument: str, value: int) -> int:
    return integer(argument, value, -(2**31), 2**31 - 1)


def uint64(argument: str, value: int) -> int:
    return integer(argument, value, 0, 2**64 - 1)


def address(values: array[int]) -> int | None:
    """Where an array lies; null when it is empty."""
    return values.buffer_info()[0] if values else None


def to_hash(argument: str, value: Hash128) -> _abi.Hash:
    try:
        high, low = value
    except (TypeError, ValueError) as e:
        raise PrefixCacheArgumentError(f"{argument}: {value!r}, expected a pair of unsigned 64-bit integers") from e
    return _abi.Hash(uint64(f"{argument}.high", high), uint64(f"{argument}.low", low))


def from_hash(value: _abi.Hash) -> Hash128:
    return Hash128(value.high, value.low)


def hashes(argument: str, values: Iterable[Hash128 | None]) -> array[int]:
    """Digests, high word first. None is the zero digest: "use the token id" (C-7)."""
    out = array("Q")
    for i, value in enumerate(listed(argument, values, Hash128)):
        try:
            high, low = (0, 0) if value is None else value
            out.append(high)
            out.append(low)
        except (TypeError, ValueError, OverflowError) as e:
            raise PrefixCacheArgumentError(
                f"{argument}[{i}]: {value!r}, expected a pair of unsigned 64-bit integers"
            ) from e
    return out


def extras(value: BlockKeyExtras | None) -> _abi.Extras:
    out = _abi.Extras()
    if value is None:
        return out
    instance("key_extras", value, BlockKeyExtras)
    if value.adapter is not None:
        adapter = instance("key_extras.adapter", value.adapter, AdapterIdentity)
        out.present |= _abi.EXTRA_ADAPTER
        out.adapter = to_hash("key_extras.adapter.id", adapter.id)
        out.adapter_generation = uint64("key_extras.adapter.generation", adapter.generation)
    for name, field, bit in (
        ("position_digest", "position", _abi.EXTRA_POSITION),
        ("custom_embedding_digest", "embedding", _abi.EXTRA_EMBEDDING),
        ("isolation_digest", "isolation", _abi.EXTRA_ISOLATION),
    ):
        digest = getattr(value, name)
        if digest is not None:
            out.present |= bit
            setattr(out, field, to_hash(f"key_extras.{name}", digest))
    return out


def spans(value: BlockKeyExtras | None) -> list[_abi.Span]:
    return [
        _abi.Span(
            content=to_hash("media_spans.content", s.content),
            placement=to_hash("media_spans.placement", s.placement),
            offset=int32("media_spans.offset", s.offset),
            order=int32("media_spans.item_order", s.item_order),
            modality=integer("media_spans.modality", s.modality, 0, 255),
        )
        for s in (instances("media_spans", value.media_spans, MediaSpan) if value is not None else ())
    ]


def media(sequence: ContextCacheSequenceAdmission, num_tokens: int) -> array[int]:
    """The media digests of a sequence: none, or one for each token (D-1)."""
    out = hashes("per_position_media_hash", sequence.per_position_media_hash)
    if out and len(out) != 2 * num_tokens:
        raise PrefixCacheArgumentError(
            f"per_position_media_hash: {len(out) // 2} digests, expected none or {num_tokens}, one for each token"
        )
    return out


def checkpoints(sequence: BlockKeySequence) -> Any:
    points = instances("checkpoints", sequence.checkpoints, HybridCheckpointKey)
    return (_abi.Checkpoint * len(points))(
        *(
            _abi.Checkpoint(
                to_hash("checkpoints.digest", c.digest),
                integer("checkpoints.token_length", c.token_length, 0, 2**31 - 1),
            )
            for c in points
        )
    )


class SequenceArgument:
    """A pc_sequence and the arrays that it points to."""

    def __init__(self, sequence: ContextCacheSequenceAdmission | BlockKeySequence | Tokens) -> None:
        self.struct = _abi.sized(_abi.Sequence)
        if isinstance(sequence, BlockKeySequence):
            self._fill_keys(sequence)
            return
        if not isinstance(sequence, ContextCacheSequenceAdmission):
            sequence = ContextCacheSequenceAdmission(sequence)
        self._fill_tokens(sequence)

    def _fill_keys(self, sequence: BlockKeySequence) -> None:
        self.keys = hashes("keys", sequence.keys)
        self.checkpoints = checkpoints(sequence)
        self.struct.num_tokens = integer("token_count", sequence.token_count, -(2**63), 2**63 - 1)
        self.struct.keys, self.struct.num_keys = address(self.keys), len(self.keys) // 2
        if self.checkpoints:
            self.struct.checkpoints = ctypes.addressof(self.checkpoints)
            self.struct.num_checkpoints = len(self.checkpoints)

    def _fill_tokens(self, sequence: ContextCacheSequenceAdmission) -> None:
        self.tokens = integers("token_ids", sequence.token_ids)
        self.media = media(sequence, len(self.tokens))
        self.extras = extras(sequence.key_extras)
        items = spans(sequence.key_extras)
        self.spans = (_abi.Span * len(items))(*items)
        self.struct.tokens, self.struct.num_tokens = address(self.tokens), len(self.tokens)
        self.struct.media = address(self.media)
        if sequence.key_extras is not None:
            self.struct.extras = ctypes.pointer(self.extras)
        if items:
            self.struct.spans, self.struct.num_spans = ctypes.addressof(self.spans), len(items)


class AdmissionArgument:
    """A pc_admission: the arrays of all sequences one after the other."""

    def __init__(self, admission: ContextCacheBatchAdmission, stream: int) -> None:
        instance("admission", admission, ContextCacheBatchAdmission)
        sequences = instances("sequences", admission.sequences, ContextCacheSequenceAdmission)
        n = len(sequences)
        self.tokens, self.media = array("i"), array("Q")
        self.token_offsets, self.media_offsets, self.span_offsets = array("q", [0]), array("q", [0]), array("q", [0])
        self.extras = (_abi.Extras * n)()
        items: list[_abi.Span] = []
        for i, sequence in enumerate(sequences):
            tokens = integers("token_ids", sequence.token_ids)
            self.tokens += tokens
            self.media += media(sequence, len(tokens))
            self.extras[i] = extras(sequence.key_extras)
            items += spans(sequence.key_extras)
            self.token_offsets.append(len(self.tokens))
            self.media_offsets.append(len(self.media) // 2)
            self.span_offsets.append(len(items))
        self.spans = (_abi.Span * len(items))(*items)
        s = self.struct = _abi.sized(_abi.Admission)
        s.num_sequences = n
        s.execution = integer("execution_mode", admission.execution_mode, 0, 2**32 - 1)
        s.lookup = integer("lookup_policy", admission.lookup_policy, 0, 2**32 - 1)
        s.commit = integer("commit_policy", admission.commit_policy, 0, 2**32 - 1)
        s.stream = uint64("stream", stream)
        s.tokens, s.token_offsets = address(self.tokens), address(self.token_offsets)
        if self.media:
            s.media, s.media_offsets = address(self.media), address(self.media_offsets)
        if n:
            s.extras = ctypes.addressof(self.extras)
        if items:
            s.spans, s.span_offsets = ctypes.addressof(self.spans), address(self.span_offsets)
        if admission.slots is not None:
            self.slots = integers("slots", admission.slots)
            if len(self.slots) != n:
                raise PrefixCacheArgumentError(f"slots: {len(self.slots)} of them, expected {n}, one for each sequence")
            s.slots = address(self.slots)


class AdvanceArgument:
    """A pc_advance."""

    def __init__(
        self,
        advances: Sequence[ContextCacheSequenceAdvance],
        common: Sequence[int] | None,
        publish: Sequence[int] | None = None,
    ) -> None:
        self.tokens, self.offsets = array("i"), array("q", [0])
        advances = instances("advances", advances, ContextCacheSequenceAdvance)
        for advance in advances:
            self.tokens += integers("accepted_token_ids", advance.accepted_token_ids)
            self.offsets.append(len(self.tokens))
        self.committed = integers("committed_state_length", [a.committed_state_length for a in advances])
        s = self.struct = _abi.sized(_abi.Advance)
        s.num_sequences = len(advances)
        s.tokens, s.token_offsets, s.committed = address(self.tokens), address(self.offsets), address(self.committed)
        self.common = integers("common_state_lengths", () if common is None else common)
        if self.common:
            if len(self.common) != len(advances):
                raise PrefixCacheArgumentError(
                    f"common_state_lengths: {len(self.common)} of them, expected {len(advances)}, one for each advance"
                )
            s.common = address(self.common)
        self.publish = integers("publishable_completed_slots", () if publish is None else publish)
        if self.publish:
            s.publish, s.num_publish = address(self.publish), len(self.publish)
