"""RecurrentGemma (Google DeepMind 2024; Griffin): real-gated linear recurrent units, and in some layers attention.

Attention has a window and rotates half of each head. Norms have scales 1 + w.
"""

from __future__ import annotations

from typing import Any

import torch

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, capped_language_model
from qkv.interop.families.common.hybrid import config_of, first_mixer, of_kinds
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV, TAPS
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.mamba import RGLRU
from qkv.spec.model import Model
from qkv.spec.parts import RMSNorm, Rope
from qkv.system.errors import UserError

KINDS = {"attention": "attention", "rg_lru": "recurrent"}
"""Kinds of mixers -> kinds of layers in configs."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of RecurrentGemma: ``block_types`` is repeated for all layers.

    Feed-forwards have ``intermediate_size`` / 2 hidden features.
    """
    norm = RMSNorm(eps=config.number("rms_norm_eps"), zero_centred=True)
    activation = config.word("hidden_activation", "gelu_pytorch_tanh", INWARD)
    layers, types = config.layers("num_hidden_layers"), [str(kind) for kind in config.items("block_types")]
    if not types:
        raise UserError(f"{config.source}: block_types is empty; it should name at least one kind of layer")
    kinds = [types[i % len(types)] for i in range(layers)]
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        output_bias=True,
        head_dim=None,
        mask=gated.windowed(config.integer("attention_window_size")),
        relative=rope_of(config, 0.5),
    )
    recurrent = RGLRU(
        num_heads=attention.num_heads,
        hidden=config.size("lru_width") if config.has("lru_width") else None,
        kernel_size=config.size("conv1d_width"),
        activation=activation,
    )
    parts: dict[str, Branch] = {"attention": attention, "recurrent": recurrent}
    model = gated.model_of(config, head, of_kinds(config, kinds, parts, "block_types"), norm=norm)
    network = GatedFeedForward(hidden=config.size("intermediate_size") // 2, activation=activation, bias=True)
    blocks = tuple(block.changed(branches=(block.branches[0], network)) for block in model.blocks)
    return model.changed(blocks=blocks, frontend=model.frontend.changed(multiplier=_multiplier(model.width)))


def _multiplier(width: int) -> float:
    """Return the factor of the embeddings, √D in bf16, as published."""
    return float(torch.tensor(width**0.5, dtype=torch.bfloat16, device="cpu"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    attention, recurrent = first_mixer(spec, Attention), first_mixer(spec, RGLRU)
    kinds = config_of(spec, _bias, lambda branch: KINDS.get(branch.kind, ""), rope=False)
    if kinds is None or attention is None or recurrent is None or not isinstance(attention.relative, Rope):
        return None
    rope = rope_config(attention.relative, partial=True)
    activation, hidden = kinds.pop("hidden_act"), kinds.pop("intermediate_size")
    types = kinds.pop("layer_types")
    if rope is None:
        return None
    return {
        **kinds,
        **rope,
        FRACTION: attention.relative.fraction,
        # two published names of the tanh approximation differ in rounding; this family has this one
        "hidden_activation": "gelu_pytorch_tanh" if activation == OUTWARD["gelu_tanh"] else activation,
        "intermediate_size": 2 * hidden,
        "block_types": types,
        "attention_window_size": gated.window_of(attention),
        "lru_width": recurrent.hidden_at(spec.width),
        "conv1d_width": recurrent.kernel_size,
    }


def _bias(attention: Attention, feed_forward: object) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


_OURS, _LAYER, _KIND = "blocks.{layer}.branches.", "model.layers.{layer}.", "rg_lru"
_BODY, _MIXER, _NETWORK = f"{_OURS}0.body.", f"{_LAYER}temporal_block.", f"{_LAYER}mlp_block."
_UNIT = f"{_MIXER}rg_lru."
NAMES = (
    NameRule("frontend.table", "model.embed_tokens.weight"),
    NameRule(f"{_OURS}0.norm.weight", f"{_LAYER}temporal_pre_norm.weight"),
    NameRule(f"{_OURS}1.norm.weight", f"{_LAYER}channel_pre_norm.weight"),
    NameRule(f"{_BODY}qkv.*", tuple(f"{_MIXER}{x}_proj.*" for x in "qkv"), QKV),
    NameRule(f"{_BODY}output.*", f"{_MIXER}o_proj.*", of="attention"),
    NameRule(f"{_BODY}input.*", f"{_MIXER}linear_x.*", of=_KIND),
    NameRule(f"{_BODY}gate.*", f"{_MIXER}linear_y.*", of=_KIND),
    NameRule(f"{_BODY}output.*", f"{_MIXER}linear_out.*", of=_KIND),
    NameRule(f"{_BODY}convolution.weight", f"{_MIXER}conv_1d.weight", TAPS),
    NameRule(f"{_BODY}convolution.bias", f"{_MIXER}conv_1d.bias"),
    NameRule(f"{_BODY}input_gate.*", f"{_UNIT}input_gate_*"),
    NameRule(f"{_BODY}decay_gate.*", f"{_UNIT}recurrent_gate_*"),
    NameRule(f"{_BODY}rate", f"{_UNIT}recurrent_param"),
    NameRule(f"{_OURS}1.body.gate_up.*", (f"{_NETWORK}gate_proj.*", f"{_NETWORK}up_proj.*"), PAIR),
    NameRule(f"{_OURS}1.body.down.*", f"{_NETWORK}down_proj.*"),
    NameRule("norm.weight", "model.final_norm.weight"),
)

RECURRENT_GEMMA = Family(
    name="RecurrentGemma",
    base="Gemma",
    model_types=("recurrent_gemma",),
    architectures={"RecurrentGemmaForCausalLM": capped_language_model(True, 30.0, "logits_soft_cap")},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("w_init_variance_scale", "final_w_init_variance_scale"), "first weights"),
        **dict.fromkeys(("layer_types", "layers_block_type"), "computed from block_types"),
        "head_dim": "given by hidden_size and num_attention_heads",
        **dict.fromkeys(("hidden_act", "_block_types"), "replaced by hidden_activation and block_types"),
    },
    synonyms={"sliding_window": "attention_window_size"},
    defaults={
        "vocab_size": 256000,
        "hidden_size": 2560,
        "intermediate_size": 7680,
        "num_hidden_layers": 26,
        "num_attention_heads": 10,
        "attention_window_size": 2048,
        "conv1d_width": 4,
        "rms_norm_eps": 1e-6,
        "block_types": ["recurrent", "recurrent", "attention"],
        "max_position_embeddings": 8192,
    },
)

register(RECURRENT_GEMMA)
