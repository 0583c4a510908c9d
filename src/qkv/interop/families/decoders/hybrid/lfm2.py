"""LFM2 (Liquid AI 2025): gated short convolutions, and grouped-query attention in some layers."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import config_of, first_mixer, kinds_of, of_kinds
from qkv.interop.families.common.rope import rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV, TAPS
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Branch, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.gated_convolution import GatedConvolution
from qkv.spec.model import Model
from qkv.spec.parts import RMSNorm

KINDS = {"attention": "full_attention", "gated_convolution": "conv"}
"""Kinds of mixers -> kinds of layers in configs."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of LFM2. Without ``layer_types``, layers in ``full_attn_idxs`` (default: all) have attention.

    With ``block_auto_adjust_ff_dim``, the feed-forward has 2/3 of ``intermediate_size`` hidden features, times a
    factor, rounded up.
    """
    norm = RMSNorm(eps=config.number("norm_eps"))
    attention = gated.attention_of(config, qk_norm=norm, relative=rope_of(config))
    model = gated.model_of(config, head, mixers_of(config, attention), norm=norm)
    feed_forward = GatedFeedForward(hidden=_hidden(config))
    blocks = tuple(block.changed(branches=(block.branches[0], feed_forward)) for block in model.blocks)
    return model.changed(blocks=blocks)


def mixers_of(config: Config, attention: Branch) -> list[Branch]:
    """Return the mixer of each layer of LFM2 and its successors."""
    layers = config.layers("num_hidden_layers")
    attends = config.items("full_attn_idxs") if config.has("full_attn_idxs") else range(layers)
    kinds = kinds_of(config, ["full_attention" if i in attends else "conv" for i in range(layers)])
    convolution = GatedConvolution(kernel_size=config.size("conv_L_cache"), bias=config.flag("conv_bias"))
    return of_kinds(config, kinds, {"full_attention": attention, "conv": convolution})


def _hidden(config: Config) -> int:
    """Return the number of features of the feed-forward."""
    hidden, several = config.size("intermediate_size"), config.size("block_multiple_of")
    factor = config.optional("block_ffn_dim_multiplier", 1.0)
    if not config.flag("block_auto_adjust_ff_dim"):
        return hidden
    hidden = int(2 * hidden / 3)
    return hidden if factor is None else -(-int(factor * hidden) // several) * several


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not LFM2's. Callers read them back to verify."""
    shared = config_of(spec, lambda attention, feed_forward: {}, lambda branch: KINDS.get(branch.kind, ""))
    if shared is None:
        return None
    eps, activation = shared.pop("rms_norm_eps", None), shared.pop("hidden_act")
    if eps is None or activation != "silu":
        return None
    return {**shared, "norm_eps": eps, "block_auto_adjust_ff_dim": False, **convolution_config(spec)}


def convolution_config(spec: Model) -> dict[str, Any]:
    """Return the config keys of the convolutions of ``spec``; empty if there are none."""
    convolution = first_mixer(spec, GatedConvolution)
    return {} if convolution is None else {"conv_L_cache": convolution.kernel_size, "conv_bias": convolution.bias}


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
_ATTENTION, _CONVOLUTION = f"{_LAYER}self_attn.", f"{_LAYER}conv."
MIXER_NAMES = (
    NameRule("frontend.table", "model.embed_tokens.weight"),
    NameRule("norm.weight", "model.embedding_norm.weight"),
    NameRule(f"{_OURS}0.norm.weight", f"{_LAYER}operator_norm.weight"),
    NameRule(f"{_OURS}1.norm.weight", f"{_LAYER}ffn_norm.weight"),
    NameRule(f"{_OURS}0.body.input.*", f"{_CONVOLUTION}in_proj.*", of="gated_convolution"),
    NameRule(f"{_OURS}0.body.convolution.weight", f"{_CONVOLUTION}conv.weight", TAPS),
    NameRule(f"{_OURS}0.body.convolution.bias", f"{_CONVOLUTION}conv.bias"),
    NameRule(f"{_OURS}0.body.output.*", f"{_CONVOLUTION}out_proj.*", of="gated_convolution"),
    NameRule(
        f"{_OURS}0.body.qkv.weight",
        (f"{_ATTENTION}q_proj.weight", f"{_ATTENTION}k_proj.weight", f"{_ATTENTION}v_proj.weight"),
        QKV,
    ),
    NameRule(f"{_OURS}0.body.output.weight", f"{_ATTENTION}out_proj.weight"),
    NameRule(f"{_OURS}0.body.query_norm.weight", f"{_ATTENTION}q_layernorm.weight"),
    NameRule(f"{_OURS}0.body.key_norm.weight", f"{_ATTENTION}k_layernorm.weight"),
)
"""Name table of LFM2's mixers, norms and token table."""
_FEED_FORWARD = f"{_LAYER}feed_forward."
DENSE_NAMES = (
    NameRule(f"{_OURS}1.body.gate_up.weight", (f"{_FEED_FORWARD}w1.weight", f"{_FEED_FORWARD}w3.weight"), PAIR),
    NameRule(f"{_OURS}1.body.down.weight", f"{_FEED_FORWARD}w2.weight"),
)
"""Name table of a dense feed-forward of LFM2."""

LFM2 = Family(
    name="LFM2",
    base="Qwen3",
    model_types=("lfm2",),
    architectures={"Lfm2ForCausalLM": language_model(tied=True)},
    spec=spec,
    config=config,
    names=(*MIXER_NAMES, *DENSE_NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    synonyms={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    defaults={
        "vocab_size": 65536,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_auto_adjust_ff_dim": True,
    },
)

register(LFM2)
