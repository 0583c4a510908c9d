"""XLM (Conneau & Lample 2019) and FlauBERT (Le et al. 2020): BERT's structure with other names.

The head has no transform. Language embeddings and FlauBERT's pre-norm blocks are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import HeadKeys, answering, tagging
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model, Text
from qkv.spec.parts import Activation, LayerNorm

_BODY = "transformer."
NAMES = (
    NameRule("frontend.table", f"{_BODY}embeddings.weight"),
    NameRule("frontend.positions.table", f"{_BODY}position_embeddings.weight"),
    NameRule("frontend.norm.*", f"{_BODY}layer_norm_emb.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        tuple(f"{_BODY}attentions.{{layer}}.{part}_lin.*" for part in "qkv"),
        QKV,
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_BODY}attentions.{{layer}}.out_lin.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_BODY}layer_norm1.{{layer}}.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_BODY}ffns.{{layer}}.lin1.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_BODY}ffns.{{layer}}.lin2.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_BODY}layer_norm2.{{layer}}.*"),
)
NAMED = {
    "hidden_size": "emb_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "embed_init_std",
}
"""BERT's config keys -> XLM's."""
FIXED = (
    ("causal", False, "the attention mask"),
    ("asm", False, "the head, which would be an adaptive softmax"),
    ("is_encoder", True, "the attention mask"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of XLM: D = emb_dim, n_layers blocks, 4 D hidden features."""
    for key, only, meaning in FIXED:
        config.fixed(key, only, meaning)
    if config.flag("use_lang_emb", True):
        config.fixed("n_langs", 1, "the embeddings, to which it adds a vector of the language")
    norm, width = LayerNorm(eps=config.number("layer_norm_eps", 1e-12)), config.size("emb_dim", 2048)
    activation: Activation = "gelu" if config.flag("gelu_activation", True) else "relu"
    return bert.structure(config, head, 0, 0, norm, NAMED, FeedForward(hidden=4 * width, activation=activation))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not XLM's. Callers read them back to verify."""
    keys = bert.keys(spec, NAMED)
    if keys is None or not isinstance(spec.frontend, Text) or spec.frontend.types:
        return None
    keys.pop("intermediate_size")
    return {**keys, "gelu_activation": keys.pop("hidden_act") == "gelu", "n_langs": 1}


def _flaubert(config: Config, head: Head) -> Model:
    """Build the spec of FlauBERT: like XLM."""
    config.fixed("pre_norm", False, "the order of norms and branches")
    return spec(config, head)


def _words(config: Config) -> Head:
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", True), bias=True)


def _words_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or not head.bias or head.transform is not None:
        return None
    return {"tie_word_embeddings": head.tied}


_WORDS = NameRule("head.weight", "pred_layer.proj.weight"), NameRule("head.bias", "pred_layer.proj.bias")


def _architectures(stem: str) -> dict[str, Architecture]:
    return {
        f"{stem}WithLMHeadModel": Architecture(_words, _words_keys, _WORDS),
        f"{stem}Model": heads.body(f"{_BODY}embeddings.weight"),
        f"{stem}ForTokenClassification": tagging("classifier", keys=HeadKeys(dropout="dropout")),
        f"{stem}ForQuestionAnsweringSimple": answering("qa_outputs"),
    }


_SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout", "last_dropout")
XLM = Family(
    name="XLM",
    model_types=("xlm",),
    architectures=_architectures("XLM"),
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    defaults={"vocab_size": 30145, "emb_dim": 2048, "n_heads": 16, "embed_init_std": 2048**-0.5},
    synonyms={
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "n_words": "vocab_size",
    },
    ignored={f"{_BODY}position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        "tie_word_embeddings": "part of a head that this architecture lacks",
        "sinusoidal_embeddings": "initialisation of the position table, which is stored",
        "init_std": "initialisation of weights",
        "lang_id": "language of a generated text",
        "n_langs": "read only with use_lang_emb",
        **dict.fromkeys((f"summary_{key}" for key in _SUMMARY), "part of a head that this architecture lacks"),
        **dict.fromkeys(("start_n_top", "end_n_top"), "part of a head that this architecture lacks"),
        **dict.fromkeys(("unk_index", "mask_index", "pad_index", "bos_index", "eos_index"), "given by the tokenizer"),
        **dict.fromkeys(("mask_token_id", "lang2id", "id2lang"), "given by the tokenizer"),
    },
)
FLAUBERT = replace(
    XLM,
    name="FlauBERT",
    base="XLM",
    model_types=("flaubert",),
    architectures=_architectures("Flaubert"),
    spec=_flaubert,
    ignored_config={**XLM.ignored_config, "layerdrop": "training setting"},
)

register(XLM, FLAUBERT)
