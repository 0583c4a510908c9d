"""Reformer (Kitaev et al. 2020): reversible blocks of local or LSH attention and feed-forward.

Positions are axial, with two axes, and the head reads both residual streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import language_model
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Broadcast
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import AllOf, Blocks, Causal, Full
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Axial, LayerNorm, Learned, Positions, Reversible
from qkv.system.errors import UserError, nearest

_LAYER = "reformer.encoder.layers.{layer}"
_PLACES = "reformer.embeddings.position_embeddings"
NAMES = (
    NameRule("frontend.table", "reformer.embeddings.word_embeddings.weight"),
    NameRule("frontend.positions.table", f"{_PLACES}.embedding.weight"),
    NameRule("frontend.positions.tables.0", f"{_PLACES}.weights.0", Broadcast(1)),
    NameRule("frontend.positions.tables.1", f"{_PLACES}.weights.1", Broadcast(0)),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}.attention.layer_norm.*"),
    NameRule("blocks.{layer}.branches.0.body.query_key.*", f"{_LAYER}.attention.self_attention.query_key.*"),
    NameRule("blocks.{layer}.branches.0.body.value.*", f"{_LAYER}.attention.self_attention.value.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        tuple(f"{_LAYER}.attention.self_attention.{part}.*" for part in ("query", "key", "value")),
        QKV,
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}.attention.output.dense.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}.feed_forward.layer_norm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}.feed_forward.dense.dense.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}.feed_forward.output.dense.*"),
    NameRule("norm.*", "reformer.encoder.layer_norm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of the Reformer: one layer per entry of ``attn_layers``.

    Without ``hash_seed``, the published code draws new LSH rotations in every call; here the seed is 0.
    """
    dropout, norm = config.number("hidden_dropout_prob", 0.05), LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
    feed_forward = FeedForward(
        hidden=config.size("feed_forward_size", 512),
        activation=config.word("hidden_act", "relu", INWARD),
        dropout=dropout,
    )
    config.fixed("tie_word_embeddings", False, "the head, which reads both streams and cannot be tied")
    length = config.integer("max_position_embeddings", 4096)
    return Model(
        width=config.size("hidden_size", 256),
        context_length=length,
        frontend=Text(vocab_size=config.size("vocab_size", 320), positions=_positions(config), dropout=dropout),
        blocks=tuple(
            Block(branches=(mixer, feed_forward), norm=norm, residual=Reversible(), dropout=dropout)
            for mixer in _mixers(config)
        ),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _positions(config: Config) -> Positions:
    shape, widths = (
        _numbers(config, key, default)
        for key, default in (("axial_pos_shape", (64, 64)), ("axial_pos_embds_dim", (64, 192)))
    )
    if not config.flag("axial_pos_embds", True):
        return Learned()
    if len(shape) != 2:
        raise UserError(f"{config.source}: axial_pos_shape is {list(shape)}, but it should have two axes")
    return Axial(shape=shape, widths=widths)


def _numbers(config: Config, key: str, default: Sequence[int]) -> tuple[int, ...]:
    values = config.items(key) if config.has(key) else list(default)
    wrong = [value for value in values if not isinstance(value, int) or isinstance(value, bool)]
    if wrong:
        raise UserError(f"{config.source}: {key} holds {wrong[0]!r}, but it should be a list of whole numbers")
    return tuple(values)


def _mixers(config: Config) -> list[Branch]:
    """Build the attention spec of each layer, local or LSH, from ``attn_layers``."""
    named = config.items("attn_layers") if config.has("attn_layers") else ["local", "lsh"] * 3
    kinds: dict[str, Branch] = {}
    for kind in named:
        if kind not in _KINDS:
            raise UserError(
                f"{config.source}: attn_layers holds {kind!r}, which qkv does not support; {nearest(str(kind), _KINDS)}"
            )
        kinds[kind] = kinds.get(kind) or _KINDS[kind](config)
    config.fixed("num_hidden_layers", len(named), "the number of layers, one per entry of attn_layers")
    return [kinds[kind] for kind in named]


def _local(config: Config) -> Attention:
    if not config.flag("is_decoder", False):
        sentence = (
            "in local layers of an encoder the first chunk attends to the last one, which no mask of qkv expresses"
        )
        raise UserError(f"{config.source}: attn_layers: {sentence}; use 'lsh' layers")
    config.fixed("local_num_chunks_after", 0, "visibility of later positions")
    chunks = Blocks(
        size=config.integer("local_attn_chunk_length", 64), back=config.integer("local_num_chunks_before", 1)
    )
    return Attention(
        mask=Causal() & chunks,
        num_heads=config.size("num_attention_heads", 12),
        head_dim=config.size("attention_head_size", 64),
        bias=False,
        dropout=config.number("local_attention_probs_dropout_prob", 0.05),
    )


def _hashed(config: Config) -> LSHAttention:
    causal = config.flag("is_decoder", False)
    if not config.has("num_buckets"):
        raise UserError(
            f"{config.source}: num_buckets is missing: the published code derives it from the length of the first "
            "text; set it to about 2 · length / lsh_attn_chunk_length, or factors of that"
        )
    buckets = config.values["num_buckets"]
    return LSHAttention(
        mask=Causal() if causal else Full(),
        num_heads=config.size("num_attention_heads", 12),
        head_dim=config.size("attention_head_size", 64),
        num_hashes=config.integer("num_hashes", 1),
        num_buckets=(config.integer("num_buckets"),)
        if isinstance(buckets, int)
        else _numbers(config, "num_buckets", ()),
        chunk_length=config.integer("lsh_attn_chunk_length", 64),
        chunks_before=config.integer("lsh_num_chunks_before", 1),
        chunks_after=config.integer("lsh_num_chunks_after", 0),
        seed=config.integer("hash_seed", 0),
        dropout=config.number("lsh_attention_probs_dropout_prob", 0.0),
        inexact_decoding=causal,  # published decoders were trained in this way
    )


_KINDS = {"local": _local, "lsh": _hashed}


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not the Reformer's."""
    match shape_of(spec):
        case Block(
            branches=(Attention() | LSHAttention(), FeedForward() as think), norm=LayerNorm() as norm
        ) as block, Text() as frontend:
            pass
        case _:
            return None
    mixers = [layer.branches[0] for layer in spec.layers]
    values: dict[str, Any] = {
        "attn_layers": ["lsh" if isinstance(mixer, LSHAttention) else "local" for mixer in mixers],
        "num_hidden_layers": len(mixers),
        "is_decoder": spec.causal,
        "hidden_size": spec.width,
        "feed_forward_size": think.hidden_at(spec.width),
        "hidden_act": OUTWARD[think.activation],
        "hidden_dropout_prob": block.dropout,
        "layer_norm_eps": norm.eps,
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "initializer_range": spec.init_std,
        "axial_pos_embds": isinstance(frontend.positions, Axial),
        "tie_word_embeddings": False,
    }
    if isinstance(frontend.positions, Axial):
        values |= {
            "axial_pos_shape": list(frontend.positions.shape),
            "axial_pos_embds_dim": list(frontend.positions.widths),
        }
    for mixer in mixers:
        values |= _keys(mixer, spec.width)
    return values


def _keys(mixer: Branch, width: int) -> dict[str, Any]:
    """Return the config keys of a layer's local or LSH attention; empty for other kinds."""
    match mixer:
        case Attention(mask=AllOf(masks=(Causal(), Blocks() as chunks))):
            return {
                "num_attention_heads": mixer.num_heads,
                "attention_head_size": mixer.dims(width)[0],
                "local_attn_chunk_length": chunks.size,
                "local_num_chunks_before": chunks.back,
                "local_attention_probs_dropout_prob": mixer.dropout,
            }
        case LSHAttention():
            return {
                "num_attention_heads": mixer.num_heads,
                "attention_head_size": mixer.head_width(width),
                "num_hashes": mixer.num_hashes,
                "num_buckets": mixer.num_buckets[0] if len(mixer.num_buckets) == 1 else list(mixer.num_buckets),
                "lsh_attn_chunk_length": mixer.chunk_length,
                "lsh_num_chunks_before": mixer.chunks_before,
                "lsh_num_chunks_after": mixer.chunks_after,
                "hash_seed": mixer.seed,
                "lsh_attention_probs_dropout_prob": mixer.dropout,
            }
        case _:
            return {}


def _head(decodes: bool) -> Architecture:
    """Build an architecture with the head logits = x W^T, where x is both residual streams.

    ``decodes``: required value of ``is_decoder``.
    """

    def read(config: Config) -> Head:
        if config.flag("is_decoder", False) != decodes:
            raise UserError(f"{config.source}: is_decoder is {not decodes}, but this architecture needs {decodes}")
        return LanguageModelHead(tied=False)

    plain = language_model(tied=False, theirs="lm_head.decoder.weight")
    return Architecture(
        read,
        lambda head: {} if head == LanguageModelHead(tied=False) else None,
        plain.names,
        kept={"lm_head.bias": "unused by the current published code; written back by an export"},
        typical={"is_decoder": decodes, "attn_layers": ["local" if decodes else "lsh", "lsh"] * 6},
    )


REFORMER = Family(
    name="Reformer",
    model_types=("reformer",),
    architectures={"ReformerModelWithLMHead": _head(decodes=True), "ReformerForMaskedLM": _head(decodes=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="reformer.",
    typical={"num_buckets": 64, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 32]},
    ignored_config={
        **dict.fromkeys(("axial_norm_std",), "initialisation"),
        **dict.fromkeys(("chunk_size_lm_head",), "execution setting"),
        **dict.fromkeys(("attention_head_size", "num_attention_heads"), "read per kind of layer"),
        **dict.fromkeys(
            (
                "local_num_chunks_before",
                "local_num_chunks_after",
                "local_attention_probs_dropout_prob",
                "local_attn_chunk_length",
                "lsh_attn_chunk_length",
                "lsh_attention_probs_dropout_prob",
                "lsh_num_chunks_before",
                "lsh_num_chunks_after",
                "num_buckets",
                "num_hashes",
                "hash_seed",
            ),
            "part of a kind of layer that the model lacks",
        ),
        "classifier_dropout": "part of a head that this architecture lacks",
    },
)

register(REFORMER)
