"""DeBERTa, v2 and v3 (He et al. 2021; 2023): BERT's blocks with disentangled attention and a shared table of distances.

The first version has one vector per distance and no key bias; later versions may have buckets, a norm of the table, and
content projections.

Two differences occur in training only: the published classification head also applies dropout to the first position's
vector (``pooler_dropout``, 0 in published models), and padding vectors are set to 0, which has no effect on other
positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED, QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.mixers.relative_attention import DisentangledAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Learned, NoNorm, NoPositions
from qkv.system.errors import UserError, nearest

_LAYER = "deberta.encoder.layer.{layer}."
_SELF = f"{_LAYER}attention.self."
COMMON = (
    NameRule("frontend.table", "deberta.embeddings.word_embeddings.weight"),
    NameRule("frontend.positions.table", "deberta.embeddings.position_embeddings.weight"),
    NameRule("frontend.types", "deberta.embeddings.token_type_embeddings.weight"),
    NameRule("frontend.norm.*", "deberta.embeddings.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.0.body.relative.table", "deberta.encoder.rel_embeddings.weight"),
    NameRule("blocks.{layer}.branches.0.body.relative.norm.*", "deberta.encoder.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}attention.output.dense.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}attention.output.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}intermediate.dense.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}output.dense.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}output.LayerNorm.*"),
)
NAMES = (
    *COMMON,
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        tuple(f"{_SELF}{part}_proj.*" for part in ("query", "key", "value")),
        QKV,
    ),
    NameRule("blocks.{layer}.branches.0.body.position_key.*", f"{_SELF}pos_key_proj.*"),
    NameRule("blocks.{layer}.branches.0.body.position_query.*", f"{_SELF}pos_query_proj.*"),
)
FIRST_NAMES = (
    *COMMON,
    NameRule("blocks.{layer}.branches.0.body.qkv.weight", f"{_SELF}in_proj.weight", INTERLEAVED),
    NameRule("blocks.{layer}.branches.0.body.query_bias", f"{_SELF}q_bias"),
    NameRule("blocks.{layer}.branches.0.body.value_bias", f"{_SELF}v_bias"),
    NameRule("blocks.{layer}.branches.0.body.position_key.*", f"{_SELF}pos_proj.*"),
    NameRule("blocks.{layer}.branches.0.body.position_query.*", f"{_SELF}pos_q_proj.*"),
)
IGNORED = {
    "deberta.embeddings.position_ids": "constant position ids 0, 1, 2, …",
    "deberta.embeddings.position_embeddings.weight": "position vectors, unused if position_biased_input is false",
    **dict.fromkeys(("cls.predictions.*", "lm_predictions.*", "mask_predictions.*"), "pretraining heads"),
}
OTHER_FORM = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
"""Tensor names of the masked language model head in files without ``legacy`` -> names in ``legacy`` files.

The computation is the same.
"""


class Sizes(NamedTuple):
    """Default sizes of a DeBERTa version, for missing config keys."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int


