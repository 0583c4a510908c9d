"""Trained coders of runs, which turn values into codes, and processors whose values are such codes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from qkv.data.pretrained import WEIGHTS, read_pretrained
from qkv.data.processors.processor import Processor, build_processor
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

KEY = "data.processor.run"
AT_ONCE = 256
"""Number of values that are coded together."""

P = TypeVar("P", bound=Processor)
C = TypeVar("C", bound="CodingModel[Any]")


@dataclass(frozen=True)
class CodingModel(Generic[P]):
    """Base class of trained coders: a model, the processor of the values that it codes, the SHA-256 of its weights."""

    model: Transformer
    processor: P
    digest: str

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of the model's head, by which a coder is recognised."""
    name: ClassVar[str]
    """Words for a run of such a coder in messages."""

    @classmethod
    def of(cls, model: Transformer, recipe: Recipe, vocabulary: Vocabulary, where: str, digest: str = "") -> Self:
        """Return a trained model as a coder. Raises ``UserError``, which begins with ``where``, if it is none."""
        processor = vocabulary.processor
        if recipe.model.head.kind not in cls.kinds or processor is None:
            kinds = f"the task {recipe.task.kind!r} with the head {recipe.model.head.kind!r}"
            raise UserError(f"{where} has {kinds}; name {cls.name}")
        return cls(model, build_processor(processor), digest)  # type: ignore[arg-type]

    @classmethod
    def read(cls, run: str) -> Self:
        """Load the coder in the run folder ``run``, once. Raises ``UserError`` if it is missing or another run."""
        weights = Path(run).expanduser() / WEIGHTS
        return _read(cls, run, weights.stat().st_mtime_ns if weights.is_file() else 0)


@lru_cache(maxsize=2)
def _read(kind: type[C], run: str, changed: int) -> C:
    model, recipe, vocabulary, digest = read_pretrained(run, KEY)
    return kind.of(model, recipe, vocabulary, f"{KEY}: the run in {run}", digest)


class CodesProcessor(Processor, Generic[C]):
    """Base class of processors whose encoded values are codes by the trained coder in the run of the spec."""

    automatic = False
    coders: ClassVar[type[CodingModel[Any]]]
    """Class of the coder."""

    @cached_property
    def coder(self) -> C:
        """Coder of the run. Raises ``UserError`` if it is missing, or differs from the one at fitting."""
        coder = self.coders.read(self.spec.run)
        if self.spec.digest not in (None, coder.digest):
            raise UserError(
                f"{KEY}: the run in {self.spec.run} differs from the one that the model was trained with; restore it, "
                "or train the model again"
            )
        return coder  # type: ignore[return-value]

    @abstractmethod
    def coded(self, encoded: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the codes of values that the coder's processor has encoded."""

    def encode(self, value: Any) -> np.ndarray:
        return self.coded([self.coder.processor.encode(value)])[0]

    def encode_all(self, values: Sequence[Any]) -> Iterator[np.ndarray | Unusable]:
        each = map(self.coder.processor.tried, values)  # these are not shared: only the codes are kept in memory
        while some := list(islice(each, AT_ONCE)):
            usable = [value for value in some if not isinstance(value, Unusable)]
            codes = iter(self.coded(usable) if usable else ())
            yield from (value if isinstance(value, Unusable) else next(codes) for value in some)

    def picture(self, value: Any) -> str | None:
        return self.coder.processor.picture(value)

    def shown(self, value: Any) -> str:
        return self.coder.processor.shown(value)
