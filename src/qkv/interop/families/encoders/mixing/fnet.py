"""FNet (Lee-Thorp et al. 2022): BERT's structure with a Fourier transform in the place of attention.

The published code transforms padding with the text, so that only rows without padding are equal. In training, it
applies dropout to the embeddings after their linear map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import HeadKeys, answering, classification, masked, pooler, tagging
from qkv.interop.families.encoders import bert
from qkv.interop.families.encoders.factorised import without_map
from qkv.interop.families.encoders.mixing.approximate import with_mixer
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, VectorsHead
from qkv.spec.masks import Full
from qkv.spec.mixers.position_matrices import Fourier
from qkv.spec.model import Model, Text

_BODY = "fnet."
NAMES = (
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_BODY}encoder.layer.{{layer}}.fourier.output.LayerNorm.*"),
    NameRule("frontend.projection.*", f"{_BODY}embeddings.projection.*"),
    *bert.names(_BODY),
)
_OF_ATTENTION = ("num_attention_heads", "attention_probs_dropout_prob", "is_decoder")
"""Keys of BERT's configs that concern attention."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of FNet: like BERT, with a linear map of the embeddings."""
    config.fixed("use_tpu_fourier_optimizations", False, "the transform, which is of rows of one length only")
    model = with_mixer(bert.spec(config, VectorsHead()), lambda first: Fourier())
    return model.changed(frontend=model.frontend.changed(embedding_width=model.width), head=head)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not FNet's. Callers read them back to verify."""
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, Fourier) or not isinstance(spec.frontend, Text):
        return None
    keys = bert.config(without_map(with_mixer(spec, lambda branch: Attention(num_heads=1, mask=Full()))))
    return keys and {key: value for key, value in keys.items() if key not in _OF_ATTENTION}


_RATE = HeadKeys(dropout="hidden_dropout_prob")
_UNREAD = pooler(_BODY)
_KEPT = heads.written_back(_UNREAD)
_PAIRS = {"cls.seq_relationship.*": "next-sentence head, used in pretraining only"}
_WORDS = replace(masked(bert.MASKED_NAMES, ignored=_PAIRS), kept=_KEPT)
FNET = Family(
    name="FNet",
    model_types=("fnet",),
    architectures={
        "FNetForMaskedLM": _WORDS,
        "FNetForPreTraining": _WORDS,
        "FNetModel": heads.vectors(kept=_UNREAD),
        "FNetForSequenceClassification": classification(f"{_BODY}pooler.dense", "classifier", keys=_RATE),
        "FNetForTokenClassification": replace(tagging("classifier", keys=_RATE), kept=_KEPT),
        "FNetForQuestionAnswering": replace(answering("qa_outputs"), kept=_KEPT),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix=_BODY,
    ignored={f"{_BODY}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        "tpu_short_seq_length": "read only with use_tpu_fourier_optimizations",
    },
    defaults={"vocab_size": 32000, "hidden_act": "gelu_new", "type_vocab_size": 4, "num_attention_heads": 1},
)

register(FNET)
