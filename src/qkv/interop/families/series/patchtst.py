"""PatchTST (Nie et al. 2023): patches of each channel of a standardised window, and blocks with batch norm.

In a published model the last patch ends at the last step of the window; first steps that do not fill a patch are
ignored. Both kinds of published positions, learned and sinusoidal, are stored as a table in the files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, WITH_COUNT
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ForecastHead, Head, VectorsHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.forecasts import Point
from qkv.spec.parts import BatchNorm, LayerNorm, NoNorm
from qkv.spec.signals.series import SeriesPatches
from qkv.system.errors import UserError, quoted

_LAYER, _ATTENTION = "model.encoder.layers.{layer}", "model.encoder.layers.{layer}.self_attn"
_OVER = {"mean": "mean", None: "flatten"}
"""Published name of the pooling in the head -> name in qkv."""
_NORMALISE = {"std": "window", None: "none"}
"""Published name of the normalisation of a window -> name in qkv."""
_NORMS = {"batchnorm": BatchNorm, "layernorm": LayerNorm}


def _over_batch(spec: Model) -> bool:
    return any(block.norm.over_batch for block in spec.layers)


def _norm(branch: int, theirs: str) -> tuple[NameRule, ...]:
    """Return the name table of a branch's norm; ``theirs``: its published name."""
    ours, published = f"blocks.{{layer}}.branches.{branch}.norm", f"{_LAYER}.{theirs}"
    inside = f"{published}.batchnorm"
    return (
        NameRule(f"{ours}.*", f"{inside}.*", where=_over_batch),
        NameRule(f"{ours}.*", f"{published}.*"),
        NameRule(f"{ours}.running_mean", f"{inside}.running_mean"),
        NameRule(f"{ours}.running_var", (f"{inside}.running_var", f"{inside}.num_batches_tracked"), WITH_COUNT),
    )


