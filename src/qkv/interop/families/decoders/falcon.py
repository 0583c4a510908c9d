"""Falcon (Almazrouei et al. 2023): parallel attention and feed-forward, few key/value heads.

Norms have biases, linear layers have none.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import rope_config, rope_of
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, LayerNorm, NoPositions, Relative, Rope
from qkv.system.errors import UserError

ALIBI = Alibi(scaled=True, rounded="bf16")


def _parallel(spec: Model) -> bool:
    return all(block.order == "parallel" for block in spec.layers)


NAMES = (
    NameRule("frontend.table", "transformer.word_embeddings.weight"),
    NameRule("blocks.{layer}.norm.*", "transformer.h.{layer}.input_layernorm.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", "transformer.h.{layer}.ln_attn.*", where=_parallel),
    NameRule("blocks.{layer}.branches.1.norm.*", "transformer.h.{layer}.ln_mlp.*", where=_parallel),
    NameRule("blocks.{layer}.branches.0.norm.*", "transformer.h.{layer}.input_layernorm.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", "transformer.h.{layer}.post_attention_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*", "transformer.h.{layer}.self_attention.query_key_value.*", INTERLEAVED
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", "transformer.h.{layer}.self_attention.dense.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", "transformer.h.{layer}.mlp.dense_h_to_4h.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", "transformer.h.{layer}.mlp.dense_4h_to_h.*"),
    NameRule("norm.*", "transformer.ln_f.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Falcon: parallel attention and feed-forward.

    With ``new_decoder_architecture`` (40B, 11B), there are grouped keys and values, and one or two norms. Without it
    (7B), both branches share one norm.
    """
    width, heads = config.size("hidden_size", 4544), config.size("num_attention_heads", 71)
    config.fixed("apply_residual_connection_post_layernorm", False, "the residual")
    config.fixed("ff_factor", 4, "the feed-forward features")
    norm, bias = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5)), config.flag("bias", False)
    attention = Attention(
        num_heads=heads,
        num_kv_heads=_kv_heads(config, heads),
        relative=_relative(config),
        bias=bias,
        dropout=config.number("attention_dropout", 0.0),
    )
    hidden, activation = config.size("ffn_hidden_size", 4 * width), config.word("activation", "gelu", INWARD)
    feed_forward = FeedForward(hidden=hidden, activation=activation, bias=bias)
    block = Block(branches=(attention, feed_forward), norm=norm, dropout=config.number("hidden_dropout", 0.0))
    return Model(
        width=width,
        num_layers=config.layers("num_hidden_layers", 32),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size", 65024), positions=NoPositions()),
        blocks=(block.changed(**_order(config, norm)),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _relative(config: Config) -> Relative:
    """Build the position encoding: ALiBi as in Falcon-RW, or RoPE.

    Configs with ALiBi may contain RoPE keys, too.
    """
    rope = rope_of(config)
    return ALIBI if config.flag("alibi", False) else rope


def _kv_heads(config: Config, heads: int) -> int:
    """Return the number of key/value heads.

    The newer architecture has the key ``num_kv_heads``, the older one ``multi_query``.
    """
    count, single = config.size("num_kv_heads", heads), config.flag("multi_query", True)
    if config.flag("new_decoder_architecture", False):
        return count
    return 1 if single else heads


def _order(config: Config, norm: LayerNorm) -> dict[str, Any]:
    """Return the fields of a block: branches in parallel or in sequence, each with its own norm if there are two."""
    newer, parallel = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 2 if newer else 1)
    if norms not in ((1, 2) if newer else (1,)) or (newer and not parallel):
        settings = f"num_ln_in_parallel_attn {norms}, parallel_attn {parallel} and new_decoder_architecture {newer}"
        raise UserError(
            f"{config.source}: {settings} are inconsistent; two norms belong to the newer architecture, "
            "which is always parallel"
        )
    if not parallel:
        return {"order": "pre"}
    return {"order": "parallel", "norms": (norm, norm) if norms == 2 else ()}


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Falcon's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(
            branches=(Attention(relative=relative) as attention, FeedForward() as feed_forward)
        ) as block, Text() as frontend:
            norm, placed = block.norm_of(0), _relative_keys(relative)
        case _:
            return None
    if not isinstance(norm, LayerNorm) or placed is None:
        return None
    newer = block.order == "parallel" and (bool(block.norms) or attention.kv_heads not in (1, attention.num_heads))
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "num_kv_heads": attention.kv_heads,
        "multi_query": attention.kv_heads == 1,
        "new_decoder_architecture": newer,
        "parallel_attn": block.order == "parallel",
        "num_ln_in_parallel_attn": (2 if block.norms else 1) if newer else None,
        "ffn_hidden_size": feed_forward.hidden_at(spec.width),
        "activation": OUTWARD[feed_forward.activation],
        "bias": attention.bias,
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "layer_norm_epsilon": norm.eps,
        "attention_dropout": attention.dropout,
        "hidden_dropout": block.dropout,
        "initializer_range": spec.init_std,
        **placed,
    }


def _relative_keys(relative: Relative) -> dict[str, Any] | None:
    """Return the config keys of a position encoding, the inverse of ``_relative``; None if configs cannot
    express it.
    """
    if relative == ALIBI:
        return {"alibi": True}
    turned = rope_config(relative) if isinstance(relative, Rope) else None
    return None if turned is None else {"alibi": False, **turned}


FALCON = Family(
    name="Falcon",
    base="GPT-NeoX",
    model_types=("falcon",),
    architectures={
        "FalconForCausalLM": language_model(tied=True),
        "FalconModel": language_model(tied=True),
        **of_decoder("Falcon", tags="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    defaults={"hidden_dropout": 0.0},
    ignored={"transformer.h.{layer}.self_attention.rotary_emb.inv_freq": "computed from the config"},
    ignored_config=HEAD_KEYS,
)

register(FALCON)
