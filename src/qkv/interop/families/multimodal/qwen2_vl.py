"""Qwen2-VL (Wang et al. 2024): Qwen 2 reads images of any size among its words, at positions of three axes.

The tower has no position vectors: its attention rotates by row and column. Its patches see two frames, which are equal
in a picture. Four neighbouring patches are joined and mapped by two layers. The decoder rotates by time, row and
column. Videos are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import language_model
from qkv.interop.families.common.rope import rope_table
from qkv.interop.families.decoders.qwen2 import QWEN2
from qkv.interop.families.multimodal.llava import INPUT, alone, joined
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Frames
from qkv.interop.mapping.family import COMMON, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.model import Tower as TowerSpec
from qkv.spec.parts import LayerNorm, NoNorm, Relative, Rope, Rope2D, RopeAxes
from qkv.spec.signals.sizes import SizedPatches
from qkv.system.errors import UserError

_EPS, _LONGEST = 1e-6, 16384
_SECTIONS = (16, 24, 24)
_FRAMES = "temporal_patch_size"
_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id")
_TEXT = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_window_layers": 80,
    "sliding_window": 4096,
}
_VISION = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_size": 3584,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
}
"""Defaults of the published configs of the parts."""
_ROW = f"frontend.inputs.{INPUT}."
_BLOCK, _THEIRS = f"{_ROW}tower.blocks.{{layer}}.branches.", "visual.blocks.{layer}."


def _text_config(config: Config) -> Config:
    """Return the keys of the decoder: those of ``text_config``, in older files those of the whole config."""
    if config.says("text_config"):
        return config.table("text_config")
    inner = {key: value for key, value in config.values.items() if key not in ("vision_config", "architectures", *_IDS)}
    config.asked |= inner.keys() - {"model_type"}
    return Config(inner, config.source)


def _text(config: Config, head: Head) -> Model:
    """Build the decoder, whose attention rotates by three axes."""
    text = _text_config(config)
    tables = {name: dict(text.table(name).values) for name in ("rope_scaling", "rope_parameters")}
    sections: tuple[int, ...] = _SECTIONS
    for name, table in tables.items():
        sections = tuple(table.pop("mrope_section", sections))
        kinds = {key: "default" for key in ("type", "rope_type") if table.get(key) == "mrope"}
        tables[name] = {**table, **kinds}
    values = {**text.values, **{name: table for name, table in tables.items() if table}}
    read = Config(values, text.source)
    read.assume({**QWEN2.defaults, **_TEXT})
    model = QWEN2.spec(read, head)
    read.leave_unread({**COMMON, **QWEN2.ignored_config})
    text.asked |= text.values.keys()
    return _with_relative(model, lambda rope: RopeAxes(rope=rope, sections=sections))


def _with_relative(model: Model, changed: Any) -> Model:
    """Return a decoder with other relative positions, a function of those that it has."""
    blocks = list[Block]()
    for block in model.blocks:
        first, *rest = block.branches
        assert isinstance(first, Attention)
        blocks.append(block.changed(branches=(first.changed(relative=changed(first.relative)), *rest)))
    return model.changed(blocks=tuple(blocks))


def spec(config: Config, head: Head) -> Model:
    """Build the spec: a tower of patches, joined by ``spatial_merge_size``, before Qwen 2."""
    model, vision = _text(config, head), config.table("vision_config")
    vision.assume(_VISION)
    vision.fixed(_FRAMES, 2, "the frames of a patch")
    turn = vision.table("rope_parameters")
    turn.fixed("rope_type", "axial", "the positions of patches")
    width, side = vision.size("embed_dim"), vision.integer("spatial_merge_size")
    norm = LayerNorm(eps=_EPS)
    relative = Rope2D(base=turn.number("rope_theta", 10000.0))
    attention = Attention(num_heads=vision.size("num_heads"), mask=Full(), relative=relative)
    network = FeedForward(
        hidden=width * vision.integer("mlp_ratio", 4), activation=vision.word("hidden_act", "quick_gelu", INWARD)
    )
    channels = vision.integer("in_channels", 3)
    stack = Encoder(
        width=width,
        num_layers=vision.layers("depth"),
        context_length=_LONGEST,
        frontend=SizedPatches(patch=vision.integer("patch_size"), channels=channels),
        blocks=(Block(branches=(attention, network), norm=norm),),
        norm=NoNorm(),
    )
    if vision.integer("hidden_size") != model.width:
        raise UserError(
            f"{config.source}: the tower gives vectors of {vision.integer('hidden_size')} features, and the decoder "
            f"reads {model.width}"
        )
    vision.leave_unread({**COMMON, "initializer_range": "initialisation of weights"})
    tower = TowerSpec(stack=stack, norm=norm, merge=side, hidden=width * side**2)
    assert isinstance(model.frontend, Text)
    return model.changed(frontend=joined(model.frontend, tower))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    parts = alone(spec)
    if parts is None:
        return None
    text, tower = parts
    axes = [block.branches[0].relative for block in text.blocks if isinstance(block.branches[0], Attention)]
    vision = _vision_keys(tower, spec.width)
    if vision is None or len(axes) != len(text.blocks) or not isinstance(axes[0], RopeAxes):
        return None
    if any(each != axes[0] for each in axes):
        return None
    turn = rope_table(axes[0].rope)
    keys = QWEN2.config(_with_relative(text, _rope_of))
    if turn is None or keys is None or axes[0].interleaved or len(axes[0].sections) != 3:
        return None
    unread = ("rope_theta", "rope_scaling", "head_dim")
    words = {key: value for key, value in keys.items() if key not in unread}
    table = {**turn, "mrope_section": list(axes[0].sections)}
    return {
        "text_config": {"model_type": "qwen2_vl_text", **words, "rope_parameters": table},
        "vision_config": vision,
    }


def _rope_of(relative: Relative) -> Rope:
    assert isinstance(relative, RopeAxes)
    return relative.rope


def _vision_keys(tower: TowerSpec, width: int) -> dict[str, Any] | None:
    """Return the config keys of a tower; None if its structure differs."""
    match tower.stack:
        case (
            Encoder(
                frontend=SizedPatches(channels=int() as channels) as patches,
                blocks=(Block(branches=(Attention(relative=Rope2D() as turn) as attention, FeedForward() as network)),),
            ) as stack
        ):
            inner = stack.width or width
        case _:
            return None
    return {
        "model_type": "qwen2_vl_vision",
        "depth": len(stack.layers),
        "embed_dim": inner,
        "hidden_size": width,
        "num_heads": attention.num_heads,
        "mlp_ratio": network.hidden_at(inner) // inner,
        "hidden_act": OUTWARD[network.activation],
        "in_channels": channels,
        "patch_size": patches.patch,
        "spatial_merge_size": tower.merge,
        _FRAMES: 2,
        "rope_parameters": {"rope_type": "axial", "rope_theta": turn.base},
    }


_NAMES: Mapping[str, str] = {
    f"{_BLOCK}0.norm.*": f"{_THEIRS}norm1.*",
    f"{_BLOCK}0.body.qkv.*": f"{_THEIRS}attn.qkv.*",
    f"{_BLOCK}0.body.output.*": f"{_THEIRS}attn.proj.*",
    f"{_BLOCK}1.norm.*": f"{_THEIRS}norm2.*",
    f"{_BLOCK}1.body.up.*": f"{_THEIRS}mlp.fc1.*",
    f"{_BLOCK}1.body.down.*": f"{_THEIRS}mlp.fc2.*",
    f"{_ROW}norm.*": "visual.merger.ln_q.*",
    f"{_ROW}hidden.*": "visual.merger.mlp.0.*",
    f"{_ROW}map.*": "visual.merger.mlp.2.*",
}
QWEN2_VL = Family(
    name="Qwen2-VL",
    model_types=("qwen2_vl",),
    architectures={"Qwen2VLForConditionalGeneration": replace(language_model(tied=False), kept_config=_IDS)},
    spec=spec,
    config=config,
    names=(
        NameRule(f"{_ROW}tower.frontend.map.weight", "visual.patch_embed.proj.weight", Frames()),
        *(NameRule(ours, theirs) for ours, theirs in _NAMES.items()),
        *gated.NAMES,
    ),
    ignored_config=dict.fromkeys(_IDS, "id of a placeholder in texts, which qkv replaces"),
    typical={
        "vision_config": {"hidden_size": 64},
        "text_config": {
            "hidden_size": 64,
            "rope_scaling": {"mrope_section": [4, 6, 6]},
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
    },
)

register(QWEN2_VL)
