"""RoBERTa (Liu et al. 2019): BERT's structure; the first rows of the position table are reserved.

XLM-RoBERTa, CamemBERT and the text model of data2vec are the same under other names. Position p uses row p +
pad_token_id + 1. In training, the classification head of transformers also applies dropout to the first position's
vector.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import (
    answering,
    classification,
    gelu_transform,
    masked,
    masked_or_causal,
    pooler,
    tagging,
)
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import Learned

MASKED_NAMES = {
    "head.weight": "lm_head.decoder.weight",
    "head.bias": "lm_head.bias",
    "head.transform.dense.*": "lm_head.dense.*",
    "head.transform.norm.*": "lm_head.layer_norm.*",
}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of RoBERTa: like BERT; rows up to ``pad_token_id`` of the position table are reserved."""
    reserved, types = config.integer("pad_token_id", 1) + 1, config.size("type_vocab_size", 2)
    return bert.body(config, head, reserved, types, mask=bert.mask_of(config))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not RoBERTa's. Callers read them back to
    verify.
    """
    keys = bert.config(spec)
    match spec.frontend:
        case Text(positions=Learned(offset=offset)) if keys and offset:
            return {**keys, "pad_token_id": offset - 1}
        case _:
            return None


def architectures(stem: str, prefix: str) -> dict[str, Architecture]:
    """Return the published architectures of RoBERTa's structure by name, such as ``stem`` + "ForMaskedLM".

    ``prefix``: prefix of the body's tensor names.
    """
    unread = pooler(prefix)
    return {
        **masked_or_causal(f"{stem}ForMaskedLM", f"{stem}ForCausalLM", masked(MASKED_NAMES, gelu_transform, unread)),
        f"{stem}Model": heads.body(f"{prefix}embeddings.word_embeddings.weight", kept=unread),
        f"{stem}ForSequenceClassification": classification(
            hidden="classifier.dense", output="classifier.out_proj", ignored=unread
        ),
        f"{stem}ForTokenClassification": tagging("classifier", ignored=unread),
        f"{stem}ForQuestionAnswering": answering("qa_outputs", ignored=unread),
    }


ROBERTA = Family(
    name="RoBERTa",
    model_types=("roberta",),
    architectures=architectures("Roberta", "roberta."),
    spec=spec,
    config=config,
    names=bert.names("roberta."),
    prefix="roberta.",
    defaults={"vocab_size": 50265},
    ignored={"roberta.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
    older=bert.OLDER,
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="XLM-RoBERTa",
    base="RoBERTa",
    model_types=("xlm-roberta",),
    architectures=architectures("XLMRoberta", "roberta."),
    defaults={},
)

CAMEMBERT = replace(
    XLM_ROBERTA, name="CamemBERT", model_types=("camembert",), architectures=architectures("Camembert", "roberta.")
)
DATA2VEC = replace(
    XLM_ROBERTA,
    name="data2vec-text",
    model_types=("data2vec-text",),
    architectures=architectures("Data2VecText", "data2vec_text."),
    names=bert.names("data2vec_text."),
    prefix="data2vec_text.",
    ignored={"data2vec_text.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    older={},
)

register(ROBERTA, XLM_ROBERTA, CAMEMBERT, DATA2VEC)
