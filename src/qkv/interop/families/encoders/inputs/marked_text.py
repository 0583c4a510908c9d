"""Encoders of BERT's structure whose tokens have further marks: LayoutLM, TAPAS, RoCBert.

LayoutLM (Xu et al. 2020) reads the box of each word on its page, TAPAS (Herzig et al. 2020) the cell of each word in a
table, RoCBert (Su et al. 2022) the shape and the pronunciation of each character. Marks that are not given are 0, as in
the published code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import (
    BERT_KEYS,
    HeadKeys,
    answering,
    classification,
    masked,
    masked_or_causal,
    pooler,
    tagging,
    written_back,
)
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, VectorsHead
from qkv.spec.model import Model, Text
from qkv.spec.signals.marked_text import MarkedText, MarkVectors
from qkv.system.errors import UserError

_WORDS = masked(bert.MASKED_NAMES, ignored={"cls.seq_relationship.*": "next-sentence head, used in pretraining only"})


def with_marks(model: Model, head: Head, **fields: Any) -> Model:
    """Return the model with ``head`` and with a front end of marked text; ``fields``: its marks."""
    text = {name: getattr(model.frontend, name) for name in Text.model_fields if name != "kind"}
    return model.changed(frontend=MarkedText(**text, **fields), head=head)


def keys(spec: Model) -> dict[str, Any] | None:
    """Return BERT's config.json keys of a spec with marked text; None for another structure."""
    return bert.config(spec) if isinstance(spec.frontend, MarkedText) else None


def _with_pooler(body: str, architecture: Architecture) -> Architecture:
    """Return an architecture whose files hold an unused pooler, which an export writes back."""
    return replace(architecture, kept=written_back(pooler(body)))


# LayoutLM

_LAYOUT = "layoutlm."
_SIDES = {"x": "x", "y": "y", "height": "h", "width": "w"}
_RATE = HeadKeys(dropout="hidden_dropout_prob")


def _layoutlm(config: Config, head: Head) -> Model:
    """Build the spec of LayoutLM: like BERT, with the boxes of words."""
    model = bert.body(config, VectorsHead(), 0, config.size("type_vocab_size", 2))
    return with_marks(model, head, box=config.size("max_2d_position_embeddings", 1024))


def _layoutlm_config(spec: Model) -> dict[str, Any] | None:
    fields = keys(spec)
    return fields and {**fields, "max_2d_position_embeddings": spec.frontend.box}  # type: ignore[attr-defined]


