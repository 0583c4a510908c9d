"""GLM-4 (GLM Team 2024), with the model types "glm" and "glm4": Llama's blocks with biases of queries, keys and values.

RoPE rotates half of each head; its pairs are adjacent in the files. "glm4" also has norms after its branches.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import partial_rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

NAMES = (gated.INTERLEAVED, gated.GATE_UP, *gated.NAMES)
_LAYER = "model.layers.{layer}."
SANDWICH_NAMES = (
    NameRule("blocks.{layer}.branches.0.norm_after.weight", f"{_LAYER}post_self_attn_layernorm.weight"),
    NameRule("blocks.{layer}.branches.1.norm_after.weight", f"{_LAYER}post_mlp_layernorm.weight"),
    *NAMES,
)


def spec_of_glm(config: Config, head: Head) -> Model:
    """Build the spec of "glm": pre-norm blocks; ``attention_bias`` adds biases to queries, keys and values."""
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", True), output_bias=False, relative=rope_of(config, 0.5)
    )
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))


def spec_of_glm4(config: Config, head: Head) -> Model:
    """Build the spec of "glm4": like "glm", with norms before and after each branch."""
    model = spec_of_glm(config, head)
    return model.changed(blocks=tuple(block.changed(order="sandwich") for block in model.blocks))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not GLM's. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, feed_forward: {"attention_bias": attention.bias}, rope=False)
    turned = partial_rope_config(spec, keys)
    return None if turned is None else {**turned, "pad_token_id": None}


_DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 0.00000015625,
}


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False), **of_decoder(stem, question_answering=False)},
        config=config,
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        defaults=_DEFAULTS,
        base="Llama",
        **fields,
    )


GLM = _family("GLM", "glm", "Glm", spec=spec_of_glm, names=NAMES)
GLM4 = _family("GLM-4", "glm4", "Glm4", spec=spec_of_glm4, names=SANDWICH_NAMES)

register(GLM, GLM4)
