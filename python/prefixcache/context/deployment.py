"""What the coordinator has to know of a deployment, and the gate that says whether this
cache serves it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from prefixcache import PrefixCacheArgumentError
from prefixcache.context import _abi
from prefixcache.context._arguments import address, flag, instance, int32, integer, integers, uint64
from prefixcache.context.cache import AttentionShape, DataType, RecurrentShape
from prefixcache.context.types import ContextCacheDeploymentKind


class LayerKind(IntEnum):
    """What a decoder layer keeps between steps. A sliding window counts as attention."""

    STATELESS = 0
    ATTENTION = 1
    SLIDING_WINDOW = 2
    RECURRENT = 3


class SpeculativeMode(IntEnum):
    """Speculative decoding of a deployment."""

    NONE = 0
    EAGLE = 1
    OTHER = 2  # not served


@dataclass
class ModelConfig:
    """One network, as its engine states it."""

    max_batch_size: int = 0
    capacity_tokens: int = 0  # of one sequence
    num_pages: int = 0  # of the KV pool
    kv_type: DataType = DataType.HALF
    layers: Sequence[LayerKind] = ()  # decoder layers in order
    kv_layers: Sequence[tuple[int, int]] = ()  # (kv heads, head dim) of each attention layer
    kv_donors: Sequence[int] = ()  # empty, or for each attention layer whose KV it reads; -1: its own
    num_recurrent_layers: int = 0
    recurrent: RecurrentShape | None = None  # of every recurrent layer
    hidden_size: int = 0
    base_hidden_size: int = 0  # draft: width of the hidden states that feed it
    is_spec_base: bool = False  # built to be verified by speculation
    is_eagle: bool = False  # draft: an EAGLE draft


@dataclass
class SpecConfig:
    """Configuration of speculative decoding."""

    verify_size: int = 0  # tokens that the base model verifies in a round
    drafting_step: int = 0  # draft rounds
    drafting_top_k: int = 0  # candidates in each
    conditioning_layers: Sequence[int] = ()  # decoder layers whose hidden states feed the draft


@dataclass
class DeploymentConfig:
    """The coordinator reads the two batch sizes and the speculation; the gate reads all."""

    base: ModelConfig
    draft: ModelConfig | None = None
    spec: SpecConfig | None = None
    speculative_mode: SpeculativeMode = SpeculativeMode.NONE
    has_diffusion_backbone: bool = False
    has_bidirectional_vision: bool = False


def validate_context_cache_deployment(
    deployment: DeploymentConfig, tokens_per_page: int = 128
) -> ContextCacheDeploymentKind:
    """The gate, conservative: what is not known to be right is refused.

    Raises a PrefixCacheError (status PC_ERROR_UNSUPPORTED, -5) that says why.
    """
    library = _abi.load()
    out, kind = _abi.sized(_abi.Deployment), ctypes.c_uint32()
    instance("deployment", deployment, DeploymentConfig)
    out.diffusion_backbone = flag("has_diffusion_backbone", deployment.has_diffusion_backbone)
    out.vision_bidirectional = flag("has_bidirectional_vision", deployment.has_bidirectional_vision)
    out.speculative = integer("speculative_mode", deployment.speculative_mode, 0, 2**32 - 1)
    out.tokens_per_page = integer("tokens_per_page", tokens_per_page, 1, 2**31 - 1)
    base = _ModelArgument(instance("base", deployment.base, ModelConfig))
    out.base = ctypes.pointer(base.struct)
    if deployment.draft is not None:
        draft = _ModelArgument(instance("draft", deployment.draft, ModelConfig))
        out.draft = ctypes.pointer(draft.struct)
    if deployment.spec is not None:
        spec = instance("spec", deployment.spec, SpecConfig)
        out.verify_size = int32("verify_size", spec.verify_size)
        out.drafting_step = int32("drafting_step", spec.drafting_step)
        out.drafting_top_k = int32("drafting_top_k", spec.drafting_top_k)
        layers = integers("conditioning_layers", spec.conditioning_layers)
        given = layers or integers("conditioning_layers", [0])  # an array of no layers is still one that is given
        out.conditioning_layers, out.num_conditioning_layers = address(given), len(layers)
    library.check(library.context_validate_deployment(ctypes.byref(out), ctypes.byref(kind)))
    return ContextCacheDeploymentKind(kind.value)


def attention_layer(shape: AttentionShape, k_address: int = 0) -> _abi.AttentionLayer:
    """A pc_attention_layer; without an address for the gate, which looks at shapes."""
    return _abi.AttentionLayer(
        k_address=uint64("k_base", k_address),
        kv_heads=int32("kv_heads", shape.kv_heads),
        head_dim=int32("head_dim", shape.head_dim),
        type=integer("type", shape.type, 0, 2**32 - 1),
    )


def recurrent_layer(shape: RecurrentShape, state_address: int = 0, conv_address: int = 0) -> _abi.RecurrentLayer:
    """A pc_recurrent_layer; without addresses for the gate, which looks at shapes."""
    return _abi.RecurrentLayer(
        state_address=uint64("state_base", state_address),
        conv_address=uint64("conv_base", conv_address),
        heads=int32("heads", shape.heads),
        head_dim=int32("head_dim", shape.head_dim),
        state_size=int32("state_size", shape.state_size),
        state_type=integer("state_type", shape.state_type, 0, 2**32 - 1),
        conv_dim=int32("conv_dim", shape.conv_dim),
        conv_kernel=int32("conv_kernel", shape.conv_kernel),
        conv_type=integer("conv_type", shape.conv_type, 0, 2**32 - 1),
    )


class _ModelArgument:
    """A pc_model with the arrays that it points to."""

    def __init__(self, model: ModelConfig) -> None:
        self.layers = integers("layers", model.layers, "I")
        try:
            shapes = [AttentionShape(heads, dim, model.kv_type) for heads, dim in model.kv_layers]
        except (TypeError, ValueError) as e:
            raise PrefixCacheArgumentError(f"kv_layers: {model.kv_layers!r}, expected pairs of heads and width") from e
        self.attention = (_abi.AttentionLayer * len(shapes))(*(attention_layer(s) for s in shapes))
        self.donors = integers("kv_donors", model.kv_donors)
        recurrent = RecurrentShape(0, 0, 0, 0, 0) if model.recurrent is None else model.recurrent
        instance("recurrent", recurrent, RecurrentShape)
        count = integer("num_recurrent_layers", model.num_recurrent_layers, 0, 1 << 20)
        self.recurrent = (_abi.RecurrentLayer * count)(*(recurrent_layer(recurrent) for _ in range(count)))
        s = self.struct = _abi.Model()
        s.max_batch = int32("max_batch_size", model.max_batch_size)
        s.capacity_tokens = int32("capacity_tokens", model.capacity_tokens)
        s.num_pages = integer("num_pages", model.num_pages, -(2**63), 2**63 - 1)
        s.layers, s.num_layers = address(self.layers), len(self.layers)
        s.attention, s.num_attention = ctypes.addressof(self.attention), len(self.attention)
        s.kv_donors, s.num_kv_donors = address(self.donors), len(self.donors)
        s.recurrent, s.num_recurrent = ctypes.addressof(self.recurrent), count
        s.hidden_size = int32("hidden_size", model.hidden_size)
        s.base_hidden_size = int32("base_hidden_size", model.base_hidden_size)
        s.spec_base, s.eagle = flag("is_spec_base", model.is_spec_base), flag("is_eagle", model.is_eagle)
