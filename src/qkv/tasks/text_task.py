"""What the tasks that read a running text have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN, VALIDATION, Corpus, open_corpus, open_whole
from qkv.data.vocabulary import Vocabulary
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.material import OTHER, Material, TextMaterial
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import Tokenizer

Changes = Callable[[Batch, np.random.Generator], Batch]
"""A batch of a running text made into what is learned from, with the random numbers of its step."""


class TextTask(Task):
    """Windows of a running text, each changed into what the task learns from."""

    counts_training: ClassVar[bool] = False
    """True if what is drawn beside the text depends on the training part."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Material:
        corpus = open_corpus(recipe.data, vocabulary and vocabulary.tokenizer)
        tokenizer = self.prepared(recipe, corpus.tokenizer)
        changes = self.changes(recipe, tokenizer, corpus)
        return TextMaterial(recipe, corpus, Vocabulary(tokenizer, tokenizer), changes, self.window(recipe))

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, own: Material | None) -> Material:
        if own is None and self.counts_training:
            raise UserError(f"the task {recipe.task.kind!r} measures with the frequencies of the training text, and it is not at hand")
        whole = open_whole(recipe.data, source, vocabulary.tokenizer, OTHER)
        new = whole.splits[OTHER]
        known = own.corpus.splits if isinstance(own, TextMaterial) else {TRAIN: new, VALIDATION: new}
        corpus = Corpus(source, whole.tokenizer, {**known, OTHER: new})
        return TextMaterial(recipe, corpus, vocabulary, self.changes(recipe, vocabulary.tokenizer, corpus), self.window(recipe))

    def window(self, recipe: Recipe) -> int:
        """Tokens of a window of the text."""
        return recipe.model.context_length

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with what the task needs beside the text's own ids."""
        return tokenizer

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes | None:
        """The function that makes of a batch of the text what is learned from; None if it stays as it is."""
        return None
