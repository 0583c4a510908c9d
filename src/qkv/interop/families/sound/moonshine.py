"""Moonshine (Jeffries et al. 2024): an encoder–decoder from samples to text, with rotary positions.

Three convolutions embed the samples; blocks are pre-norm with norms without bias, and the decoder's feed-forward is
gated.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import body, language_model
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, SWAPPED, Way, interleaved_rope
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal, Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, NoPositions, Rope
from qkv.spec.signals.stems import WaveStem
from qkv.system.errors import UserError

_TABLE = "model.decoder.embed_tokens.weight"
_NORM = LayerNorm(bias=False)
_FRACTION = 0.9
"""Default fraction of a head that is rotated."""
_POSITIONS = 1500
"""Positions of the encoder by default: 36 seconds. There is no limit."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config: D = hidden_size; encoder and decoder have equal heads."""
    heads, width = _heads(config), config.size("hidden_size", 288)
    rope, hidden = rope_of(config, _FRACTION), config.size("intermediate_size", 1152)
    inner, outer = (config.word(f"{stack}_hidden_act", usual, INWARD) for stack, usual in _ACTIVATIONS)
    return Model(
        width=width,
        num_layers=config.layers("decoder_num_hidden_layers", 6),
        context_length=config.integer("max_position_embeddings", 512),
        frontend=Text(vocab_size=config.size("vocab_size", 32768), positions=NoPositions()),
        blocks=(
            _block(
                Attention(**heads, relative=rope, mask=Causal()),
                CrossAttention(**heads),
                GatedFeedForward(hidden=hidden, activation=outer, bias=True),
            ),
        ),
        norm=_NORM,
        encoder=Encoder(
            num_layers=config.layers("encoder_num_hidden_layers", 6),
            context_length=config.integer("max_source_positions", _POSITIONS),
            frontend=WaveStem(),
            blocks=(
                _block(Attention(**heads, relative=rope, mask=Full()), FeedForward(hidden=hidden, activation=inner)),
            ),
            norm=_NORM,
        ),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


_ACTIVATIONS = (("encoder", "gelu"), ("decoder", "silu"))


def _block(*branches: Branch) -> Block:
    return Block(branches=branches, norm=_NORM)


def _heads(config: Config) -> dict[str, Any]:
    """Read the fields of all attention. Raises ``UserError`` unless there is one number of heads.

    The published code builds the decoder with the encoder's number, and cuts queries by the number of keys.
    """
    count = config.size("encoder_num_attention_heads", 8)
    keys = "decoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"
    for key in keys:
        other = config.size(key, 8 if key == keys[0] else count)
        if other != count:
            raise UserError(
                f"{config.source}: {key} is {other} and encoder_num_attention_heads {count}, but the published code "
                "computes one number of heads only"
            )
    bias = config.flag("attention_bias", False)
    return {
        "num_heads": count,
        "head_dim": config.size("head_dim") if config.has("head_dim") else None,
        "bias": bias,
        "output_bias": False,
        "dropout": config.number("attention_dropout", 0.0),
    }


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:1], spec.encoder and spec.encoder.layers[:1]:
        case (
            (
                Block(
                    branches=(Attention(relative=Rope() as rope) as read, CrossAttention(), GatedFeedForward() as write)
                ),
            ),
            (Block(branches=(Attention(), FeedForward() as think)),),
        ):
            pass
        case _:
            return None
    rotary = rope_config(rope, partial=True)
    if rotary is None or spec.encoder is None:
        return None
    counts = {
        f"{stack}_num_{kind}": read.num_heads
        for stack in ("encoder", "decoder")
        for kind in ("attention_heads", "key_value_heads")
    }
    return {
        "hidden_size": spec.width,
        "vocab_size": spec.vocab_size,
        "intermediate_size": write.hidden_at(spec.width),
        "encoder_num_hidden_layers": len(spec.encoder.layers),
        "decoder_num_hidden_layers": len(spec.layers),
        **counts,
        **({} if read.head_dim in (None, spec.width // read.num_heads) else {"head_dim": read.head_dim}),
        "encoder_hidden_act": OUTWARD.get(think.activation),
        "decoder_hidden_act": OUTWARD.get(write.activation),
        "max_position_embeddings": spec.context_length,
        "max_source_positions": spec.encoder.context_length,
        "attention_bias": read.bias,
        "attention_dropout": read.dropout,
        "initializer_range": spec.init_std,
        FRACTION: rope.fraction,
        **rotary,
    }


def _rotated(spec: Model) -> Way:
    """Return the conversion of queries, keys and values, whose RoPE pairs are adjacent features in files."""
    match spec.layers[0].branches[0]:
        case Attention(relative=Rope() as rope) as attention:
            return interleaved_rope(rope.rotated(attention.dims(spec.width)[0]))
    return interleaved_rope()


def _stack(ours: str, theirs: str, last: int, norms: tuple[str, str]) -> tuple[NameRule, ...]:
    """Return the names of a stack.

    ``last``: index of the feed-forward among the branches of a block; ``norms``: names of its norm and of the last one.
    """
    slot, layer = f"{ours}blocks.{{layer}}.branches.", f"{theirs}layers.{{layer}}."
    return (
        NameRule(f"{slot}0.norm.*", f"{layer}input_layernorm.*"),
        NameRule(f"{slot}0.body.qkv.*", tuple(f"{layer}self_attn.{part}_proj.*" for part in "qkv"), _rotated),
        NameRule(f"{slot}0.body.output.*", f"{layer}self_attn.o_proj.*"),
        NameRule(f"{slot}{last}.norm.*", f"{layer}{norms[0]}.*"),
        NameRule(f"{slot}{last}.body.gate_up.*", f"{layer}mlp.fc1.*", SWAPPED),
        NameRule(f"{slot}{last}.body.up.*", f"{layer}mlp.fc1.*"),
        NameRule(f"{slot}{last}.body.down.*", f"{layer}mlp.fc2.*"),
        NameRule(f"{ours}norm.*", f"{theirs}{norms[1]}.*"),
    )


_SLOT, _CROSS = "blocks.{layer}.branches.1.", "model.decoder.layers.{layer}."
NAMES = (
    NameRule("frontend.table", _TABLE),
    NameRule("encoder.frontend.convolutions.{i}.*", "model.encoder.conv{i+1}.*"),
    NameRule("encoder.frontend.time_norm.*", "model.encoder.groupnorm.*"),
    *_stack("encoder.", "model.encoder.", 1, ("post_attention_layernorm", "layer_norm")),
    *_stack("", "model.decoder.", 2, ("final_layernorm", "norm")),
    NameRule(f"{_SLOT}norm.*", f"{_CROSS}post_attention_layernorm.*"),
    NameRule(f"{_SLOT}body.query.*", f"{_CROSS}encoder_attn.q_proj.*"),
    NameRule(f"{_SLOT}body.memory.*", tuple(f"{_CROSS}encoder_attn.{part}_proj.*" for part in "kv"), PAIR),
    NameRule(f"{_SLOT}body.output.*", f"{_CROSS}encoder_attn.o_proj.*"),
)

_IGNORED: Reasons = {
    "tie_word_embeddings": "part of a head that this architecture lacks",
    "decoder_start_token_id": "read as start of the output",
    "pad_head_dim_to_multiple_of": "execution setting: features of 0 that change no score",
}

MOONSHINE = Family(
    name="Moonshine",
    model_types=("moonshine",),
    architectures={
        "MoonshineForConditionalGeneration": language_model(tied=True, theirs="proj_out.weight"),
        "MoonshineModel": body(_TABLE),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config=_IGNORED,
    typical={
        "hidden_size": 288,
        **{f"{stack}_num_{kind}_heads": 8 for stack in ("encoder", "decoder") for kind in ("attention", "key_value")},
    },
    synonyms={
        "num_key_value_heads": "decoder_num_key_value_heads",
        "num_attention_heads": "decoder_num_attention_heads",
        "num_hidden_layers": "decoder_num_hidden_layers",
        "hidden_act": "decoder_hidden_act",
    },
)

register(MOONSHINE)
