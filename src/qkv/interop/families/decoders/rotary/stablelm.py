"""StableLM (Bellagente et al. 2024) and StarCoder 2 (Lozhkov et al. 2024): Llama's blocks with LayerNorm.

In StableLM, RoPE rotates a quarter of each head, and the branches may be parallel on one norm. StarCoder 2 has a
feed-forward without gate, biases, and a window.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, Rope


def spec_of_stablelm(config: Config, head: Head) -> Model:
    """Build the spec of StableLM: ``use_qkv_bias`` adds biases to queries, keys and values."""
    config.fixed("qk_layernorm", False, "norms of queries and keys")
    attention = gated.attention_of(
        config, bias=config.flag("use_qkv_bias", False), output_bias=False, relative=rope_of(config, 0.25)
    )
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    model = gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"), norm=norm)
    if not config.flag("use_parallel_residual", False):
        return model
    return model.changed(blocks=tuple(block.changed(order="parallel") for block in model.blocks))


def spec_of_starcoder2(config: Config, head: Head) -> Model:
    """Build the spec of StarCoder 2: ``use_bias`` adds biases to all linear layers."""
    bias = config.flag("use_bias", True)
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, bias=bias, mask=mask)
    norm = LayerNorm(eps=config.number("norm_epsilon", 1e-5))
    return gated.model_of(
        config, head, [attention] * config.layers("num_hidden_layers"), bias, norm=norm, part=FeedForward
    )


def config_of_stablelm(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, feed_forward: {"use_qkv_bias": attention.bias}, rope=False)
    match spec.layers[:1]:
        case (Block(branches=(Attention(relative=Rope() as rope), _)) as block,) if keys is not None:
            turned = rope_config(rope, partial=True)
        case _:
            return None
    if turned is None:
        return None
    return {**keys, **turned, FRACTION: rope.fraction, "use_parallel_residual": block.order == "parallel"}


def config_of_starcoder2(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(
        spec,
        lambda attention, feed_forward: {
            "use_bias": attention.bias,
            "sliding_window": gated.window_of(attention),
        },
    )
    if keys is None or "layer_norm_eps" not in keys:
        return None
    return {**keys, "norm_epsilon": keys.pop("layer_norm_eps")}


_LAYER = "model.layers.{layer}."
_FIELDS: dict[str, Any] = {"prefix": "model.", "ignored": gated.IGNORED}

STABLELM = Family(
    name="StableLM",
    model_types=("stablelm",),
    architectures={
        "StableLmForCausalLM": language_model(tied=False),
        **of_decoder("StableLm", question_answering=False),
    },
    spec=spec_of_stablelm,
    config=config_of_stablelm,
    names=(NameRule("blocks.{layer}.norm.*", f"{_LAYER}input_layernorm.*"), *gated.NAMES),
    ignored_config={**HEAD_KEYS, "hidden_dropout": "dropout in training, which a recipe sets"},
    defaults={
        "vocab_size": 50304,
        "intermediate_size": 6912,
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "hidden_dropout": 0.0,
    },
    **_FIELDS,
)
STARCODER2 = Family(
    name="StarCoder 2",
    model_types=("starcoder2",),
    architectures={
        "Starcoder2ForCausalLM": language_model(tied=True),
        **of_decoder("Starcoder2", question_answering=False),
    },
    spec=spec_of_starcoder2,
    config=config_of_starcoder2,
    names=(
        NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}mlp.c_fc.*"),
        NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}mlp.c_proj.*"),
        *gated.NAMES,
    ),
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("residual_dropout", "embedding_dropout"), "dropout in training, which a recipe sets"),
        **dict.fromkeys(("mlp_type", "norm_type"), "fixed by the family"),
    },
    defaults={
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
    },
    **_FIELDS,
)

register(STABLELM, STARCODER2)
