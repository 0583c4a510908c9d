"""UltraBERT (2026): EuroBERT's blocks, most with a window, and a head of two dense layers without norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common import gated, heads
from qkv.interop.families.common.gated import FULL, SLIDING
from qkv.interop.families.common.heads import HEAD_KEYS, HeadKeys, answering, tagging
from qkv.interop.families.common.rope import layer_ropes, rope_table
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full, Window
from qkv.spec.model import Model
from qkv.spec.parts import NoNorm, Rope
from qkv.system.errors import UserError

_BODY = "ultrabert."
NAMES = tuple(
    row._replace(theirs=tuple(name.replace("model.", _BODY, 1) for name in row.published)) for row in gated.NAMES
)
BASES = {FULL: 2560000.0, SLIDING: 10000.0}
POOLINGS = {"cls": "first", "mean": "mean"}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of UltraBERT: like EuroBERT.

    ``layer_types`` selects the blocks with a window of ``sliding_window`` positions to each side.
    """
    kinds, reach = _kinds(config)
    masks, ropes = {FULL: Full(), SLIDING: Window(size=reach + 1)}, layer_ropes(config, _bases(config, kinds), FULL)
    attention = gated.attention_of(config, relative=Rope(), bias=config.flag("attention_bias", False))
    attentions = [attention.changed(mask=masks[kind], relative=ropes[kind]) for kind in kinds]
    return gated.model_of(config, head, attentions, config.flag("mlp_bias", False))


def _kinds(config: Config) -> tuple[list[str], int]:
    """Return (kind of each layer, positions that a window has to each side).

    Older configs list the window of each layer in ``attention_windows``, 0 for full attention.
    """
    windows, reach = config.items("attention_windows"), config.integer("sliding_window", 128)
    if not windows:
        return gated.kinds_of(config, lambda layer: SLIDING if (layer + 1) % 3 else FULL), reach
    sizes = {int(window) for window in windows if window}
    if len(sizes) > 1:
        raise UserError(f"{config.source}: attention_windows has windows of {len(sizes)} sizes, but allowed is one")
    kinds = gated.kinds_of(config, lambda layer: SLIDING if windows[layer] else FULL)
    return kinds, next(iter(sizes), reach)


def _bases(config: Config, kinds: Sequence[str]) -> dict[str, float]:
    """Return the base of the RoPE of each kind of layer, which older configs list by layer in ``rope_theta``."""
    if config.table("rope_parameters").values or not config.has("rope_theta"):
        return BASES
    return {**BASES, **dict(zip(kinds, map(float, config.items("rope_theta")), strict=False))}


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not UltraBERT's. Callers read them back to
    verify.
    """
    attentions = [block.branches[0] for block in spec.layers if isinstance(block.branches[0], Attention)]
    keys = gated.config_of(
        spec, lambda attention, network: {"attention_bias": attention.bias, "mlp_bias": network.bias}, rope=False
    )
    if keys is None or len(attentions) != len(spec.layers):
        return None
    ropes = {kind: Rope(base=base) for kind, base in BASES.items()}
    ropes |= {_kind(attention): attention.relative for attention in attentions if isinstance(attention.relative, Rope)}
    tables = {kind: rope_table(rope) for kind, rope in ropes.items()}
    if any(table is None for table in tables.values()):
        return None
    sizes = [attention.mask.size - 1 for attention in attentions if isinstance(attention.mask, Window)]
    kinds = [_kind(attention) for attention in attentions]
    return {**keys, "layer_types": kinds, "sliding_window": max(sizes, default=128), "rope_parameters": tables}


def _kind(attention: Attention) -> str:
    return SLIDING if isinstance(attention.mask, Window) else FULL


def _words(config: Config) -> Head:
    return LanguageModelHead(
        tied=config.flag("tie_word_embeddings", False),
        transform="gelu_tanh",
        transform_bias=False,
        transform_hidden=config.size("prediction_head_size", 768),
        norm=NoNorm(),
    )


def _words_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or head.transform_hidden is None:
        return None
    return {"tie_word_embeddings": head.tied, "prediction_head_size": head.transform_hidden}


def _classes(config: Config) -> Head:
    pooling = config.word("classifier_pooling", "cls", POOLINGS)
    return heads.pooled_head(config, pooling=pooling, dropout=config.number("classifier_dropout", 0.0))


def _classes_keys(head: Head) -> dict[str, Any] | None:
    names = {ours: name for name, ours in POOLINGS.items()}
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling not in names:
        return None
    keys = {"classifier_pooling": names[head.pooling], "classifier_dropout": head.dropout}
    return {**heads.problem_keys(head), **keys}


_WORDS = (
    NameRule("head.transform.first.weight", "head.linear1.weight"),
    NameRule("head.transform.dense.weight", "head.linear2.weight"),
    NameRule("head.weight", "cls.weight"),
)
ULTRABERT = Family(
    name="UltraBERT",
    model_types=("ultrabert",),
    architectures={
        "UltrabertForMaskedLM": Architecture(_words, _words_keys, _WORDS),
        "UltrabertModel": heads.vectors(),
        "UltrabertForSequenceClassification": Architecture(
            _classes, _classes_keys, (NameRule("head.output.*", "classifier.*"),)
        ),
        "UltrabertForTokenClassification": tagging("classifier", keys=HeadKeys()),
        "UltrabertForQuestionAnswering": answering("qa_outputs"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("classifier_pooling", "prediction_head_size"), "part of a head that this architecture lacks"),
    },
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 32768,
        "classifier_dropout": 0.0,
    },
)

register(ULTRABERT)
