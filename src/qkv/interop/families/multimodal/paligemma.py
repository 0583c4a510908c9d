"""PaliGemma 1 and 2 (Beyer et al. 2024; Steiner et al. 2024): Gemma reads images and a prompt as one prefix.

The tower is SigLIP's, with its final norm; one layer maps its vectors to the decoder's width. All positions of images
and prompt see each other, and the answer is causal. In PaliGemma 2, in layers with a window, only
positions of the prefix see all of it.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import written_back
from qkv.interop.families.decoders.gemma import BOTH_WAYS, GEMMA, GEMMA2, SANDWICH_NAMES
from qkv.interop.families.multimodal.llava import (
    IMAGE_TOKEN,
    INPUT,
    KEPT,
    alone,
    image_tower,
    joined,
    row_of_text,
    text_keys,
    text_model,
    tower_keys,
    tower_rows,
)
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import AnyOf, Mask, Prefix
from qkv.spec.model import Block, Model, Text
from qkv.spec.model import Tower as TowerSpec
from qkv.system.errors import UserError

_TOWER, _CAP, _TIED = "vision_tower.", "final_logit_softcapping", "tie_word_embeddings"
_TEXTS = {"gemma": GEMMA, "gemma2": GEMMA2}
_MEANING = "whether images and prompt see each other"
_TEXT = {
    "model_type": "gemma",
    "vocab_size": 257152,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4096,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}
"""Decoder and image tower of a config that names none."""
TEMPLATE = (
    "{% for message in messages %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{{ '\\n' }}"
    "{% endfor %}"
)
"""Form of a prompt in the published processor: images, beginning of text, prompt, end of line."""


def _with_prefix(block: Block) -> Block:
    """Return the block with attention in which each position of the prefix also sees the whole prefix."""
    first, *rest = block.branches
    assert isinstance(first, Attention)
    return block.changed(branches=(first.changed(mask=first.mask | _prefix(block)), *rest))


def _prefix(block: Block) -> Prefix:
    """Return the mask of the prefix. In a layer with a window, only positions of the prefix see all of it."""
    return Prefix(own=gated.window_of(block.branches[0]) is not None)


def _without_prefix(block: Block) -> Block | None:
    """Return the block without the mask of the prefix; None if its attention has another mask."""
    match block.branches:
        case (Attention(mask=AnyOf(masks=(Mask() as mask, Prefix()))) as attention, *rest):
            plain = block.changed(branches=(attention.changed(mask=mask), *rest))
            return plain if _with_prefix(plain) == block else None
        case _:
            return None


def spec(config: Config, head: Head) -> Model:
    """Build the spec: one layer maps the tower's last vectors, which the decoder reads as a part of its prefix."""
    text = config.table("text_config")
    text.fixed(BOTH_WAYS, True, _MEANING)
    text.values.pop(BOTH_WAYS, None)
    model = text_model(config, head, _TEXTS)
    _, stack = image_tower(config.table("vision_config"), dropped=0, norm=True)
    size = config.integer("projection_dim", 2048)
    if size != model.width:
        raise UserError(f"{config.source}: projection_dim is {size}, but the decoder reads vectors of {model.width}")
    assert isinstance(model.frontend, Text)
    blocks = tuple(_with_prefix(block) for block in model.blocks)
    return model.changed(frontend=joined(model.frontend, TowerSpec(stack=stack)), blocks=blocks)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    parts, blocks = alone(spec), [_without_prefix(block) for block in spec.blocks]
    if parts is None or None in blocks or parts[1] != TowerSpec(stack=parts[1].stack):
        return None
    text, tower = parts[0].changed(blocks=tuple(blocks)), parts[1]
    vision = tower_keys(tower.stack, 0)
    words = text_keys(text, _TEXTS)
    if vision is None or words is None or not isinstance(spec.head, LanguageModelHead):
        return None
    return {
        "text_config": {**words, _CAP: spec.head.softcap, BOTH_WAYS: True},
        "vision_config": {**vision, "vision_use_head": False, "projection_dim": spec.width},
        "projection_dim": spec.width,
        "hidden_size": spec.width,
    }


def _head(config: Config) -> Head:
    """Read the head; the config of a Gemma 2 decoder has a soft cap of the logits."""
    text = config.table("text_config")
    cap = text.optional(_CAP, 30.0) if text.values.get("model_type") == "gemma2" else None
    return LanguageModelHead(tied=config.flag(_TIED, True), softcap=cap)


def _keys(head: Head) -> dict[str, Any] | None:
    match head:
        case LanguageModelHead(bias=False, transform=None):
            return {_TIED: head.tied}
        case _:
            return None


def _sandwiched(spec: Model) -> bool:
    return spec.blocks[0].order == "sandwich"


_OF_ROW = f"frontend.inputs.{INPUT}."
PALIGEMMA = Family(
    name="PaliGemma",
    model_types=("paligemma",),
    architectures={
        "PaliGemmaForConditionalGeneration": Architecture(
            _head,
            _keys,
            (NameRule("head.weight", "language_model.lm_head.weight"),),
            kept=written_back(KEPT),
            kept_config=IMAGE_TOKEN,
        )
    },
    spec=spec,
    config=config,
    names=(
        *(row_of_text(row)._replace(where=_sandwiched) for row in SANDWICH_NAMES[:3]),
        *(row_of_text(row) for row in gated.NAMES),
        *tower_rows(_TOWER),
        NameRule(f"{_OF_ROW}map.*", "multi_modal_projector.linear.*"),
    ),
    ignored_config={
        **dict.fromkeys(IMAGE_TOKEN, "id of the placeholder in texts, which qkv replaces"),
        **dict.fromkeys(("hidden_size", "vocab_size", "_vocab_size", "num_image_tokens"), "given by the parts"),
        "projector_hidden_act": "not used by the published code",
    },
    defaults={"text_config": _TEXT, "vision_config": _VISION},
    older={"vision_tower.vision_model.": _TOWER},
    template=TEMPLATE,
)

register(PALIGEMMA)
