"""MPT (MosaicML 2023): pre-norm blocks with ALiBi, without biases in linear layers and norms."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, LayerNorm, NoPositions
from qkv.system.errors import UserError

NAMES = (
    NameRule("frontend.table", "transformer.wte.weight"),
    NameRule("blocks.{layer}.branches.0.norm.weight", "transformer.blocks.{layer}.norm_1.weight"),
    NameRule("blocks.{layer}.branches.0.body.qkv.weight", "transformer.blocks.{layer}.attn.Wqkv.weight"),
    NameRule("blocks.{layer}.branches.0.body.output.weight", "transformer.blocks.{layer}.attn.out_proj.weight"),
    NameRule("blocks.{layer}.branches.1.norm.weight", "transformer.blocks.{layer}.norm_2.weight"),
    NameRule("blocks.{layer}.branches.1.body.up.weight", "transformer.blocks.{layer}.ffn.up_proj.weight"),
    NameRule("blocks.{layer}.branches.1.body.down.weight", "transformer.blocks.{layer}.ffn.down_proj.weight"),
    NameRule("norm.weight", "transformer.norm_f.weight"),
)
NORMS = {"low_precision_layernorm": LayerNorm, "layernorm": LayerNorm}
FIXED = (
    ("expansion_ratio", 4, "feed-forward features"),
    ("no_bias", True, "biases"),
    ("logit_scale", None, "the logits"),
    ("embedding_fraction", 1.0, "the gradient of the token vectors"),
)
FIXED_IN_ATTENTION = (
    ("attn_type", "multihead_attention", "key/value heads"),
    ("alibi", True, "position encoding"),
    ("alibi_bias_max", 8, "the slopes of ALiBi"),
    ("qk_ln", False, "queries and keys"),
    ("prefix_lm", False, "the attention mask"),
    ("attn_uses_sequence_id", False, "the attention mask"),
    ("rope", False, "position encoding"),
    ("sliding_window_size", -1, "the attention mask"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of MPT: D = d_model, n_layers blocks, n_heads heads, 4 D hidden features of the feed-forward."""
    width, heads = config.size("d_model", 2048), config.size("n_heads", 16)
    for key, only, meaning in FIXED:
        config.fixed(key, only, meaning)
    norm = config.word("norm_type", "low_precision_layernorm", NORMS)(
        eps=config.number("layer_norm_epsilon", 1e-5), bias=False
    )
    feed_forward = FeedForward(hidden=4 * width, bias=False)
    attention = _attention(config.table("attn_config"), heads, width / heads)
    return Model(
        width=width,
        num_layers=config.layers("n_layers", 24),
        context_length=config.integer("max_seq_len", 2048),
        frontend=Text(
            vocab_size=config.size("vocab_size", 50368),
            positions=NoPositions(),
            dropout=config.number("emb_pdrop", 0.0),
        ),
        blocks=(Block(branches=(attention, feed_forward), norm=norm, dropout=config.number("resid_pdrop", 0.0)),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _attention(table: Config, heads: int, head_dim: float) -> Attention:
    """Build the attention spec with temperature 1 / (s √Dk) for a ``softmax_scale`` s.

    The temperature is rounded to twelve digits, so that conversion back gives s.
    """
    for key, only, meaning in FIXED_IN_ATTENTION:
        table.fixed(key, only, meaning)
    scale = table.number("softmax_scale", head_dim**-0.5)
    if scale <= 0:
        raise UserError(f"{table.source}: softmax_scale is {scale:g}, but it should be above 0")
    temperature = float(f"{1.0 / (scale * head_dim**0.5):.12g}")
    attention = Attention(
        num_heads=heads,
        relative=Alibi(),
        bias=False,
        temperature=temperature,
        dropout=table.number("attn_pdrop", 0.0),
        clip=table.number("clip_qkv", 0.0) or None,
    )
    table.leave_unread({**COMMON, "attn_impl": "execution setting"})
    return attention


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not MPT's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(
            branches=(Attention(relative=Alibi()) as attention, FeedForward()), norm=LayerNorm() as norm
        ) as block, Text() as frontend:
            pass
        case _:
            return None
    return {
        "d_model": spec.width,
        "n_layers": len(spec.layers),
        "n_heads": attention.num_heads,
        "expansion_ratio": 4,
        "max_seq_len": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "layer_norm_epsilon": norm.eps,
        "emb_pdrop": frontend.dropout,
        "resid_pdrop": block.dropout,
        "initializer_range": spec.init_std,
        "attn_config": _attention_config(attention, spec.width),
    }


def _attention_config(attention: Attention, width: int) -> dict[str, Any]:
    scale = 1.0 / (attention.temperature * (width / attention.num_heads) ** 0.5)
    # Other libraries require 0, not 0.0.
    dropout = attention.dropout or 0
    scale = None if attention.temperature == 1.0 else scale
    return {"alibi": True, "attn_pdrop": dropout, "softmax_scale": scale, "clip_qkv": attention.clip}


MPT = Family(
    name="MPT",
    model_types=("mpt",),
    architectures={
        **{name: language_model(tied=True) for name in ("MptForCausalLM", "MPTForCausalLM", "MptModel")},
        **of_decoder("Mpt", tags="classifier"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="transformer.",
    synonyms={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    ignored_config={
        **HEAD_KEYS,
        "learned_pos_emb": "replaced by ALiBi",
        "init_device": "construction setting",
        "init_config": "construction setting",
        "verbose": "construction setting",
        "tokenizer_name": "given by the folder's tokenizer",
    },
)

register(MPT)
