"""Encoders with RoPE: post-norm blocks, gated and plain, and Llama's blocks in both directions."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    EuroBertForSequenceClassification,
    EuroBertForTokenClassification,
    EuroBertModel,
    GteConfig,
    GteForMaskedLM,
    GteForSequenceClassification,
    GteModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3ForMaskedLM,
    JinaEmbeddingsV3ForSequenceClassification,
    NomicBertConfig,
    NomicBertForMaskedLM,
    NomicBertForTokenClassification,
    NomicBertModel,
    RoFormerConfig,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerModel,
    UltrabertConfig,
    UltrabertForMaskedLM,
    UltrabertForQuestionAnswering,
    UltrabertForSequenceClassification,
    UltrabertForTokenClassification,
    UltrabertModel,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "max_position_embeddings": 23,
}


def renamed(body: str, layer: str, parts: dict[str, str | tuple[str, ...]]) -> dict[str, str | tuple[str, ...]]:
    """Names in files -> names of the class, of the parts of each layer, weight and bias."""
    found: dict[str, str | tuple[str, ...]] = {}
    for stored, named in parts.items():
        several = (named,) if isinstance(named, str) else named
        for leaf in ("weight", "bias"):
            for i in range(SIZES["num_hidden_layers"]):
                own = tuple(f"{body}layers.{i}.{name}.{leaf}" for name in several)
                found[f"{body}{layer}.{i}.{stored}.{leaf}"] = own if len(own) > 1 else own[0]
    return found


QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
NORMS = {"norm1": "post_attention_layernorm", "norm2": "post_mlp_layernorm"}
NOMIC = {"attn.Wqkv": QKV, "attn.out_proj": "self_attn.o_proj", **NORMS} | {
    "mlp.fc11": "mlp.up_proj",
    "mlp.fc12": "mlp.gate_proj",
    "mlp.fc2": "mlp.down_proj",
}
GTE = {
    "attention.qkv_proj": QKV,
    "attention.o_proj": "self_attn.o_proj",
    "attn_ln": "post_attention_layernorm",
    "mlp_ln": "post_mlp_layernorm",
    "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
    "mlp.down_proj": "mlp.down_proj",
}
JINA = {"mixer.Wqkv": QKV, "mixer.out_proj": "self_attn.o_proj", **NORMS, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}


def of_nomic(body: str) -> dict[str, str | tuple[str, ...]]:
    norms = {f"{body}emb_ln.{leaf}": f"{body}embeddings.LayerNorm.{leaf}" for leaf in ("weight", "bias")}
    return {**renamed(body, "encoder.layers", NOMIC), **norms}


def of_gte(body: str) -> dict[str, str | tuple[str, ...]]:
    norms = {f"lm_head.norm.{leaf}": f"lm_head.layer_norm.{leaf}" for leaf in ("weight", "bias")}
    return {**renamed(body, "encoder.layer", GTE), **norms}


def of_jina() -> dict[str, str | tuple[str, ...]]:
    norms = {f"roberta.emb_ln.{leaf}": f"roberta.embeddings.LayerNorm.{leaf}" for leaf in ("weight", "bias")}
    return {**renamed("roberta.", "encoder.layers", JINA), **norms}


def nomic(**changed: Any) -> NomicBertConfig:
    return NomicBertConfig(**{**SIZES, **changed})


def gte(**changed: Any) -> GteConfig:
    return GteConfig(**{**SIZES, **changed})


def jina(**changed: Any) -> JinaEmbeddingsV3Config:
    return JinaEmbeddingsV3Config(**{**SIZES, **changed})


def euro(**changed: Any) -> EuroBertConfig:
    sizes = {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
    return EuroBertConfig(**{**sizes, **changed})


def roformer(**changed: Any) -> RoFormerConfig:
    return RoFormerConfig(**{**SIZES, "hidden_size": 32, "num_attention_heads": 4, **changed})


def ultra(**changed: Any) -> UltrabertConfig:
    kinds = ["sliding_attention", "full_attention"]
    sizes = {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "prediction_head_size": 14}
    return UltrabertConfig(**{**sizes, "sliding_window": 2, "layer_types": kinds, **changed})


def of_ultra(head: str = "") -> dict[str, str | tuple[str, ...]]:
    """Names in files -> names of the class: the body has another prefix, and ``head`` is the output matrix."""
    parts = (*(f"self_attn.{part}_proj" for part in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down")))
    norms = ("input_layernorm", "post_attention_layernorm")
    inner = [f"layers.{i}.{name}" for i in range(SIZES["num_hidden_layers"]) for name in (*parts, *norms)]
    names = [f"{name}.{leaf}" for name in (*inner, "embed_tokens", "norm") for leaf in ("weight", "bias")]
    return {**{f"ultrabert.{name}": f"model.{name}" for name in names}, **({"cls.weight": head} if head else {})}


CASES = (
    Case("nomic-masked", NomicBertForMaskedLM, nomic(), renamed=of_nomic("nomic_bert.")),
    Case("nomic-body", NomicBertModel, nomic(hidden_act="gelu"), renamed=of_nomic("")),
    Case(
        "nomic-tags",
        NomicBertForTokenClassification,
        nomic(head_dim=4, num_labels=3),
        renamed=of_nomic("nomic_bert."),
    ),
    Case("gte-masked", GteForMaskedLM, gte(), renamed=of_gte("gte.")),
    Case("gte-body-without-types", GteModel, gte(type_vocab_size=0), renamed=of_gte("")),
    Case("gte-classes", GteForSequenceClassification, gte(type_vocab_size=2), renamed=of_gte("gte.")),
    Case(
        "jina-masked",
        JinaEmbeddingsV3ForMaskedLM,
        jina(),
        renamed={**of_jina(), "roberta.embeddings.word_embeddings.weight": "lm_head.decoder.weight"},
    ),
    Case("jina-number", JinaEmbeddingsV3ForSequenceClassification, jina(num_labels=1), renamed=of_jina()),
    Case("eurobert-masked", EuroBertForMaskedLM, euro()),
    Case("eurobert-masked-with-biases", EuroBertForMaskedLM, euro(attention_bias=True, mlp_bias=True)),
    Case("eurobert-body", EuroBertModel, euro(rms_norm_eps=1e-3)),
    Case("eurobert-classes", EuroBertForSequenceClassification, euro(classifier_pooling="mean")),
    Case("eurobert-number", EuroBertForSequenceClassification, euro(classifier_pooling="bos", num_labels=1)),
    Case("eurobert-tags", EuroBertForTokenClassification, euro(num_labels=4)),
    Case("ultrabert-masked", UltrabertForMaskedLM, ultra(), renamed=of_ultra("head.decoder.weight")),
    Case(
        "ultrabert-masked-tied-with-biases",
        UltrabertForMaskedLM,
        ultra(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        renamed=of_ultra(),
    ),
    Case("ultrabert-body", UltrabertModel, ultra(layer_types=None)),
    Case(
        "ultrabert-classes",
        UltrabertForSequenceClassification,
        ultra(num_labels=3, classifier_pooling="mean"),
        renamed=of_ultra(),
    ),
    Case("ultrabert-tags", UltrabertForTokenClassification, ultra(num_labels=4), renamed=of_ultra()),
    Case("ultrabert-answers", UltrabertForQuestionAnswering, ultra(), renamed=of_ultra()),
    Case("roformer-causal", RoFormerForCausalLM, roformer(is_decoder=True, embedding_size=12), steps=12),
    Case("roformer-masked", RoFormerForMaskedLM, roformer()),
    Case("roformer-masked-narrow", RoFormerForMaskedLM, roformer(embedding_size=14, hidden_act="relu")),
    Case("roformer-body", RoFormerModel, roformer(embedding_size=14)),
    Case("roformer-classes", RoFormerForSequenceClassification, roformer(num_labels=3, hidden_act="silu")),
    Case("roformer-answers", RoFormerForQuestionAnswering, roformer(type_vocab_size=1)),
)
