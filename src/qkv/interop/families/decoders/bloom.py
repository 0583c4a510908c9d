"""BLOOM (Le Scao et al. 2022): pre-norm blocks with ALiBi, a norm of the embeddings, q, k and v interleaved by head."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
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
from qkv.spec.parts import Alibi, LayerNorm, NoPositions
from qkv.system.errors import UserError

NAMES = (
    NameRule("frontend.table", "transformer.word_embeddings.weight"),
    NameRule("frontend.norm.*", "transformer.word_embeddings_layernorm.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", "transformer.h.{layer}.input_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*", "transformer.h.{layer}.self_attention.query_key_value.*", INTERLEAVED
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", "transformer.h.{layer}.self_attention.dense.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "transformer.h.{layer}.post_attention_layernorm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", "transformer.h.{layer}.mlp.dense_h_to_4h.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", "transformer.h.{layer}.mlp.dense_4h_to_h.*"),
    NameRule("norm.*", "transformer.ln_f.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BLOOM: D = hidden_size, n_layer blocks, n_head heads, 4 D hidden features of the feed-forward.

    Some files use older key names.
    """
    width = config.size(_key_in_use(config, "hidden_size", "n_embed"))
    if config.flag("slow_but_exact", False) and config.integer("pretraining_tp", 1) > 1:
        sentence = "the published code then omits the output biases of attention and feed-forward, which qkv adds"
        raise UserError(f"{config.source}: slow_but_exact is true and pretraining_tp above 1; {sentence}")
    config.fixed("apply_residual_connection_post_layernorm", False, "the residual")
    config.fixed("n_inner", 4 * width, "the feed-forward features")
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5))
    heads = config.size(_key_in_use(config, "n_head", "num_attention_heads"))
    attention = Attention(num_heads=heads, relative=Alibi(), dropout=config.number("attention_dropout", 0.0))
    feed_forward = FeedForward(hidden=4 * width, activation="gelu_tanh")
    return Model(
        width=width,
        num_layers=config.layers(_key_in_use(config, "n_layer", "num_hidden_layers")),
        context_length=config.integer("seq_length", 2048),
        frontend=Text(vocab_size=config.size("vocab_size", 250880), positions=NoPositions(), norm=norm),
        blocks=(Block(branches=(attention, feed_forward), norm=norm, dropout=config.number("hidden_dropout", 0.0)),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _key_in_use(config: Config, name: str, older: str) -> str:
    """Return the key that the config has, ``name`` or ``older``. Raises ``UserError`` if both have different values."""
    config.asked |= {name, older}
    if config.says(older) and config.says(name):
        config.fixed(older, config.values[name], f"the value of {name}")
    return older if config.says(older) else name


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not BLOOM's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(
            branches=(Attention(relative=Alibi()) as attention, FeedForward()), norm=LayerNorm() as norm
        ) as block, Text() as frontend:
            pass
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "n_layer": len(spec.layers),
        "n_head": attention.num_heads,
        "seq_length": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "layer_norm_epsilon": norm.eps,
        "attention_dropout": attention.dropout,
        "hidden_dropout": block.dropout,
        "initializer_range": spec.init_std,
    }


_FUSED = (
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "attention_softmax_in_fp32",
    "slow_but_exact",
    "skip_bias_add",
    "skip_bias_add_qkv",
)

BLOOM = Family(
    name="BLOOM",
    model_types=("bloom",),
    architectures={
        "BloomForCausalLM": language_model(tied=True),
        "BloomModel": language_model(tied=True),
        **of_decoder("Bloom", tags="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    defaults={"hidden_size": 64, "n_layer": 2, "n_head": 8, "hidden_dropout": 0.0},
    synonyms={"num_attention_heads": "n_head"},
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(_FUSED, "execution setting"),
        "offset_alibi": "softmax is invariant to a constant shift of the scores",
    },
    gguf=gguf.GGUFLayout(
        "BloomForCausalLM",
        "bloom",
        (
            gguf.MetadataKey("embedding_length", "hidden_size"),
            gguf.MetadataKey("block_count", "n_layer"),
            gguf.MetadataKey("attention.head_count", "n_head"),
            gguf.MetadataKey("context_length", "seq_length"),
            gguf.MetadataKey("attention.layer_norm_epsilon", "layer_norm_epsilon", float),
        ),
        {},
        changes=(gguf.Change(r"\.query_key_value\.", INTERLEAVED, "n_head"),),
        derived={
            "feed_forward_length": lambda values: 4 * values["hidden_size"],
            "attention.head_count_kv": lambda values: values["n_head"],
        },
        base="",
    ),
)

register(BLOOM)
