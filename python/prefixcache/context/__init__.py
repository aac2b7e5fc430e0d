"""The context cache: content-addressed reuse of KV pages and recurrent state.

Two levels, one set of rules; the classes have the names of the C++ API, in snake_case.

:class:`ContextCacheCoordinator`
    a manager, page tables, snapshots and the request state machine, ordered on one
    stream. The runtime brings its buffers (:class:`HybridCacheManager`), its engines and
    its stream; :class:`HostCacheManager` is a cache in plain memory.
:class:`ContextCacheManager`
    host only: which pages hold which prefix, and who uses them. For a runtime with a
    coordinator of its own, on tokens or on block keys that it computed.

Errors are ``PrefixCacheError`` with the ``status`` of include/prefixcache.h; what a
runtime handles in operation comes back as a status or as None. Nothing needs numpy or
torch: token ids are lists or int32 buffers, caches are addresses.
"""

from prefixcache.context.cache import (
    AttentionLayerBuffers,
    AttentionShape,
    ContextCachePhysicalResources,
    DataType,
    HostCacheManager,
    HybridCacheManager,
    RecurrentLayerBuffers,
    RecurrentShape,
)
from prefixcache.context.coordinator import ContextCacheCoordinator, StreamSynchronizer
from prefixcache.context.deployment import (
    DeploymentConfig,
    LayerKind,
    ModelConfig,
    SpecConfig,
    SpeculativeMode,
    validate_context_cache_deployment,
)
from prefixcache.context.digest import digest_bytes, digest_sequence
from prefixcache.context.lease import AcquireResult, CacheRequestLease
from prefixcache.context.manager import ContextCacheManager
from prefixcache.context.request import AdmissionResult, BeginRequestResult, RequestHandle
from prefixcache.context.table import KVPageTable
from prefixcache.context.types import (
    AcquireStatus,
    AdapterIdentity,
    BlockKeyExtras,
    BlockKeySequence,
    CacheRecord,
    CacheResourceType,
    ContextCacheBatchAdmission,
    ContextCacheCommitPolicy,
    ContextCacheConfig,
    ContextCacheCoordinatorStatus,
    ContextCacheDeploymentKind,
    ContextCacheExecutionMode,
    ContextCacheLookupPolicy,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    Hash128,
    HybridCheckpointKey,
    HybridSnapshotReservation,
    MediaSpan,
    NoReuseReason,
    Phase,
    Publication,
    PublishStatus,
    RequestState,
    ReusePlan,
    ReusePlanKind,
    ReusePlanMode,
    SequenceStart,
    SequenceState,
    SpecReplayMode,
)
from prefixcache.context.view import ManagerView

__all__ = [
    "AcquireResult",
    "AcquireStatus",
    "AdapterIdentity",
    "AdmissionResult",
    "AttentionLayerBuffers",
    "AttentionShape",
    "BeginRequestResult",
    "BlockKeyExtras",
    "BlockKeySequence",
    "CacheRecord",
    "CacheRequestLease",
    "CacheResourceType",
    "ContextCacheBatchAdmission",
    "ContextCacheCommitPolicy",
    "ContextCacheConfig",
    "ContextCacheCoordinator",
    "ContextCacheCoordinatorStatus",
    "ContextCacheDeploymentKind",
    "ContextCacheExecutionMode",
    "ContextCacheLookupPolicy",
    "ContextCacheManager",
    "ContextCachePhysicalResources",
    "ContextCacheSequenceAdmission",
    "ContextCacheSequenceAdvance",
    "DataType",
    "DeploymentConfig",
    "Hash128",
    "HostCacheManager",
    "HybridCacheManager",
    "HybridCheckpointKey",
    "HybridSnapshotReservation",
    "KVPageTable",
    "LayerKind",
    "ManagerView",
    "MediaSpan",
    "ModelConfig",
    "NoReuseReason",
    "Phase",
    "Publication",
    "PublishStatus",
    "RecurrentLayerBuffers",
    "RecurrentShape",
    "RequestHandle",
    "RequestState",
    "ReusePlan",
    "ReusePlanKind",
    "ReusePlanMode",
    "SequenceStart",
    "SequenceState",
    "SpecConfig",
    "SpecReplayMode",
    "SpeculativeMode",
    "StreamSynchronizer",
    "digest_bytes",
    "digest_sequence",
    "validate_context_cache_deployment",
]
