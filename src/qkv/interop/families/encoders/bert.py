"""BERT (Devlin et al. 2019): bidirectional post-norm blocks, learned positions, token types, embedding norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import (
    BERT_KEYS,
    HeadKeys,
    answering,
    classification,
    masked,
    masked_or_causal,
    pooler,
    tagging,
)
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal, Full, Mask
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Learned, NoNorm, Norm
from qkv.system.errors import UserError

IGNORED = {
    "bert.embeddings.position_ids": "constant position ids 0, 1, 2, …",
}
IGNORED_CONFIG = {
    **dict.fromkeys(
        (
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
            "directionality",
        ),
        "from the first release; unused",
    ),
    **dict.fromkeys(("classifier_dropout", "tie_word_embeddings"), "part of a head that this architecture lacks"),
    **dict.fromkeys(("output_past", "use_bfloat16", "xla_device", "_num_labels"), "from older versions; no effect"),
}
OLDER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Parameter names of norms in files of the first release -> current names."""

MASKED_NAMES = {
    "head.weight": "cls.predictions.decoder.weight",
    "head.bias": "cls.predictions.bias",
    "head.transform.dense.*": "cls.predictions.transform.dense.*",
    "head.transform.norm.*": "cls.predictions.transform.LayerNorm.*",
}


def names(body: str) -> tuple[NameRule, ...]:
    """Return the name table of BERT's structure; ``body``: prefix of the names in files."""
    rows = (
        NameRule("frontend.table", "embeddings.word_embeddings.weight"),
        NameRule("frontend.positions.table", "embeddings.position_embeddings.weight"),
        NameRule("frontend.types", "embeddings.token_type_embeddings.weight"),
        NameRule("frontend.norm.*", "embeddings.LayerNorm.*"),
        NameRule("blocks.{layer}.branches.0.body.output.*", "encoder.layer.{layer}.attention.output.dense.*"),
        NameRule("blocks.{layer}.branches.0.norm.*", "encoder.layer.{layer}.attention.output.LayerNorm.*"),
        NameRule("blocks.{layer}.branches.1.body.up.*", "encoder.layer.{layer}.intermediate.dense.*"),
        NameRule("blocks.{layer}.branches.1.body.down.*", "encoder.layer.{layer}.output.dense.*"),
        NameRule("blocks.{layer}.branches.1.norm.*", "encoder.layer.{layer}.output.LayerNorm.*"),
    )
    joined = tuple(f"{body}encoder.layer.{{layer}}.attention.self.{part}.*" for part in ("query", "key", "value"))
    return (
        *(row.below(body) for row in rows),
        NameRule("blocks.{layer}.branches.0.body.qkv.*", joined, QKV),
    )


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BERT: D = hidden_size, num_hidden_layers blocks, intermediate_size hidden features."""
    return body(config, head, reserved=0, types=config.size("type_vocab_size", 2), mask=mask_of(config))


def mask_of(config: Config) -> Mask:
    """Return the attention mask of a config: causal if ``is_decoder``, else full."""
    return Causal() if config.flag("is_decoder", False) else Full()


BERT_NAMES: Mapping[str, str] = {}


def body(
    config: Config,
    head: Head,
    reserved: int,
    types: int,
    named: Mapping[str, str] = BERT_NAMES,
    mask: Mask | None = None,
) -> Model:
    """Build the spec of BERT's structure with the given head.

    ``reserved``: rows of the position table before the first position; ``types``: number of token types; ``named``: as
    in ``structure``; ``mask``: attention mask, None: bidirectional, and ``is_decoder`` is refused.
    """
    for key, only, meaning in FIXED:
        config.fixed(key, only, meaning)
    if mask is None:
        config.fixed("is_decoder", False, "the attention mask")
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
    return under(structure(config, head, reserved, types, norm, named), mask or Full())


def under(model: Model, mask: Mask) -> Model:
    """Return ``model`` with ``mask`` in the first branch of every block, which is attention."""
    blocks = [(block, *block.branches) for block in model.blocks]
    return model.changed(
        blocks=tuple(block.changed(branches=(first.changed(mask=mask), *rest)) for block, first, *rest in blocks)
    )


def structure(
    config: Config,
    head: Head,
    reserved: int,
    types: int,
    norm: Norm,
    named: Mapping[str, str] = BERT_NAMES,
    feed_forward: FeedForward | None = None,
) -> Model:
    """Build the spec of BERT's structure like ``body``, with the same ``norm`` everywhere.

    ``named``: BERT's config keys -> the keys of this config, where they differ; ``feed_forward``: default: as in the
    config.
    """

    def key(name: str) -> str:
        return named.get(name, name)

    dropout = config.number(key("hidden_dropout_prob"), 0.1)
    attention = Attention(
        num_heads=config.size(key("num_attention_heads"), 12),
        mask=Full(),
        dropout=config.number(key("attention_probs_dropout_prob"), 0.1),
    )
    feed_forward = feed_forward or FeedForward(
        hidden=config.size(key("intermediate_size"), 3072),
        activation=config.word(key("hidden_act"), "gelu", INWARD),
    )
    return Model(
        width=config.size(key("hidden_size"), 768),
        num_layers=config.layers(key("num_hidden_layers"), 12),
        context_length=_positions(config, reserved),
        frontend=Text(
            vocab_size=config.size("vocab_size", 30522),
            positions=Learned(offset=reserved),
            types=types,
            norm=norm,
            dropout=dropout,
        ),
        blocks=(Block(branches=(attention, feed_forward), order="post", norm=norm, dropout=dropout),),
        norm=NoNorm(),
        head=head,
        init_std=config.number(key("initializer_range"), 0.02),
    )


def _positions(config: Config, reserved: int) -> int:
    rows = config.size("max_position_embeddings", 512)
    if rows <= reserved:
        raise UserError(
            f"{config.source}: max_position_embeddings is {rows}, but the first {reserved} rows of that table are "
            "reserved"
        )
    return rows - reserved


FIXED = (
    ("add_cross_attention", False, "the branches of a block"),
    ("position_embedding_type", "absolute", "the position encoding"),
    ("pruned_heads", {}, "the number of heads"),
)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not BERT's. Callers read them back to verify."""
    values = keys(spec)
    types = spec.frontend.types if isinstance(spec.frontend, Text) else 0
    return {**values, "type_vocab_size": types} if values and types else None


