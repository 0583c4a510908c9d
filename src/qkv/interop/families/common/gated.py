"""Common parts of Llama-like families: pre-norm, RMSNorm, rotary attention, gated feed-forward, few biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.rope import rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV, interleaved_rope
from qkv.interop.mapping.names import NameRule
from qkv.spec.branches import Attention, Branch, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import AllOf, Causal, Mask, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import LayerNorm, NoPositions, NoRelative, Norm, RMSNorm, Rope
from qkv.system.errors import UserError

SLIDING, FULL = "sliding_attention", "full_attention"
_ATTENTION, _FEED_FORWARD = "model.layers.{layer}.self_attn.", "model.layers.{layer}.mlp."

NAMES = (
    NameRule("frontend.table", "model.embed_tokens.weight"),
    NameRule("blocks.{layer}.branches.0.norm.*", "model.layers.{layer}.input_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        (_ATTENTION + "q_proj.*", _ATTENTION + "k_proj.*", _ATTENTION + "v_proj.*"),
        QKV,
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", _ATTENTION + "o_proj.*"),
    NameRule("blocks.{layer}.branches.0.body.query_norm.weight", _ATTENTION + "q_norm.weight"),
    NameRule("blocks.{layer}.branches.0.body.key_norm.weight", _ATTENTION + "k_norm.weight"),
    NameRule("blocks.{layer}.branches.0.body.query_norm.norm.weight", _ATTENTION + "q_norm.weight"),
    NameRule("blocks.{layer}.branches.0.body.key_norm.norm.weight", _ATTENTION + "k_norm.weight"),
    NameRule("blocks.{layer}.branches.1.norm.*", "model.layers.{layer}.post_attention_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.1.body.gate_up.*", (_FEED_FORWARD + "gate_proj.*", _FEED_FORWARD + "up_proj.*"), PAIR
    ),
    NameRule("blocks.{layer}.branches.1.body.up.*", _FEED_FORWARD + "up_proj.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", _FEED_FORWARD + "down_proj.*"),
    NameRule("norm.*", "model.norm.*"),
)
INTERLEAVED = NameRule(
    "blocks.{layer}.branches.0.body.qkv.*",
    (_ATTENTION + "q_proj.*", _ATTENTION + "k_proj.*", _ATTENTION + "v_proj.*"),
    lambda spec: interleaved_rope(_rotated(spec)),
)
"""Row of a name table for queries and keys whose RoPE pairs are adjacent features; it precedes ``NAMES``."""
GATE_UP = NameRule("blocks.{layer}.branches.1.body.gate_up.*", _FEED_FORWARD + "gate_up_proj.*")
"""Row of a name table for gate and up in one tensor; it precedes ``NAMES``."""
OUTPUT_NORMS = (
    NameRule("blocks.{layer}.branches.0.norm.*", "model.layers.{layer}.post_attention_layernorm.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "model.layers.{layer}.post_feedforward_layernorm.*"),
)
"""Rows of a name table for norms of the branches' outputs (order ``res_post``); they precede ``NAMES``."""
IGNORED = {"model.layers.{layer}.self_attn.rotary_emb.inv_freq": "computed from the config"}


def _rotated(spec: Model) -> int | None:
    """Return the number of features of a head that RoPE rotates in the first block; None without RoPE."""
    match spec.layers[0].branches[0]:
        case Attention(relative=Rope() as rope) as attention:
            return rope.rotated(attention.dims(spec.width)[0])
        case _:
            return None


def attention_of(config: Config, **chosen: Any) -> Attention:
    """Build the attention spec of a config: heads, widths, dropout, RoPE. ``chosen``: fields that the family sets."""
    heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim") if config.has("head_dim") else None
    dropout = config.number("attention_dropout", 0.0)
    fields = {"bias": False, "head_dim": head_dim, "num_kv_heads": config.size("num_key_value_heads", heads), **chosen}
    return Attention(
        num_heads=heads, dropout=dropout, **{"relative": chosen.get("relative") or rope_of(config), **fields}
    )


