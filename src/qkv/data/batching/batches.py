"""Batches of a corpus. The batch of a step depends only on (seed, step), so that resumed runs see the same batches."""

from __future__ import annotations

from collections.abc import Iterator

from qkv.data.batching.batch import Batch
from qkv.data.batching.layouts import RowLayout
from qkv.data.corpora.corpus import TRAIN, VALIDATION, Corpus
from qkv.spec import data as spec
from qkv.spec.register import implementation
from qkv.system.errors import UserError

RELEASE_EVERY = 64
"""Number of batches after which the memory-mapped pages of a long text are released, to bound memory."""


class Batches:
    """Batches of ``batch_size`` rows of at most ``length`` positions, in the layout of ``batching``.

    Raises ``UserError`` if a split is too short for the layout.
    """

    def __init__(self, corpus: Corpus, batching: spec.Batching, batch_size: int, length: int, seed: int = 0):
        layout = implementation(batching, "qkv.data.batching")
        self._train, self._validation = (
            _checked(layout(batching, corpus.splits[name], batch_size, length, seed), corpus, name)
            for name in (TRAIN, VALIDATION)
        )

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step: a function of (seed, step) only."""
        if step % RELEASE_EVERY == 0:
            self._train.split.release()
        return self._train.batch(step)

    def validation(self, batches: int | None = None) -> Iterator[Batch]:
        """Yield validation batches in a fixed order.

        ``batches`` None: the whole split once. Otherwise: ``batches`` batches of rows evenly spaced over the split.
        """
        for number, batch in enumerate(self._validation.every_row(batches)):
            if number % RELEASE_EVERY == 0:
                self._validation.split.release()
            yield batch

    def starts(self, step: int) -> list[int]:
        """Return the index of the first token of each row in the training batch of a step; empty if unknown."""
        return self._train.starts(step).tolist()

    @property
    def padding(self) -> float:
        """Fraction of positions in training batches that are padding, 0 to 1."""
        return self._train.padding()


def _checked(layout: RowLayout, corpus: Corpus, part: str) -> RowLayout:
    problem = layout.problem()
    if problem:
        sizes = " and ".join(f"{len(split.ids)} in {name}" for name, split in corpus.splits.items())
        remedy = f"give more text (tokens: {sizes}), a shorter model.context_length or another data.validation_fraction"
        raise UserError(f"data.source: the {part} split of {corpus.name!r} {problem}; {remedy}")
    return layout