def keys(spec: Model, named: Mapping[str, str] = BERT_NAMES) -> dict[str, Any] | None:
    """Return config.json keys for BERT's structure except token types; None if ``spec`` has another structure.

    ``named``: as in ``structure``.
    """
    match shape_of(spec):
        case Block(
            branches=(Attention() as attention, FeedForward() as feed_forward), norm=LayerNorm() as norm, order="post"
        ) as block, Text(positions=Learned() as positions) as frontend:
            pass
        case _:
            return None
    sizes = {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.hidden_at(spec.width),
        "max_position_embeddings": spec.context_length + positions.offset,
        "vocab_size": frontend.vocab_size,
        "hidden_act": OUTWARD[feed_forward.activation],
        "layer_norm_eps": norm.eps,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "initializer_range": spec.init_std,
        **({"is_decoder": True} if attention.mask.causal else {}),
    }
    return {named.get(key, key): value for key, value in sizes.items()}


def architectures(
    stem: str, prefix: str, keys: HeadKeys = BERT_KEYS, causal: str = "ForCausalLM"
) -> dict[str, Architecture]:
    """Return the architectures of a family with BERT's structure, by published name, such as "BertForMaskedLM".

    ``stem``: start of these names, such as "Bert"; ``prefix``: start of the names of the body's tensors; ``causal``:
    end of the decoder's name.
    """
    unread = pooler(prefix)
    ignored_names = {
        **unread,
        "cls.seq_relationship.*": "next-sentence head, used in pretraining only",
    }
    words = masked(MASKED_NAMES, ignored=ignored_names)
    return {
        **masked_or_causal(f"{stem}ForMaskedLM", f"{stem}{causal}", words),
        f"{stem}ForPreTraining": words,
        f"{stem}Model": heads.body(f"{prefix}embeddings.word_embeddings.weight", kept=unread),
        f"{stem}ForSequenceClassification": classification(f"{prefix}pooler.dense", "classifier", keys=keys),
        f"{stem}ForTokenClassification": tagging("classifier", unread, keys),
        f"{stem}ForQuestionAnswering": answering("qa_outputs", ignored=unread),
    }


def _ernie(config: Config, head: Head) -> Model:
    """Build the spec of ERNIE (Sun et al. 2020): like BERT, without embeddings of pretraining tasks."""
    config.fixed("use_task_id", False, "the embeddings, to which it adds a vector of the task")
    return spec(config, head)


BERT = Family(
    name="BERT",
    model_types=("bert",),
    architectures=architectures("Bert", "bert.", causal="LMHeadModel"),
    spec=spec,
    config=config,
    names=names("bert."),
    prefix="bert.",
    ignored=IGNORED,
    ignored_config=IGNORED_CONFIG,
    older=OLDER,
)

ERNIE = replace(
    BERT,
    name="ERNIE",
    base="BERT",
    model_types=("ernie",),
    architectures=architectures("Ernie", "ernie."),
    spec=_ernie,
    names=names("ernie."),
    prefix="ernie.",
    ignored={"ernie.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={**IGNORED_CONFIG, "task_type_vocab_size": "read only with use_task_id"},
    older={},
)

register(BERT, ERNIE)