NAMES = (
    NameRule("frontend.map.*", "model.encoder.embedder.input_embedding.*"),
    NameRule("frontend.positions.table", "model.encoder.positional_encoder.position_enc"),
    *_norm(0, "norm_sublayer1"),
    *_norm(1, "norm_sublayer3"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", tuple(f"{_ATTENTION}.{part}_proj.*" for part in "qkv"), QKV),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_ATTENTION}.out_proj.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}.ff.0.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}.ff.3.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of PatchTST: context_length steps, patches of patch_length, d_model features, ffn_dim hidden."""
    config.fixed("channel_attention", False, "which channels a position sees")
    config.fixed("share_embedding", True, "the map from patches to vectors")
    config.fixed("minimum_scale", 1e-5, "the lower limit of a window's variance")
    config.fixed("use_cls_token", False, "the positions of a window")
    config.word("positional_encoding_type", "sincos", {"random": 0, "sincos": 0})  # the file stores both as a table
    embeds = _frontend(config)
    norm = config.word("norm_type", "batchnorm", _NORMS)(eps=config.number("norm_eps", 1e-5))
    attention = Attention(
        num_heads=config.size("num_attention_heads", 4),
        mask=Full(),
        bias=True,
        output_bias=True,
        dropout=config.number("attention_dropout", 0.0),
    )
    second = FeedForward(
        hidden=config.size("ffn_dim", 512),
        activation=config.word("activation_function", "gelu", INWARD),
        bias=config.flag("bias", True),
        dropout=config.number("ff_dropout", 0.0),
    )
    return Model(
        width=config.size("d_model", 128),
        num_layers=config.layers("num_hidden_layers", 3),
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=(
            Block(
                branches=(attention, second),
                norm=norm,
                order="pre" if config.flag("pre_norm", True) else "post",
                dropout=config.number("path_dropout", 0.0),
            ),
        ),
        norm=NoNorm(),
        head=head,
        init_std=config.number("init_std", 0.02),
    )


def _frontend(config: Config) -> SeriesPatches:
    fields: dict[str, Any] = {
        "patch": config.integer("patch_length", 1),
        "stride": config.integer("patch_stride", 1),
        "features": config.integer("num_input_channels", 1),
        "steps": config.integer("context_length", 32),
        "normalise": _named(config, "scaling", "std", _NORMALISE),
        "dropout": config.number("positional_dropout", 0.0),
    }
    return SeriesPatches.parse({**fields, "covariates": 0, "pad_end": False, "align": "end"}, config.source)


def _named(config: Config, key: str, default: str, names: dict[Any, str]) -> str:
    """Return what ``names`` maps the text or null under a key to. Raises ``UserError`` for any other value."""
    value = config.values.get(key, None if key in config.nulls else default)
    config.asked.add(key)
    if not isinstance(value, str | None) or value not in names:
        allowed = " and ".join("null" if name is None else quoted(name) for name in names)
        raise UserError(f"{config.source}: {key} is {quoted(value)}, but qkv supports only {allowed}")
    return names[value]


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not PatchTST's. Callers read them back to
    verify.
    """
    match shape_of(spec):
        case (
            Block(
                branches=(Attention() as attention, FeedForward() as second), norm=BatchNorm() | LayerNorm() as norm
            ) as block,
            SeriesPatches(steps=int(steps), features=int(features)) as embeds,
        ) if steps > embeds.patch and embeds.normalise in _NORMALISE.values():
            pass
        case _:
            return None
    return {
        "context_length": steps,
        "num_input_channels": features,
        "patch_length": embeds.patch,
        "patch_stride": embeds.stride,
        "scaling": next(name for name, scaling in _NORMALISE.items() if scaling == embeds.normalise),
        "d_model": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "ffn_dim": second.hidden_at(spec.width),
        "activation_function": OUTWARD.get(second.activation),
        "bias": second.bias,
        "norm_type": "batchnorm" if norm.over_batch else "layernorm",
        "norm_eps": norm.eps,
        "pre_norm": block.order == "pre",
        "positional_encoding_type": "random",
        "attention_dropout": attention.dropout,
        "ff_dropout": second.dropout,
        "path_dropout": block.dropout,
        "positional_dropout": embeds.dropout,
        "init_std": spec.init_std,
    }


def _forecast(config: Config) -> Head:
    """Build the head that concatenates or averages the vectors of patches and predicts one number per step."""
    config.fixed("share_projection", True, "the head of each channel")
    _named(config, "loss", "mse", {"mse": "mse"})
    return ForecastHead(
        over=_named(config, "pooling_type", "mean", _OVER),  # type: ignore[arg-type]
        dropout=config.number("head_dropout", 0.0),
        horizon=config.size("prediction_length", 24),
        channels=1,
        positions=_frontend(config).num_positions,
    )


def _forecast_keys(head: Head) -> dict[str, Any] | None:
    match head:
        case ForecastHead(over="mean" | "flatten", form=Point()):
            pooling = next(name for name, value in _OVER.items() if value == head.over)
        case _:
            return None
    return {
        "loss": "mse",
        "pooling_type": pooling,
        "prediction_length": head.horizon,
        "head_dropout": head.dropout,
    }


def _vectors(config: Config) -> Head:
    config.fixed("do_mask_input", False, "the values that are read")
    return VectorsHead()


_OTHER_HEADS = ("distribution_output", "num_targets", "output_range", "num_parallel_samples")
_PRETRAINING = (
    "do_mask_input",
    "mask_type",
    "random_mask_ratio",
    "num_forecast_mask_patches",
    "channel_consistent_masking",
    "unmasked_channel_indices",
    "mask_value",
)
IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(_PRETRAINING, "masks patches in pretraining only"),
    **dict.fromkeys(_OTHER_HEADS, "part of another head"),
    **dict.fromkeys(
        ("loss", "pooling_type", "prediction_length", "head_dropout", "share_projection"),
        "part of a head that this architecture lacks",
    ),
}

PATCHTST = Family(
    name="PatchTST",
    model_types=("patchtst",),
    architectures={
        "PatchTSTForPrediction": Architecture(
            _forecast, _forecast_keys, (NameRule("head.output.*", "head.projection.*"),)
        ),
        "PatchTSTModel": replace(heads.vectors(), head=_vectors),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    synonyms={"hidden_size": "d_model"},
    ignored_config=IGNORED_CONFIG,
)

register(PATCHTST)
