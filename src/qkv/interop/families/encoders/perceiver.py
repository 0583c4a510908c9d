"""Perceiver IO for text (Jaegle et al. 2022): latents read the input once, then attend to each other; queries read
them.

Norms before the branches have torch's default epsilon. Published norms of cross-attention inputs become the final norms
of front end and latents in qkv. If the queries have no residual connection, attention and feed-forward are two blocks,
of which only the second has a residual connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import pooled_head, problem_keys
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Latents, Model, Queries, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, NoNorm, NoResidual
from qkv.system.errors import UserError

MASKED_HEADS, MASKED_CHANNELS = 8, 256
"""(heads, total features) of the masked language model's queries, which configs do not contain."""


def _layer(theirs: str, attention: str, feed_forward: str, **options: Any) -> tuple[NameRule, ...]:
    """Return the name table of a layer.

    ``attention``, ``feed_forward``: paths of these parts in qkv; ``theirs``: prefix of the layer in files; ``options``:
    further fields of ``NameRule``.
    """
    inside = f"{theirs}.attention.self."
    rows = (
        NameRule(f"{attention}.norm.*", f"{inside}layernorm1.*"),
        NameRule(f"{attention}.body.query.*", f"{inside}query.*"),
        NameRule(f"{attention}.body.memory.*", (f"{inside}key.*", f"{inside}value.*"), PAIR),
        NameRule(f"{attention}.body.qkv.*", (f"{inside}query.*", f"{inside}key.*", f"{inside}value.*"), QKV),
        NameRule(f"{attention}.body.output.*", f"{theirs}.attention.output.dense.*"),
        NameRule(f"{feed_forward}.norm.*", f"{theirs}.layernorm.*"),
        NameRule(f"{feed_forward}.body.up.*", f"{theirs}.mlp.dense1.*"),
        NameRule(f"{feed_forward}.body.down.*", f"{theirs}.mlp.dense2.*"),
    )
    return tuple(row._replace(**options) for row in rows)


def _asks_alone(spec: Model) -> bool:
    """Return True if the latents' cross-attention to the input is a separate block, without a feed-forward."""
    return spec.latents is not None and len(spec.latents.layers[0].branches) == 1


_CROSS, _SELF, _SLOT = (
    "perceiver.encoder.cross_attention",
    "perceiver.encoder.self_attends.",
    "latents.blocks.{layer}.branches.",
)
NAMES = (
    NameRule("frontend.table", "perceiver.input_preprocessor.embeddings.weight"),
    NameRule("frontend.positions.table", "perceiver.input_preprocessor.position_embeddings.weight"),
    NameRule("frontend.norm.*", f"{_CROSS}.attention.self.layernorm2.*"),
    NameRule("latents.vectors.table", "perceiver.embeddings.latents"),
    *_layer(_CROSS, "latents.blocks.0.branches.0", "latents.blocks.1.branches.0", where=_asks_alone),
    *_layer(_SELF + "{layer-2}", _SLOT + "0", _SLOT + "1", where=_asks_alone),
    *_layer(_CROSS, "latents.blocks.0.branches.0", "latents.blocks.0.branches.1"),
    *_layer(_SELF + "{layer-1}", _SLOT + "0", _SLOT + "1"),
)


def _asking(theirs: str, feed_forward: str) -> tuple[NameRule, ...]:
    """Return the name table of the decoder, in which output queries attend to the latents."""
    layer = f"{theirs}.decoding_cross_attention"
    return (
        NameRule("queries.positions.table", f"{theirs}.output_position_encodings.position_embeddings"),
        NameRule("latents.norm.*", f"{layer}.attention.self.layernorm2.*"),
        *_layer(layer, "blocks.0.branches.0", feed_forward),
    )


