"""Falcon-H1 (TII 2025): Mamba-2 and attention beside each other on one norm, then a feed-forward; constant factors.

A published layer is two blocks of qkv. Factors of the input of attention and of its keys are part of the temperature of
the scores, and of the factor of its output.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.common.multipliers import factor_of
from qkv.interop.families.common.rope import rope_config
from qkv.interop.families.common.shape import shortest
from qkv.interop.families.common.state_space import StateSpaceKeys, mamba2_names, min_step_of, step_limits
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import Mamba2
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import RMSNorm, Rope
from qkv.system.errors import UserError

KEYS = StateSpaceKeys(expansion=None)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Falcon-H1: ``mamba_d_ssm`` is the number of features of Mamba-2, ``mamba_expand`` if null."""
    gate, down = _numbers(config, "mlp_multipliers", 2)
    attention, after = _attention(config)
    model = gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"), config.flag("mlp_bias"))
    network = model.blocks[0].branches[1]
    assert isinstance(network, GatedFeedForward)
    norm = gated.norm_of(config)
    mixers = Block(
        branches=(_mamba(config), attention),
        norm=norm,
        order="parallel",
        factors=_listed(config.number("ssm_out_multiplier"), after),
    )
    forward = Block(branches=(network.changed(gate_factor=gate),), norm=norm, factors=_listed(down))
    text = model.frontend.changed(multiplier=factor_of(config, "embedding_multiplier"))
    return model.changed(blocks=(mixers, forward), num_layers=2 * len(model.layers), frontend=text)


def _numbers(config: Config, key: str, count: int) -> list[float]:
    """Return the list of ``count`` numbers under ``key``; ones if it is missing."""
    numbers = config.items(key) or [1.0] * count
    if len(numbers) != count or not all(type(number) in (int, float) for number in numbers):
        raise UserError(f"{config.source}: {key} is {numbers}, but it should hold {count} numbers")
    return [float(number) for number in numbers]


def _listed(*factors: float) -> tuple[float, ...]:
    return factors if any(factor != 1 for factor in factors) else ()


def _attention(config: Config) -> tuple[Attention, float]:
    """Return (attention, factor of its output)."""
    keys, before = factor_of(config, "key_multiplier"), factor_of(config, "attention_in_multiplier")
    bias = config.flag("attention_bias")
    if bias:
        config.fixed("attention_in_multiplier", 1.0, "maps with biases of the input of attention")
    attention = gated.attention_of(config, bias=bias, temperature=1 / (keys * before**2))
    return attention, before * config.number("attention_out_multiplier")


def _mamba(config: Config) -> Mamba2:
    factors, before = _numbers(config, "ssm_multipliers", 5), config.number("ssm_in_multiplier")
    bias = config.flag("mamba_proj_bias")
    config.fixed("projectors_bias", bias, "the bias of the output projection of Mamba-2 alone")
    if bias:
        config.fixed("ssm_in_multiplier", 1.0, "a map with bias of the input of Mamba-2")
    width, heads = config.size("hidden_size"), config.size("mamba_n_heads")
    expanded = config.optional("mamba_expand", 2)
    inner = config.size("mamba_d_ssm", None if expanded is None else int(expanded * width))
    if config.values.get("mamba_d_head", "auto") == "auto":
        config.values["mamba_d_head"] = inner // heads  # computed, as in the published config class
    part = KEYS.read(config, min_step=min_step_of(config), factors=_listed(*(before * one for one in factors)))
    if part.inner(width) != inner:
        raise UserError(
            f"{config.source}: mamba_n_heads is {heads} and mamba_d_head {config.integer('mamba_d_head')}, but their "
            f"product should be {inner}"
        )
    normed = "before_gate" if config.flag("mamba_norm_before_gate") else "after_gate"
    return part.changed(norm=normed if config.flag("mamba_rms_norm") else "none")


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:2], spec.frontend:
        case (
            [
                Block(branches=(Mamba2() as mamba, Attention(relative=Rope() as rope) as attention)) as mixers,
                Block(branches=(GatedFeedForward() as network,), norm=RMSNorm() as norm) as forward,
            ],
            Text() as text,
        ):
            turned = rope_config(rope)
        case _:
            return None
    if turned is None or len(spec.layers) % 2:
        return None
    ssm, after = mixers.factors or (1.0, 1.0)
    scale = shortest(1 / attention.temperature, lambda number: 1 / number == attention.temperature)
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers) // 2,
        "max_position_embeddings": spec.context_length,
        "vocab_size": text.vocab_size,
        "initializer_range": spec.init_std,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.dims(spec.width)[0],
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "intermediate_size": network.hidden_at(spec.width),
        "hidden_act": OUTWARD[network.activation],
        "mlp_bias": network.bias,
        "rms_norm_eps": norm.eps,
        **turned,
        **_mamba_config(mamba, spec.width),
        "embedding_multiplier": text.multiplier,
        "mlp_multipliers": [network.gate_factor, *(forward.factors or (1.0,))],
        "key_multiplier": scale,
        "attention_out_multiplier": after,
        "ssm_out_multiplier": ssm,
    }


def _mamba_config(part: Mamba2, width: int) -> dict[str, Any]:
    return {
        **KEYS.write(part, width),
        "mamba_d_ssm": part.inner(width),
        "projectors_bias": part.bias,
        "ssm_multipliers": list(part.factors or (1.0,) * 5),
        "mamba_rms_norm": part.norm != "none",
        "mamba_norm_before_gate": part.norm != "after_gate",
        "time_step_limit": step_limits(part),
    }


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer//2}."
_ATTENTION, _NETWORK = f"{_LAYER}self_attn.", f"{_LAYER}feed_forward."
NAMES = (
    NameRule("frontend.table", "model.embed_tokens.weight"),
    NameRule("blocks.{layer}.norm.weight", f"{_LAYER}input_layernorm.weight"),
    NameRule(f"{_OURS}0.norm.weight", f"{_LAYER}pre_ff_layernorm.weight"),
    *mamba2_names(f"{_LAYER}mamba."),
    NameRule(f"{_OURS}1.body.qkv.*", tuple(f"{_ATTENTION}{x}_proj.*" for x in "qkv"), QKV),
    NameRule(f"{_OURS}1.body.output.*", f"{_ATTENTION}o_proj.*"),
    NameRule(f"{_OURS}0.body.gate_up.*", (f"{_NETWORK}gate_proj.*", f"{_NETWORK}up_proj.*"), PAIR),
    NameRule(f"{_OURS}0.body.down.*", f"{_NETWORK}down_proj.*"),
    NameRule("norm.weight", "model.final_layernorm.weight"),
)

FALCON_H1 = Family(
    name="Falcon-H1",
    base="Bamba",
    model_types=("falcon_h1",),
    architectures={"FalconH1ForCausalLM": scaled_language_model(False, "lm_head_multiplier", 1.0)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("mamba_chunk_size", "mamba_use_mlp"), "execution setting"),
        **dict.fromkeys(("num_logits_to_keep",), "output format of a call"),
        **dict.fromkeys(("layer_types", "layers_block_type"), "fixed by the family"),
    },
    defaults={
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_proj_bias": False,
        "projectors_bias": False,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "attention_bias": False,
        "mlp_bias": False,
        **dict.fromkeys(
            (
                "embedding_multiplier",
                "key_multiplier",
                "attention_in_multiplier",
                "attention_out_multiplier",
                "ssm_in_multiplier",
                "ssm_out_multiplier",
            ),
            1.0,
        ),
    },
)

register(FALCON_H1)
