"""BART (Lewis et al. 2019) and mBART (Liu et al. 2020): encoder–decoder, learned positions with offset 2, a norm of the
embeddings.

BART's blocks are post-norm and its stacks end without a norm; mBART's are pre-norm and end with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import answering, body, language_model, pooled_head, problem_keys
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import COPIED, PAIR, QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, Learned, NoNorm, Norm

_OFFSET = 2


def _stack(ours: str, theirs: str, last: int) -> tuple[NameRule, ...]:
    """Return the table of tensor names of one stack; ``ours`` and ``theirs``: its prefixes in qkv and in files;
    ``last``: index of the feed-forward among a block's branches.
    """
    slot, layer = f"{ours}blocks.{{layer}}.branches.", f"{theirs}.layers.{{layer}}."
    attention = f"{layer}self_attn."
    return (
        NameRule(f"{ours}frontend.positions.table", f"{theirs}.embed_positions.weight"),
        NameRule(f"{ours}frontend.norm.*", f"{theirs}.layernorm_embedding.*"),
        NameRule(f"{slot}0.norm.*", f"{layer}self_attn_layer_norm.*"),
        NameRule(f"{slot}0.body.qkv.*", (f"{attention}q_proj.*", f"{attention}k_proj.*", f"{attention}v_proj.*"), QKV),
        NameRule(f"{slot}0.body.output.*", f"{attention}out_proj.*"),
        NameRule(f"{slot}{last}.norm.*", f"{layer}final_layer_norm.*"),
        NameRule(f"{slot}{last}.body.up.*", f"{layer}fc1.*"),
        NameRule(f"{slot}{last}.body.down.*", f"{layer}fc2.*"),
        NameRule(f"{ours}norm.*", f"{theirs}.layer_norm.*"),
    )


_SLOT, _CROSS = "blocks.{layer}.branches.1.", "model.decoder.layers.{layer}.encoder_attn."

NAMES = (
    NameRule("frontend.table", "model.shared.weight"),
    NameRule(
        "encoder.frontend.table", ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), COPIED
    ),
    *_stack("encoder.", "model.encoder", 1),
    *_stack("", "model.decoder", 2),
    NameRule(_SLOT + "norm.*", "model.decoder.layers.{layer}.encoder_attn_layer_norm.*"),
    NameRule(_SLOT + "body.query.*", _CROSS + "q_proj.*"),
    NameRule(_SLOT + "body.memory.*", (_CROSS + "k_proj.*", _CROSS + "v_proj.*"), PAIR),
    NameRule(_SLOT + "body.output.*", _CROSS + "out_proj.*"),
)


def _spec(order: Literal["pre", "post"], last: Norm) -> Callable[[Config, Head], Model]:
    """Return a function that converts a config and head to a model spec, for blocks of ``order`` and stacks that end
    with the norm ``last``.
    """

    def spec(config: Config, head: Head) -> Model:
        """Build the spec of BART or mBART: D = d_model; encoder and decoder have separate numbers of layers, heads and
        feed-forward features.
        """
        for key, only, meaning in _fixed(order, last):
            config.fixed(key, only, meaning)
        dropout, positions = config.number("dropout", 0.1), config.size("max_position_embeddings", 1024)
        block = Block(order=order, norm=LayerNorm(), dropout=dropout)
        frontend = Text(
            vocab_size=config.size("vocab_size", 50265),
            positions=Learned(offset=_OFFSET),
            dropout=dropout,
            scale=config.flag("scale_embedding", False),
            norm=LayerNorm(),
        )
        read, look, think = _branches(config, "encoder")
        encoder = block.changed(branches=(read.changed(mask=Full()), think))
        read, look, think = _branches(config, "decoder")
        stack = {"context_length": positions, "frontend": frontend, "norm": last}
        return Model(
            width=config.size("d_model", 1024),
            num_layers=config.layers("decoder_layers", 12),
            blocks=(block.changed(branches=(read, look, think)),),
            encoder=Encoder(
                num_layers=config.layers("encoder_layers", 12), blocks=(encoder,), share_embedding=True, **stack
            ),
            head=head,
            init_std=config.number("init_std", 0.02),
            **stack,
        )

    return spec


def _fixed(order: str, last: Norm) -> tuple[tuple[str, Any, str], ...]:
    """Return (key, only supported value, what the key changes) of keys in early config files that are constant in the
    family.
    """
    return (
        ("normalize_before", order == "pre", "positions of the norms in a block"),
        ("normalize_embedding", True, "the norm of the embeddings"),
        ("add_final_layer_norm", not isinstance(last, NoNorm), "the norm that ends a stack"),
        ("static_position_embeddings", False, "the position vectors"),
        ("extra_pos_embeddings", _OFFSET, "the row of the first position"),
        ("add_bias_logits", False, "the head"),
    )


def _branches(config: Config, stack: str) -> tuple[Attention, CrossAttention, FeedForward]:
    """Build self-attention, cross-attention and feed-forward of a block of ``stack``, "encoder" or "decoder"."""
    sizes = {
        "num_heads": config.size(f"{stack}_attention_heads", 16),
        "dropout": config.number("attention_dropout", 0.0),
    }
    feed_forward = FeedForward(
        hidden=config.size(f"{stack}_ffn_dim", 4096),
        activation=config.word("activation_function", "gelu", INWARD),
        dropout=config.number("activation_dropout", 0.0),
    )
    return Attention(**sizes), CrossAttention(**sizes), feed_forward


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not BART's or mBART's."""
    inner = spec.encoder
    match (spec.layers[:1], inner.layers[:1] if inner else (), spec.frontend):
        case (
            (Block(branches=(Attention(), CrossAttention() as look, FeedForward() as think)) as block,),
            (Block(branches=(Attention() as read, FeedForward() as first)),),
            Text() as frontend,
        ) if inner:
            pass
        case _:
            return None
    return {
        "d_model": spec.width,
        "encoder_layers": len(inner.layers),
        "decoder_layers": len(spec.layers),
        "encoder_attention_heads": read.num_heads,
        "decoder_attention_heads": look.num_heads,
        "encoder_ffn_dim": first.hidden_at(spec.width),
        "decoder_ffn_dim": think.hidden_at(spec.width),
        "activation_function": OUTWARD.get(think.activation),
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "scale_embedding": frontend.scale,
        "dropout": block.dropout,
        "attention_dropout": look.dropout,
        "activation_dropout": think.dropout,
        "init_std": spec.init_std,
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,
    }


