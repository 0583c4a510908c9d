"""Text models of published models that also hear or see: a family of decoders whose config is ``text_config``.

qkv reads the text model. An export writes the tensors and the config keys of the other parts back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from qkv.interop.families.common.heads import language_model, written_back
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model

_TEXT = "text_config"


@dataclass(frozen=True)
class TextPart:
    """Text model of a published model with other parts.

    inner: family of the text model.   names: beginnings of that family's tensor names -> those in the whole model.
    head: published name of the head's matrix.   tied: default of ``tie_word_embeddings`` of the whole config, which
    the library reads instead of the text model's; None: the head is never tied.   defaults: keys that the library adds
    to ``text_config``.   parts: tensors of the other parts, with what they are.   keys: config keys of the other parts.
    synonyms: other names of these keys.
    """

    inner: Family
    names: Mapping[str, str]
    parts: Reasons
    keys: tuple[str, ...]
    head: str = "lm_head.weight"
    tied: bool | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec of the text model."""
        text = config.table(_TEXT)
        (kind,) = self.inner.model_types
        text.fixed("model_type", kind, "the family of the text model")
        text.rename(self.inner.synonyms)
        text.assume({**self.inner.defaults, **self.defaults})
        model = self.inner.spec(text, head)
        text.leave_unread({**COMMON, **self.inner.ignored_config})
        return model

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
        keys = self.inner.config(spec)
        return keys and {_TEXT: {"model_type": self.inner.model_types[0], **keys}}

    def family(self, name: str, model_type: str, architecture: str) -> Family:
        """Build the family of the whole model. ``name`` is the name of the model, without a note on its text."""
        words = language_model(tied=bool(self.tied), theirs=self.head) if self.tied is not None else _untied(self.head)
        rows = tuple(self._renamed(row) for row in self.inner.names)
        return Family(
            name=f"{name} (text)",
            base=self.inner.name,
            model_types=(model_type,),
            architectures={architecture: replace(words, kept=written_back(self.parts), kept_config=self.keys)},
            spec=self.spec,
            config=self.config,
            names=rows,
            divisions=self.inner.divisions,
            ignored={self._whole(name): reason for name, reason in self.inner.ignored.items()},
            ignored_config={
                **dict.fromkeys((*self.keys, *self.synonyms), "part of the model that qkv does not read"),
                **(dict.fromkeys(("tie_word_embeddings",), "fixed by the family") if self.tied is None else {}),
            },
            synonyms=self.synonyms,
        )

    def _renamed(self, row: NameRule) -> NameRule:
        return row._replace(theirs=tuple(map(self._whole, row.published)))

    def _whole(self, name: str) -> str:
        """Return the name in the whole model of a tensor of the text model."""
        return reduce(lambda so_far, pair: so_far.replace(*pair, 1), self.names.items(), name)


def _untied(matrix: str) -> Architecture:
    """Build the architecture of a language model whose head has a matrix of its own, whatever its config says.

    ``matrix``: published name of the matrix.
    """

    def write(head: Head) -> dict[str, Any] | None:
        return {} if head == LanguageModelHead(tied=False) else None

    return Architecture(lambda config: LanguageModelHead(tied=False), write, (NameRule("head.weight", matrix),))
