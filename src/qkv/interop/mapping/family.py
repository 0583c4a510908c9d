"""Published families: conversion of configs to specs and back, tables of tensor names, layout in GGUF files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import nn

from qkv.interop.mapping.config import Config
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.gguf import GGUFLayout
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.spec.base import problems_of
from qkv.spec.errors import SpecError
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.system.errors import UserError


@dataclass(frozen=True)
class Architecture:
    """Published architecture, a value of ``architectures`` in configs such as "BertForMaskedLM": a family with one
    head.

    ``head`` reads the head's spec from a config; ``names`` is the table of the head's tensor names.
    """

    head: Callable[[Config], Head]
    config: Callable[[Head], dict[str, Any] | None]
    """Inverse of ``head``: returns the config keys of a head, or None if this architecture does not have that head."""
    names: tuple[NameRule, ...] = ()
    ignored: Reasons = field(default_factory=dict)
    """Tensors in files of this architecture that are not loaded, with the reason."""
    kept: Reasons = field(default_factory=dict)
    """Tensors that are not loaded but written back unchanged by an export, with the reason."""
    kept_config: tuple[str, ...] = ()
    """Keys of the config that are not read but written back unchanged by an export, beside the tensors of ``kept``."""
    zeros: Reasons = field(default_factory=dict)
    """Tensors that are ignored if they are all zero, and refused otherwise; with what qkv supports."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Second names of a tensor -> its first name: ignored if the values are equal, and refused otherwise."""
    bare: bool = False
    """True for a model without a head: its tensor names lack the body's prefix."""
    typical: Mapping[str, Any] = field(default_factory=dict)
    """Example values of config keys of this architecture that differ from the family's ``typical``."""
    suits: Callable[[Model], bool] = lambda spec: True
    """Condition on a spec for writing it as this architecture, if another one has the same head."""


@dataclass(frozen=True)
class Family:
    """Family of published models, such as BERT: conversion of its configs and tensors to qkv's and back.

    ``spec`` and ``config`` are inverse: ``config(spec)`` returns config keys that ``spec`` converts back, or None if
    the family does not cover the spec.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: Mapping[str, Architecture]
    """Architectures by name; the first is the default for configs that name none."""
    spec: Callable[[Config, Head], Model]
    config: Callable[[Model], dict[str, Any] | None]
    names: tuple[NameRule, ...]
    prefix: str = ""
    """Prefix of the body's tensor names in files of models with a head; files of the body alone lack it."""
    ignored: Reasons = field(default_factory=dict)
    ignored_config: Reasons = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys in the published config class, where they differ from the defaults in ``spec``."""
    typical: Mapping[str, Any] = field(default_factory=dict)
    """Example values of config keys of published models that differ from the defaults."""
    copies: Callable[[Model], Mapping[str, str]] = field(default=lambda spec: {})
    """Function from a spec to {further name of a shared tensor that the library expects: name that is written}."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Synonyms of keys in the published config class, such as ``hidden_size`` -> the names that ``spec`` uses."""
    divisions: Callable[[Model], Sequence[RowDivision]] = field(default=lambda spec: ())
    """Function from a spec to the divisions of published tensors whose rows belong to several tensors of qkv."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Substrings of tensor names in old files -> their replacements in current files."""
    gguf: GGUFLayout | None = None
    """Layout of the family in GGUF files; None if qkv does not read or write GGUF files of the family."""
    extractor: str = ""
    """Class of the feature extractor that the library uses for a codec of this family; empty for other models."""
    template: str = ""
    """Chat template of folders that hold none, the form of a prompt in the published processor; empty: none."""
    settings: Callable[[Config], Mapping[str, Any]] = field(default=lambda config: {})
    """Function from a config to the generation settings that the published code uses, whatever the files say."""
    base: str = ""
    """Name of the family that this one extends. If both can describe a model, the base is used."""

    @property
    def in_gguf(self) -> Family:
        """The family with the name table of its GGUF files, where it differs from that of published files."""
        return replace(self, names=(*self.gguf.names, *self.names)) if self.gguf and self.gguf.names else self

    def divisions_of(self, model: nn.Module) -> Sequence[RowDivision]:
        """Return the divisions of the rows of published tensors of ``model``."""
        spec: Any = getattr(model, "spec", None)
        return self.divisions(spec)

    def rows(self, architecture: str) -> tuple[NameRule, ...]:
        """Return the name table of body and head of that architecture."""
        return (*self.names, *self.architectures[architecture].names)

    def written(self, architecture: str) -> tuple[NameRule, ...]:
        """Return the name table for writing files of that architecture."""
        rows = self.rows(architecture)
        return without_prefix(self, rows) if self.architectures[architecture].bare else rows

    def written_name(self, architecture: str, name: str) -> str:
        """Return the published name ``name`` as files of that architecture write it.

        Files of an architecture without a head lack the prefix of the body.
        """
        return name.removeprefix(self.prefix) if self.architectures[architecture].bare else name

    def extra_tensors(self, architecture: str) -> Reasons:
        """Return the tensors that qkv's model lacks but an export may write back, with reasons, by name as written."""
        return {
            self.written_name(architecture, name): reason
            for name, reason in self.architectures[architecture].kept.items()
        }


