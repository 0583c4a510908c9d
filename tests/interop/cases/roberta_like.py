"""LUKE on text alone, and I-BERT in its mode of floating-point numbers."""

from __future__ import annotations

from tests.interop.cases.case import Case
from transformers import IBertConfig, IBertForMaskedLM, LukeConfig, LukeForMaskedLM

SIZES = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5}
MORE = {"intermediate_size": 44, "max_position_embeddings": 23}
TABLES = (
    *("entity_embeddings.weight", "entity_embedding_dense.weight", "position_embeddings.weight"),
    *("token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"),
)
HEAD = (
    "decoder.weight",
    "bias",
    "transform.dense.weight",
    "transform.dense.bias",
    "transform.LayerNorm.weight",
    "transform.LayerNorm.bias",
)
INTEGERS = ("_integer", "_scaling_factor", "x_min", "x_max", "shift")

CASES = (
    Case(
        "luke-masked",
        LukeForMaskedLM,
        LukeConfig(**SIZES, **MORE, entity_vocab_size=9, entity_emb_size=7, use_entity_aware_attention=False),
        renamed={"lm_head.decoder.bias": "lm_head.bias"},
        computed=tuple(f"entity_embeddings.{name}" for name in TABLES)
        + tuple(f"predictions.{name}" for name in HEAD)
        + ("lm_head.bias",),
    ),
    Case("ibert-masked", IBertForMaskedLM, IBertConfig(**SIZES, **MORE, type_vocab_size=1), computed=INTEGERS),
)
