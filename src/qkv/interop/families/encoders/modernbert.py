"""ModernBERT (Warner et al. 2024): bidirectional pre-norm blocks with RoPE and gated feed-forward, most with a window.

Embeddings are normalised, so the first block has no attention norm. In training, transformers also applies dropout to
the output of attention if ``attention_dropout`` is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.interop.families.common import gated, heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.rope import rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead, SpanHead, TokenHead
from qkv.spec.masks import Full, Mask, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoNorm, NoPositions, Rope
from qkv.system.errors import UserError, nearest

FULL, SLIDING = "full_attention", "sliding_attention"
BASES = {FULL: 160000.0, SLIDING: 10000.0}

NAMES = (
    NameRule("frontend.table", "model.embeddings.tok_embeddings.weight"),
    NameRule("frontend.norm.*", "model.embeddings.norm.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", "model.layers.{layer}.attn_norm.*"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", "model.layers.{layer}.attn.Wqkv.*"),
    NameRule("blocks.{layer}.branches.0.body.output.*", "model.layers.{layer}.attn.Wo.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "model.layers.{layer}.mlp_norm.*"),
    NameRule("blocks.{layer}.branches.1.body.gate_up.*", "model.layers.{layer}.mlp.Wi.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", "model.layers.{layer}.mlp.Wo.*"),
    NameRule("norm.*", "model.final_norm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of ModernBERT: D = hidden_size.

    ``layer_types`` selects the blocks with a window of ``local_attention`` // 2 positions to each side.
    """
    return stack_of(config, head, {FULL: Full(), SLIDING: Window(size=reach_of(config, 0) + 1)})


def reach_of(config: Config, least: int) -> int:
    """Return half of ``local_attention``, without remainder. Raises ``UserError`` if it is less than ``least``."""
    reach = config.integer("local_attention", 128) // 2
    if reach < least:
        raise UserError(
            f"{config.source}: local_attention is {config.integer('local_attention')}, but it should be at least "
            f"{2 * least}"
        )
    return reach