def model_of(
    config: Config,
    head: Head,
    attentions: Sequence[Branch],
    mlp_bias: bool = False,
    norm: Norm | None = None,
    part: type[FeedForward] | type[GatedFeedForward] = GatedFeedForward,
    hidden: str = "intermediate_size",
) -> Model:
    """Build the spec of a Llama-like model from a config.

    ``attentions``: mixer of each layer; ``norm``: default ``norm_of(config)``; ``part``: class of the feed-forward;
    ``hidden``: config key of its number of hidden features.
    """
    norm = norm or norm_of(config)
    activation = config.word("hidden_act", "silu", INWARD)
    feed_forward = part(hidden=config.size(hidden), activation=activation, bias=mlp_bias)
    return Model(
        width=config.size("hidden_size"),
        num_layers=len(attentions),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=shortest_pattern([Block(branches=(attention, feed_forward), norm=norm) for attention in attentions]),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def norm_of(config: Config) -> RMSNorm:
    """Build the RMSNorm spec of a config, used for all norms of the model."""
    return RMSNorm(eps=config.number("rms_norm_eps", 1e-6))


def windowed(size: int) -> Mask:
    """Build a causal sliding-window mask: a position sees itself and the ``size`` - 1 positions before it."""
    return Causal() & Window(size=size)


def masks_of(config: Config) -> list[Mask]:
    """Return the attention mask of each layer, for configs in which only some layers have a sliding window.

    ``layer_types`` lists the kind of each layer. Without that key, all layers from index ``max_window_layers`` on have
    a window if ``use_sliding_window`` is true.
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
    """Return the config keys of each layer's sliding window, the inverse of ``masks_of``."""
    sizes = [window_of(block.branches[0]) for block in spec.layers]
    windows = {size for size in sizes if size}
    kinds = ["sliding_attention" if size else "full_attention" for size in sizes]
    return {
        "use_sliding_window": bool(windows),
        "sliding_window": max(windows, default=None),
        "max_window_layers": next((i for i, size in enumerate(sizes) if size), len(sizes)),
        "layer_types": kinds,
    }


def window_of(branch: Branch) -> int | None:
    """Return the size of the sliding window of a branch; None if it is not causal attention with a window."""
    match branch:
        case Attention(mask=AllOf(masks=(Causal(), Window(size=size, sinks=0)))):
            return size
        case _:
            return None


def kinds_of(config: Config, kind: Callable[[int], str]) -> list[str]:
    """Return the kind of each layer from ``layer_types``: sliding window or full attention.

    ``kind``: function from a layer's index to its default kind. Raises ``UserError`` for other kinds, or another number
    of layers.
    """
    layers, kinds = config.layers("num_hidden_layers"), config.items("layer_types")
    kinds = kinds or [kind(i) for i in range(layers)]
    config.has("sliding_window")
    if len(kinds) != layers or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise UserError(
            f"{config.source}: layer_types is {kinds}, but it should name {FULL} or {SLIDING} for {layers} layers"
        )
    return kinds


def mask_of(config: Config, kind: str) -> Mask:
    """Return the attention mask of a layer of the given kind."""
    return windowed(config.integer("sliding_window")) if kind == SLIDING else Causal()


def with_blocks(model: Model, **fields: Any) -> Model:
    """Return the model with these values of fields in all its blocks."""
    return model.changed(blocks=tuple(block.changed(**fields) for block in model.blocks))


def with_rope(spec: Model) -> tuple[Model, list[bool]]:
    """Return (the model with RoPE in every layer, list of which layers had RoPE before).

    For conversion to configs of models in which some layers have no positions. Layers with heads that RoPE cannot
    rotate, such as those of an odd number of features, stay without.
    """
    turned = [_turns(block.branches[0]) for block in spec.layers]
    ropes = [block for block, one in zip(spec.layers, turned, strict=True) if one]
    relative = ropes[0].branches[0].relative if ropes else Rope()  # type: ignore[attr-defined]
    widths = spec.widths(spec.width)
    blocks = tuple(_with_relative(block, relative, width) for block, width in zip(spec.layers, widths, strict=True))
    return spec.changed(blocks=blocks), turned


def _turns(branch: Branch) -> bool:
    return isinstance(branch, Attention) and not isinstance(branch.relative, NoRelative)


def _with_relative(block: Block, relative: Rope, width: int) -> Block:
    match block.branches:
        case (Attention(relative=NoRelative()) as attention, *rest) if not relative.head_problems(
            attention.dims(width)[0]
        ):
            return block.changed(branches=(attention.changed(relative=relative), *rest))
        case _:
            return block


def rope_keys(spec: Model, partial: bool = False) -> dict[str, Any] | None:
    """Return the config keys of the first layer's RoPE; None if it has none, or if configs cannot express it.

    ``partial``: as in ``rope_config``.
    """
    match spec.layers[:1]:
        case (Block(branches=(Attention(relative=Rope() as rope), *_)),):
            return rope_config(rope, partial)
        case _:
            return None


LayerKeys = Callable[[Attention, GatedFeedForward | FeedForward], dict[str, Any]]
"""Function from the branches of a layer to further config keys."""


def config_of(
    spec: Model, more: LayerKeys = lambda attention, feed_forward: {}, rope: bool = True
) -> dict[str, Any] | None:
    """Return the config.json keys of ``spec`` that all Llama-like families have, and those that ``more`` returns.

    None if a layer has another structure, or if layers differ in a key. ``rope`` False: layers may differ in RoPE,
    whose keys the family adds.
    """
    frontend, layers = spec.frontend, [_layer_keys(block, spec.width, more, rope) for block in spec.layers]
    shared = next(iter(layers), None)
    if shared is None or any(keys != shared for keys in layers) or not isinstance(frontend, Text):
        return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(layers),
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "initializer_range": spec.init_std,
        **shared,
    }


def _layer_keys(block: Block, width: int, more: LayerKeys, rope: bool) -> dict[str, Any] | None:
    """Return the config keys of one layer; None if it has another structure."""
    match block:
        case Block(
            branches=(
                Attention(relative=Rope() as relative) as attention,
                (GatedFeedForward() | FeedForward()) as feed_forward,
            ),
            norm=(RMSNorm() | LayerNorm()) as norm,
        ):
            turned, eps = rope_config(relative) if rope else {}, f"{norm.kind}_eps"
        case _:
            return None
    if turned is None:
        return None
    return {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.dims(width)[0],
        "intermediate_size": feed_forward.hidden_at(width),
        "hidden_act": OUTWARD[feed_forward.activation],
        eps: norm.eps,
        "attention_dropout": attention.dropout,
        **turned,
        **more(attention, feed_forward),
    }
