"""Mamba (Gu & Dao 2023) and Falcon-Mamba (TII 2024): blocks of one selective state-space mixer.

Falcon-Mamba normalises the vectors that steps, b and c are computed from; the norms have no weights.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import language_model
from qkv.interop.families.decoders.hybrid.mamba2 import IGNORED_CONFIG, NAMES, single_mixers, single_mixers_config
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TAPS
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.mixers.mamba import Mamba
from qkv.spec.model import Block, Model
from qkv.spec.parts import NoNorm, Norm, RMSNorm


def _mixer(config: Config, norm: Norm) -> Mamba:
    config.word("hidden_act", "silu", {"silu": "silu"})
    width = config.size("hidden_size")
    expanded = int(config.number("expand", 2) * width)
    return Mamba(
        expansion=config.size("intermediate_size", expanded) / width,
        state_size=config.size("state_size", 16),
        step_rank=_rank(config, width),
        kernel_size=config.size("conv_kernel", 4),
        bias=config.flag("use_bias", False),
        convolution_bias=config.flag("use_conv_bias", True),
        norm=norm,
    )


def _rank(config: Config, width: int) -> int:
    """Return ``time_step_rank``; "auto", the default, is a sixteenth of the width, rounded up."""
    automatic = -(-width // 16)
    if config.values.get("time_step_rank") == "auto":
        config.has("time_step_rank")
        return automatic
    return config.size("time_step_rank", automatic)


def spec_of_mamba(config: Config, head: Head) -> Model:
    """Build the spec of Mamba."""
    return single_mixers(config, head, _mixer(config, NoNorm()))


def spec_of_falcon(config: Config, head: Head) -> Model:
    """Build the spec of Falcon-Mamba."""
    norm = RMSNorm(eps=config.number("mixer_rms_eps", 1e-6), weight=False)
    return single_mixers(config, head, _mixer(config, norm))


def config_of_mamba(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Mamba's. Callers read them back to verify."""
    match spec.layers[:1]:
        case (Block(branches=(Mamba() as part,)),):
            pass
        case _:
            return None
    inner = part.inner(spec.width)
    return {
        **single_mixers_config(spec),
        "intermediate_size": inner,
        "state_size": part.state_size,
        "time_step_rank": part.rank_at(spec.width),
        "conv_kernel": part.kernel_size,
        "use_bias": part.bias,
        "use_conv_bias": part.convolution_bias,
    }


def config_of_falcon(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = config_of_mamba(spec)
    match spec.layers[:1]:
        case (Block(branches=(Mamba(norm=RMSNorm() as norm),)),) if keys is not None:
            return {**keys, "mixer_rms_eps": norm.eps}
        case _:
            return None


def mamba_names(theirs: str) -> tuple[NameRule, ...]:
    """Return the name-table rows of Mamba as a block's first branch; ``theirs``: prefix of published names."""
    ours, kind = "blocks.{layer}.branches.0.body.", "mamba"
    plain = {
        "selection.weight": "x_proj.weight",
        "step.weight": "dt_proj.weight",
        "step_bias": "dt_proj.bias",
        "log_rate": "A_log",
        "skip": "D",
        "convolution.bias": "conv1d.bias",
    }
    return (
        NameRule(f"{ours}input.*", f"{theirs}in_proj.*", of=kind),
        NameRule(f"{ours}output.*", f"{theirs}out_proj.*", of=kind),
        NameRule(f"{ours}convolution.weight", f"{theirs}conv1d.weight", TAPS, of=kind),
        *(NameRule(f"{ours}{name}", f"{theirs}{published}", of=kind) for name, published in plain.items()),
    )


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=True)},
        names=(*NAMES, *mamba_names("backbone.layers.{layer}.mixer.")),
        prefix="backbone.",
        ignored_config=IGNORED_CONFIG,
        older={"backbone.embedding.": "backbone.embeddings."},
        defaults={
            "vocab_size": 50280,
            "hidden_size": 768,
            "num_hidden_layers": 32,
            "layer_norm_epsilon": 1e-5,
        },
        **fields,
    )


MAMBA = _family("Mamba", "mamba", "Mamba", spec=spec_of_mamba, config=config_of_mamba)
FALCON_MAMBA = _family(
    "Falcon-Mamba", "falcon_mamba", "FalconMamba", spec=spec_of_falcon, config=config_of_falcon, base="Mamba"
)

register(MAMBA, FALCON_MAMBA)