def stack_of(config: Config, head: Head, masks: Mapping[str, Mask]) -> Model:
    """Build the spec of a model with ModernBERT's blocks. ``masks``: mask of each kind of layer."""
    width, norm = config.size("hidden_size", 768), _norm(config)
    kinds, ropes = _kinds(config), _ropes(config)
    attention = Attention(
        num_heads=config.size("num_attention_heads", 12),
        bias=config.flag("attention_bias", False),
        dropout=config.number("attention_dropout", 0.0),
    )
    feed_forward = GatedFeedForward(
        hidden=config.size("intermediate_size", 1152),
        activation=config.word("hidden_activation", "gelu", INWARD),
        bias=config.flag("mlp_bias", False),
        dropout=config.number("mlp_dropout", 0.0),
    )
    branches = [(attention.changed(mask=masks[kind], relative=ropes[kind]), feed_forward) for kind in kinds]
    first, *rest = branches
    return Model(
        width=width,
        num_layers=len(kinds),
        context_length=config.integer("max_position_embeddings", 8192),
        frontend=Text(
            vocab_size=config.size("vocab_size", 50368),
            positions=NoPositions(),
            norm=norm,
            dropout=config.number("embedding_dropout", 0.0),
        ),
        blocks=(Block(branches=first, norms=(NoNorm(), norm)), *(Block(branches=each, norm=norm) for each in rest)),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(eps=config.number("norm_eps", 1e-5), bias=config.flag("norm_bias", False))


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer, full attention or sliding window.

    By default, the first layer and every ``global_attn_every_n_layers``-th layer after it have full attention.
    """
    layers, every, kinds = (
        config.layers("num_hidden_layers", 22),
        config.integer("global_attn_every_n_layers", 3),
        config.items("layer_types"),
    )
    if every < 1:
        raise UserError(f"{config.source}: global_attn_every_n_layers is {every}, but it should be at least 1")
    if not kinds:
        return [SLIDING if i % every else FULL for i in range(layers)]
    if len(kinds) != layers:
        raise UserError(f"{config.source}: layer_types names {len(kinds)} layers, but num_hidden_layers is {layers}")
    unknown = next((str(kind) for kind in kinds if kind not in (FULL, SLIDING)), None)
    if unknown is not None:
        raise UserError(f"{config.source}: layer_types holds {unknown!r}; {nearest(unknown, (FULL, SLIDING))}")
    return kinds


def _ropes(config: Config) -> dict[str, Rope]:
    """Return the RoPE of full-attention and of sliding-window layers.

    The config has a table for each, or the keys of the first release.
    """
    tables, length = config.table("rope_parameters"), config.integer("max_position_embeddings", 8192)
    config.fixed("rope_scaling", None, "the frequencies of both kinds of layers; set rope_parameters")
    older = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
    ropes = {}
    for kind, key in older.items():
        settings = {
            "rope_parameters": tables.table(kind).values,
            "rope_theta": config.number(key, BASES[kind]),
            "max_position_embeddings": length,
        }
        ropes[kind] = rope_of(Config(settings, f"{config.source}: {kind}"))
    tables.finish(())
    return ropes


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ModernBERT's. Callers read them back to
    verify.
    """
    attentions = [block.branches[0] for block in spec.layers if isinstance(block.branches[0], Attention)]
    ropes = _ropes_config(attentions)
    windows = [window for attention in attentions if (window := _window(attention)) is not None]
    if not attentions or len(attentions) != len(spec.layers) or ropes is None:
        return None
    match (spec.layers[0].branches[-1], spec.norm, spec.frontend):
        case (GatedFeedForward() as feed_forward, LayerNorm() as norm, Text() as frontend):
            pass
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(attentions),
        "layer_types": [_kind(attention) for attention in attentions],
        "local_attention": 2 * windows[0] if windows else 128,
        "num_attention_heads": attentions[0].num_heads,
        "attention_bias": attentions[0].bias,
        "attention_dropout": attentions[0].dropout,
        "intermediate_size": feed_forward.hidden_at(spec.width),
        "hidden_activation": OUTWARD[feed_forward.activation],
        "mlp_bias": feed_forward.bias,
        "mlp_dropout": feed_forward.dropout,
        "norm_eps": norm.eps,
        "norm_bias": norm.bias,
        "rope_parameters": ropes,
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "embedding_dropout": frontend.dropout,
        "initializer_range": spec.init_std,
        "pad_token_id": None,  # the library's default ids exceed a small vocabulary
    }


def _window(attention: Attention) -> int | None:
    """Return half of ``local_attention`` of an attention with a window, None if it has no window.

    It is the number of positions seen to each side, or with a causal window of those seen in all.
    """
    match attention.mask:
        case Window(size=size):
            return size - 1
        case _:
            return gated.window_of(attention)


def _kind(attention: Attention) -> str:
    return FULL if _window(attention) is None else SLIDING


def _ropes_config(attentions: Sequence[Attention]) -> Mapping[str, Any] | None:
    """Return the RoPE tables of full-attention and of sliding-window layers; None if configs cannot express them."""
    ropes = {kind: Rope(base=base) for kind, base in BASES.items()}
    ropes |= {_kind(attention): attention.relative for attention in attentions if isinstance(attention.relative, Rope)}
    table = {}
    for kind, rope in ropes.items():
        keys = rope_config(rope)
        if keys is None:
            return None
        scaling = keys.pop("rope_scaling", {"rope_type": "default"})
        table[kind] = {**keys, **scaling}
    return table


def _hidden(config: Config) -> dict[str, Any]:
    """Return the fields of the layer norm(φ(x W_h + b_h)), which precedes the output layer in every ModernBERT head."""
    activation = config.word("classifier_activation", "gelu", INWARD)
    return {
        "hidden": config.size("hidden_size", 768),
        "activation": activation,
        "norm": _norm(config),
        "hidden_bias": config.flag("classifier_bias", False),
        "dropout": config.number("classifier_dropout", 0.0),
    }


