"""LED (Beltagy et al. 2020): BART with the window attention of Longformer in the encoder.

A source has no global positions, unless they are passed as its prefix, as in transformers.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import answering, body
from qkv.interop.families.encoders.longformer import windows
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention
from qkv.spec.model import Block, Encoder, Model
from qkv.spec.parts import LayerNorm, NoNorm

_FORM = bart_like.BartLike("post", NoNorm(), bart_like.learned(0), LayerNorm())
_LONGEST, _TABLE = "max_encoder_position_embeddings", "led.shared.weight"
_SLOT, _LAYER = "encoder.blocks.{layer}.branches.0.body.", "led.encoder.layers.{layer}.self_attn."
_OWN = f"{_LAYER}longformer_self_attn."


def _renamed(row: NameRule) -> NameRule:
    """Return the row of BART's name table with LED's prefix of the body."""
    return row._replace(theirs=tuple(name.replace("model.", "led.", 1) for name in row.published))


NAMES = (
    NameRule(f"{_SLOT}qkv.*", tuple(f"{_OWN}{part}.*" for part in ("query", "key", "value")), QKV),
    NameRule(f"{_SLOT}global_query.*", f"{_OWN}query_global.*"),
    NameRule(f"{_SLOT}global_key_value.*", (f"{_OWN}key_global.*", f"{_OWN}value_global.*"), PAIR),
    NameRule(f"{_SLOT}output.*", f"{_LAYER}output.*"),
    *(_renamed(row) for row in bart_like.NAMES),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of LED: like BART, without scaling of embeddings.

    Encoder layer i has a window of ``attention_window[i]`` / 2 positions to each side.
    """
    model = _FORM.spec(config, head)
    encoder = model.encoder
    assert encoder is not None
    blocks = tuple(_windowed(block, reach) for block, reach in _reaches(config, encoder))
    longest, words = config.size(_LONGEST, 16384), encoder.frontend.changed(scale=False)
    source = encoder.changed(blocks=blocks, context_length=longest, frontend=words)
    return model.changed(encoder=source, frontend=model.frontend.changed(scale=False))


def _reaches(config: Config, encoder: Encoder) -> list[tuple[Block, int]]:
    return list(zip(encoder.layers, windows(config, len(encoder.layers)), strict=True))


def _windowed(block: Block, reach: int) -> Block:
    """Return the encoder block with attention to ``reach`` positions on each side, and to global positions."""
    attention, second = block.branches
    assert isinstance(attention, Attention)
    local = GlobalLocalAttention(
        num_heads=attention.num_heads, num_global=None, dropout=attention.dropout, window=reach
    )
    return block.changed(branches=(local, second))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not LED's. Callers read them back to verify."""
    if spec.encoder is None:
        return None
    reaches, blocks = list[int](), list[Block]()
    for block in spec.encoder.layers:
        local, *rest = block.branches
        if not isinstance(local, GlobalLocalAttention):
            return None
        reaches.append(2 * local.window)
        attention = Attention(num_heads=local.num_heads, mask=Full(), dropout=local.dropout)
        blocks.append(block.changed(branches=(attention, *rest)))
    keys = _FORM.config(spec.changed(encoder=spec.encoder.changed(blocks=tuple(blocks))))
    if keys is None:
        return None
    lengths = {_LONGEST: spec.encoder.context_length, "max_decoder_position_embeddings": spec.context_length}
    unread = ("max_position_embeddings", "scale_embedding", "forced_eos_token_id")
    values = {key: value for key, value in keys.items() if key not in unread}
    return {**values, **lengths, "attention_window": reaches}


LED = Family(
    name="LED",
    model_types=("led",),
    architectures={
        "LEDForConditionalGeneration": bart_like.writing(),
        "LEDModel": body(_TABLE),
        "LEDForQuestionAnswering": answering("qa_outputs"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="led.",
    defaults={"max_position_embeddings": 1024},
    synonyms={
        **bart_like.SYNONYMS,
        "max_decoder_position_embeddings": "max_position_embeddings",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
    },
    ignored_config={
        **bart_like.IGNORED_CONFIG,
        **dict.fromkeys(("gradient_checkpointing", "attention_mode"), "execution setting"),
        "scale_embedding": "unused",
    },
)

register(LED)