T = TypeVar("T")


def named_as_now(family: Family, stored: Mapping[str, T]) -> dict[str, T]:
    """Rename tensors of old files to current names, unless a tensor with the current name exists."""
    tensors: dict[str, T] = {}
    for name, tensor in stored.items():
        now = functools.reduce(lambda so_far, pair: so_far.replace(*pair), family.older.items(), name)
        tensors[name if now in stored else now] = tensor
    return tensors


def without_prefix(family: Family, rows: Iterable[NameRule]) -> tuple[NameRule, ...]:
    """Remove the family's body prefix from the published names of a table of tensor names."""
    return tuple(row.without(family.prefix) for row in rows)


def read_spec(family: Family, architecture: str, config: Config) -> Model:
    """Build the model spec of a published config.

    Keys that the published code does not read are ignored, as by that code. Raises ``UserError`` for an unsupported key
    that changes what the published code computes, and for a misspelt key.
    """
    config.rename(family.synonyms)
    config.assume(family.defaults)
    ignored = {**COMMON, **family.ignored_config}
    try:
        spec = family.spec(config, family.architectures[architecture].head(config))
    except (ValidationError, UserError) as error:
        config.refuse_misspelt(ignored)  # a misspelt key is the likely cause, and its message is clearer
        if isinstance(error, ValidationError):
            raise SpecError(problems_of(error, Model), config.source) from None
        raise
    config.leave_unread(ignored, REFUSED)
    return spec


def ignored_keys(family: Family, config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each key of the config that ``read_spec`` ignored."""
    reasons = {**COMMON, **family.ignored_config}
    for key in config.unread:
        yield key, reasons.get(key, f"not read by the published code of {family.name}")


COMMON: Reasons = {
    **dict.fromkeys(("transformers_version", "_name_or_path", "_commit_hash", "name_or_path"), "origin of the file"),
    **dict.fromkeys(("torch_dtype", "dtype"), "weight files carry their own dtype"),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id"),
        "given by the tokenizer",
    ),
    **dict.fromkeys(
        ("use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript"),
        "output format of a call",
    ),
    **dict.fromkeys(
        ("gradient_checkpointing", "pretraining_tp", "attn_implementation", "_attn_implementation"), "execution setting"
    ),
    **dict.fromkeys(
        (
            "task_specific_params",
            "finetuning_task",
            "max_length",
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "num_beams",
        ),
        "settings of generation and of tasks",
    ),
    **dict.fromkeys(
        ("id2label", "label2id", "num_labels", "problem_type"), "class names; read if the head has classes"
    ),
    **dict.fromkeys(
        ("tokenizer_class", "processor_class", "model_max_length", "bos_token", "eos_token", "pad_token", "unk_token"),
        "given by the tokenizer",
    ),
    "architectures": "selects the head",
    "model_type": "selects the family",
    "auto_map": "third-party code, which is never run",
    "is_encoder_decoder": "fixed by the family",
    "chunk_size_feed_forward": "execution setting",
}
"""Keys of any config that do not change what a model computes, with the reason."""

REFUSED: Reasons = {
    "quantization_config": "the format of the weights; load the unquantised weights",
    "compression_config": "the format of the weights; load the unquantised weights",
}
"""Keys of any config that the published library reads and qkv does not support, with what they change."""
