"""T5Gemma (Zhang et al. 2025): encoder–decoder of Gemma 2's blocks, with a bidirectional encoder.

The decoder's blocks have cross-attention between self-attention and feed-forward. Encoder and decoder have separate
token tables.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.gated import windowed
from qkv.interop.families.common.heads import body
from qkv.interop.families.decoders import gemma
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Causal, Full, Mask, Window
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.surgery import shortest_pattern
from qkv.system.errors import UserError

_CAP = "final_logit_softcapping"
_LAYER, _SLOT = "layers.{layer}.", "blocks.{layer}.branches."


def _stack(ours: str, theirs: str, last: str) -> tuple[NameRule, ...]:
    """Return the name table of one stack.

    ``ours`` and ``theirs``: prefixes in qkv and in files; ``last``: index of the feed-forward among a block's branches.
    """
    slot, layer = f"{ours}{_SLOT}", f"{theirs}{_LAYER}"
    norms = {"0": "self_attn", last: "feedforward"}
    places = (("norm", "pre"), ("norm_after", "post"))
    return (
        NameRule(f"{ours}frontend.table", f"{theirs}embed_tokens.weight"),
        *(
            NameRule(f"{slot}{index}.{place}.weight", f"{layer}{when}_{name}_layernorm.weight")
            for index, name in norms.items()
            for place, when in places
        ),
        NameRule(f"{slot}0.body.qkv.*", tuple(f"{layer}self_attn.{part}_proj.*" for part in "qkv"), QKV),
        NameRule(f"{slot}0.body.output.*", f"{layer}self_attn.o_proj.*"),
        NameRule(f"{slot}{last}.body.gate_up.*", (f"{layer}mlp.gate_proj.*", f"{layer}mlp.up_proj.*"), PAIR),
        NameRule(f"{slot}{last}.body.down.*", f"{layer}mlp.down_proj.*"),
        NameRule(f"{ours}norm.weight", f"{theirs}norm.weight"),
    )


_CROSS = f"model.decoder.{_LAYER}"
NAMES = (
    *_stack("encoder.", "model.encoder.", "1"),
    NameRule(f"{_SLOT}1.norm.weight", f"{_CROSS}pre_cross_attn_layernorm.weight"),
    NameRule(f"{_SLOT}1.norm_after.weight", f"{_CROSS}post_cross_attn_layernorm.weight"),
    NameRule(f"{_SLOT}1.body.query.*", f"{_CROSS}cross_attn.q_proj.*"),
    NameRule(f"{_SLOT}1.body.memory.*", (f"{_CROSS}cross_attn.k_proj.*", f"{_CROSS}cross_attn.v_proj.*"), PAIR),
    NameRule(f"{_SLOT}1.body.output.*", f"{_CROSS}cross_attn.o_proj.*"),
    *_stack("", "model.decoder.", "2"),
)
_RATES = ("dropout_rate", "attention_dropout")


def spec(config: Config, head: Head) -> Model:
    """Build the spec of T5Gemma: ``encoder`` and ``decoder`` are configs of Gemma 2 with the same width."""
    dropout = config.number("dropout_rate", 0.0)
    encoder, decoder = (_stack_of(config, name, head, dropout) for name in ("encoder", "decoder"))
    if encoder.width != decoder.width:
        raise UserError(
            f"{config.source}: hidden_size is {encoder.width} in the encoder and {decoder.width} in the decoder; this "
            "needs cross-attention to vectors of another width, which qkv's encoder–decoders do not support"
        )
    return decoder.changed(
        blocks=shortest_pattern([_reading(block) for block in decoder.layers]),
        encoder=Encoder(
            num_layers=encoder.depth,
            context_length=encoder.context_length,
            frontend=encoder.frontend,
            blocks=shortest_pattern([_masked(block, _both_ways(block)) for block in encoder.layers]),
            norm=encoder.norm,
        ),
    )


def _stack_of(config: Config, name: str, head: Head, dropout: float) -> Model:
    """Build the spec of one stack as a model of Gemma 2, with the dropout rates of the whole config."""
    table = config.table(name)
    rates = {"attention_dropout": config.number("attention_dropout", 0.0)}
    settings = Config({**table.values, **rates}, table.source)
    settings.assume({"sliding_window": 4096})
    model = gemma.spec_of_gemma2(settings, head)
    settings.leave_unread({**COMMON, **_FIXED})
    blocks = tuple(_dropping(block, dropout) for block in model.blocks)
    return model.changed(blocks=blocks, frontend=model.frontend.changed(dropout=dropout))


def _dropping(block: Block, rate: float) -> Block:
    first, second = block.branches
    return block.changed(branches=(first, second.changed(dropout=rate)), dropout=rate)


def _reading(block: Block) -> Block:
    """Return the block with cross-attention of the same sizes between self-attention and feed-forward."""
    first, second = block.branches
    assert isinstance(first, Attention)
    sizes = ("num_heads", "num_kv_heads", "head_dim", "temperature", "bias", "softcap", "dropout")
    cross = CrossAttention(**{name: getattr(first, name) for name in sizes})
    return block.changed(branches=(first, cross, second))


def _masked(block: Block, mask: Mask) -> Block:
    first, *rest = block.branches
    return block.changed(branches=(first.changed(mask=mask), *rest))


def _both_ways(block: Block) -> Mask:
    """Return the mask of an encoder's block: a window to both sides, including its last position on each side."""
    reach = block.branches[0].mask.reach if isinstance(block.branches[0], Attention) else None
    return Full() if reach is None else Window(size=reach + 1)


