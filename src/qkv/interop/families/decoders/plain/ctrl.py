"""CTRL (Keskar et al. 2019): pre-norm blocks with ReLU, sinusoidal positions, embeddings times √D.

Control codes are ordinary tokens, which the model does not treat differently.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import HEAD_KEYS, biased, body, of_decoder
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Sinusoidal

_NORM = LayerNorm(eps=1e-6)
_SLOT, _LAYER = "blocks.{layer}.branches.", "transformer.h.{layer}."
_PARTS = tuple(f"{_LAYER}multi_head_attention.W{part}.*" for part in "qkv")
NAMES = (
    NameRule("frontend.table", "transformer.w.weight"),
    NameRule(f"{_SLOT}0.norm.*", f"{_LAYER}layernorm1.*"),
    NameRule(f"{_SLOT}0.body.qkv.*", _PARTS, QKV),
    NameRule(f"{_SLOT}0.body.output.*", f"{_LAYER}multi_head_attention.dense.*"),
    NameRule(f"{_SLOT}1.norm.*", f"{_LAYER}layernorm2.*"),
    NameRule(f"{_SLOT}1.body.up.*", f"{_LAYER}ffn.0.*"),
    NameRule(f"{_SLOT}1.body.down.*", f"{_LAYER}ffn.2.*"),
    NameRule("norm.*", "transformer.layernorm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of CTRL: D = n_embd, n_layer blocks, n_head heads, dff hidden features.

    ``layer_norm_epsilon`` is the epsilon of the final norm only.
    """
    feed_forward = FeedForward(hidden=config.size("dff", 8192), activation="relu")
    branches = Attention(num_heads=config.size("n_head", 16)), feed_forward
    return Model(
        width=config.size("n_embd", 1280),
        num_layers=config.layers("n_layer", 48),
        context_length=config.size("n_positions", 256),
        frontend=Text(
            vocab_size=config.size("vocab_size", 246534),
            positions=Sinusoidal(halves=True),
            scale=True,
            dropout=config.number("embd_pdrop", 0.1),
        ),
        blocks=(Block(branches=branches, norm=_NORM, dropout=config.number("resid_pdrop", 0.1)),),
        norm=LayerNorm(eps=config.number("layer_norm_epsilon", 1e-6)),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not CTRL's. Callers read them back to verify."""
    match shape_of(spec), spec.norm:
        case (
            (Block(branches=(Attention() as attention, FeedForward() as second)) as block, Text() as text),
            LayerNorm() as norm,
        ):
            pass
        case _:
            return None
    return {
        "n_embd": spec.width,
        "n_layer": len(spec.layers),
        "n_head": attention.num_heads,
        "dff": second.hidden_at(spec.width),
        "n_positions": spec.context_length,
        "vocab_size": text.vocab_size,
        "embd_pdrop": text.dropout,
        "resid_pdrop": block.dropout,
        "layer_norm_epsilon": norm.eps,
        "initializer_range": spec.init_std,
    }


CTRL = Family(
    name="CTRL",
    model_types=("ctrl",),
    architectures={
        "CTRLLMHeadModel": biased("lm_head"),
        "CTRLModel": body("transformer.w.weight"),
        **of_decoder("CTRL", tags=None, question_answering=False, classes="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    synonyms={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored_config={
        **HEAD_KEYS,
        "n_ctx": "the same as n_positions",
        "attn_pdrop": "from the first release; unused",
        **dict.fromkeys(
            (
                "summary_type",
                "summary_use_proj",
                "summary_activation",
                "summary_proj_to_labels",
                "summary_first_dropout",
            ),
            "part of a head that this architecture lacks",
        ),
    },
)

register(CTRL)
