"""pc_context_options from the configuration, the deployment and the physical caches."""

from __future__ import annotations

import ctypes
from dataclasses import fields
from typing import Any

from prefixcache import PrefixCacheArgumentError
from prefixcache._staying import closed
from prefixcache.context import _abi
from prefixcache.context._arguments import flag, instance, int32, integer, listed, members
from prefixcache.context.cache import (
    AttentionLayerBuffers,
    AttentionShape,
    ContextCachePhysicalResources,
    HybridCacheManager,
    RecurrentLayerBuffers,
    RecurrentShape,
)
from prefixcache.context.deployment import DeploymentConfig, ModelConfig, SpecConfig, attention_layer, recurrent_layer
from prefixcache.context.table import KVPageTable
from prefixcache.context.types import ContextCacheConfig, ContextCacheDeploymentKind

_SIZES = ("num_pages", "max_batch_size", "padded_capacity")
_STEPS = ("reset_for_new_sequences", "compact_slot_state", "set_active_batch_size")
_LAYERS = ("attention_layers", "recurrent_layers")


class ContextOptionsArgument:
    """A pc_context_options and the arrays that it points to."""

    def __init__(
        self,
        config: ContextCacheConfig,
        deployment: DeploymentConfig,
        kind: ContextCacheDeploymentKind,
        resources: ContextCachePhysicalResources,
        stream: int,
    ) -> None:
        if not flag("config.enabled", config.enabled):
            raise PrefixCacheArgumentError(
                "config.enabled: False, expected True: an unconfigured cache must not come up"
            )
        if resources.base_page_table is None and kind != ContextCacheDeploymentKind.PURE_RECURRENT:
            raise PrefixCacheArgumentError("resources.base_page_table: None, expected a page table")
        instance("deployment.base", deployment.base, ModelConfig)
        recurrent = kind in (ContextCacheDeploymentKind.HYBRID, ContextCacheDeploymentKind.PURE_RECURRENT)
        self._alive: list[Any] = []
        s = self.struct = _abi.sized(_abi.ContextOptions)
        for bit, name in (
            (_abi.ORIGINAL_RECENCY, "original_recency"),
            (_abi.SHORTEN_VICTIMS, "shorten_victims"),
            (_abi.HOST_MEMORY, "host_memory"),
            (_abi.WEAK_HASH, "weak_hash"),
            (_abi.ZERO_ON_RELEASE, "zero_on_release"),
        ):
            s.flags |= bit * flag(f"config.{name}", getattr(config, name))
        s.tenant_quota = integer("config.tenant_quota", config.tenant_quota, 0, 1000)
        s.kind = integer("deployment_kind", kind, 0, 2**32 - 1)
        # Zero means "default" to the library, not to the fields of a Python config.
        s.tokens_per_page = integer("config.tokens_per_page", config.tokens_per_page, 1, 2**31 - 1)
        s.max_records = integer("config.max_records", config.max_records, 0, 2**31 - 1) or -1
        s.max_requests = integer("config.max_requests", config.max_requests, 1, 2**31 - 1)
        s.max_batch = int32("deployment.base.max_batch_size", deployment.base.max_batch_size)
        if deployment.draft is not None:
            instance("deployment.draft", deployment.draft, ModelConfig)
            s.draft_max_batch = int32("deployment.draft.max_batch_size", deployment.draft.max_batch_size)
        if deployment.spec is not None:
            instance("deployment.spec", deployment.spec, SpecConfig)
            s.verify_size = int32("deployment.spec.verify_size", deployment.spec.verify_size)
            s.drafting_step = int32("deployment.spec.drafting_step", deployment.spec.drafting_step)
            s.drafting_top_k = int32("deployment.spec.drafting_top_k", deployment.spec.drafting_top_k)
        if kind == ContextCacheDeploymentKind.EAGLE:
            s.future_tokens = integer("config.future_dependency_tokens", config.future_dependency_tokens, 1, 2**31 - 1)
        s.recurrent_budget = _budget("recurrent_snapshot_budget_bytes", config)
        s.partial_budget = _budget("partial_kv_snapshot_budget_bytes", config)
        s.stream = stream
        attention = kind != ContextCacheDeploymentKind.PURE_RECURRENT
        s.base = self._resources(
            "base", resources.base_cache, resources.base_page_table if attention else None, recurrent
        )
        s.draft = self._resources("draft", resources.draft_cache, resources.draft_page_table, False)

    def _resources(self, model: str, cache: HybridCacheManager | None, table: KVPageTable | None, layers: bool) -> Any:
        out = _abi.CacheResources()
        if table is not None:
            out.table = instance(f"resources.{model}_page_table", table, KVPageTable).handle
            if not out.table:
                raise closed(table, f"resources.{model}_page_table")
        if cache is None and model == "draft":
            return out
        argument = f"resources.{model}_cache"
        cache = members(argument, cache, HybridCacheManager, *_SIZES, *_STEPS, *(_LAYERS if layers else ()))
        out.num_pages = int32("num_pages", cache.num_pages)
        out.max_batch = int32("max_batch_size", cache.max_batch_size)
        out.capacity_tokens = int32("padded_capacity", cache.padded_capacity)
        if not layers:
            return out
        attention, recurrent = [], []
        for i, a in enumerate(
            listed(f"{argument}.attention_layers()", cache.attention_layers(), AttentionLayerBuffers)
        ):
            members(f"{argument}.attention_layers()[{i}]", a, AttentionLayerBuffers, *_names(AttentionLayerBuffers))
            attention.append(attention_layer(AttentionShape(a.kv_heads, a.head_dim, a.type), a.k_base))
        for i, r in enumerate(
            listed(f"{argument}.recurrent_layers()", cache.recurrent_layers(), RecurrentLayerBuffers)
        ):
            members(f"{argument}.recurrent_layers()[{i}]", r, RecurrentLayerBuffers, *_names(RecurrentLayerBuffers))
            shape = RecurrentShape(
                r.heads, r.head_dim, r.state_size, r.conv_dim, r.conv_kernel, r.state_type, r.conv_type
            )
            recurrent.append(recurrent_layer(shape, r.state_base, r.conv_base))
        if attention:
            array = (_abi.AttentionLayer * len(attention))(*attention)
            self._alive.append(array)
            out.attention, out.num_attention = ctypes.addressof(array), len(attention)
        if recurrent:
            states = (_abi.RecurrentLayer * len(recurrent))(*recurrent)
            self._alive.append(states)
            out.recurrent, out.num_recurrent = ctypes.addressof(states), len(recurrent)
        return out


def _names(kind: Any) -> list[str]:
    return [f.name for f in fields(kind)]


def _budget(name: str, config: ContextCacheConfig) -> int:
    return integer(f"config.{name}", getattr(config, name), -(2**63), 2**63 - 1)
