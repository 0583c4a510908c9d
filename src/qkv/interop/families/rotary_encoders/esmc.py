"""ESM C (EvolutionaryScale 2024), protein models: Llama's blocks with LayerNorm and bidirectional attention.

Norms of queries and keys are over all heads; with L layers, the output of each branch is divided by √(L / 36).
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated, heads
from qkv.interop.families.common.heads import HEAD_KEYS, HeadKeys, classification, masked, tagging
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Model
from qkv.spec.parts import Add, LayerNorm

_BODY, _NORM = "esmc.", LayerNorm()
NAMES = tuple(
    row._replace(theirs=tuple(name.replace("model.", _BODY, 1) for name in row.published)) for row in gated.NAMES
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of ESM C: D = hidden_size; all norms have an ε of 1e-5."""
    layers = config.layers("num_hidden_layers")
    config.fixed("num_key_value_heads", config.size("num_attention_heads"), "the keys of attention")
    attention = gated.attention_of(
        config,
        mask=Full(),
        bias=config.flag("attention_bias", False),
        qk_norm=LayerNorm(bias=False),
        qk_norm_over="all_heads",
    )
    model = gated.model_of(config, head, [attention] * layers, config.flag("mlp_bias", False), _NORM)
    scaled = gated.with_blocks(model, residual=Add(factor=(36 / layers) ** 0.5))
    return scaled.changed(norm=LayerNorm(bias=False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ESM C's. Callers read them back to verify."""
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, Attention) or not isinstance(first.mask, Full):
        return None
    keys = gated.config_of(
        spec, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )
    return keys and {name: value for name, value in keys.items() if not name.endswith("_eps")}


_ROWS = {
    "head.weight": "lm_head.decoder.weight",
    "head.bias": "lm_head.decoder.bias",
    "head.transform.dense.*": "lm_head.dense.*",
    "head.transform.norm.*": "lm_head.layer_norm.*",
}


def _words(config: Config) -> dict[str, Any]:
    """Return the fields of the head, which is untied regardless of ``tie_word_embeddings``."""
    return {"transform": "gelu", "norm": _NORM, "tied": False}


_RATE = HeadKeys()
ESMC = Family(
    name="ESM C",
    model_types=("esmc",),
    architectures={
        "EsmcForMaskedLM": masked(_ROWS, _words),
        "EsmcModel": heads.vectors(),
        "EsmcForSequenceClassification": classification("classifier.dense", "classifier.out_proj", keys=_RATE),
        "EsmcForTokenClassification": tagging("score", keys=_RATE),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    ignored_config={**HEAD_KEYS, "mask_token_id": "given by the tokenizer"},
    defaults={
        "vocab_size": 64,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "max_position_embeddings": 2048,
    },
)

register(ESMC)
