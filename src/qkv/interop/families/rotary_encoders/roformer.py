"""RoFormer (Su et al. 2021): BERT's structure with RoPE, whose pairs are adjacent features.

The embeddings may be narrower than the model, with a linear map. In training, the classification head of transformers
also applies dropout to the first position's vector.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import (
    HeadKeys,
    answering,
    masked,
    masked_or_causal,
    pooled_head,
    problem_keys,
    tagging,
)
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.common.sinusoids import is_sinusoid
from qkv.interop.families.encoders import bert
from qkv.interop.families.encoders.factorised import embedding_width, narrow, with_map
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import interleaved_rope
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import ClassificationHead, Head, RegressionHead, VectorsHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Learned, NoPositions, NoRelative, Rope, Sinusoidal
from qkv.system.errors import UserError

_BODY = "roformer."
_JOINED = tuple(f"{_BODY}encoder.layer.{{layer}}.attention.self.{part}.*" for part in ("query", "key", "value"))
NAMES = (
    NameRule("blocks.{layer}.branches.0.body.qkv.*", _JOINED, interleaved_rope()),
    *bert.names(_BODY),
    NameRule("frontend.projection.*", f"{_BODY}embeddings_project.*"),
)
_WAVES = f"{_BODY}encoder.embed_positions.weight"
TABLE = {_WAVES: "the sinusoids of RoPE, computed from the config"}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of RoFormer: like BERT, with RoPE of base 10,000 on whole heads.

    Raises ``UserError`` for a stored table of other rotations.
    """
    config.fixed("rotary_value", False, "the values, which would be rotated, too")
    if not is_sinusoid(config, Sinusoidal(halves=True), _WAVES):
        raise UserError(
            f"{config.source}: the weights have a table {_WAVES!r} that differs from the sinusoids of RoPE, and qkv "
            "does not support rotations by a learned table of sines and cosines"
        )
    model = bert.spec(config, VectorsHead())
    (block,) = model.blocks
    attention, *rest = block.branches
    model = model.changed(
        blocks=(block.changed(branches=(attention.changed(relative=Rope()), *rest)),),
        frontend=model.frontend.changed(positions=NoPositions()),
    )
    size = config.size("embedding_size", model.width)
    return with_map(model, head, None if size == model.width else size)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not RoFormer's. Callers read them back to
    verify.
    """
    match shape_of(spec):
        case Block(branches=(Attention() as attention, second)) as block, Text(positions=NoPositions()) as frontend:
            plain = block.changed(branches=(attention.changed(relative=NoRelative()), second))
        case _:
            return None
    learned = frontend.changed(positions=Learned(), embedding_width=None)
    keys = bert.config(spec.changed(blocks=(plain,), frontend=learned, head=VectorsHead()))
    return keys and {**keys, "embedding_size": embedding_width(spec) or spec.width}


def _words(config: Config) -> dict[str, Any]:
    return narrow("embedding_size", config.size("hidden_size", 768))(config)


def _classes(config: Config) -> Head:
    width, activation = config.size("hidden_size", 768), config.word("hidden_act", "gelu", INWARD)
    dropout = config.number("hidden_dropout_prob", 0.1)
    return pooled_head(config, pooling="first", hidden=width, activation=activation, dropout=dropout)


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "first":
        return None
    return {**problem_keys(head), "hidden_act": OUTWARD[head.activation], "hidden_dropout_prob": head.dropout}


_ROWS = NameRule("head.hidden.*", "classifier.dense.*"), NameRule("head.output.*", "classifier.out_proj.*")
_KEPT = heads.written_back(TABLE)


def _keeping(architecture: Architecture) -> Architecture:
    return replace(architecture, kept=_KEPT)


ROFORMER = Family(
    name="RoFormer",
    model_types=("roformer",),
    architectures={
        **masked_or_causal("RoFormerForMaskedLM", "RoFormerForCausalLM", _keeping(masked(bert.MASKED_NAMES, _words))),
        "RoFormerModel": heads.vectors(kept=TABLE),
        "RoFormerForSequenceClassification": _keeping(Architecture(_classes, _classes_keys, _ROWS)),
        "RoFormerForTokenClassification": _keeping(tagging("classifier", keys=HeadKeys(dropout="hidden_dropout_prob"))),
        "RoFormerForQuestionAnswering": _keeping(answering("qa_outputs")),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    defaults={"vocab_size": 50000, "max_position_embeddings": 1536},
    ignored_config=bert.IGNORED_CONFIG,
)

register(ROFORMER)
