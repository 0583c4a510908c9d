"""Folders of OpenCLIP (Ilharco et al. 2021) with two Transformers: CLIP under other names of keys and tensors.

``open_clip_config.json`` holds ``model_cfg``, which is read as the config of this family. Towers of other libraries are
refused, as are options that change what is computed. An export writes CLIP's folder in Hugging Face format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.interop.families.multimodal.clip import CLIP, CLIP_TOWERS, clip_head
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TRANSPOSED
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.system.errors import UserError

_IMAGES, _TEXTS = "vision_cfg", "text_cfg"
_FIXED: Mapping[str, Mapping[str, Any]] = {
    _IMAGES: {
        "timm_model_name": None,
        "ls_init_value": None,
        "attentional_pool": False,
        "no_ln_pre": False,
        "pos_embed_type": "learnable",
        "final_ln_after_pool": False,
        "pool_type": "tok",
    },
    _TEXTS: {
        "hf_model_name": None,
        "ls_init_value": None,
        "embed_cls": False,
        "no_causal_mask": False,
        "final_ln_after_pool": False,
        "pool_type": "argmax",
        "proj_type": "linear",
        "proj_bias": False,
    },
}
"""Keys that change what is computed -> the only value that qkv reads."""
_UNREAD = {
    **dict.fromkeys(("patch_dropout", "output_tokens"), "of training, or of an output that is not read"),
    **dict.fromkeys(("hf_tokenizer_name", "tokenizer_kwargs", "pad_id"), "given by the tokenizer"),
    "width": "read as the width of the tower",
}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of CLIP from the sizes of ``model_cfg``."""
    config.fixed("init_logit_bias", None, "the scores")
    activation = "quick_gelu" if config.flag("quick_gelu", False) else "gelu"
    images, text = config.table(_IMAGES), config.table(_TEXTS)
    for table, fixed in ((images, _FIXED[_IMAGES]), (text, _FIXED[_TEXTS])):
        for key, only in fixed.items():
            table.fixed(key, only, "what a tower computes")
    width, head_width, words = images.size("width", 768), images.size("head_width", 64), text.size("width", 512)
    if width % head_width:
        raise UserError(f"{images.source}: head_width is {head_width}, which does not divide the width, {width}")
    keys = {
        "vision_config": {
            "hidden_size": width,
            "num_hidden_layers": images.layers("layers", 12),
            "num_attention_heads": width // head_width,
            "intermediate_size": _hidden(images, width),
            "image_size": images.size("image_size", 224),
            "patch_size": images.size("patch_size", 16),
            "hidden_act": activation,
        },
        "text_config": {
            "vocab_size": text.size("vocab_size", 49408),
            "hidden_size": words,
            "num_hidden_layers": text.layers("layers", 12),
            "num_attention_heads": text.size("heads", 8),
            "intermediate_size": _hidden(text, words),
            "max_position_embeddings": text.size("context_length", 77),
            "hidden_act": activation,
        },
    }
    for table in (images, text):
        table.leave_unread(_UNREAD)
    return CLIP_TOWERS.spec(Config(keys, config.source), head)


def _hidden(table: Config, width: int) -> int:
    """Return the hidden features of a tower's feed-forward."""
    return int(width * table.number("mlp_ratio", 4.0))


def _head(config: Config) -> Head:
    return clip_head(Config({"projection_dim": config.size("embed_dim", 512)}, config.source))


def _layers(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """Return the rules of the layers of a tower."""
    branch, block = f"{ours}blocks.{{layer}}.branches.", f"{theirs}transformer.resblocks.{{layer}}."
    return (
        NameRule(f"{branch}0.norm.*", f"{block}ln_1.*"),
        NameRule(f"{branch}0.body.qkv.weight", f"{block}attn.in_proj_weight"),
        NameRule(f"{branch}0.body.qkv.bias", f"{block}attn.in_proj_bias"),
        NameRule(f"{branch}0.body.output.*", f"{block}attn.out_proj.*"),
        NameRule(f"{branch}1.norm.*", f"{block}ln_2.*"),
        NameRule(f"{branch}1.body.up.*", f"{block}mlp.c_fc.*"),
        NameRule(f"{branch}1.body.down.*", f"{block}mlp.c_proj.*"),
    )


OPEN_CLIP = Family(
    name="OpenCLIP",
    base=CLIP.name,
    model_types=("open_clip",),
    architectures={
        "CLIP": Architecture(
            _head,
            lambda head: None,
            (
                NameRule("head.map.weight", "text_projection", TRANSPOSED),
                NameRule("head.source_map.weight", "visual.proj", TRANSPOSED),
                NameRule("head.scale", "logit_scale"),
            ),
        )
    },
    spec=spec,
    config=lambda spec: None,
    names=(
        NameRule("encoder.frontend.first", "visual.class_embedding"),
        NameRule("encoder.frontend.map.*", "visual.conv1.*"),
        NameRule("encoder.frontend.positions.table", "visual.positional_embedding"),
        NameRule("encoder.frontend.norm.*", "visual.ln_pre.*"),
        *_layers("encoder.", "visual."),
        NameRule("encoder.norm.*", "visual.ln_post.*"),
        NameRule("frontend.table", "token_embedding.weight"),
        NameRule("frontend.positions.table", "positional_embedding"),
        *_layers("", ""),
        NameRule("norm.*", "ln_final.*"),
    ),
    ignored={"attn_mask": "the causal mask, which is computed"},
    ignored_config={
        "multimodal_cfg": "part of another architecture",
        "custom_text": "names of tensors",
        "cast_dtype": "weight files carry their own dtype",
    },
    older={
        f"text.{name}": name
        for name in ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")
    }
    | {"text.attn_mask": "attn_mask"},
)

register(OPEN_CLIP)