LAYOUTLM = Family(
    name="LayoutLM",
    model_types=("layoutlm",),
    architectures={
        "LayoutLMForMaskedLM": _with_pooler(_LAYOUT, _WORDS),
        "LayoutLMModel": heads.vectors(kept=pooler(_LAYOUT)),
        "LayoutLMForSequenceClassification": classification(f"{_LAYOUT}pooler.dense", "classifier", keys=_RATE),
        "LayoutLMForTokenClassification": _with_pooler(_LAYOUT, tagging("classifier", keys=_RATE)),
        "LayoutLMForQuestionAnswering": _with_pooler(_LAYOUT, answering("qa_outputs")),
    },
    spec=_layoutlm,
    config=_layoutlm_config,
    names=(
        *bert.names(_LAYOUT),
        *(
            NameRule(f"frontend.box.{ours}", f"{_LAYOUT}embeddings.{theirs}_position_embeddings.weight")
            for ours, theirs in _SIDES.items()
        ),
    ),
    prefix=_LAYOUT,
    ignored={f"{_LAYOUT}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
)

# TAPAS

_TABLE = "tapas."
_SIZES = [3, 256, 256, 2, 256, 256, 10]
_FIRST = NameRule("frontend.types", f"{_TABLE}embeddings.token_type_embeddings_0.weight")
_OTHERS = NameRule("frontend.marks.{mark}", f"{_TABLE}embeddings.token_type_embeddings_{{mark+1}}.weight")


def _tapas(config: Config, head: Head) -> Model:
    """Build the spec of TAPAS: like BERT, with several kinds of token types, of which the first is BERT's.

    Raises ``UserError`` for sizes that are no whole numbers, or fewer than three.
    """
    sizes = config.items("type_vocab_sizes") or _SIZES
    if len(sizes) < 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise UserError(f"{config.source}: type_vocab_sizes is {sizes}; give at least three whole numbers above 0")
    model = bert.body(config, VectorsHead(), 0, sizes[0])
    return with_marks(model, head, marks=tuple(sizes[1:]), cells=config.flag("reset_position_index_per_cell", True))


def _tapas_config(spec: Model) -> dict[str, Any] | None:
    fields = keys(spec)
    if not fields or not isinstance(spec.frontend, MarkedText):
        return None
    sizes = [fields.pop("type_vocab_size"), *spec.frontend.marks]
    return {**fields, "type_vocab_sizes": sizes, "reset_position_index_per_cell": spec.frontend.cells}


_OF_CELLS = (
    "positive_label_weight",
    "num_aggregation_labels",
    "aggregation_loss_weight",
    "use_answer_as_supervision",
    "answer_loss_importance",
    "use_normalized_answer_loss",
    "huber_loss_delta",
    "temperature",
    "aggregation_temperature",
    "use_gumbel_for_cells",
    "use_gumbel_for_aggregation",
    "average_approximation_function",
    "cell_selection_preference",
    "answer_loss_cutoff",
    "max_num_rows",
    "max_num_columns",
    "average_logits_per_cell",
    "select_one_column",
    "allow_empty_column_selection",
    "init_cell_selection_weights_to_zero",
    "disable_per_token_loss",
    "aggregation_labels",
    "no_aggregation_label_index",
)
TAPAS = Family(
    name="TAPAS",
    model_types=("tapas",),
    architectures={
        "TapasForMaskedLM": _WORDS,
        "TapasModel": heads.vectors(kept=pooler(_TABLE)),
        "TapasForSequenceClassification": classification(f"{_TABLE}pooler.dense", "classifier", keys=_RATE),
    },
    spec=_tapas,
    config=_tapas_config,
    names=(_FIRST, _OTHERS, *bert.names(_TABLE)),
    prefix=_TABLE,
    defaults={"max_position_embeddings": 1024},
    ignored={f"{_TABLE}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        **dict.fromkeys(_OF_CELLS, "read only by the head that selects cells"),
    },
)

# RoCBert

_SHAPED = "roc_bert."
_DEFAULTS = {"shape": (24858, 512), "pronunciation": (910, 768)}
"""Number of values and width of the vectors of each mark."""


def _roc_bert(config: Config, head: Head) -> Model:
    """Build the spec of RoCBert: like BERT, with a linear map of the vectors of a token and of its marks."""
    config.fixed("concat_input", True, "the embeddings, of which it would take the mean")
    for kind in _DEFAULTS:
        config.fixed(f"enable_{kind}", True, f"the embeddings, which would lack the {kind} of a token")
    appended = tuple(
        MarkVectors(rows=config.size(f"{kind}_vocab_size", rows), width=config.size(f"{kind}_embed_dim", width))
        for kind, (rows, width) in _DEFAULTS.items()
    )
    return with_marks(bert.spec(config, VectorsHead()), head, appended=appended)


def _roc_bert_config(spec: Model) -> dict[str, Any] | None:
    fields = keys(spec)
    if not fields or not isinstance(spec.frontend, MarkedText) or len(spec.frontend.appended) != len(_DEFAULTS):
        return None
    tables = zip(_DEFAULTS, spec.frontend.appended, strict=True)
    sizes = {f"{kind}_{key}": size for kind, each in tables for key, size in _sizes(each).items()}
    return {**fields, **sizes}


def _sizes(table: MarkVectors) -> dict[str, int]:
    return {"vocab_size": table.rows, "embed_dim": table.width}


_APPENDED = tuple(
    NameRule(f"frontend.appended.{i}", f"{_SHAPED}embeddings.{kind}_embed.weight") for i, kind in enumerate(_DEFAULTS)
)
ROC_BERT = Family(
    name="RoCBert",
    model_types=("roc_bert",),
    architectures={
        **masked_or_causal("RoCBertForMaskedLM", "RoCBertForCausalLM", _WORDS),
        "RoCBertModel": heads.vectors(kept=pooler(_SHAPED)),
        "RoCBertForSequenceClassification": classification(f"{_SHAPED}pooler.dense", "classifier", keys=BERT_KEYS),
        "RoCBertForTokenClassification": tagging("classifier"),
        "RoCBertForQuestionAnswering": answering("qa_outputs"),
    },
    spec=_roc_bert,
    config=_roc_bert_config,
    names=(
        *_APPENDED,
        NameRule("frontend.map.*", f"{_SHAPED}embeddings.map_inputs_layer.*"),
        *bert.names(_SHAPED),
    ),
    prefix=_SHAPED,
    ignored={f"{_SHAPED}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
)

register(LAYOUTLM, TAPAS, ROC_BERT)
