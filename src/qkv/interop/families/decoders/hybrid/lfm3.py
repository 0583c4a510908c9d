"""LFM3 (Liquid AI 2026): LFM2's convolutions, and gated attention with or without a window, with norms after branches.

Layers with a window and layers with full attention have different RoPE.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import config_of, kinds_of, of_kinds
from qkv.interop.families.common.rope import layer_ropes, rope_table
from qkv.interop.families.decoders.hybrid import lfm2
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.mixers.gated_convolution import GatedConvolution
from qkv.spec.model import Model
from qkv.spec.parts import HeadGate, NoOutputGate, RMSNorm, Rope

FULL, SLIDING, CONVOLUTION = gated.FULL, gated.SLIDING, "conv"
BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of LFM3; without ``layer_types``, layers 2, 6, … have full attention, 4, 8, … a window."""
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    norm, layers = RMSNorm(eps=config.number("norm_eps")), config.layers("num_hidden_layers")
    usual = [FULL if i % 4 == 2 else SLIDING if i and i % 4 == 0 else CONVOLUTION for i in range(layers)]
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        relative=Rope(),
        qk_norm=norm,
        output_gate=HeadGate() if config.flag("use_attention_gate") else NoOutputGate(),
    )
    mixers = of_kinds(config, kinds_of(config, usual), _mixers(config, attention))
    model = gated.model_of(config, head, mixers, norm=norm)
    feed_forward = GatedFeedForward(hidden=config.size("intermediate_size"))
    order = "sandwich" if config.flag("use_sandwich_norm") else "pre"
    blocks = tuple(block.changed(branches=(block.branches[0], feed_forward), order=order) for block in model.blocks)
    return model.changed(blocks=blocks)


def _mixers(config: Config, attention: Attention) -> dict[str, Branch]:
    """Return the mixer of each kind of layer."""
    ropes = layer_ropes(config, BASES, scaled="")
    window = config.integer("sliding_window")
    return {
        FULL: attention.changed(relative=ropes[FULL], mask=Causal()),
        SLIDING: attention.changed(relative=ropes[SLIDING], mask=gated.windowed(window)),
        CONVOLUTION: GatedConvolution(kernel_size=config.size("conv_L_cache"), bias=config.flag("conv_bias")),
    }


def _kind(branch: Branch) -> str:
    if branch.kind == "gated_convolution":
        return CONVOLUTION
    return FULL if gated.window_of(branch) is None else SLIDING


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not LFM3's. Callers read them back to verify."""
    shared = config_of(spec, lambda attention, feed_forward: {"attention_bias": attention.bias}, _kind, rope=False)
    attentions = {_kind(block.branches[0]): block.branches[0] for block in spec.layers}
    tables = {kind: rope_table(_rope(attentions.get(kind), kind)) for kind in BASES}
    if shared is None or None in tables.values():
        return None
    eps, activation = shared.pop("rms_norm_eps", None), shared.pop("hidden_act")
    if eps is None or activation != "silu":
        return None
    gates = [branch.output_gate.kind for branch in attentions.values() if isinstance(branch, Attention)]
    return {
        **shared,
        "norm_eps": eps,
        "rope_parameters": tables,
        "sliding_window": next((w for b in attentions.values() if (w := gated.window_of(b))), spec.context_length),
        "use_attention_gate": "heads" in gates,
        "use_sandwich_norm": spec.layers[0].order == "sandwich",
        **lfm2.convolution_config(spec),
        "pad_token_id": None,  # the library's default id exceeds a small vocabulary
    }


def _rope(branch: Branch | None, kind: str) -> Rope:
    relative = branch.relative if isinstance(branch, Attention) else None
    return relative if isinstance(relative, Rope) else Rope(base=BASES[kind])


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
NAMES = (
    NameRule(f"{_OURS}0.norm_after.weight", f"{_LAYER}post_operator_norm.weight"),
    NameRule(f"{_OURS}1.norm_after.weight", f"{_LAYER}post_ffn_norm.weight"),
    NameRule(f"{_OURS}0.body.output_gate.map.*", f"{_LAYER}self_attn.gate_proj.*"),
    *(rule._replace(of="attention") for rule in gated.NAMES if "self_attn" in rule.published[0]),
    *lfm2.MIXER_NAMES,
    *lfm2.DENSE_NAMES,
)

LFM3 = Family(
    name="LFM3",
    base="LFM2",
    model_types=("lfm3",),
    architectures={"Lfm3ForCausalLM": language_model(tied=True)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config=HEAD_KEYS,
    synonyms={"rms_norm_eps": "norm_eps"},
    defaults={
        "vocab_size": 128_000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 7,
        "sliding_window": 256,
        "use_sandwich_norm": True,
        "use_attention_gate": True,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": BASES[SLIDING]},
            FULL: {"rope_type": "proportional", "rope_theta": BASES[FULL], "partial_rotary_factor": 0.5},
        },
    },
)

register(LFM3)
