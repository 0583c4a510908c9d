"""XLNet (Yang et al. 2019): post-norm blocks with relative attention by distance and token type; no absolute positions.

The model is the content stream with full attention. In training by permutation, the query stream is appended to the
sequence (``qkv.tasks.text.permutation``), and its inputs are the front end's ``query``. Heads that pool the last
position use the last non-padding position; transformers pads on the left. In training, transformers also applies
dropout to the sinusoids of distances and to the head's input.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import BY_HEAD, ONE_BY_HEAD, QKV_BY_HEAD
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead, TokenHead
from qkv.spec.masks import Full
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoNorm, NoPositions

_OURS, _THEIRS = "blocks.{layer}.branches.0.body.", "transformer.layer.{layer}.rel_attn."
NAMES = (
    NameRule("frontend.table", "transformer.word_embedding.weight"),
    NameRule("frontend.query", "transformer.mask_emb"),
    NameRule(f"{_OURS}qkv.weight", tuple(f"{_THEIRS}{part}" for part in "qkv"), QKV_BY_HEAD),
    NameRule(f"{_OURS}position.weight", f"{_THEIRS}r", ONE_BY_HEAD),
    NameRule(f"{_OURS}output.weight", f"{_THEIRS}o", BY_HEAD),
    NameRule(f"{_OURS}content_bias", f"{_THEIRS}r_w_bias", BY_HEAD),
    NameRule(f"{_OURS}position_bias", f"{_THEIRS}r_r_bias", BY_HEAD),
    NameRule(f"{_OURS}types.bias", f"{_THEIRS}r_s_bias", BY_HEAD),
    NameRule(f"{_OURS}types.vectors", f"{_THEIRS}seg_embed", BY_HEAD),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_THEIRS}layer_norm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", "transformer.layer.{layer}.ff.layer_1.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", "transformer.layer.{layer}.ff.layer_2.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "transformer.layer.{layer}.ff.layer_norm.*"),
)
FIXED = (
    ("attn_type", "bi", "the attention mask"),
    ("bi_data", False, "the order of tokens in half of a batch"),
    ("untie_r", True, "sharing of biases between layers"),
)
LENGTH = "context_length"
"""Config key that only qkv writes, because the published model has no maximum length."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of XLNet: D = d_model, n_layer blocks, n_head heads of d_head features, d_inner hidden ones."""
    for key, only, meaning in FIXED:
        config.fixed(key, only, meaning)
    width, num_heads, dropout = config.size("d_model", 1024), config.size("n_head", 16), config.number("dropout", 0.1)
    clamp = config.integer("clamp_len", -1)
    attention = RelativeAttention(
        num_heads=num_heads,
        head_dim=config.size("d_head", max(width // num_heads, 1)),
        mask=Full(),
        max_distance=clamp if clamp > 0 else None,
        by_type=True,
        dropout=dropout,
    )
    feed_forward = FeedForward(
        hidden=config.size("d_inner", 4096), activation=config.word("ff_activation", "gelu", INWARD), dropout=dropout
    )
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
    return Model(
        width=width,
        num_layers=config.layers("n_layer", 24),
        context_length=config.integer(LENGTH, 512),
        frontend=Text(
            vocab_size=config.size("vocab_size", 32000), positions=NoPositions(), query=True, dropout=dropout
        ),
        blocks=(Block(branches=(attention, feed_forward), order="post", norm=norm, dropout=dropout),),
        norm=NoNorm(),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not XLNet's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(
            branches=(RelativeAttention() as attention, FeedForward() as feed_forward), norm=LayerNorm() as norm
        ) as block, Text():
            pass
        case _:
            return None
    return {
        "d_model": spec.width,
        "n_layer": len(spec.layers),
        "n_head": attention.num_heads,
        "d_head": attention.dims(spec.width)[0],
        "d_inner": feed_forward.hidden_at(spec.width),
        "clamp_len": attention.max_distance or -1,
        LENGTH: spec.context_length,
        "vocab_size": spec.vocab_size,
        "ff_activation": OUTWARD[feed_forward.activation],
        "layer_norm_eps": norm.eps,
        "dropout": block.dropout,
        "initializer_range": spec.init_std,
    }


def _words(config: Config) -> Head:
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", True), bias=True)


def _words_keys(head: Head) -> dict[str, Any] | None:
    return {"tie_word_embeddings": head.tied} if isinstance(head, LanguageModelHead) and head.bias else None


def _classes(config: Config) -> Head:
    """Build the classification head W dropout(φ(W_h x + b_h)) + b, with x of one position, or the mean."""
    config.fixed("summary_use_proj", True, "layers of the head")
    config.fixed("summary_proj_to_labels", False, "the width of a layer of the head")
    none = "summary_activation" in config.nulls
    return heads.pooled_head(
        config,
        pooling=config.word("summary_type", "last", {"last": "last", "first": "first", "mean": "mean"}),
        hidden=config.size("d_model", 1024),
        activation="identity" if none else config.word("summary_activation", "tanh", INWARD),
        dropout=config.number("summary_last_dropout", 0.1),
    )


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead):
        return None
    summary = {
        "summary_type": head.pooling,
        "summary_activation": OUTWARD[head.activation],
        "summary_last_dropout": head.dropout,
    }
    return {**heads.problem_keys(head), **summary}


def _tags(config: Config) -> Head:
    return TokenHead(num_classes=heads.label_count(config))


def _tags_keys(head: Head) -> dict[str, Any] | None:
    return heads.label_keys(head.num_classes) if isinstance(head, TokenHead) and head.num_classes else None


_SUMMARY = ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "summary_proj_to_labels")

XLNET = Family(
    name="XLNet",
    model_types=("xlnet",),
    architectures={
        "XLNetLMHeadModel": Architecture(
            _words, _words_keys, (NameRule("head.weight", "lm_loss.weight"), NameRule("head.bias", "lm_loss.bias"))
        ),
        "XLNetModel": heads.body(
            "transformer.word_embedding.weight", ignored={"lm_loss.*": "part of a head that this architecture lacks"}
        ),
        "XLNetForSequenceClassification": Architecture(
            _classes,
            _classes_keys,
            (NameRule("head.hidden.*", "sequence_summary.summary.*"), NameRule("head.output.*", "logits_proj.*")),
        ),
        "XLNetForTokenClassification": Architecture(_tags, _tags_keys, (NameRule("head.output.*", "classifier.*"),)),
        "XLNetForQuestionAnsweringSimple": heads.answering("qa_outputs"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    synonyms={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored_config={
        **dict.fromkeys(_SUMMARY, "part of a head that this architecture lacks"),
        **dict.fromkeys(
            ("tie_word_embeddings", "start_n_top", "end_n_top"), "part of a head that this architecture lacks"
        ),
        **dict.fromkeys(
            ("mem_len", "reuse_len", "use_mems_eval", "use_mems_train"),
            "memory of earlier segments, which qkv does not use",
        ),
        "same_length": "causal attention setting",
        "summary_first_dropout": "training setting of the classification head",
    },
)

register(XLNET)