def _one_way(block: Block) -> Mask:
    """Return the causal mask of a block whose mask ``_both_ways`` has made bidirectional."""
    mask = block.branches[0].mask if isinstance(block.branches[0], Attention) else Full()
    return windowed(mask.size - 1) if isinstance(mask, Window) and mask.size > 1 else Causal()


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    tables = [gemma.config_of_gemma2(stack) for stack in _stacks(spec)]
    match spec.frontend, spec.layers[:1]:
        case Text() as text, [Block(branches=(Attention() as first, *_))] if tables and None not in tables:
            pass
        case _:
            return None
    shared: dict[str, Any] = {"model_type": "t5_gemma_module"}
    if isinstance(spec.head, LanguageModelHead):
        shared[_CAP] = spec.head.softcap
    encoder, decoder = ({**(table or {}), **shared} for table in tables)
    return {
        "encoder": encoder,
        "decoder": decoder,
        "vocab_size": text.vocab_size,
        "dropout_rate": text.dropout,
        "attention_dropout": first.dropout,
        "is_encoder_decoder": True,
    }


def _stacks(spec: Model) -> list[Model]:
    """Return encoder and decoder as models of Gemma 2; an empty list if they are not."""
    encoder = spec.encoder
    if encoder is None or encoder.frontend.processor is not None or any(len(b.branches) != 3 for b in spec.layers):
        return []
    source = spec.changed(
        encoder=None,
        frontend=encoder.frontend,
        context_length=encoder.context_length,
        num_layers=encoder.depth,
        blocks=tuple(_masked(block, _one_way(block)) for block in encoder.blocks),
    )
    blocks = [block.changed(branches=(block.branches[0], block.branches[-1])) for block in spec.layers]
    return [source, spec.changed(encoder=None, blocks=shortest_pattern(blocks))]


def _words(config: Config) -> Head:
    cap = config.table("decoder").optional(_CAP, 30.0)
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", True), softcap=cap)


def _words_keys(head: Head) -> dict[str, Any] | None:
    return {"tie_word_embeddings": head.tied} if isinstance(head, LanguageModelHead) else None


_FIXED = {
    **dict.fromkeys(("is_decoder", "dropout_rate", "cross_attention_hidden_size"), "fixed by the whole config"),
    **dict.fromkeys((_CAP, "tie_word_embeddings", "classifier_dropout_rate"), "part of the head"),
}
_WRITING = Architecture(_words, _words_keys, (NameRule("head.weight", "lm_head.out_proj.weight"),))

T5GEMMA = Family(
    name="T5Gemma",
    model_types=("t5gemma",),
    architectures={
        "T5GemmaForConditionalGeneration": _WRITING,
        "T5GemmaModel": body("model.decoder.embed_tokens.weight"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config={
        **dict.fromkeys(("tie_word_embeddings", "classifier_dropout_rate"), "part of a head that it lacks"),
        **dict.fromkeys(("vocab_size", "initializer_range"), "given by the decoder"),
    },
)

register(T5GEMMA)
