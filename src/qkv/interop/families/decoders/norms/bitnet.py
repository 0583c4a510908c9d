"""BitNet b1.58 (Microsoft 2025): Llama's blocks with squared ReLU and a norm before each output projection.

Folders with weights of three values name their format in ``quantization_config``, which is refused; those in bf16 open.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model

_LAYER = "model.layers.{layer}."
NAMES = (
    NameRule("blocks.{layer}.branches.0.body.output_norm.weight", f"{_LAYER}self_attn.attn_sub_norm.weight"),
    NameRule("blocks.{layer}.branches.1.body.norm.weight", f"{_LAYER}mlp.ffn_sub_norm.weight"),
    *gated.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BitNet: ``attention_bias`` adds biases to attention."""
    norm, bias = gated.norm_of(config), config.flag("attention_bias", False)
    attention = gated.attention_of(config, bias=bias, output_norm=norm)
    model = gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))
    return model.changed(blocks=tuple(_with_norm(block) for block in model.blocks))


def _with_norm(block: Block) -> Block:
    """Return the block with its norm in the feed-forward, too."""
    attention, network = block.branches
    assert isinstance(network, GatedFeedForward)
    return block.changed(branches=(attention, network.changed(norm=block.norm)))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not BitNet's. Callers read them back to verify."""
    return gated.config_of(spec, lambda attention, _: {"attention_bias": attention.bias})


BITNET = Family(
    name="BitNet",
    model_types=("bitnet",),
    architectures={"BitNetForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
    },
    base="Llama",
)

register(BITNET)