_SYNONYMS = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}

_HEADS = ("tie_word_embeddings", "classifier_dropout", "classif_dropout")
_WRITING = (
    *(
        "num_beams",
        "early_stopping",
        "length_penalty",
        "no_repeat_ngram_size",
        "min_length",
        "num_beam_groups",
        "diversity_penalty",
    ),
    *("force_bos_token_to_be_generated", "forced_eos_token_id", "prefix", "output_past", "save_step"),
)
_IGNORED_CONFIG = {
    **dict.fromkeys(_HEADS, "part of a head that this architecture lacks"),
    **dict.fromkeys(_WRITING, "settings of generation and of tasks"),
    **dict.fromkeys(("decoder_start_token_id", "forced_bos_token_id"), "read as start of the output"),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "layer dropout in training, which qkv does not use"),
    **dict.fromkeys(("_num_labels", "is_decoder"), "given by other keys, or fixed by the family"),
    "tokenizer_class": "given by the tokenizer",
}
_WORDS = language_model(tied=True)
_TABLE = "model.shared.weight"


def _copies(spec: Model) -> dict[str, str]:
    """Return further names under which the shared token table is written -> its first name: newer versions of
    transformers read three tables of an untied model.
    """
    apart = isinstance(spec.head, LanguageModelHead) and not spec.head.tied
    return {f"model.{stack}.embed_tokens.weight": _TABLE for stack in ("encoder", "decoder")} if apart else {}


_ZEROS = {"final_logits_bias": "only a zero bias, as in every published BART"}


def _classes(config: Config) -> Head:
    """Build the classification head W dropout(tanh(W_h x + b_h)) + b on the decoder's last vector x, which is at eos:
    the decoder input is the source shifted by one token.
    """
    return pooled_head(
        config, pooling="last", hidden=config.size("d_model", 1024), dropout=config.number("classifier_dropout", 0.0)
    )


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "last":
        return None
    return {**problem_keys(head), "classifier_dropout": head.dropout}


_CLASSES = Architecture(
    _classes,
    _classes_keys,
    (
        NameRule("head.hidden.*", "classification_head.dense.*"),
        NameRule("head.output.*", "classification_head.out_proj.*"),
    ),
)


def _family(name: str, kind: str, order: Literal["pre", "post"], last: Norm, defaults: Mapping[str, Any]) -> Family:
    words = Architecture(_WORDS.head, _WORDS.config, _WORDS.names, zeros=_ZEROS)
    return Family(
        name=name,
        model_types=(name.lower(),),
        architectures={
            f"{kind}ForConditionalGeneration": words,
            f"{kind}Model": body("model.shared.weight"),
            f"{kind}ForSequenceClassification": _CLASSES,
            f"{kind}ForQuestionAnswering": answering("qa_outputs"),
        },
        spec=_spec(order, last),
        config=config,
        names=NAMES,
        prefix="model.",
        defaults=defaults,
        copies=_copies,
        ignored={
            "model.encoder.version": "weight tying flags; the head defines it",
            "model.decoder.version": "weight tying flags; the head defines it",
        },
        ignored_config=_IGNORED_CONFIG,
        synonyms=_SYNONYMS,
    )


BART = _family("BART", "Bart", "post", NoNorm(), {"num_labels": 3})
MBART = _family("mBART", "MBart", "pre", LayerNorm(), {})

register(BART, MBART)
