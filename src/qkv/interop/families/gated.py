"""Common parts of Llama-like families: pre-norm blocks of rotary attention and gated feed-forward, RMSNorm, few
biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.activations import INWARD, OUTWARD
from qkv.interop.families.rope import rope_config, rope_of
from qkv.interop.families.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import NameRule
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import AllOf, Causal, Mask, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope

_ATTENTION, _FEED_FORWARD = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."

NAMES = (
    NameRule("frontend.table", "model.embed_tokens.weight"),
    NameRule("blocks.{i}.branches.0.norm.weight", "model.layers.{i}.input_layernorm.weight"),
    NameRule(
        "blocks.{i}.branches.0.body.qkv.*",
        (_ATTENTION + "q_proj.*", _ATTENTION + "k_proj.*", _ATTENTION + "v_proj.*"),
        QKV,
    ),
    NameRule("blocks.{i}.branches.0.body.output.*", _ATTENTION + "o_proj.*"),
    NameRule("blocks.{i}.branches.0.body.query_norm.weight", _ATTENTION + "q_norm.weight"),
    NameRule("blocks.{i}.branches.0.body.key_norm.weight", _ATTENTION + "k_norm.weight"),
    NameRule("blocks.{i}.branches.1.norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    NameRule(
        "blocks.{i}.branches.1.body.gate_up.*", (_FEED_FORWARD + "gate_proj.*", _FEED_FORWARD + "up_proj.*"), PAIR
    ),
    NameRule("blocks.{i}.branches.1.body.down.*", _FEED_FORWARD + "down_proj.*"),
    NameRule("norm.weight", "model.norm.weight"),
)
IGNORED = {"model.layers.{i}.self_attn.rotary_emb.inv_freq": "computed from the config"}


def attention_of(config: Config, **chosen: Any) -> Attention:
    """Attention spec from a config: heads, widths, dropout and RoPE; ``chosen``: fields in which families differ."""
    heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim") if config.has("head_dim") else None
    dropout = config.number("attention_dropout", 0.0)
    given = {"bias": False, "head_dim": head_dim, "num_kv_heads": config.size("num_key_value_heads", heads), **chosen}
    return Attention(num_heads=heads, relative=rope_of(config), dropout=dropout, **given)


def model_of(config: Config, head: Head, attention: Attention, masks: Sequence[Mask], mlp_bias: bool = False) -> Model:
    """Spec of a Llama-like model from a config; ``masks``: attention mask of each layer; all else in ``attention`` is
    the same in every layer.
    """
    norm = norm_of(config)
    activation = config.word("hidden_act", "silu", INWARD)
    feed_forward = GatedFeedForward(hidden=config.size("intermediate_size"), activation=activation, bias=mlp_bias)
    alike = len(set(map(str, masks))) == 1
    blocks = [
        Block(branches=(attention.changed(mask=mask), feed_forward), norm=norm)
        for mask in (masks[:1] if alike else masks)
    ]
    return Model(
        width=config.size("hidden_size"),
        num_layers=len(masks),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=tuple(blocks),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def norm_of(config: Config) -> RMSNorm:
    """RMSNorm spec from a config, used for all norms of the model."""
    return RMSNorm(eps=config.number("rms_norm_eps", 1e-6))


def windowed(size: int) -> Mask:
    """Causal sliding-window mask: a position sees itself and the ``size`` - 1 positions before it."""
    return Causal() & Window(size=size)


def masks_of(config: Config) -> list[Mask]:
    """Attention mask of each layer, for configs with a sliding window in some layers only.

    These are the layers that ``layer_types`` names; without that key all layers from number ``max_window_layers`` on.
    """
    layers, kinds = config.layers("num_hidden_layers"), config.items("layer_types")
    used, first = config.flag("use_sliding_window", False), config.integer("max_window_layers", 28)
    if not kinds:
        kinds = [
            "sliding_attention" if used and config.has("sliding_window") and i >= first else "full_attention"
            for i in range(layers)
        ]
    config.has("sliding_window")
    return [windowed(config.integer("sliding_window")) if kind == "sliding_attention" else Causal() for kind in kinds]


def masks_config(spec: Model) -> dict[str, Any]:
    """Config keys of each layer's sliding window, the inverse of ``masks_of``."""
    sizes = [window_of(block) for block in spec.layers]
    known = {size for size in sizes if size}
    kinds = ["sliding_attention" if size else "full_attention" for size in sizes]
    return {
        "use_sliding_window": bool(known),
        "sliding_window": max(known, default=None),
        "max_window_layers": next((i for i, size in enumerate(sizes) if size), len(sizes)),
        "layer_types": kinds,
    }


def window_of(block: Block) -> int | None:
    """Size of the sliding window of a block's attention; None if it is not causal attention with a window."""
    match block.branches[0]:
        case Attention(mask=AllOf(masks=(Causal(), Window(size=size, sinks=0)))):
            return size
        case _:
            return None


def config_of(spec: Model) -> dict[str, Any] | None:
    """Keys of config.json that all Llama-like families share, for ``spec``; None if it has another structure."""
    match shape_of(spec):
        case Block(
            branches=(Attention(relative=Rope() as rope) as attention, GatedFeedForward() as feed_forward),
            norm=RMSNorm() as norm,
        ), Text() as frontend:
            pass
        case _:
            return None
    turned = rope_config(rope)
    if turned is None:
        return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.dims(spec.width)[0],
        "intermediate_size": feed_forward.hidden_at(spec.width),
        "hidden_act": OUTWARD[feed_forward.activation],
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "rms_norm_eps": norm.eps,
        "attention_dropout": attention.dropout,
        "initializer_range": spec.init_std,
        **turned,
    }


def first_attention(spec: Model) -> Attention:
    """Attention spec of the first block of a spec that ``config_of`` accepts."""
    attention = spec.layers[0].branches[0]
    assert isinstance(attention, Attention)
    return attention


def feed_forward_bias(spec: Model) -> bool:
    """True if the first block's feed-forward has biases; ``spec`` is one that ``config_of`` accepts."""
    part = spec.layers[0].branches[1]
    assert isinstance(part, GatedFeedForward)
    return part.bias
