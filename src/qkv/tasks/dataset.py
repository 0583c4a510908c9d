"""Data sets of tasks: training batches by step, batches of held-out splits, and the vocabulary."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.batching.batches import Batches
from qkv.data.batching.examples import ExampleRows, in_order
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TRAIN, VALIDATION, Corpus
from qkv.data.records.model import Records
from qkv.data.vocabulary import Vocabulary
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Frontend
from qkv.spec.model import Model
from qkv.spec.processors import INPUT
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, nearest

OTHER = "data"
"""Name of the split that holds a whole file other than the run's data, opened for evaluation."""
HELD_OUT = 1 << 63
"""First random-number key of held-out batches; the keys of training batches, their steps, are smaller."""


class Scale(NamedTuple):
    """Properties of the data that metrics depend on: average characters and bytes per token, and class names.

    ``unknown``: share of unknown tokens; ``unknown_bytes``: bytes of text that unknown tokens replace, divided by the
    number of all tokens.
    """

    characters_per_token: float
    bytes_per_token: float
    labels: tuple[str, ...] = ()
    unknown: float = 0.0
    unknown_bytes: float = 0.0


class Dataset(ABC):
    """Base class of the data of one run, in batches.

    ``recipe``: the run's recipe, with all sizes that the data determines filled in; ``notes``: messages for the user,
    such as about skipped rows.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    name: str
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Names of the available splits, such as ("train", "validation")."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0; it depends on (seed, step) only."""

    @abstractmethod
    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        """Yield batches of a split in a fixed order: the whole split (None), or ``batches`` batches spread over it."""

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 of the training data, in hexadecimal."""

    @property
    @abstractmethod
    def epoch_targets(self) -> int:
        """Number of predicted targets (such as tokens) in the training split."""

    def padding(self) -> float:
        """Return the share of padding in the positions of training batches, 0 to 1."""
        return 0.0

    def row_numbers(self, step: int) -> Sequence[int]:
        """Return the indices of the training rows in the batch of ``step``, counted from 0; of running text, the
        indices of the tokens with which its windows begin; empty if they are unknown.
        """
        return ()

    def notes_on(self, split: str) -> list[str]:
        """Return notes for the user about a split to evaluate, such as its share of unknown tokens."""
        return []

    def scale(self, split: str = VALIDATION) -> Scale:
        """Return the averages and class names of a split that its metrics need."""
        return Scale(1.0, 1.0, self.vocabulary.labels)

    def checked(self, split: str) -> str:
        """Return ``split``. Raises ``UserError`` if there is no split of that name."""
        if split not in self.splits:
            raise UserError(f"there is no split {split!r}; {nearest(split, self.splits)}")
        return split


class TextDataset(Dataset):
    """Batches of windows of a continuous text; ``change`` transforms each batch for the task, such as by masking."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        vocabulary: Vocabulary,
        change: Callable[[Batch, np.random.Generator], Batch] | None = None,
        length: int | None = None,
    ):
        """Create the data from an encoded text.

        ``length``: window length in tokens; None for the model's context length.
        """
        training = recipe.training
        self.recipe, self.corpus, self.vocabulary, self.name = (
            with_vocabulary(recipe, vocabulary),
            corpus,
            vocabulary,
            corpus.name,
        )
        self._change, self._seed = change, training.seed
        self._of = lambda held_out: Batches(
            Corpus(corpus.name, corpus.tokenizer, {**corpus.splits, VALIDATION: corpus.splits[held_out]}),
            recipe.data.batching,
            training.batch_size,
            length or recipe.model.context_length,
            training.seed,
        )
        self._batches = self._of(VALIDATION)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.corpus.splits)

    def batch(self, step: int) -> Batch:
        return self._changed(self._batches.batch(step), step)

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        rows = self._batches if self.checked(split) == VALIDATION else self._of(split)
        for number, batch in enumerate(rows.validation(batches)):
            yield self._changed(batch, HELD_OUT + number)

    def padding(self) -> float:
        return self._batches.padding

    def row_numbers(self, step: int) -> Sequence[int]:
        return self._batches.starts(step)

    def _changed(self, batch: Batch, key: int) -> Batch:
        return batch if self._change is None else self._change(batch, random(self._seed, key))

    def digest(self) -> str:
        """Return the SHA-256 of the lengths and of 64 evenly spaced excerpts of the ids of both splits."""
        total = hashlib.sha256()
        for name in (TRAIN, VALIDATION):
            ids = self.corpus.splits[name].ids
            total.update(f"{name} {len(ids)} {ids.dtype}".encode())
            for start in np.linspace(0, max(0, len(ids) - (1 << 16)), 64, dtype=np.int64):
                total.update(np.ascontiguousarray(ids[start : start + (1 << 16)]).data)
        return total.hexdigest()

    @property
    def epoch_targets(self) -> int:
        return len(self.corpus.train)

    def scale(self, split: str = VALIDATION) -> Scale:
        counts = self.corpus.splits[split].counts
        shares = (counts.unknown / counts.tokens, counts.unknown_bytes / counts.tokens)
        return Scale(counts.characters_per_token, counts.bytes_per_token, (), *shares)

    def notes_on(self, split: str) -> list[str]:
        unknown = self.scale(split).unknown
        if not unknown:
            return []
        share = f"{100 * unknown:.1f} %" if unknown >= 0.001 else "less than 0.1 %"
        where = self.name if split == OTHER else f"the {split} split"
        return [
            f"{share} of the tokens of {where} are unknown to the tokenizer; "
            "bits per byte and bits per character, where shown, add 8 bits for each byte that unknown tokens replace"
        ]