FIRST, SECOND = Sizes(768, 12, 12, 3072, 50265), Sizes(1536, 24, 24, 6144, 128100)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DeBERTa v2 and v3, with D = hidden_size."""
    attention = _relative(config) if config.flag("relative_attention", False) else _plain(config)
    return _model(config, head, SECOND, attention)


def first_spec(config: Config, head: Head) -> Model:
    """Build the spec of the first DeBERTa: like v2, always with relative attention, without the options of v2."""
    config.fixed("talking_head", False, "projections between heads (talking heads)")
    if not config.flag("relative_attention", False):
        raise UserError(
            f"{config.source}: relative_attention is false, but for the first DeBERTa qkv supports only true"
        )
    attention = DisentangledAttention(
        **_distances(config, FIRST),
        position_buckets=None,
        share_projections=False,
        key_bias=False,
    )
    return _model(config, head, FIRST, attention)


def _model(config: Config, head: Head, sizes: Sizes, attention: Branch) -> Model:
    width, dropout, norm = (
        config.size("hidden_size", sizes.width),
        config.number("hidden_dropout_prob", 0.1),
        _norm(config),
    )
    for key, only, meaning in _fixed(width, config.size("num_attention_heads", sizes.heads)):
        config.fixed(key, only, meaning)
    placed = config.flag("position_biased_input", True)
    hidden = config.size("intermediate_size", sizes.hidden)
    feed_forward = FeedForward(hidden=hidden, activation=config.word("hidden_act", "gelu", INWARD))
    return Model(
        width=width,
        num_layers=config.layers("num_hidden_layers", sizes.layers),
        context_length=_size(config, "max_position_embeddings", 512)
        if placed
        else config.integer("max_position_embeddings", 512),
        frontend=Text(
            vocab_size=config.size("vocab_size", sizes.vocab),
            positions=Learned() if placed else NoPositions(),
            types=_size(config, "type_vocab_size", 0),
            norm=norm,
            dropout=dropout,
        ),
        blocks=(Block(branches=(attention, feed_forward), order="post", norm=norm, dropout=dropout),),
        norm=NoNorm(),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _fixed(width: int, num_heads: int) -> tuple[tuple[str, Any, str], ...]:
    return (
        ("conv_kernel_size", 0, "a convolution beside the first layer"),
        ("embedding_size", width, "the width of the token vectors"),
        ("attention_head_size", width // num_heads, "the width of a head"),
    )


def _size(config: Config, key: str, default: int) -> int:
    """Return the number of rows of a table, from the config under ``key``; 0 if there is no table."""
    return config.size(key, default) if config.integer(key, default) > 0 else 0


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(eps=config.number("layer_norm_eps", 1e-7))


def _plain(config: Config) -> Branch:
    """Build attention without relative positions.

    DeBERTa scales scores by the number of their terms, which must be 1 here.
    """
    if _terms(config):
        terms = config.values["pos_att_type"]
        raise UserError(
            f"{config.source}: pos_att_type is {terms!r}, but relative_attention is false; "
            "qkv supports it only if that is true"
        )
    return Attention(num_heads=config.size("num_attention_heads", 24), mask=Full(), dropout=_attention_dropout(config))


def _relative(config: Config) -> Branch:
    return DisentangledAttention(
        **_distances(config, SECOND),
        position_buckets=_size(config, "position_buckets", 0) or None,
        share_projections=config.flag("share_att_key", False),
        table_norm=config.word("norm_rel_ebd", "none", {"none": NoNorm(), "layer_norm": _norm(config)}),
    )


def _distances(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Return the fields of disentangled attention that are common to all DeBERTa versions."""
    terms = _terms(config)
    if not terms:
        raise UserError(
            f"{config.source}: relative_attention is true, but pos_att_type lists no term of the scores; "
            "allowed: c2p, p2c, or both"
        )
    furthest = config.integer("max_relative_positions", -1)
    if furthest < 1:
        furthest = config.integer("max_position_embeddings", 512)
    return {
        "num_heads": config.size("num_attention_heads", sizes.heads),
        "max_distance": furthest,
        "content_to_position": "c2p" in terms,
        "position_to_content": "p2c" in terms,
        "table_dropout": config.number("hidden_dropout_prob", 0.1),
        "shared": True,
        "dropout": _attention_dropout(config),
    }


def _attention_dropout(config: Config) -> float:
    return config.number("attention_probs_dropout_prob", 0.1)


def _terms(config: Config) -> list[str]:
    """Return the score terms besides content-to-content ("c2p", "p2c").

    The config has them as a list or as a string separated by bars.
    """
    value = config.values.get("pos_att_type")
    terms = config.word("pos_att_type").lower().split("|") if isinstance(value, str) else config.items("pos_att_type")
    terms = [str(term).strip() for term in terms if term]
    unknown = next((term for term in terms if term not in ("c2p", "p2c")), None)
    if unknown is not None:
        raise UserError(f"{config.source}: pos_att_type holds {unknown!r}; {nearest(unknown, ('c2p', 'p2c'))}")
    return terms


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not DeBERTa's. Callers read them back to
    verify.
    """
    match shape_of(spec):
        case Block(
            branches=(DisentangledAttention() | Attention() as attention, FeedForward() as feed_forward),
            norm=LayerNorm() as norm,
        ) as block, Text() as frontend:
            pass
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.hidden_at(spec.width),
        "max_position_embeddings": spec.context_length,
        "position_biased_input": isinstance(frontend.positions, Learned),
        "type_vocab_size": frontend.types,
        "vocab_size": frontend.vocab_size,
        "hidden_act": OUTWARD[feed_forward.activation],
        "layer_norm_eps": norm.eps,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "initializer_range": spec.init_std,
        **(
            _relative_keys(attention) if isinstance(attention, DisentangledAttention) else {"relative_attention": False}
        ),
    }


def first_config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not the first DeBERTa's."""
    keys = config(spec)
    if keys is None or not keys["relative_attention"]:
        return None
    return {
        key: value for key, value in keys.items() if key not in ("position_buckets", "share_att_key", "norm_rel_ebd")
    }


