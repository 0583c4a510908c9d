"""TrOCR (Li et al. 2021), the decoder alone: BART's decoder with learned or sinusoidal positions.

Published models read an encoder of images, whose vectors cross-attention reads; an export keeps its weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import language_model
from qkv.interop.mapping.config import Config
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import LayerNorm, Learned, NoNorm, Positions


def _positions(config: Config) -> Positions:
    """Return learned positions from row 2, or sinusoids that begin after the padding token's row."""
    if config.flag("use_learned_position_embeddings", True):
        return Learned(offset=2)
    return bart_like.after_padding(config)


_FORM = bart_like.BartLike("post", NoNorm(), _positions, alone=True)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of TrOCR's decoder: ``layernorm_embedding`` adds a norm of the embeddings."""
    norm = LayerNorm() if config.flag("layernorm_embedding", True) else NoNorm()
    return replace(_FORM, norm=norm).spec(config, head)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not TrOCR's. Callers read them back to verify."""
    keys, text = _FORM.config(spec), spec.frontend
    if keys is None or spec.encoder is not None or not isinstance(text, Text):
        return None
    return {
        **keys,
        **bart_like.padding_key(spec),
        "use_learned_position_embeddings": isinstance(text.positions, Learned),
        "layernorm_embedding": not text.norm.identity,
    }


_HEAD = bart_like.alone()

TROCR = bart_like.family(
    "TrOCR",
    "trocr",
    {"TrOCRForCausalLM": replace(_HEAD, names=language_model(tied=True, theirs="output_projection.weight").names)},
    _FORM,
    {"d_model": 1024, "max_position_embeddings": 512},
    spec=spec,
    config=config,
    base="BART",
    synonyms={
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
    },
    ignored_config={**bart_like.IGNORED_CONFIG, "cross_attention_hidden_size": "part of cross-attention"},
)

register(TROCR)
