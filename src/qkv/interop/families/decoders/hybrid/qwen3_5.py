"""Qwen3-Next and Qwen3.5 (Qwen team 2025, 2026): the gated delta rule, and gated attention in every fourth layer.

Norms have scales 1 + w, except the norm after the delta rule, which has w. qkv reads the text model of Qwen3.5 only.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import DELTA_NAMES, config_of, delta_config, delta_of, kinds_of, of_kinds
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import FeatureGate, RMSNorm, Rope

KINDS = {"attention": "full_attention", "gated_delta": "linear_attention"}
"""Kinds of mixers -> kinds of layers in configs."""


def mixers_of(config: Config) -> list[Branch]:
    """Return the mixer of each layer; without ``layer_types``, every fourth layer has attention."""
    norm = norm_of(config)
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        qk_norm=norm,
        output_gate=FeatureGate(),
        relative=rope_of(config, 0.25),
    )
    layers, interval = config.layers("num_hidden_layers"), config.size("full_attention_interval", 4)
    kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    config.word("hidden_act", "silu", {"silu": "silu"})
    parts: dict[str, Branch] = {"full_attention": attention, "linear_attention": delta_of(config, norm.eps)}
    return of_kinds(config, kinds_of(config, kinds), parts)


def norm_of(config: Config) -> RMSNorm:
    """Build the norm spec of branches, heads and the end of the stack."""
    return RMSNorm(eps=config.number("rms_norm_eps", 1e-6), zero_centred=True)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Qwen3.5, whose layers have a dense feed-forward."""
    return gated.model_of(config, head, mixers_of(config), norm=norm_of(config))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    shared = config_of(spec, attention_config, lambda branch: KINDS.get(branch.kind, ""), rope=False)
    return None if shared is None else {**shared, **delta_config(spec)}


def attention_config(attention: Attention, feed_forward: object) -> dict[str, Any]:
    """Return the config keys of gated attention that Llama-like families lack."""
    rope = attention.relative if isinstance(attention.relative, Rope) else Rope()
    return {"attention_bias": attention.bias, FRACTION: rope.fraction, **(rope_config(rope, partial=True) or {})}


def gate_division(spec: Model) -> tuple[RowDivision, ...]:
    """Return how the rows of ``q_proj`` are divided: in each head first the queries, then the output gate."""
    attention = next((b.branches[0] for b in spec.layers if isinstance(b.branches[0], Attention)), None)
    if attention is None:
        return ()
    size = attention.dims(spec.width)[0]
    return (RowDivision("model.layers.{layer}.self_attn.q_proj.*", {"queries": size, "gate": size}),)


_OURS, _LAYER = "blocks.{layer}.branches.0.body.", "model.layers.{layer}."
_ATTENTION, _DELTA = f"{_LAYER}self_attn.", f"{_LAYER}linear_attn."
MIXER_NAMES = (
    NameRule(
        f"{_OURS}qkv.*",
        (f"{_ATTENTION}q_proj.*[queries]", f"{_ATTENTION}k_proj.*", f"{_ATTENTION}v_proj.*"),
        QKV,
        of="attention",
    ),
    NameRule(f"{_OURS}output_gate.map.*", f"{_ATTENTION}q_proj.*[gate]"),
    *DELTA_NAMES,
    *gated.NAMES,
)
"""Name table of everything but the projections of the delta rule and the experts."""
NAMES = (
    NameRule(f"{_OURS}qkv.weight", f"{_DELTA}in_proj_qkv.weight", of="gated_delta"),
    NameRule(f"{_OURS}gate.weight", f"{_DELTA}in_proj_z.weight", of="gated_delta"),
    NameRule(f"{_OURS}strength.weight", f"{_DELTA}in_proj_b.weight", of="gated_delta"),
    NameRule(f"{_OURS}forgetting.weight", f"{_DELTA}in_proj_a.weight", of="gated_delta"),
    *MIXER_NAMES,
)
DEFAULTS = {
    "num_attention_heads": 16,
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
"""Default values of config keys, for all versions."""
IGNORED = {
    **gated.IGNORED,
    "model.visual.*": "part of the image tower, which qkv does not read",
    "mtp.*": "multi-token prediction, which training and speculative decoding use",
}

QWEN3_5 = Family(
    name="Qwen3.5",
    base="Qwen3",
    model_types=("qwen3_5_text",),
    architectures={"Qwen3_5ForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    divisions=gate_division,
    ignored=IGNORED,
    ignored_config={**HEAD_KEYS, "mtp_num_hidden_layers": "multi-token prediction"},
    older={"model.language_model.": "model."},
    defaults={
        **DEFAULTS,
        "vocab_size": 248320,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
)

register(QWEN3_5)
