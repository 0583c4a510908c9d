"""GPT-NeoX-Japanese (ABEJA 2022): pre-norm blocks of rotary attention and feed-forward without biases.

Only the output projection of the last block's attention has a bias.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import BASE, FRACTION, rope_of, rope_table
from qkv.interop.families.common.shape import shortest
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import LayerNorm, NoPositions, Rope

_BODY, _LAYER = "blocks.{layer}.branches.", "gpt_neox_japanese.layers.{layer}."
NAMES = (
    NameRule("frontend.table", "gpt_neox_japanese.embed_in.weight"),
    NameRule(f"{_BODY}0.norm.*", f"{_LAYER}input_layernorm.*"),
    NameRule(f"{_BODY}0.body.qkv.*", f"{_LAYER}attention.query_key_value.*", INTERLEAVED),
    NameRule(f"{_BODY}0.body.output.weight", f"{_LAYER}attention.dense.weight"),
    NameRule(f"{_BODY}0.body.output.bias", f"{_LAYER}attention.dense_bias"),
    NameRule(f"{_BODY}1.norm.*", f"{_LAYER}post_attention_layernorm.*"),
    NameRule(f"{_BODY}1.body.up.*", f"{_LAYER}mlp.dense_h_to_4h.*"),
    NameRule(f"{_BODY}1.body.down.*", f"{_LAYER}mlp.dense_4h_to_h.*"),
    NameRule("norm.*", "gpt_neox_japanese.final_layer_norm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of GPT-NeoX-Japanese.

    The feed-forward has ``intermediate_multiple_size`` times the width hidden features, rounded down.
    """
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    width, dropout = config.size("hidden_size", 2560), config.number("hidden_dropout", 0.0)
    attention = Attention(
        num_heads=config.size("num_attention_heads", 32),
        relative=_rope(config),
        bias=False,
        dropout=config.number("attention_dropout", 0.1),
    )
    feed_forward = FeedForward(
        hidden=int(width * config.number("intermediate_multiple_size", 4)),
        activation=config.word("hidden_act", "gelu", INWARD),
        bias=False,
    )
    block = Block(branches=(attention, feed_forward), norm=norm, dropout=dropout)
    last = block.changed(branches=(attention.changed(output_bias=True), feed_forward))
    blocks = [block] * (config.layers("num_hidden_layers", 32) - 1) + [last]
    return Model(
        width=width,
        num_layers=len(blocks),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size", 32000), positions=NoPositions()),
        blocks=shortest_pattern(blocks),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _rope(config: Config) -> Rope:
    """Build the RoPE of a config, whose base and fraction have other keys if it has no RoPE table."""
    base, fraction = config.number("rotary_emb_base", BASE), config.number("rotary_pct", 1.0)
    written = "rope_scaling" if config.table("rope_scaling").values else "rope_parameters"
    table = {"rope_theta": base, FRACTION: fraction, **config.table(written).values}
    config.has("rope_parameters")
    length = config.integer("max_position_embeddings", 2048)
    return rope_of(Config({"rope_parameters": table, "max_position_embeddings": length}, config.source), fraction)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:1]:
        case (
            Block(
                branches=(Attention(relative=Rope() as rope) as attention, FeedForward() as feed_forward),
                norm=LayerNorm() as norm,
            ) as block,
        ):
            table = rope_table(rope.changed(fraction=1.0))
        case _:
            return None
    if table is None:
        return None
    hidden = feed_forward.hidden_at(spec.width)
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_multiple_size": _multiple(hidden, spec.width),
        "hidden_act": OUTWARD[feed_forward.activation],
        "max_position_embeddings": spec.context_length,
        "vocab_size": spec.vocab_size,
        "layer_norm_eps": norm.eps,
        "attention_dropout": attention.dropout,
        "hidden_dropout": block.dropout,
        "initializer_range": spec.init_std,
        "rope_parameters": {**table, FRACTION: rope.fraction},
    }


def _multiple(hidden: int, width: int) -> float | int:
    """Return a factor that, times the width and rounded down, gives ``hidden``; an integer if there is one."""
    multiple = shortest(hidden / width, lambda number: int(width * number) == hidden)
    return int(multiple) if multiple.is_integer() else multiple


NEOX_JAPANESE = Family(
    name="GPT-NeoX-Japanese",
    model_types=("gpt_neox_japanese",),
    architectures={"GPTNeoXJapaneseForCausalLM": language_model(tied=True, theirs="embed_out.weight")},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="gpt_neox_japanese.",
    older={"lm_head.": "embed_out."},
    ignored={
        f"{_LAYER}attention.rotary_emb.inv_freq": "computed from the config",
        "gpt_neox_japanese.rotary_emb.inv_freq": "computed from the config",
    },
    ignored_config={**HEAD_KEYS, "is_decoder": "fixed by the family"},
)

register(NEOX_JAPANESE)
