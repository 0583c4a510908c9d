"""The text model of Llama 4 (Meta 2025): attention in chunks with RoPE, some layers without positions, and experts.

The router's weights multiply the inputs of the chosen experts, not their outputs. In the files, the two features of a
RoPE pair are adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, TRANSPOSED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward, QueryScale
from qkv.spec.heads import Head
from qkv.spec.masks import AllOf, Blocks, Causal
from qkv.spec.model import Model
from qkv.spec.parts import NoNorm, NoRelative, RMSNorm
from qkv.system.errors import UserError

CHUNKED = "chunked_attention"


def _places(config: Config) -> list[bool]:
    """Return the layers with experts: those in ``moe_layers``, or every ``interleave_moe_layer_step``-th one."""
    layers, step = config.layers("num_hidden_layers"), config.integer("interleave_moe_layer_step", 1)
    if step < 1:
        raise UserError(f"{config.source}: interleave_moe_layer_step is {step}, but it should be at least 1")
    listed = config.items("moe_layers") if config.has("moe_layers") else range(step - 1, layers, step)
    return [layer in listed for layer in range(layers)]


def _listed(sparse: Sequence[bool]) -> dict[str, Any]:
    return {"moe_layers": [layer for layer, one in enumerate(sparse) if one]}


_KEYS = experts.ExpertKeys(
    {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok", "hidden": "intermediate_size"},
    {"router": "sigmoid", "normalised": False, "weights_of": "inputs", "num_shared": 1},
    experts.SparseLayers(_places, _listed),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Llama 4.

    Layers whose value in ``no_rope_layers`` is 0, by default every ``no_rope_layer_interval``-th one, have no positions
    and, with ``attn_temperature_tuning``, a factor of queries that grows with the position. The others have RoPE, with
    ``use_qk_norm`` norms of queries and keys, and, unless ``layer_types`` is set, attention in chunks.
    """
    turned = _turned(config)
    kinds = config.items("layer_types") or [CHUNKED if one else gated.FULL for one in turned]
    if len(kinds) != len(turned) or not set(kinds) <= {CHUNKED, gated.FULL}:
        raise UserError(
            f"{config.source}: layer_types is {kinds}, but it should name {CHUNKED} or {gated.FULL} for "
            f"{len(turned)} layers"
        )
    near = Causal() & Blocks(size=config.size("attention_chunk_size")) if CHUNKED in kinds else Causal()
    attention, alone = _attentions(config)
    layers = [
        (attention if one else alone).changed(mask=near if kind == CHUNKED else Causal())
        for one, kind in zip(turned, kinds, strict=True)
    ]
    return _KEYS.spec(config, gated.model_of(config, head, layers, hidden="intermediate_size_mlp"))


def _turned(config: Config) -> list[bool]:
    """Return the layers with RoPE."""
    layers, step = config.layers("num_hidden_layers"), config.integer("no_rope_layer_interval", 4)
    if step < 1:
        raise UserError(f"{config.source}: no_rope_layer_interval is {step}, but it should be at least 1")
    values = config.items("no_rope_layers") or [int((layer + 1) % step != 0) for layer in range(layers)]
    if len(values) < layers:
        raise UserError(f"{config.source}: no_rope_layers is {values}, but it should hold a value for {layers} layers")
    return [bool(value) for value in values[:layers]]


def _attentions(config: Config) -> tuple[Attention, Attention]:
    """Return the attention of layers (with RoPE, without positions)."""
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    scale = QueryScale(rate=config.number("attn_scale", 0.1), length=config.size("floor_scale", 8192), first=1)
    tuned, normed = config.flag("attn_temperature_tuning", True), config.flag("use_qk_norm", True)
    alone = attention.changed(relative=NoRelative(), query_scale=scale if tuned else None)
    if not normed:
        return attention, alone
    norm = RMSNorm(eps=gated.norm_of(config).eps, weight=False)
    return attention.changed(qk_norm=norm, qk_norm_after="rotation"), alone


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike, turned = gated.with_rope(spec)
    keys = _KEYS.config(alike, _dense)
    if keys is None:
        return None
    mixers = [block.branches[0] for block in spec.layers]
    masks = [getattr(mixer, "mask", None) for mixer in mixers]
    sizes = {size for mask in masks if (size := _chunk(mask))}
    scale = next((mixer.query_scale for mixer in mixers if isinstance(mixer, Attention) and mixer.query_scale), None)
    tuned = {} if scale is None else {"attn_scale": scale.rate, "floor_scale": scale.length}
    return {
        **keys,
        **tuned,
        "attn_temperature_tuning": scale is not None or all(turned),
        "use_qk_norm": any(not getattr(mixer, "qk_norm", NoNorm()).identity for mixer in mixers) or not any(turned),
        "no_rope_layers": [int(one) for one in turned],
        "layer_types": [CHUNKED if _chunk(mask) else gated.FULL for mask in masks],
        "attention_chunk_size": max(sizes, default=spec.context_length),
    }


def _chunk(mask: object) -> int | None:
    """Return the size of the chunks of a mask; None without chunks."""
    match mask:
        case AllOf(masks=(Causal(), Blocks(size=size))):
            return size
        case _:
            return None


def _dense(spec: Model) -> dict[str, Any] | None:
    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        return {"attention_bias": attention.bias, "intermediate_size_mlp": feed_forward.hidden_at(spec.width)}

    return gated.config_of(spec, keys)


_OURS, _MLP = "blocks.{layer}.branches.1.body.", "model.layers.{layer}.feed_forward"
LLAMA4 = Family(
    name="Llama 4 (text)",
    model_types=("llama4_text",),
    architectures={"Llama4ForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=(
        gated.INTERLEAVED,
        NameRule(f"{_OURS}experts.{{expert}}.gate_up.weight", f"{_MLP}.experts.gate_up_proj[{{expert}}]", TRANSPOSED),
        NameRule(f"{_OURS}experts.{{expert}}.down.weight", f"{_MLP}.experts.down_proj[{{expert}}]", TRANSPOSED),
        *experts.names(_MLP, router="router", shared="shared_expert"),
        NameRule(f"{_OURS}gate_up.weight", (f"{_MLP}.gate_proj.weight", f"{_MLP}.up_proj.weight"), PAIR),
        NameRule(f"{_OURS}down.weight", f"{_MLP}.down_proj.weight"),
        *gated.NAMES,
    ),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    synonyms={"num_experts": "num_local_experts"},
    defaults={
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "attention_chunk_size": 8192,
    },
)

register(LLAMA4)
