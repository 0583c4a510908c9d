"""Data that a task draws itself, for tasks with exact answers."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN, VALIDATION
from qkv.data.rows import random
from qkv.data.vocabulary import Vocabulary
from qkv.spec.errors import Problem, SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import WordList
from qkv.tasks.material import HELD_OUT, TEST, Material, with_vocabulary
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

Draw = Callable[[np.random.Generator], Batch]
BATCHES = 32
"""How many batches a split has that is not learned from."""


class GeneratedMaterial(Material):
    """Batches by (seed, step). Those of the held-out splits are drawn with keys that no step has."""

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
        """SHA-256 of what decides every batch."""
        decides = [self.recipe.task.to_dict(), self._seed, self.recipe.training.batch_size]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    @property
    def epoch_targets(self) -> int:
        """Those of the steps of the recipe: nothing is seen twice."""
        training = self.recipe.training
        return max(1, self.batch(0).num_targets) * training.steps * training.accumulate


class GeneratedTask(Task):
    """A task whose examples are drawn."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Material:
        if self.longest(recipe) > recipe.model.context_length:
            sentence = f"{recipe.model.context_length} positions hold no row of the task, which has {self.longest(recipe)}; give that many, or more"
            raise SpecError([Problem(("model", "context_length"), sentence)])
        vocabulary = vocabulary or self.vocabulary()
        return GeneratedMaterial(recipe, vocabulary, self.drawing(recipe, vocabulary))

    @abstractmethod
    def longest(self, recipe: Recipe) -> int:
        """Positions of the longest row that is learned from."""

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """What the numbers stand for."""

    @abstractmethod
    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        """The function that draws a batch."""


def tokenizer_of(words: Sequence[str]) -> Tokenizer:
    """One id for each of ``words``, which a text gives with spaces between them; the last id is the unknown word."""
    return train(WordList(vocab_size=len(words) + 1, min_frequency=1, lowercase=False), [" ".join(words)])


def ids_of(tokenizer: Tokenizer, words: Sequence[str]) -> np.ndarray:
    """(words,) int64: the id of each."""
    return np.asarray(tokenizer.encode(" ".join(words)), np.int64)
