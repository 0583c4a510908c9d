"""Mamba-2 (Dao & Gu 2024): blocks of a single state-space mixer."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.state_space import StateSpaceKeys, mamba2_names, min_step_of, step_limits
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family, Reasons
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Branch
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import Mamba2
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm

KEYS = StateSpaceKeys(
    "num_heads",
    "head_dim",
    "state_size",
    "n_groups",
    "conv_kernel",
    "use_bias",
    "use_conv_bias",
    "expand",
    eps="layer_norm_epsilon",
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Mamba-2."""
    return single_mixers(config, head, KEYS.read(config, min_step=min_step_of(config)))


def single_mixers(config: Config, head: Head, mixer: Branch) -> Model:
    """Build the spec of a model with one mixer per block."""
    norm = RMSNorm(eps=config.number("layer_norm_epsilon"))
    return Model(
        width=config.size("hidden_size"),
        num_layers=config.layers("num_hidden_layers"),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=(Block(branches=(mixer,), norm=norm),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.1),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:1]:
        case (Block(branches=(Mamba2() as part,)),):
            keys = {**KEYS.write(part, spec.width), "time_step_limit": step_limits(part)}
            return {**single_mixers_config(spec), **keys}
        case _:
            return None


def single_mixers_config(spec: Model) -> dict[str, Any]:
    """Return the config keys of a model with one mixer per block, without those of the mixer."""
    norm = spec.layers[0].norm
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "max_position_embeddings": spec.context_length,
        "vocab_size": spec.vocab_size,
        "initializer_range": spec.init_std,
        "layer_norm_epsilon": norm.eps if isinstance(norm, RMSNorm) else 1e-5,
    }


NAMES = (
    NameRule("frontend.table", "backbone.embeddings.weight"),
    NameRule("blocks.{layer}.branches.0.norm.weight", "backbone.layers.{layer}.norm.weight"),
    NameRule("norm.weight", "backbone.norm_f.weight"),
)
"""Name table of a model with one mixer per block, without the mixer."""
IGNORED_CONFIG: Reasons = {
    **HEAD_KEYS,
    **dict.fromkeys(
        (
            "time_step_rank",
            "time_step_min",
            "time_step_max",
            "time_step_floor",
            "time_step_scale",
            "time_step_init_scheme",
            "rescale_prenorm_residual",
        ),
        "initialisation of weights",
    ),
    **dict.fromkeys(
        ("chunk_size", "use_mambapy", "use_falcon_mambapy", "use_associative_scan", "residual_in_fp32"),
        "execution setting",
    ),
}

MAMBA2 = Family(
    name="Mamba-2",
    model_types=("mamba2",),
    architectures={"Mamba2ForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=(*NAMES, *mamba2_names("backbone.layers.{layer}.mixer.")),
    prefix="backbone.",
    ignored_config=IGNORED_CONFIG,
    older={"backbone.embedding.": "backbone.embeddings."},
    defaults={
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
    },
)

register(MAMBA2)
