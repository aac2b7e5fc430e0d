"""Value types of the context cache.

Names are those of the C++ headers (``include/prefixcache/context_cache_coordinator.hpp``)
in Python's spelling; enum numbers are those of the C ABI and never change.
Lengths and positions are tokens, pages are ids of K pages (the V page of page ``p`` is
``p + num_pages``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

# Token ids: a list or tuple of ints, or any buffer of int32 (array("i"), numpy).
Tokens: TypeAlias = "Sequence[int] | Any"


class ContextCacheLookupPolicy(IntEnum):
    """Whether an admission looks for cached prefixes."""

    USE_CACHE = 0
    BYPASS = 1  # private pages; neither looks up nor publishes


class ContextCacheCommitPolicy(IntEnum):
    """What a request publishes."""

    INCLUDING_GENERATED_TOKENS = 0  # its prompts, and its sequences when they are done
    PREFILL_ONLY = 1  # its prompts


class ContextCacheExecutionMode(IntEnum):
    """How a request runs."""

    VANILLA = 0  # one token a step; hybrid and pure recurrent models, too
    EAGLE = 1  # draft and verify


class ContextCacheDeploymentKind(IntEnum):
    """What a deployment caches; see ``validate_context_cache_deployment``."""

    VANILLA = 0  # attention only
    HYBRID = 1  # attention and recurrent layers
    PURE_RECURRENT = 2  # no attention: snapshots, no pages
    EAGLE = 3  # a base and a draft model


class ContextCacheCoordinatorStatus(IntEnum):
    """Outcomes that a runtime handles. A broken contract is an exception."""

    OK = 0
    REQUEST_FAILED = 1  # no capacity now, or a request is live
    POISONED = 2  # device state is unknown: shut down, make a new coordinator


class AcquireStatus(IntEnum):
    """Outcome of an acquire that broke no contract."""

    ACQUIRED = 0
    INSUFFICIENT_CAPACITY = 1


class PublishStatus(IntEnum):
    """Outcome of a publication."""

    PUBLISHED = 0  # a new record, or an old one that got draft pages
    EXISTING_RECORD = 1  # this prefix had a record already, which is most recent now


class CacheResourceType(IntEnum):
    """The four pools. Slots are numbered per pool (C-15)."""

    BASE_PAGE = 0
    DRAFT_PAGE = 1
    RECURRENT_SNAPSHOT = 2
    PARTIAL_KV_SNAPSHOT = 3


class ReusePlanMode(IntEnum):
    """By which rule a sequence is planned."""

    VANILLA = 0  # whole pages
    HYBRID = 1  # up to a snapshot
    SPEC = 2  # base and draft pages in step (EAGLE)


class ReusePlanKind(IntEnum):
    """What came of a plan."""

    STANDARD = 0  # a prefix is reused
    NO_REUSABLE_PREFIX = 1
    FULL_INPUT_REWIND = 2  # all was cached: a page less is reused, so that one token is computed


class SpecReplayMode(IntEnum):
    """What an EAGLE sequence computes again of what is cached."""

    NONE = 0
    FULL_PAGE = 1  # the last page that matched


class Phase(IntEnum):
    """Phase of a request."""

    ADMITTED = 0  # begun; nothing enqueued yet
    EXECUTING = 1  # from prepare_prefill on
    FINISHING = 2  # only finish and close are legal


class NoReuseReason(IntEnum):
    """Why a sequence reuses nothing, or less than it might."""

    NONE = 0  # everything that can be reused is
    BYPASS = 1
    PROMPT_TOO_SHORT = 2  # no full block
    EXTRAS_UNKNOWN = 3  # nothing is cached with this adapter, isolation, ...
    FIRST_BLOCK = 4
    DIVERGED = 5  # another continuation, or evicted
    FULL_INPUT = 6  # all of the prompt is cached; one page is computed again
    MEDIA_BOUNDARY = 7  # cut back so that no run of media positions is split
    NO_DRAFT = 8
    DRAFT_SHORTER = 9
    REPLAY = 10  # EAGLE: the last matched page is computed again
    NO_CHECKPOINT = 11
    CHECKPOINT_SHORT = 12
    CHECKPOINT_LONG = 13  # the only snapshot is as long as the prompt


class Hash128(NamedTuple):
    """128 bits that the caller computed. Zero is not a usable media digest (C-7)."""

    high: int
    low: int


ZERO_HASH = Hash128(0, 0)


@dataclass(frozen=True)
class AdapterIdentity:
    """The adapter (LoRA) that computed the state. Raise the generation on a reload (C-5)."""

    id: Hash128
    generation: int = 0


@dataclass(frozen=True)
class MediaSpan:
    """A media item inside blocks. Every field and the order of spans are identity (C-6)."""

    content: Hash128
    placement: Hash128 = ZERO_HASH
    offset: int = 0  # position inside the block
    item_order: int = 0
    modality: int = 0  # 0 .. 255


@dataclass(frozen=True)
class BlockKeyExtras:
    """Identity of a sequence beyond its tokens, for every block of it (C-11).

    ``None`` and a digest of zero are different identities (C-3).
    """

    adapter: AdapterIdentity | None = None
    position_digest: Hash128 | None = None
    custom_embedding_digest: Hash128 | None = None
    isolation_digest: Hash128 | None = None  # tenant or salt
    media_spans: Sequence[MediaSpan] = ()


@dataclass
class ContextCacheSequenceAdmission:
    """One complete input, before its cached prefix is cut off."""

    token_ids: Tokens
    key_extras: BlockKeyExtras | None = None
    # Empty for text; else one digest a token: where one is given (not None, not zero),
    # it is the identity of that position instead of the token id.
    per_position_media_hash: Sequence[Hash128 | None] = ()


@dataclass(frozen=True)
class HybridCheckpointKey:
    """Identity of a snapshot, named by the caller: the first ``token_length`` tokens."""

    token_length: int
    digest: Hash128


@dataclass
class BlockKeySequence:
    """A sequence named by block keys of the caller, for a manager with ``block_keys``.

    Each key covers its block and everything before it. Keys are trusted: a collision
    of theirs is a wrong hit, which tokens rule out.
    """

    token_count: int
    keys: Sequence[Hash128] = ()  # one per full block, or fewer
    checkpoints: Sequence[HybridCheckpointKey] = ()  # hybrid: the snapshots that would do


@dataclass
class ContextCacheBatchAdmission:
    """A batch, admitted as a whole or not at all."""

    sequences: Sequence[ContextCacheSequenceAdmission]
    execution_mode: ContextCacheExecutionMode = ContextCacheExecutionMode.VANILLA
    lookup_policy: ContextCacheLookupPolicy = ContextCacheLookupPolicy.USE_CACHE
    commit_policy: ContextCacheCommitPolicy = ContextCacheCommitPolicy.INCLUDING_GENERATED_TOKENS
    slots: Sequence[int] | None = None  # resident batch slots; None: 0, 1, 2, ...


@dataclass(frozen=True)
class ContextCacheSequenceAdvance:
    """What a step did to one sequence, seen after the runtime's own synchronisation."""

    accepted_token_ids: Tokens
    committed_state_length: int  # leading tokens whose state is in the bound cache


