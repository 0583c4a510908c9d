"""Base class for tasks on continuous text."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import TRAIN, VALIDATION, Corpus, open_corpus, open_whole
from qkv.data.vocabulary import Vocabulary
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import OTHER, Dataset, TextDataset
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import Tokenizer

Changes = Callable[[Batch, np.random.Generator], Batch]
"""Function that transforms a batch of text windows for a task, with the random generator of its step."""


class TextTask(Task):
    """Base class of tasks on continuous text; its windows are transformed for the task, such as by masking."""

    counts_training: ClassVar[bool] = False
    """True if the batches depend on token frequencies in the training split."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        corpus = open_corpus(recipe.data, vocabulary and vocabulary.tokenizer)
        tokenizer = self.prepared(recipe, corpus.tokenizer)
        changes = self.changes(recipe, tokenizer, corpus)
        return TextDataset(recipe, corpus, Vocabulary(tokenizer, tokenizer), changes, self.window(recipe))

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        if training_data is None and self.counts_training:
            raise UserError(
                f"the task {recipe.task.kind!r} needs the token frequencies of the training text, "
                "which is not available"
            )
        whole = open_whole(recipe.data, source, vocabulary.tokenizer, OTHER)
        new = whole.splits[OTHER]
        splits = (
            training_data.corpus.splits if isinstance(training_data, TextDataset) else {TRAIN: new, VALIDATION: new}
        )
        corpus = Corpus(source, whole.tokenizer, {**splits, OTHER: new})
        length = self.window(recipe)
        window = max(1, min(length, len(new.ids) - 1))  # the last token is a target only
        changes = self.changes(recipe, vocabulary.tokenizer, corpus)
        dataset = TextDataset(recipe, corpus, vocabulary, changes, window)
        if window < length:
            dataset.notes = (
                f"the text has {len(new.ids):,} tokens; it is read in windows of {window:,}, not {length:,}",
            )
        return dataset

    def window(self, recipe: Recipe) -> int:
        """Return the window length in tokens: by default the model's context length, or the batching's if shorter."""
        longest = recipe.model.context_length
        return min(longest, recipe.data.batching.tokens_of_window or longest)

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer extended by the special tokens that the task needs, such as the mask token."""
        return tokenizer

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes | None:
        """Return the function that transforms batches of text windows for the task, at random; None for no change."""
        return None
