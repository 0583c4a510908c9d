"""BERT for generation (Rothe et al. 2020): BERT without token types, as an encoder or, causal, as a language model."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import biased, body
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BERT for generation: like BERT, without token types; causal if ``is_decoder``."""
    return bert.body(config, head, reserved=0, types=0, mask=bert.mask_of(config))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return bert.keys(spec) if isinstance(spec.frontend, Text) and not spec.frontend.types else None


BERT_GENERATION = Family(
    name="BERT for generation",
    base="BERT",
    model_types=("bert-generation",),
    architectures={
        "BertGenerationDecoder": biased("lm_head.decoder", "lm_head.bias"),
        "BertGenerationEncoder": body("bert.embeddings.word_embeddings.weight"),
    },
    spec=spec,
    config=config,
    names=bert.names("bert."),
    prefix="bert.",
    defaults={"vocab_size": 50358, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    | {"intermediate_size": 4096},
    ignored=bert.IGNORED,
    ignored_config=bert.IGNORED_CONFIG,
)

register(BERT_GENERATION)