class Example(NamedTuple):
    """Encoded row of a table.

    size: number of positions that it takes in a batch.   targets: number of predicted targets.   fields: encoded
    values, a named tuple that the task's collator reads.
    """

    size: int
    targets: int
    fields: Any


class ExampleDataset(Dataset):
    """Batches of a table of examples, encoded in memory.

    ``collate``: function that builds a batch from the ``fields`` of examples; ``records``: rows of each split before
    encoding; ``change``: function that changes a training batch at random, such as by augmentation.
    """

    def __init__(
        self,
        recipe: Recipe,
        records: Records,
        vocabulary: Vocabulary,
        examples: Mapping[str, Sequence[Example]],
        collate: Callable[[Sequence[Any]], Batch],
        notes: tuple[str, ...] = (),
        change: Callable[[Batch, np.random.Generator], Batch] | None = None,
    ):
        training = recipe.training
        self._change, self._seed = change, training.seed
        self.recipe, self.name, self.vocabulary = with_vocabulary(recipe, vocabulary), records.name, vocabulary
        self.records, self.examples, self.notes, self._collate = records.splits, examples, notes, collate
        self.fitted_on: Sequence[dict[str, Any]] | None = records.splits.get(TRAIN)
        """Rows that baselines are fitted to: always the run's training split; None if it is not available."""
        self.fitted_examples: Sequence[Example] | None = examples.get(TRAIN)
        """Encoded examples of ``fitted_on``."""
        self._sizes = {
            split: np.array([example.size for example in rows], np.int64) for split, rows in examples.items()
        }
        for split, sizes in self._sizes.items():
            if not len(sizes):
                raise UserError(f"data.source: the {split} split of {self.name!r} has no example that can be used")
        self._rows = (
            ExampleRows(self._sizes[TRAIN], recipe.data.batching, training.batch_size, training.seed)
            if TRAIN in examples
            else None
        )
        self._batch_size = training.batch_size

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.examples)

    def batch(self, step: int) -> Batch:
        assert self._rows is not None, "there is no training part"
        batch = self._batch(TRAIN, self._rows.of_step(step))
        return batch if self._change is None else self._change(batch, random(self._seed, step))

    def padding(self) -> float:
        return self._rows.padding() if self._rows is not None else 0.0

    def row_numbers(self, step: int) -> Sequence[int]:
        return [] if self._rows is None else self._rows.of_step(step).tolist()

    def batch_of(self, index: Sequence[int], split: str = TRAIN) -> Batch:
        """Return the batch of the examples of a split with the indices ``index``, without augmentation."""
        return self._batch(split, np.asarray(index))

    def order(self, split: str, batches: int | None = None) -> list[int]:
        """Return the indices of the examples that ``rows`` yields, in its order."""
        indices = in_order(self._sizes[self.checked(split)], self._batch_size, batches)
        return [int(i) for index in indices for i in index]

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        for index in in_order(self._sizes[self.checked(split)], self._batch_size, batches):
            yield self._batch(split, index)

    def _batch(self, split: str, index: np.ndarray) -> Batch:
        examples = self.examples[split]
        return self._collate([examples[i].fields for i in index])

    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of all encoded examples of the training and validation splits."""
        total = hashlib.sha256()
        for split in (TRAIN, VALIDATION):
            for example in self.examples[split]:
                for value in leaves(example.fields):
                    total.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return total.hexdigest()

    @property
    def epoch_targets(self) -> int:
        return sum(example.targets for example in self.examples[TRAIN])


def leaves(fields: Any) -> Iterator[Any]:
    """Yield the values of nested tuples in order."""
    if isinstance(fields, tuple):
        for field in fields:
            yield from leaves(field)
    else:
        yield fields


def with_vocabulary(recipe: Recipe, vocabulary: Vocabulary) -> Recipe:
    """Return a copy of ``recipe`` with vocabulary size and number of classes filled in.

    Raises ``SpecError`` if a size that the recipe sets is too small.
    """
    fitted = _with_both if recipe.task.separates_inputs else _with_processor
    model, processor = fitted(recipe, vocabulary), vocabulary.processor
    wide = recipe.wide if recipe.wide is None or processor is None else recipe.wide.of_processor(processor)
    if wide is not None and recipe.data.inputs:
        wide = wide.of_inputs(vocabulary.processors)
    if wide is not None and recipe.task.separates_inputs:
        first, second = (vocabulary.processors.get(name) for name in recipe.data.inputs)
        wide = wide.of_both(first, second)
    if model.frontend.reads_tokens and (vocabulary.has_text or model.frontend.inputs_read):
        size = vocabulary.target.vocab_size if vocabulary.has_text else 1
        model = _with_frontend(model, size, ("model",))
    if model.encoder and model.encoder.frontend.reads_tokens:
        encoder = _with_frontend(model.encoder, vocabulary.tokenizer.vocab_size, ("model", "encoder"))
        if encoder.share_embedding and not vocabulary.same_ids:
            sentence = (
                "source and target have separate tokenizers, so their token embeddings cannot be shared; "
                "remove data.target_tokenizer"
            )
            raise SpecError([Problem(("model", "encoder", "share_embedding"), sentence)])
        model = model.changed(encoder=encoder)
    return recipe.changed(model=_with_classes(model, vocabulary), wide=wide)


def _with_both(recipe: Recipe, vocabulary: Vocabulary) -> Model:
    """Return the model with each of its two front ends adapted to the processor of its input, if that is not text."""
    model, (first, second) = recipe.model, recipe.data.inputs
    assert model.encoder is not None
    encoder = model.encoder.changed(frontend=_fitted(model.encoder.frontend, vocabulary, first, ("model", "encoder")))
    return model.changed(encoder=encoder, frontend=_fitted(model.frontend, vocabulary, second, ("model",)))


def _fitted(frontend: Frontend, vocabulary: Vocabulary, name: str, path: tuple[str, ...]) -> Frontend:
    """Return the front end, at ``path``, adapted to the processor of the input ``name``. Raises ``SpecError``."""
    processors = {INPUT: vocabulary.processors[name]} if name in vocabulary.processors else {}
    try:
        return frontend.of_processors(processors)
    except SpecError as error:
        raise SpecError([problem.under(*path, "frontend") for problem in error.problems]) from None


def _with_processor(recipe: Recipe, vocabulary: Vocabulary) -> Model:
    """Return a copy of the model adapted to the run's processors.

    Adapted is the front end of the encoder; without an encoder, the model's front end and head.
    """
    model = recipe.model
    stack, path = (model.encoder, ("model", "encoder")) if model.encoder else (model, ("model",))
    try:
        fitted = stack.frontend.of_processors(vocabulary.processors)
    except SpecError as error:
        raise SpecError([problem.under(*path, "frontend") for problem in error.problems]) from None
    if fitted is stack.frontend and vocabulary.processor is None:
        return model
    if model.encoder:
        return model.changed(encoder=model.encoder.changed(frontend=fitted))
    try:
        head = model.head.reading(fitted)
    except SpecError as error:
        raise SpecError([problem.under("model", "head") for problem in error.problems]) from None
    return model.changed(frontend=fitted, head=head)


def _with_frontend(stack: Any, vocab_size: int, path: tuple[str, ...]) -> Any:
    """Return a copy of a stack's spec (model or encoder, at ``path``) with the vocabulary size filled in."""
    frontend = stack.frontend
    try:
        sized = frontend.sized(vocab_size)
    except SpecError as error:
        raise SpecError([problem.under(*path, "frontend") for problem in error.problems]) from None
    return stack if sized is frontend else stack.changed(frontend=sized)


def _with_classes(model: Model, vocabulary: Vocabulary) -> Model:
    try:
        head = model.head.sized(vocabulary.target.vocab_size if model.head.writes_text else len(vocabulary.labels))
    except SpecError as error:
        raise SpecError([problem.under("model", "head") for problem in error.problems]) from None
    return model if head is model.head else model.changed(head=head)
