"""Encoders of images and text, for their text alone: ModernVBERT (Teiletche et al. 2025) and UltraVBERT (2026).

The text model is ModernBERT or UltraBERT, whose config is ``text_config``. The image tower and the map of its vectors
are not loaded; an export writes them back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common import gated, heads
from qkv.interop.families.encoders.modernbert import MODERNBERT
from qkv.interop.families.encoders.modernbert import NAMES as MODERN_NAMES
from qkv.interop.families.rotary_encoders.ultrabert import ULTRABERT
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, REFUSED, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model

_BODY, _TEXT = "model.", "text_config"
_KEPT = {
    f"{_BODY}vision_model.*": "part of the image tower, which a model of text does not use",
    f"{_BODY}connector.*": "part of the map of image vectors, which a model of text does not use",
}
_KEYS = ("vision_config", "image_token_id", "pixel_shuffle_factor", "initializer_cutoff_factor")


def _spec(text: Family) -> Callable[[Config, Head], Model]:
    """Return the function that builds the spec of the family ``text`` from a config's ``text_config``."""

    def spec(config: Config, head: Head) -> Model:
        inner = config.table(_TEXT)
        (kind,) = text.model_types
        inner.fixed("model_type", kind, "the text model")
        inner.assume(text.defaults)
        model = text.spec(inner, head)
        inner.leave_unread({**COMMON, **text.ignored_config}, REFUSED)
        return model

    return spec


def _config(text: Family, words: Architecture) -> Callable[[Model], dict[str, Any] | None]:
    """Return the inverse of ``_spec``. ``words``: the masked language model of the family ``text``."""

    def config(spec: Model) -> dict[str, Any] | None:
        body = text.config(spec)
        inner = {"model_type": text.model_types[0], **(body or {}), **(words.config(spec.head) or {})}
        return body and {_TEXT: inner}

    return config


def _masked(words: Architecture, names: dict[str, str]) -> Architecture:
    """Return the masked language model with an image tower; ``words``: that without; ``names``: of the head."""

    def read(config: Config) -> Head:
        head = words.head(config.table(_TEXT))
        assert isinstance(head, LanguageModelHead)
        return head.changed(tied=config.flag("tie_word_embeddings", False))

    def write(head: Head) -> dict[str, Any] | None:
        fields = words.config(head)
        return fields and {"tie_word_embeddings": fields["tie_word_embeddings"]}

    rows = tuple(NameRule(*pair) for pair in names.items())
    return Architecture(read, write, rows, kept=heads.written_back(_KEPT), kept_config=_KEYS)


def _bare() -> Architecture:
    return Architecture(
        heads.vectors().head, heads.vectors().config, kept=heads.written_back(_KEPT), kept_config=_KEYS, bare=True
    )


def _names(rows: tuple[NameRule, ...]) -> tuple[NameRule, ...]:
    """Return the name table of a text model below ``text_model``."""
    return tuple(
        row._replace(theirs=tuple(name.replace(_BODY, f"{_BODY}text_model.", 1) for name in row.published))
        for row in rows
    )


_MODERN = MODERNBERT.architectures["ModernBertForMaskedLM"]
_ULTRA = ULTRABERT.architectures["UltrabertForMaskedLM"]
_IGNORED_CONFIG = {
    **dict.fromkeys(("classifier_pooling", "classifier_dropout"), "part of a head that this architecture lacks"),
    **dict.fromkeys(("classifier_bias", "initializer_range"), "that of the text model's config is read"),
    **dict.fromkeys(_KEYS, "part of the image tower; written back by an export"),
    "tie_word_embeddings": "part of a head that this architecture lacks",
}
MODERN_VBERT = Family(
    name="ModernVBERT",
    base="ModernBERT",
    model_types=("modernvbert",),
    architectures={
        "ModernVBertForMaskedLM": _masked(
            _MODERN,
            {
                "head.transform.dense.*": "projection_head.dense.*",
                "head.transform.norm.*": "projection_head.norm.*",
                "head.weight": "lm_head.weight",
                "head.bias": "lm_head.bias",
            },
        ),
        "ModernVBertModel": _bare(),
    },
    spec=_spec(MODERNBERT),
    config=_config(MODERNBERT, _MODERN),
    names=_names(MODERN_NAMES),
    prefix=_BODY,
    ignored_config=_IGNORED_CONFIG,
)
ULTRA_VBERT = Family(
    name="UltraVBERT",
    base="UltraBERT",
    model_types=("ultravbert",),
    architectures={
        "UltraVBertForMaskedLM": _masked(
            _ULTRA,
            {
                "head.transform.first.weight": "head.linear1.weight",
                "head.transform.dense.weight": "head.linear2.weight",
                "head.weight": "head.decoder.weight",
            },
        ),
        "UltraVBertModel": _bare(),
    },
    spec=_spec(ULTRABERT),
    config=_config(ULTRABERT, _ULTRA),
    names=_names(gated.NAMES),
    prefix=_BODY,
    ignored_config=_IGNORED_CONFIG,
)

register(MODERN_VBERT, ULTRA_VBERT)