class Channels(NamedTuple):
    """Numbers of features of an attention over all heads: of queries and keys, and of values."""

    keys: int
    values: int

    def heads(self, config: Config, count: int, **fields: Any) -> dict[str, Any]:
        """Return the attention fields for ``count`` heads, with dropout and ``fields``.

        Raises ``UserError`` if the features are not divisible by ``count``.
        """
        for name, size in (("queries and keys", self.keys), ("values", self.values)):
            if size % count:
                raise UserError(f"{config.source}: {size} features of {name} are not divisible by {count} heads")
        dropout = config.number("attention_probs_dropout_prob", 0.1)
        return {
            "num_heads": count,
            "head_dim": self.keys // count,
            "value_dim": self.values // count,
            "dropout": dropout,
            **fields,
        }


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Perceiver IO: d_model features of tokens, num_latents latents of d_latents features.

    There is one output query per position for masked tokens, and one per row for classes.
    """
    tokens, features = config.size("d_model", 768), config.size("d_latents", 1280)
    masked = isinstance(head, LanguageModelHead)
    norm = LayerNorm()
    return Model(
        width=tokens if masked else features,
        context_length=config.size("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size", 262), width=tokens, norm=norm),
        latents=_latents(config, tokens, features),
        queries=Queries(count=None if masked else 1),
        blocks=_masked_blocks(config, tokens) if masked else _pooled_blocks(config, features),
        norm=NoNorm(),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _latents(config: Config, tokens: int, features: int) -> Latents:
    """Build the spec of the latents.

    Cross-attention to the input is followed by self-attention layers, which are repeated num_blocks times with shared
    weights.
    """
    reads, layers = _latent_blocks(config, tokens, features)
    rounds = config.layers("num_blocks", 1)
    return Latents(
        count=config.size("num_latents", 256),
        width=features,
        blocks=(*reads, *layers),
        rounds=rounds,
        once=len(reads) if rounds > 1 else 0,
    )


def _latent_blocks(config: Config, tokens: int, features: int) -> tuple[Sequence[Block], Sequence[Block]]:
    """Return (blocks in which the latents read the input, self-attention blocks of the latents)."""
    sizes = {name: config.size(name) if config.has(name) else None for name in ("qk_channels", "v_channels")}
    shape = config.word("cross_attention_shape_for_attention", "kv", {"kv": tokens, "q": features})
    reading, inner = (
        Channels(keys, sizes["v_channels"] or keys)
        for keys in (sizes["qk_channels"] or shape, sizes["qk_channels"] or features)
    )
    if inner.values != features:
        sentence = (
            f"the values of the attention between latents have {inner.values} features, and latents have {features}"
        )
        raise UserError(f"{config.source}: v_channels: {sentence}, so its output cannot be added to them")
    cross = CrossAttention(**reading.heads(config, config.size("num_cross_attention_heads", 8)))
    attention = Attention(**inner.heads(config, config.size("num_self_attention_heads", 8), mask=Full()))
    reads = _blocks(
        config.flag("use_query_residual", True),
        cross,
        _feed_forward(config, features, "cross_attention_widening_factor"),
    )
    layer = Block(branches=(attention, _feed_forward(config, features, "self_attention_widening_factor")))
    return reads, [layer] * config.layers("num_self_attends_per_block", 26)


def _blocks(residual: bool, *branches: Branch) -> tuple[Block, ...]:
    """Build blocks from these branches: one block, or two if the first branch has no residual connection."""
    if residual:
        return (Block(branches=branches),)
    return (Block(branches=branches[:1], residual=NoResidual()), Block(branches=branches[1:]))


def _feed_forward(config: Config, width: int, factor: str = "") -> FeedForward:
    times = config.size(factor, 1) if factor else 1
    return FeedForward(hidden=times * width, activation=config.word("hidden_act", "gelu", INWARD))


def _masked_blocks(config: Config, width: int) -> tuple[Block, ...]:
    sizes = Channels(MASKED_CHANNELS, width).heads(config, MASKED_HEADS)
    return _blocks(False, CrossAttention(**sizes), _feed_forward(config, width))


def _pooled_blocks(config: Config, width: int) -> tuple[Block, ...]:
    return _blocks(True, CrossAttention(**Channels(width, width).heads(config, 1)), _feed_forward(config, width))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not the Perceiver's."""
    if spec.latents is None or not isinstance(spec.frontend, Text):
        return None
    alone, width = _asks_alone(spec), spec.latent_width
    match [branch for block in spec.latents.layers for branch in block.branches][:4]:
        case [CrossAttention() as cross, FeedForward() as first, Attention() as attention, FeedForward() as second]:
            pass
        case _:
            return None
    reading, inner = (Channels(*(part.num_heads * size for size in part.dims(width))) for part in (cross, attention))
    return {
        "d_model": spec.frontend_width(spec.width),
        "d_latents": width,
        "num_latents": spec.latents.count,
        "num_blocks": spec.latents.rounds,
        "num_self_attends_per_block": len(spec.latents.layers) - (2 if alone else 1),
        "num_cross_attention_heads": cross.num_heads,
        "num_self_attention_heads": attention.num_heads,
        # omitted if the two attentions differ: each then has the width of its input
        **({"qk_channels": inner.keys} if reading.keys == inner.keys else {}),
        **({"v_channels": inner.values} if reading.values == inner.values else {}),
        "cross_attention_shape_for_attention": "kv",
        "cross_attention_widening_factor": first.hidden_at(width) // width,
        "self_attention_widening_factor": second.hidden_at(width) // width,
        "hidden_act": OUTWARD.get(first.activation, ""),
        "use_query_residual": not alone,
        "vocab_size": spec.frontend.vocab_size,
        "max_position_embeddings": spec.context_length,
        "attention_probs_dropout_prob": attention.dropout,
        "initializer_range": spec.init_std,
    }


def _masked_keys(head: Head) -> dict[str, Any] | None:
    return {} if head == _MASKED else None


def _pooled_keys(head: Head) -> dict[str, Any] | None:
    return problem_keys(head) if isinstance(head, ClassificationHead | RegressionHead) else None


_MASKED = LanguageModelHead(bias=True)
_MASKED_ROWS = (
    *_asking("perceiver.decoder", "blocks.1.branches.0"),
    NameRule("head.weight", "perceiver.input_preprocessor.embeddings.weight"),
    NameRule("head.bias", "embedding_decoder.bias"),
)
_POOLED_ROWS = (
    *_asking("perceiver.decoder.decoder", "blocks.0.branches.1"),
    NameRule("head.output.*", "perceiver.decoder.decoder.final_layer.*"),
)
_OF_OTHERS = (
    "image_size",
    "train_size",
    "num_frames",
    "audio_samples_per_frame",
    "samples_per_patch",
    "output_shape",
    "output_num_channels",
)

PERCEIVER = Family(
    name="Perceiver",
    model_types=("perceiver",),
    architectures={
        "PerceiverForMaskedLM": Architecture(lambda config: _MASKED, _masked_keys, _MASKED_ROWS),
        "PerceiverForSequenceClassification": Architecture(
            lambda config: pooled_head(config, pooling="first"), _pooled_keys, _POOLED_ROWS
        ),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="perceiver.",
    ignored_config={
        **dict.fromkeys((*_OF_OTHERS, "_label_trainable_num_channels"), "for images, sound and video"),
        "layer_norm_eps": "unused: the norms have their own epsilon",
        "tie_word_embeddings": "the head is always the token table",
        "tokenizer_class": "given by the tokenizer",
    },
)

register(PERCEIVER)
