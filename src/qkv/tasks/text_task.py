"""What the tasks that read a running text have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import Corpus, open_corpus
from qkv.data.vocabulary import Vocabulary
from qkv.spec.recipe import Recipe
from qkv.tasks.material import Material, TextMaterial
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import Tokenizer

Changes = Callable[[Batch, np.random.Generator], Batch]
"""A batch of a running text made into what is learned from, with the random numbers of its step."""


class TextTask(Task):
    """Windows of a running text, each changed into what the task learns from."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Material:
        corpus = open_corpus(recipe.data, vocabulary and vocabulary.tokenizer)
        tokenizer = self.prepared(recipe, corpus.tokenizer)
        changes = self.changes(recipe, tokenizer, corpus)
        return TextMaterial(recipe, corpus, Vocabulary(tokenizer, tokenizer), changes, self.window(recipe))

    def window(self, recipe: Recipe) -> int:
        """Tokens of a window of the text."""
        return recipe.model.context_length

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with what the task needs beside the text's own ids."""
        return tokenizer

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes | None:
        """The function that makes of a batch of the text what is learned from; None if it stays as it is."""
        return None
