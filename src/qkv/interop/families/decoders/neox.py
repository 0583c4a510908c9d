"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): parallel attention and feed-forward with two
norms.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import BASE, FRACTION, rope_config, rope_of
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoPositions, Rope

NAMES = (
    NameRule("frontend.table", "gpt_neox.embed_in.weight"),
    NameRule("blocks.{layer}.branches.0.norm.*", "gpt_neox.layers.{layer}.input_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*", "gpt_neox.layers.{layer}.attention.query_key_value.*", INTERLEAVED
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", "gpt_neox.layers.{layer}.attention.dense.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "gpt_neox.layers.{layer}.post_attention_layernorm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", "gpt_neox.layers.{layer}.mlp.dense_h_to_4h.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", "gpt_neox.layers.{layer}.mlp.dense_4h_to_h.*"),
    NameRule("norm.*", "gpt_neox.final_layer_norm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of GPT-NeoX: by default, RoPE rotates a quarter of each head.

    Without ``use_parallel_residual``, blocks are sequential and pre-norm.
    """
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    dropout = config.number("hidden_dropout", 0.0)
    attention = Attention(
        num_heads=config.size("num_attention_heads", 64),
        relative=_rope(config),
        bias=config.flag("attention_bias", True),
        dropout=config.number("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        hidden=config.size("intermediate_size", 24576), activation=config.word("hidden_act", "gelu", INWARD)
    )
    block = Block(branches=(attention, feed_forward), norm=norm, dropout=dropout)
    if config.flag("use_parallel_residual", True):
        block = block.changed(order="parallel", norms=(norm, norm))
    return Model(
        width=config.size("hidden_size", 6144),
        num_layers=config.layers("num_hidden_layers", 44),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size", 50432), positions=NoPositions(), dropout=dropout),
        blocks=(block,),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _rope(config: Config) -> Rope:
    """Build the RoPE of a config; keys of other families are refused.

    ``rotary_emb_base`` and ``rotary_pct`` are defaults for missing keys of the RoPE table.
    """
    base, fraction = config.number("rotary_emb_base", BASE), config.number("rotary_pct", 0.25)
    key = "rope_scaling" if config.table("rope_scaling").values else "rope_parameters"
    table = {"rope_theta": base, FRACTION: fraction, **config.table(key).values}
    config.fixed("rope_theta", table["rope_theta"], "RoPE, whose base has the key rotary_emb_base in this family")
    config.fixed(FRACTION, table[FRACTION], "RoPE, whose fraction of a head has the key rotary_pct in this family")
    config.has("rope_parameters")
    length = config.integer("max_position_embeddings", 2048)
    return rope_of(Config({"rope_parameters": table, "max_position_embeddings": length}, config.source), fraction)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not GPT-NeoX's. Callers read them back to
    verify.
    """
    match shape_of(spec):
        case Block(
            branches=(Attention(relative=Rope() as rope) as attention, FeedForward() as feed_forward)
        ) as block, Text() as frontend:
            norm, turned = block.norm_of(0), rope_config(rope, partial=True)
        case _:
            return None
    if not isinstance(norm, LayerNorm) or turned is None:
        return None
    base, scaling = turned["rope_theta"], {key: turned[key] for key in ("rope_scaling",) if key in turned}
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.hidden_at(spec.width),
        "hidden_act": OUTWARD[feed_forward.activation],
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "layer_norm_eps": norm.eps,
        "use_parallel_residual": block.order == "parallel",
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "hidden_dropout": block.dropout,
        "initializer_range": spec.init_std,
        "rotary_emb_base": base,
        "rotary_pct": rope.fraction,
        **scaling,
    }


NEOX = Family(
    name="GPT-NeoX",
    model_types=("gpt_neox",),
    architectures={
        "GPTNeoXForCausalLM": language_model(tied=False, theirs="embed_out.weight"),
        **of_decoder("GPTNeoX", tags="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="gpt_neox.",
    defaults={"classifier_dropout": 0.1},
    older={"lm_head.": "embed_out."},
    ignored={
        "gpt_neox.layers.{layer}.attention.bias": "a constant mask table",
        "gpt_neox.layers.{layer}.attention.masked_bias": "a constant of older versions",
        "gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq": "computed from the config",
    },
    ignored_config={
        **HEAD_KEYS,
        "is_decoder": "fixed by the family",
    },
    gguf=gguf.GGUFLayout(
        "GPTNeoXForCausalLM",
        "gptneox",
        (
            *gguf.SIZES,
            gguf.MetadataKey("attention.layer_norm_epsilon", "layer_norm_eps", float),
            gguf.MetadataKey("use_parallel_residual", "use_parallel_residual", bool),
            gguf.MetadataKey("rope.freq_base", "rotary_emb_base", float, needed=False),
        ),
        {"hidden_act": "gelu", "attention_bias": True},
        changes=(gguf.Change(r"\.query_key_value\.", INTERLEAVED, "num_attention_heads"),),
        base="rotary_emb_base",
        turned="rotary_pct",
        note="llama.cpp computes its GELU by the tanh approximation",
    ),
)

register(NEOX)