def _hidden_keys(head: ClassificationHead | RegressionHead | TokenHead | SpanHead) -> dict[str, Any]:
    return {
        "classifier_activation": OUTWARD[head.activation],
        "classifier_bias": head.hidden_bias,
        "classifier_dropout": head.dropout,
    }


def word_head(config: Config) -> Head:
    """Build the head of masked or next words from a config."""
    return LanguageModelHead(
        tied=config.flag("tie_word_embeddings", True),
        bias=config.flag("decoder_bias", True),
        transform=config.word("classifier_activation", "gelu", INWARD),
        transform_bias=config.flag("classifier_bias", False),
        norm=_norm(config),
    )


def word_keys(head: Head) -> dict[str, Any] | None:
    """Return the config keys of a head of words, the inverse of ``word_head``."""
    if not isinstance(head, LanguageModelHead) or head.transform is None:
        return None
    keys = {"classifier_activation": OUTWARD[head.transform], "classifier_bias": head.transform_bias}
    return {**keys, "tie_word_embeddings": head.tied, "decoder_bias": head.bias}


def _classes(config: Config) -> Head:
    pooling = config.word("classifier_pooling", "cls", {"cls": "first", "mean": "mean"})
    return heads.pooled_head(config, pooling=pooling, **_hidden(config))


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead):
        return None
    pooling = "cls" if head.pooling == "first" else head.pooling
    return {**heads.problem_keys(head), **_hidden_keys(head), "classifier_pooling": pooling}


def _tags(config: Config) -> Head:
    return TokenHead(num_classes=heads.label_count(config), **_hidden(config))


def _tags_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, TokenHead) or head.num_classes is None:
        return None
    return {**heads.label_keys(head.num_classes), **_hidden_keys(head)}


def _spans(config: Config) -> Head:
    return heads.span_head(config, **_hidden(config))


def _spans_keys(head: Head) -> dict[str, Any] | None:
    return _hidden_keys(head) if isinstance(head, SpanHead) else None


_ANSWER = (
    NameRule("head.hidden.*", "head.dense.*"),
    NameRule("head.norm.*", "head.norm.*"),
    NameRule("head.output.*", "classifier.*"),
)
_WORDS = (
    NameRule("head.transform.dense.*", "head.dense.*"),
    NameRule("head.transform.norm.*", "head.norm.*"),
    NameRule("head.weight", "decoder.weight"),
    NameRule("head.bias", "decoder.bias"),
)
IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(
        ("classifier_activation", "classifier_bias", "classifier_dropout", "classifier_pooling", "decoder_bias"),
        "part of a head that this architecture lacks",
    ),
    "tie_word_embeddings": "part of a head that this architecture lacks",
    **dict.fromkeys(("sparse_prediction", "sparse_pred_ignore_index"), "read only when targets are given"),
    "initializer_cutoff_factor": "training setting",
    **dict.fromkeys(("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"), "execution setting"),
    **dict.fromkeys(("layer_norm_eps", "position_embedding_type"), "from the original checkpoint; unused"),
}

MODERNBERT = Family(
    name="ModernBERT",
    model_types=("modernbert",),
    architectures={
        "ModernBertForMaskedLM": Architecture(word_head, word_keys, _WORDS),
        "ModernBertModel": heads.body("model.embeddings.tok_embeddings.weight"),
        "ModernBertForSequenceClassification": Architecture(_classes, _classes_keys, _ANSWER),
        "ModernBertForTokenClassification": Architecture(_tags, _tags_keys, _ANSWER),
        "ModernBertForQuestionAnswering": Architecture(_spans, _spans_keys, _ANSWER),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config=IGNORED_CONFIG,
)

register(MODERNBERT)
