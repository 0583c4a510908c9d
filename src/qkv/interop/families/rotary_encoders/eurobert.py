"""EuroBERT (Boizard et al. 2025): Llama's blocks with bidirectional attention.

A classifier's default pooling ``late``, the mean of the logits of all positions, is not supported.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated, heads
from qkv.interop.families.common.heads import HEAD_KEYS, tagging
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Model
from qkv.system.errors import UserError

POOLINGS = {"bos": "first", "mean": "mean"}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of EuroBERT: like Llama, without the causal mask."""
    attention = gated.attention_of(config, mask=Full(), bias=config.flag("attention_bias", False))
    layers = config.layers("num_hidden_layers")
    return gated.model_of(config, head, [attention] * layers, config.flag("mlp_bias", False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not EuroBERT's. Callers read them back to
    verify.
    """
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, Attention) or not isinstance(first.mask, Full):
        return None
    keys = gated.config_of(
        spec, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )
    return keys and {**keys, "pad_token_id": None}  # the library's default exceeds a small vocabulary


def _words(config: Config) -> Head:
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", False), bias=config.flag("mlp_bias", False))


def _words_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or head.transform is not None:
        return None
    return {"tie_word_embeddings": head.tied, "mlp_bias": head.bias}


def _classes(config: Config) -> Head:
    name = config.word("classifier_pooling", "late")
    if name not in POOLINGS:
        raise UserError(
            f"{config.source}: classifier_pooling is {name!r}, but qkv supports only 'bos' and 'mean'; 'late' is the "
            "mean of the logits of all positions"
        )
    return heads.pooled_head(config, pooling=POOLINGS[name], hidden=config.size("hidden_size"), activation="gelu")


def _classes_keys(head: Head) -> dict[str, Any] | None:
    names = {ours: name for name, ours in POOLINGS.items()}
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling not in names:
        return None
    return {**heads.problem_keys(head), "classifier_pooling": names[head.pooling]}


_WORDS = NameRule("head.weight", "lm_head.weight"), NameRule("head.bias", "lm_head.bias")
_CLASSES = NameRule("head.hidden.*", "dense.*"), NameRule("head.output.*", "classifier.*")
EUROBERT = Family(
    name="EuroBERT",
    model_types=("eurobert",),
    architectures={
        "EuroBertForMaskedLM": Architecture(_words, _words_keys, _WORDS),
        "EuroBertModel": heads.vectors(),
        "EuroBertForSequenceClassification": Architecture(
            _classes, _classes_keys, _CLASSES, typical={"classifier_pooling": "mean"}
        ),
        "EuroBertForTokenClassification": tagging("classifier", keys=None),
    },
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        "classifier_pooling": "part of a head that this architecture lacks",
        "mask_token_id": "given by the tokenizer",
    },
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    },
)

register(EUROBERT)
