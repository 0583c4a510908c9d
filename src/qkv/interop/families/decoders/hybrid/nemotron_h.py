"""Nemotron-H and Nemotron 3 (NVIDIA 2025): blocks of one branch: Mamba-2, attention, feed-forward or experts."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import OLDER, of_kinds
from qkv.interop.families.common.state_space import StateSpaceKeys, mamba2_names
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import Mamba2
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import NoPositions, RMSNorm
from qkv.spec.position_wise.experts import BalanceBias, MixtureOfExperts
from qkv.system.errors import UserError, nearest

KEYS = StateSpaceKeys(
    "mamba_num_heads",
    "mamba_head_dim",
    "ssm_state_size",
    "n_groups",
    "conv_kernel",
    "use_bias",
    "use_conv_bias",
    expansion=None,
    activation="mamba_hidden_act",
    eps="layer_norm_epsilon",
)
KINDS = {
    "mamba2": "linear_attention",
    "attention": "full_attention",
    "feed_forward": "mlp",
    "mixture_of_experts": "moe",
}
"""Kinds of branches -> kinds of layers in configs."""
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern`` -> kinds of layers."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Nemotron-H: attention without positions; steps of Mamba-2 are at least ``time_step_min``."""
    kinds, norm = _kinds(config), RMSNorm(eps=config.number("layer_norm_epsilon"))
    builders = {
        "linear_attention": lambda: KEYS.read(config, min_step=config.number("time_step_min")),
        "full_attention": lambda: _attention(config),
        "mlp": lambda: _feed_forward(config),
        "moe": lambda: _experts(config),
    }
    chosen = of_kinds(config, kinds, builders, "layers_block_type")
    parts = {kind: build() for kind, build in zip(kinds, chosen, strict=True)}
    return Model(
        width=config.size("hidden_size"),
        num_layers=len(kinds),
        context_length=config.integer("max_position_embeddings"),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=shortest_pattern([Block(branches=(parts[kind],), norm=norm) for kind in kinds]),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer, from a list of names or from a string with one letter per layer."""
    pattern = config.word("hybrid_override_pattern") if config.has("hybrid_override_pattern") else ""
    if config.has("layers_block_type"):
        return [OLDER.get(str(kind), str(kind)) for kind in config.items("layers_block_type")]
    unknown = next((letter for letter in pattern if letter not in LETTERS), None)
    if unknown is not None:
        raise UserError(f"{config.source}: hybrid_override_pattern holds {unknown!r}; {nearest(unknown, LETTERS)}")
    return [LETTERS[letter] for letter in pattern] or ["linear_attention", "moe", "full_attention", "mlp"]


def _attention(config: Config) -> Attention:
    heads = config.size("num_attention_heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=config.size("num_key_value_heads", heads),
        head_dim=config.size("head_dim"),
        dropout=config.number("attention_dropout", 0.0),
        bias=False,
    )


def _feed_forward(config: Config) -> FeedForward:
    activation = config.word("mlp_hidden_act", "relu2", INWARD)
    return FeedForward(
        hidden=config.size("intermediate_size"), activation=activation, bias=config.flag("mlp_bias", False)
    )


def _experts(config: Config) -> MixtureOfExperts:
    """Build the spec of the experts; a buffer of biases is added to the scores for the choice only."""
    if config.has("moe_latent_size"):
        raise UserError(
            f"{config.source}: moe_latent_size is {config.integer('moe_latent_size')}; needs: experts that read a "
            "projection of the vectors"
        )
    config.fixed("mlp_bias", False, "biases of shared experts only")
    return MixtureOfExperts(
        num_experts=config.size("n_routed_experts"),
        top_k=config.integer("num_experts_per_tok"),
        hidden=config.size("moe_intermediate_size"),
        gated=False,
        activation=config.word("mlp_hidden_act", "relu2", INWARD),
        num_shared=1,
        shared_hidden=config.size("moe_shared_expert_intermediate_size"),
        router="sigmoid",
        groups=config.size("n_group", 1),
        top_groups=config.size("topk_group", 1),
        normalised=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        balance=BalanceBias(),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    branches = [block.branches[0] for block in spec.layers]
    kinds = [KINDS.get(branch.kind, "") for branch in branches]
    norm = spec.layers[0].norm if spec.layers else None
    if not all(kinds) or not isinstance(norm, RMSNorm) or any(len(block.branches) != 1 for block in spec.layers):
        return None
    keys = {
        "hidden_size": spec.width,
        "layers_block_type": kinds,
        "max_position_embeddings": spec.context_length,
        "vocab_size": spec.vocab_size,
        "initializer_range": spec.init_std,
        "layer_norm_epsilon": norm.eps,
    }
    for branch in {branch.kind: branch for branch in branches}.values():
        keys |= _branch_config(branch, spec.width)
    return keys


def _branch_config(branch: Branch, width: int) -> dict[str, Any]:
    """Return the config keys of a branch."""
    match branch:
        case Mamba2() as part:
            return {**KEYS.write(part, width), "time_step_min": part.min_step}
        case Attention() as part:
            return {
                "num_attention_heads": part.num_heads,
                "num_key_value_heads": part.kv_heads,
                "head_dim": part.dims(width)[0],
                "attention_dropout": part.dropout,
            }
        case FeedForward() as part:
            return {
                "intermediate_size": part.hidden_at(width),
                "mlp_hidden_act": OUTWARD[part.activation],
                "mlp_bias": part.bias,
            }
        case MixtureOfExperts() as part:
            return {
                "n_routed_experts": part.num_experts,
                "num_experts_per_tok": part.top_k,
                "moe_intermediate_size": part.hidden,
                "moe_shared_expert_intermediate_size": part.shared_hidden,
                "mlp_hidden_act": OUTWARD[part.activation],
                "n_group": part.groups,
                "topk_group": part.kept_groups,
                "norm_topk_prob": part.normalises,
                "routed_scaling_factor": part.scale,
            }
        case _:
            return {}


_OURS, _MIXER = "blocks.{layer}.branches.0.body.", "backbone.layers.{layer}.mixer."
NAMES = (
    NameRule("frontend.table", "backbone.embeddings.weight"),
    NameRule("blocks.{layer}.branches.0.norm.weight", "backbone.layers.{layer}.norm.weight"),
    NameRule("norm.weight", "backbone.norm_f.weight"),
    *mamba2_names(_MIXER),
    NameRule(f"{_OURS}qkv.weight", (f"{_MIXER}q_proj.weight", f"{_MIXER}k_proj.weight", f"{_MIXER}v_proj.weight"), QKV),
    NameRule(f"{_OURS}output.weight", f"{_MIXER}o_proj.weight", of="attention"),
    NameRule(f"{_OURS}up.*", f"{_MIXER}up_proj.*"),
    NameRule(f"{_OURS}down.*", f"{_MIXER}down_proj.*"),
    NameRule(f"{_OURS}experts.{{expert}}.up.weight", f"{_MIXER}experts.{{expert}}.up_proj.weight"),
    NameRule(f"{_OURS}experts.{{expert}}.down.weight", f"{_MIXER}experts.{{expert}}.down_proj.weight"),
    NameRule(f"{_OURS}shared.up.weight", f"{_MIXER}shared_experts.up_proj.weight"),
    NameRule(f"{_OURS}shared.down.weight", f"{_MIXER}shared_experts.down_proj.weight"),
    NameRule(f"{_OURS}router.weight", f"{_MIXER}gate.weight"),
    NameRule(f"{_OURS}balance.bias", f"{_MIXER}gate.e_score_correction_bias"),
)

_FURTHER = "multi-token prediction, which training and speculative decoding use"
NEMOTRON_H = Family(
    name="Nemotron-H",
    base="Llama",
    model_types=("nemotron_h",),
    architectures={"NemotronHForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="backbone.",
    ignored={"mtp.*": _FURTHER},
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("time_step_max", "time_step_floor", "rescale_prenorm_residual"), "first weights"),
        **dict.fromkeys(
            ("chunk_size", "use_mamba_kernels", "mamba_ssm_cache_dtype", "residual_in_fp32"), "execution setting"
        ),
        **dict.fromkeys(("num_logits_to_keep", "output_router_logits"), "output format of a call"),
        **dict.fromkeys(
            (
                "time_step_limit",
                "sliding_window",
                "attention_bias",
                "mamba_proj_bias",
                "n_shared_experts",
                "moe_shared_expert_overlap",
                "hidden_dropout",
                "expand",
            ),
            "not read by the published code of this family",
        ),
        **dict.fromkeys(("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern"), _FURTHER),
        "num_hidden_layers": "given by the list of layers",
    },
    synonyms={
        "layer_types": "layers_block_type",
        "num_local_experts": "n_routed_experts",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_expand": "expand",
        "mamba_dt_min": "time_step_min",
        "mamba_dt_max": "time_step_max",
        "mamba_dt_limit": "time_step_limit",
        "mamba_dt_init_floor": "time_step_floor",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_chunk_size": "chunk_size",
    },
    older={"model.": "backbone."},
    defaults={
        "vocab_size": 131072,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "intermediate_size": 21504,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "time_step_min": 0.001,
        "layer_norm_epsilon": 1e-5,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    },
)

register(NEMOTRON_H)
