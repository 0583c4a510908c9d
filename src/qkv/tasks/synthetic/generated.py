"""Base class for tasks that generate random data with known answers."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TEST, TRAIN, VALIDATION
from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.spec.errors import Problem, SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import WordList
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT, Dataset, with_vocabulary
from qkv.tasks.task import Observed, Task, Totals
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

Draw = Callable[[np.random.Generator], Batch]
BATCHES = 32
"""Number of batches in each held-out split."""


class GeneratedDataset(Dataset):
    """Random batches as a function of (seed, step); held-out splits use step numbers beyond all training steps."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, draw: Draw):
        self.recipe, self.vocabulary, self.name = with_vocabulary(recipe, vocabulary), vocabulary, recipe.task.kind
        self._draw, self._seed = draw, recipe.training.seed

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VALIDATION, TEST)

    def batch(self, step: int) -> Batch:
        return self._draw(random(self._seed, step))

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        first = {TRAIN: 0, VALIDATION: HELD_OUT, TEST: HELD_OUT + BATCHES}[self.checked(split)]
        for number in range(min(BATCHES, batches or BATCHES)):
            yield self.batch(first + number)

    def digest(self) -> str:
        """Return the SHA-256 of the settings that determine all batches."""
        decides = [self.recipe.task.to_dict(), self._seed, self.recipe.training.batch_size]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    @property
    def epoch_targets(self) -> int:
        """Number of targets in all training steps of the recipe, since no example repeats."""
        training = self.recipe.training
        return max(1, self.batch(0).num_targets) * training.steps * training.accumulate


class GeneratedTask(Task):
    """Base class of tasks that generate random examples with known answers, such as sorting."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        if self.longest(recipe) > recipe.model.context_length:
            sentence = (
                f"{recipe.model.context_length} positions are fewer than the {self.longest(recipe)} of a row of this "
                "task; raise model.context_length"
            )
            raise SpecError([Problem(("model", "context_length"), sentence)])
        vocabulary = vocabulary or self.vocabulary()
        return GeneratedDataset(recipe, vocabulary, self.drawing(recipe, vocabulary))

    @abstractmethod
    def longest(self, recipe: Recipe) -> int:
        """Return the number of positions of the longest training row."""

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Build the vocabulary of the generated symbols."""

    @abstractmethod
    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        """Return the function that generates one batch from a random generator, with the sizes in ``recipe``."""


def observed_answers(model: Transformer, batch: Batch) -> Observed:
    """Return the loss of a batch; outcomes: (number of right answers, number of targets) of each row."""
    logits, mask = model(batch.input)[0], batch.targets != IGNORED
    right = (model.head.decode(logits, mask) == batch.targets) & mask
    rows = list(zip(right.sum(1).tolist(), mask.sum(1).tolist(), strict=True))
    return Observed(model.head.loss(logits, batch.targets), batch.num_targets, rows)


def row_figures(seen: Totals) -> dict[str, float]:
    """Return the loss of an answer, the share of rows whose answers are all right, and the share of right answers."""
    return {
        "loss": seen.loss / max(1, seen.count),
        "exact_match": sum(right == total for right, total in seen.outcomes) / max(1, len(seen.outcomes)),
        "token_accuracy": sum(right for right, _ in seen.outcomes) / max(1, seen.count),
    }


def in_words(lines: Sequence[str], answers: Sequence[str], expected: np.ndarray) -> str:
    """Return what a model was given, its answers, and in parentheses the right ones, for people to read."""
    triples = zip(lines, answers, expected.tolist(), strict=True)
    return "\n".join(f"{line}\n→ {answer}\n  ({' '.join(map(str, row))})" for line, answer, row in triples)


def known_ids(tokenizer: Tokenizer, text: str, symbols: str) -> list[int]:
    """Encode a text to token ids. ``symbols``: description of the valid words, for messages.

    Raises ``UserError`` for an empty text or unknown words.
    """
    unknown = tokenizer.unknown(text)
    if unknown or not text.split():
        raise UserError(f"{' '.join(unknown) or text!r} given, but the model reads {symbols}")
    return tokenizer.encode(text)


def tokenizer_of(words: Sequence[str]) -> Tokenizer:
    """Build a tokenizer with one id per word of ``words``, split at spaces; the last id is the unknown token."""
    return train(WordList(vocab_size=len(words) + 1, min_frequency=1, lowercase=False), [" ".join(words)])


def ids_of(tokenizer: Tokenizer, words: Sequence[str]) -> np.ndarray:
    """Return the token id of each word, (len(words),) int64."""
    return np.asarray(tokenizer.encode(" ".join(words)), np.int64)