def _relative_keys(attention: DisentangledAttention) -> dict[str, Any]:
    terms = {"c2p": attention.content_to_position, "p2c": attention.position_to_content}
    return {
        "relative_attention": True,
        "pos_att_type": [name for name, there in terms.items() if there],
        "position_buckets": attention.position_buckets or -1,
        "max_relative_positions": attention.max_distance,
        "share_att_key": attention.share_projections,
        "norm_rel_ebd": "layer_norm" if isinstance(attention.table_norm, LayerNorm) else "none",
    }


def _masked(config: Config) -> Head:
    """Build the masked language model head of a config.

    Unless ``legacy`` is set, its matrix is always the token table.
    """
    tied = config.flag("tie_word_embeddings", True) or not config.flag("legacy", True)
    return LanguageModelHead(
        tied=tied, bias=True, transform=config.word("hidden_act", "gelu", INWARD), norm=_norm(config)
    )


def _classes(config: Config, sizes: Sizes) -> Head:
    """Build the classification head W dropout(φ(W_h x_0 + b_h)) + b on the first position's vector x_0."""
    width = config.size("hidden_size", sizes.width)
    config.fixed("pooler_hidden_size", width, "the width of a layer of the head")
    return heads.pooled_head(
        config,
        pooling="first",
        hidden=width,
        activation=config.word("pooler_hidden_act", "gelu", INWARD),
        dropout=config.number("cls_dropout", config.number("hidden_dropout_prob", 0.1)),
    )


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead):
        return None
    return {**heads.problem_keys(head), "pooler_hidden_act": OUTWARD[head.activation], "cls_dropout": head.dropout}


def architectures(stem: str, sizes: Sizes) -> dict[str, Architecture]:
    """Return the published architectures of a DeBERTa version by name, such as ``stem`` + "ForMaskedLM"."""
    rows = (NameRule("head.hidden.*", "pooler.dense.*"), NameRule("head.output.*", "classifier.*"))
    return {
        f"{stem}ForMaskedLM": replace(heads.masked(bert.MASKED_NAMES), head=_masked),
        f"{stem}Model": heads.body("deberta.embeddings.word_embeddings.weight"),
        f"{stem}ForSequenceClassification": Architecture(lambda config: _classes(config, sizes), _classes_keys, rows),
        f"{stem}ForTokenClassification": heads.tagging("classifier"),
        f"{stem}ForQuestionAnswering": heads.answering("qa_outputs"),
    }


DEBERTA2 = Family(
    name="DeBERTa-v2",
    base="BERT",
    model_types=("deberta-v2",),
    architectures=architectures("DebertaV2", SECOND),
    spec=spec,
    config=config,
    names=NAMES,
    prefix="deberta.",
    ignored=IGNORED,
    ignored_config={
        **dict.fromkeys(
            ("pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "cls_dropout"),
            "part of the classification head",
        ),
        **dict.fromkeys(
            ("classifier_dropout", "tie_word_embeddings", "legacy"), "part of a head that this architecture lacks"
        ),
        **dict.fromkeys(("conv_act", "conv_groups"), "part of a convolution that is absent"),
        **dict.fromkeys(
            ("max_relative_positions", "position_buckets", "share_att_key"), "range of distances, unused here"
        ),
        "padding_idx": "given by the tokenizer",
    },
    older=OTHER_FORM,
)
DEBERTA = replace(
    DEBERTA2,
    name="DeBERTa",
    base="BERT",
    model_types=("deberta",),
    architectures=architectures("Deberta", FIRST),
    spec=first_spec,
    config=first_config,
    names=FIRST_NAMES,
    typical={"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
)

register(DEBERTA2, DEBERTA)
