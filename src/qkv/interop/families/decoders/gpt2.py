"""GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions.

q, k and v are in one matrix, and matrices are stored as (in, out).
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TRANSPOSED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import LayerNorm

NAMES = (
    NameRule("frontend.table", "transformer.wte.weight"),
    NameRule("frontend.positions.table", "transformer.wpe.weight"),
    NameRule("blocks.{layer}.branches.0.norm.*", "transformer.h.{layer}.ln_1.*"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", "transformer.h.{layer}.attn.c_attn.*", TRANSPOSED),
    NameRule("blocks.{layer}.branches.0.body.output.*", "transformer.h.{layer}.attn.c_proj.*", TRANSPOSED),
    NameRule("blocks.{layer}.branches.1.norm.*", "transformer.h.{layer}.ln_2.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", "transformer.h.{layer}.mlp.c_fc.*", TRANSPOSED),
    NameRule("blocks.{layer}.branches.1.body.down.*", "transformer.h.{layer}.mlp.c_proj.*", TRANSPOSED),
    NameRule("norm.*", "transformer.ln_f.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of GPT-2: D = n_embd, n_layer blocks, n_head heads, n_inner hidden features (4 D by default)."""
    width = config.size("n_embd", 768)
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5))
    config.fixed("add_cross_attention", False, "the branches of a block")
    attention = Attention(num_heads=config.size("n_head", 12), dropout=config.number("attn_pdrop", 0.1))
    hidden = config.size("n_inner", 4 * width)
    feed_forward = FeedForward(hidden=hidden, activation=config.word("activation_function", "gelu_new", INWARD))
    block = Block(branches=(attention, feed_forward), norm=norm, dropout=config.number("resid_pdrop", 0.1))
    temperatures = _temperatures(config, attention.dims(width)[0])
    blocks = [block.changed(branches=(attention.changed(temperature=t), feed_forward)) for t in temperatures]
    return Model(
        width=width,
        num_layers=len(blocks),
        context_length=config.size("n_positions", 1024),
        frontend=Text(vocab_size=config.size("vocab_size", 50257), dropout=config.number("embd_pdrop", 0.1)),
        blocks=shortest_pattern(blocks),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


_SCALED, _BY_LAYER = "scale_attn_weights", "scale_attn_by_inverse_layer_idx"


def _temperatures(config: Config, features: int) -> list[float]:
    """Return the temperature of each layer.

    It is 1, or ``features``^-½ if ``scale_attn_weights`` is false, which leaves scores unscaled. With
    ``scale_attn_by_inverse_layer_idx``, it is multiplied by the number of the layer, from 1.
    """
    first, by_layer = 1.0 if config.flag(_SCALED, True) else features**-0.5, config.flag(_BY_LAYER, False)
    return [first * (layer + 1 if by_layer else 1) for layer in range(config.layers("n_layer", 12))]


def _scale_keys(spec: Model) -> dict[str, Any]:
    """Return the config keys of the scale of scores, the inverse of ``_temperatures``; empty for the default scale."""
    attentions = [block.branches[0] for block in spec.layers]
    temperatures = [each.temperature for each in attentions if isinstance(each, Attention)]
    by_layer, scaled = len(temperatures) > 1 and temperatures[1] != temperatures[0], temperatures[0] == 1.0
    return {**({} if scaled else {_SCALED: False}), **({_BY_LAYER: True} if by_layer else {})}


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not GPT-2's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(
            branches=(Attention() as attention, FeedForward() as feed_forward), norm=LayerNorm() as norm
        ) as block, Text() as frontend:
            pass
        case _:
            return None
    return {
        "n_embd": spec.width,
        "n_layer": len(spec.layers),
        "n_head": attention.num_heads,
        "n_inner": feed_forward.hidden_at(spec.width),
        "n_positions": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "activation_function": OUTWARD[feed_forward.activation],
        "layer_norm_epsilon": norm.eps,
        "embd_pdrop": frontend.dropout,
        "attn_pdrop": attention.dropout,
        "resid_pdrop": block.dropout,
        "initializer_range": spec.init_std,
        **_scale_keys(spec),
    }


GPT2 = Family(
    name="GPT-2",
    model_types=("gpt2",),
    architectures={
        "GPT2LMHeadModel": language_model(tied=True),
        "GPT2Model": language_model(tied=True),
        **of_decoder("GPT2", tags="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    ignored={
        "transformer.h.{layer}.attn.bias": "a constant mask table",
        "transformer.h.{layer}.attn.masked_bias": "a constant of older versions",
    },
    synonyms={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored_config={
        **HEAD_KEYS,
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
        "n_ctx": "the same as n_positions",
        "reorder_and_upcast_attn": "execution setting",
    },
    gguf=gguf.GGUFLayout(
        "GPT2LMHeadModel",
        "gpt2",
        (
            gguf.MetadataKey("embedding_length", "n_embd"),
            gguf.MetadataKey("block_count", "n_layer"),
            gguf.MetadataKey("attention.head_count", "n_head"),
            gguf.MetadataKey("feed_forward_length", "n_inner"),
            gguf.MetadataKey("context_length", "n_positions"),
            gguf.MetadataKey("attention.layer_norm_epsilon", "layer_norm_epsilon", float),
        ),
        {"activation_function": "gelu_new", _SCALED: True, _BY_LAYER: False},
        changes=(gguf.Change(r"\.(c_attn|c_proj|c_fc)\.weight$", TRANSPOSED),),
        base="",
    ),
)

register(GPT2)