@dataclass
class ContextCacheConfig:
    """Off unless ``enabled``: an unconfigured cache must not come up."""

    enabled: bool = False
    max_records: int = 1024  # published prefixes kept; 0 keeps none
    recurrent_snapshot_budget_bytes: int = 0
    partial_kv_snapshot_budget_bytes: int = 0
    # Not in the class that the C++ coordinator replaces.
    tokens_per_page: int = 128
    max_requests: int = 1  # live and quarantined at once
    future_dependency_tokens: int = 1  # EAGLE: following tokens that a draft position depends on; no effect yet
    original_recency: bool = False  # a vanilla hit does not refresh its record, as in that class
    shorten_victims: bool = False  # an eviction takes no more of a record than it needs
    host_memory: bool = True  # addresses are plain host memory, also where there is a GPU
    weak_hash: bool = False  # tests: every table lookup collides
    tenant_quota: int = 0  # per mille of pages and records for one isolation key; 0: not counted
    zero_on_release: bool = False  # clear tokens once nothing can find them


@dataclass(frozen=True)
class ReusePlan:
    """What a lookup found and what the sequence still needs."""

    mode: ReusePlanMode
    kind: ReusePlanKind
    replay_mode: SpecReplayMode
    reason: NoReuseReason
    matched_token_length: int  # before a page is dropped
    reuse_token_length: int  # execution starts here
    bound_base_pages: int
    bound_draft_pages: int
    demand_base_pages: int
    demand_draft_pages: int
    recurrent_slot: int | None  # snapshot to restore
    partial_kv_slot: int | None
    partial_tokens: int
    dependency_blocks: int  # spec: leading blocks that a publication must agree with
    record: int | None  # the record that was hit


@dataclass(frozen=True)
class CacheRecord:
    """One published prefix."""

    id: int  # from 1, never reused
    full_block_count: int
    exact_length: int  # hybrid: tokens of the checkpoint; else 0
    base_pages: tuple[int, ...]
    draft_pages: tuple[int, ...]
    recurrent_slot: int | None
    partial_kv_slot: int | None


@dataclass(frozen=True)
class Tenant:
    """All sequences with one isolation digest, or with none; see pc_tenant."""

    isolation: Hash128 | None
    quota: int  # per mille, in force
    quota_pages: int
    pages: int  # base pages in use or cached, now
    active_pages: int  # of these, used by leases
    records: int
    snapshots: int
    leases: int  # acquired so far
    query_tokens: int
    hit_tokens: int
    evicted: int  # records of it
    evicted_by_others: int
    evicted_others: int  # records of other tenants, to make room for it
    refused: int  # demands beyond the quota


@dataclass(frozen=True)
class Publication:
    """Result of a publication."""

    status: PublishStatus
    record: int | None  # None: not retained (record limit 0, or stale)
    blocks: int  # full blocks covered
    stale: bool  # flushed or invalidated since the lease began; nothing was cached


@dataclass(frozen=True)
class HybridSnapshotReservation:
    """Snapshot slots that a lease holds for one capture."""

    recurrent_slot: int
    partial_kv_slot: int | None = None


@dataclass(frozen=True)
class SequenceStart:
    """How one admitted sequence begins."""

    prefill_start: int
    matched_token_length: int
    kind: ReusePlanKind
    reason: NoReuseReason
    forced_cold: bool
    skipped_media_positions: int  # media positions before the start: skip as many encoder outputs


@dataclass(frozen=True)
class SequenceState:
    """One sequence of a live request, as of the call that read it."""

    slot: int
    token_ids: list[int]  # prompt and accepted tokens
    base_pages: list[int]
    draft_pages: list[int]
    reuse_token_length: int
    committed_state_length: int
    common_state_length: int
    published_full_block_count: int
    published_exact_length: int
    frozen_spec_prefill_length: int | None
    staged_hybrid_publication: bool


@dataclass(frozen=True)
class RequestState:
    """A live request, as of the call that read it."""

    phase: Phase
    device_work_pending: bool  # the end has to drain the stream first
    spec_awaiting_first_completion: bool
    execution_mode: ContextCacheExecutionMode
    pending_compaction_batch_size: int  # -1: none is begun
    sequences: list[SequenceState]
