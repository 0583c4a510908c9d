"""Base class for tasks that corrupt windows of a text and generate the missing parts, or the whole window."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.corpora.corpus import VALIDATION, Corpus
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.spec.errors import Problem, SpecError
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset
from qkv.tasks.example_task import text_in
from qkv.tasks.pairs.pairs import TokenPair, joined, marks, pair_loss, paired, write_after
from qkv.tasks.task import Evaluation, Observed, Scale, Totals
from qkv.tasks.text.next_token import exponential
from qkv.tasks.text.text_task import Changes, TextTask
from qkv.tokenizers.tokenizer import Tokenizer

_SHOWN = 8


class RestorationTask(TextTask):
    """Base class of denoising tasks: -Σ log p(y_i | y_<i, x) with x a corrupted window of a continuous text.

    x and y are laid out as in ``qkv.tasks.pairs.pairs``.
    """

    evaluates = True
    asks = ("text",)

    @abstractmethod
    def sizes(self, length: int) -> tuple[int, int]:
        """Return the maximum (source, target) tokens for a window of ``length``, with end tokens."""

    @abstractmethod
    def damage(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Any:
        """Return the corruption: a function (ids (N,), rng) -> (source ids, target ids), both without end tokens."""

    @abstractmethod
    def repair(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], Any]:
        """Encode a user's corrupted text; return (source ids without end token, information for ``repaired``)."""

    @abstractmethod
    def repaired(self, source: Any, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
        """Insert the generated ``tokens`` into the input of ``repair``; return the restored text.

        ``source``: information from ``repair``.
        """

    def window(self, recipe: Recipe) -> int:
        """Return the largest window, in tokens, whose source and target fit the model.

        Raises ``SpecError`` if not even two tokens fit.
        """
        model = recipe.model
        most = 2 * (model.encoder or model).context_length
        for length in range(most, 1, -1):
            source, target = self.sizes(length)
            fits = source - 1 + target <= model.context_length
            if model.encoder:
                fits = source <= model.encoder.context_length and target <= model.context_length
            if fits:
                return length
        sentence = f"{model.context_length} positions are too few for a corrupted text and its target; raise it"
        raise SpecError([Problem(("model", "context_length"), sentence)])

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes:
        vocabulary, damage = Vocabulary(tokenizer, tokenizer), self.damage(recipe, tokenizer, corpus)
        (bos,), eos = marks(vocabulary)
        most, collate = self.sizes(self.window(recipe))[0], paired if recipe.model.encoder else joined

        def change(batch: Batch, rng: np.random.Generator) -> Batch:
            rows = []
            for ids in _texts(batch):
                pair: TokenPair = damage(ids, rng)
                source, target = np.append(pair.source[: most - 1], eos), np.concatenate(([bos], pair.target, [eos]))
                rows.append(TokenPair(source, target))
            return collate(rows)

        return change

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return pair_loss(model, batch, 0.0, tap)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return Observed(self.summed_loss(model, batch), batch.num_targets, [])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        rows = self._write_rows(model, dataset, split, recipe, _SHOWN)
        table = {
            "kind": "examples",
            "title": "Generated text",
            "columns": ["corrupted source", "generated", "target"],
            "rows": rows,
        }
        return Evaluation(self.figures(seen, dataset.scale(split)), [table])

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        rows = self._write_rows(model, dataset, VALIDATION, recipe, 2)
        return "\n\n".join(f"{source}\n→ {text}\n  ({target})" for source, text, target in rows)

    def _greedy(self, recipe: Recipe) -> Generation:
        """Return settings for greedy decoding up to the length of the longest training target."""
        return Generation(max_new_tokens=self.sizes(self.window(recipe))[1], temperature=0.0)

    def _write_rows(
        self, model: Transformer, dataset: Dataset, split: str, recipe: Recipe, count: int
    ) -> list[list[str]]:
        vocabulary = dataset.vocabulary
        decode = vocabulary.tokenizer.decode
        pairs = _pairs(next(iter(dataset.rows(split, 1))), marks(vocabulary)[1])[:count]
        texts = write_after(model, vocabulary, self._greedy(recipe), [pair.source for pair in pairs])
        return [
            [decode(pair.source[:-1]), decode(tokens), decode(pair.target[:-1])]
            for pair, tokens in zip(pairs, texts, strict=True)
        ]

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        tokenizer = vocabulary.tokenizer
        most, end = self.sizes(self.window(recipe))[0], marks(vocabulary)[1]
        read = [self.repair(text_in(row, "text"), tokenizer) for row in rows]
        for ids, _ in read:
            if len(ids) >= most:
                raise UserError(f"the text has {len(ids)} tokens, and the model reads {most - 1}; give a shorter one")
        texts = write_after(
            model, vocabulary, self._greedy(recipe), [np.array([*ids, end], np.int64) for ids, _ in read]
        )
        return [
            {"answer": self.repaired(source, tokens, tokenizer)}
            for (_, source), tokens in zip(read, texts, strict=True)
        ]


def _texts(batch: Batch) -> list[np.ndarray]:
    """Return the token ids of each row of a batch, without padding."""
    ids, lengths = batch.input.values.numpy(), batch.input.lengths
    return list(ids) if lengths is None else [row[:length] for row, length in zip(ids, lengths.tolist(), strict=True)]


def _pairs(batch: Batch, end: int) -> list[TokenPair]:
    """Return the (source, target) token ids of each row of a batch, each with its ``end`` token."""
    pairs = []
    for row in range(batch.input.num_rows):
        if batch.source is None:
            assert batch.input.prefix is not None
            source = torch.cat((batch.input.values[row, : batch.input.prefix[row] - 1], torch.tensor([end])))
        else:
            assert batch.source.lengths is not None
            source = batch.source.values[row, : batch.source.lengths[row]]
        target = batch.targets[row][batch.targets[row] != IGNORED]
        pairs.append(TokenPair(source.numpy(), target.numpy()))
    return pairs
