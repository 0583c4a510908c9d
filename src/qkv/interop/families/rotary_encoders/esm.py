"""ESM-1b and ESM-2 (Rives et al. 2021; Lin et al. 2023), protein models: pre-norm blocks of BERT's structure.

ESM-1b has learned positions, ESM-2 has RoPE. ESM-2 treats mask tokens as dropped out: their vectors are 0, and all
others are scaled; see ``Text.mask_token``. The head for contacts is not supported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import HeadKeys, classification, gelu_transform, masked, tagging
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.common.sinusoids import other_frequencies
from qkv.interop.families.encoders import bert, pre_norm, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Learned, NoNorm, NoPositions, NoRelative, Rope
from qkv.system.errors import UserError

_BODY = "esm."
NAMES = (
    NameRule("frontend.norm.*", f"{_BODY}embeddings.layer_norm.*"),
    *pre_norm.names(_BODY, "attention.LayerNorm", "LayerNorm", "encoder.emb_layer_norm_after"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of ESM: D = hidden_size; learned positions after ``pad_token_id``, or RoPE.

    Raises ``UserError`` for stored frequencies other than those of RoPE.
    """
    for key, only, meaning in (*_FIXED, ("is_folding_model", False, "the model, which would predict structures")):
        config.fixed(key, only, meaning)
    rotary, norm = config.word("position_embedding_type", "absolute", _ROTARY), LayerNorm(eps=_eps(config))
    reserved = 0 if rotary else config.integer("pad_token_id") + 1
    feed_forward = FeedForward(hidden=config.size("intermediate_size", 3072))
    model = bert.structure(config, head, reserved, 0, norm, feed_forward=feed_forward)
    (block,) = model.blocks
    attention, second = block.branches
    relative = _rope(config) if rotary else NoRelative()
    mask_token = config.integer("mask_token_id") if config.flag("token_dropout", False) else None
    words = model.frontend.changed(
        positions=NoPositions() if rotary else Learned(offset=reserved),
        norm=norm if config.flag("emb_layer_norm_before", False) else NoNorm(),
        dropout=0.0,
        mask_token=mask_token,
    )
    block = block.changed(branches=(attention.changed(relative=relative), second), order="pre")
    return model.changed(blocks=(block,), norm=norm, frontend=words)


_FREQUENCIES = "rotary_embeddings.inv_freq"


def _rope(config: Config) -> Rope:
    rope = Rope(base=config.number("rope_theta", 10000.0))
    other = other_frequencies(config, rope, _FREQUENCIES)
    if other is not None:
        raise UserError(
            f"{config.source}: the tensor {other!r} beside it differs from the frequencies of RoPE by more than "
            "rounding; it needs: RoPE with stored frequencies"
        )
    return rope


_ROTARY = {"absolute": False, "rotary": True}
_FIXED = (
    ("add_cross_attention", False, "the branches of a block"),
    ("is_decoder", False, "the attention mask"),
)


def _eps(config: Config) -> float:
    return config.number("layer_norm_eps", 1e-12)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ESM's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(branches=(Attention() as attention, second)) as block, Text() as text:
            pass
        case _:
            return None
    relative, positions = attention.relative, text.positions
    plain = block.changed(branches=(attention.changed(relative=NoRelative()), second), order="post")
    words = text.changed(positions=positions if isinstance(positions, Learned) else Learned())
    keys = bert.keys(spec.changed(blocks=(plain,), norm=NoNorm(), frontend=words))
    if keys is None:
        return None
    place = _rotary_keys(relative) if isinstance(relative, Rope) else _table_keys(words)
    return {**keys, **place, **_embedding_keys(text)}


def _rotary_keys(rope: Rope) -> dict[str, Any]:
    """Return the config keys of RoPE, with the id of the padding token, which transformers requires."""
    return {"position_embedding_type": "rotary", "rope_theta": rope.base, "pad_token_id": 1}


def _table_keys(words: Text) -> dict[str, Any]:
    offset = words.positions.offset if isinstance(words.positions, Learned) else 0
    return {"position_embedding_type": "absolute", "pad_token_id": offset - 1}


def _embedding_keys(text: Text) -> dict[str, Any]:
    """Return the config keys for the norm of the embeddings and for mask tokens."""
    dropped = {} if text.mask_token is None else {"mask_token_id": text.mask_token}
    normed = not text.norm.identity
    return {"emb_layer_norm_before": normed, "token_dropout": text.mask_token is not None, **dropped}


_RATE = HeadKeys(dropout="hidden_dropout_prob")
_UNREAD = {
    **heads.pooler(_BODY),
    f"{_BODY}contact_head.*": "head for contacts, which qkv does not have",
}


_WORDS = masked(roberta.MASKED_NAMES, gelu_transform)
_WORDS = replace(_WORDS, names=tuple(NameRule(*pair) for pair in roberta.MASKED_NAMES.items()))


def _keeping(architecture: Architecture) -> Architecture:
    return replace(architecture, kept=heads.written_back(_UNREAD))


ESM = Family(
    name="ESM",
    model_types=("esm",),
    architectures={
        "EsmForMaskedLM": _keeping(_WORDS),
        "EsmModel": heads.body(f"{_BODY}embeddings.word_embeddings.weight", kept=_UNREAD),
        "EsmForSequenceClassification": _keeping(classification("classifier.dense", "classifier.out_proj", keys=_RATE)),
        "EsmForTokenClassification": _keeping(tagging("classifier", keys=_RATE)),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    defaults={"max_position_embeddings": 1026},
    typical={"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    ignored={
        f"{_BODY}embeddings.position_ids": "constant position ids 0, 1, 2, …",
        f"{_BODY}embeddings.position_embeddings.weight": "unused with RoPE",
        f"{_BODY}*{_FREQUENCIES}": "computed from the config",
    },
    ignored_config={
        **bert.IGNORED_CONFIG,
        **dict.fromkeys(("esmfold_config", "vocab_list"), "read only with is_folding_model"),
        "hidden_act": "fixed by the family",
        "mask_token_id": "read only with token_dropout",
        "rope_theta": "read only with RoPE",
    },
    older=bert.OLDER,
)

register(ESM)
