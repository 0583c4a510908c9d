"""Masked language modelling: the model predicts masked tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import VALIDATION, Corpus
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.cross_entropy import cross_entropy
from qkv.models.heads.language_loss import loss_of_vectors
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import single_or_wider
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import MaskedTokens
from qkv.tasks.dataset import Dataset, TextDataset
from qkv.tasks.objectives.masked import mask_tokens
from qkv.tasks.task import Evaluation, Observed, Scale, Totals
from qkv.tasks.text.fill_in import FillInTask, words_carry_spaces
from qkv.tasks.text.next_token import at_targets, exponential
from qkv.tasks.text.text_task import Changes
from qkv.tasks.text.words import WordNumbers
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

SENTENCES = 64
"""Number of sentences for the pseudo-perplexity."""
_AT_ONCE = 64
_ROWS = 1024


@implements(MaskedTokens)
class MaskedTokensTask(FillInTask):
    """Masked language modelling: -Σ log p(x_i | x with the targets masked), over the targets i.

    The head is evaluated only at targets.
    """

    evaluates = True

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_specials(("mask",))

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes:
        spec, mask, words = (
            self.spec,
            tokenizer.special("mask"),
            WordNumbers(tokenizer) if self.spec.whole_words else None,
        )
        assert mask is not None

        def hide(batch: Batch, rng: np.random.Generator) -> Batch:
            ids = batch.input.values.numpy()
            numbers = None if words is None else words.of(ids)
            shares = (spec.rate, spec.replaced, spec.random)
            hidden, targets = mask_tokens(ids, padding(batch), mask, tokenizer.vocab_size, rng, *shares, numbers)
            return Batch.of(replace(batch.input, values=torch.from_numpy(hidden)), torch.from_numpy(targets))

        return hide

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute -Σ log p(masked token) over the batch, in nats."""
        return loss_of_vectors(model, *_run_at_targets(model, batch, tap), tap=tap)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        vectors, targets = _run_at_targets(model, batch)
        loss, right = vectors.new_zeros((), dtype=single_or_wider(vectors.dtype)), 0
        for some, ids in zip(vectors.split(_ROWS), targets.split(_ROWS), strict=True):
            logits = model.head(some)
            loss += cross_entropy(logits, ids)
            right += int((logits.argmax(-1) == ids).sum())
        return Observed(loss, len(targets), [right])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        accuracy = sum(seen.outcomes) / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss), "masked_accuracy": accuracy}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, TextDataset)
        tokenizer = dataset.vocabulary.tokenizer
        chosen = sentences(dataset, split, recipe.model.context_length)
        scores = [pseudo_log_likelihood(model, ids, tokenizer) for ids in chosen]
        tokens = sum(map(len, chosen))
        figures = self.figures(seen, dataset.scale(split))
        if tokens:
            figures["pseudo_perplexity"] = exponential(-sum(scores) / tokens)
        note = (
            f"the pseudo-perplexity is per token, over {len(chosen)} sentences of {tokens:,} tokens, "
            "with each token masked in turn"
        )
        text = _hidden_text(dataset, split, 4)
        answers = self.predict(model, dataset.vocabulary, recipe, [{"text": t} for t in text])
        rows = [[t, a["answer"]] for t, a in zip(text, answers, strict=True)]
        return Evaluation(
            figures, [{"kind": "examples", "title": "Filled gaps", "columns": ["text", "filled"], "rows": rows}], [note]
        )

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, TextDataset)
        text = _hidden_text(dataset, VALIDATION, 2)
        answers = self.predict(model, dataset.vocabulary, recipe, [{"text": t} for t in text])
        return "\n\n".join(f"{t}\n→ {a['answer']}" for t, a in zip(text, answers, strict=True))

    def logits(self, model: Transformer, read: Framed, places: list[int]) -> Tensor:
        device = model.device
        types = torch.tensor([read.types], device=device) if read.types else None
        hidden, _ = model.features(Signal(torch.tensor([read.ids], device=device), types=types))
        return model.head(hidden[0, places])


def padding(batch: Batch) -> np.ndarray:
    """Return the padding mask (B, N) bool: True at padding."""
    ids, lengths = batch.input.values, batch.input.lengths
    return np.zeros(ids.shape, bool) if lengths is None else np.arange(ids.shape[1]) >= lengths.numpy()[:, None]


def _run_at_targets(model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
    hidden, _ = model.features(batch.input, tap=tap)
    return at_targets(hidden, batch.targets)


@torch.inference_mode()
def pseudo_log_likelihood(model: Transformer, ids: list[int], tokenizer: Tokenizer) -> float:
    """Compute Σ_t log p(x_t | x with x_t masked), one token masked at a time (Salazar et al. 2020), in nats."""
    mask, device = tokenizer.special("mask"), model.device
    assert mask is not None
    text, total = torch.tensor(ids, device=device), 0.0
    with evaluating(model):
        for places in torch.arange(len(ids), device=device).split(_AT_ONCE):
            row = torch.arange(len(places), device=device)
            hidden = text.repeat(len(places), 1)
            hidden[row, places] = mask
            vectors, _ = model.features(hidden)
            total -= cross_entropy(model.head(vectors[row, places]), text[places]).item()
    return total


def sentences(dataset: TextDataset, split: str, longest: int) -> list[list[int]]:
    """Return token ids of up to ``SENTENCES`` sentences, evenly spaced over a split, for ``pseudo_log_likelihood``.

    Each sentence has at least 5 words and at most ``longest`` tokens.
    """
    chosen_ids = []
    for text in _stretches(dataset, split, SENTENCES, 4 * longest):
        whole = re.split(r"(?<=[.!?])\s+|\s*\n\s*", text)[1:-1]
        ids = next(
            (
                ids
                for s in whole
                if len(s.split()) >= 5 and len(ids := dataset.vocabulary.tokenizer.encode(s)) <= longest
            ),
            None,
        )
        if ids:
            chosen_ids.append(ids)
    return chosen_ids


def _stretches(dataset: TextDataset, split: str, count: int, length: int) -> Iterator[str]:
    ids = dataset.corpus.splits[split].ids
    for start in np.linspace(0, max(0, len(ids) - length), count, dtype=np.int64):
        yield dataset.vocabulary.tokenizer.decode(ids[start : start + length])


def _hidden_text(dataset: TextDataset, split: str, count: int) -> list[str]:
    """Return up to ``count`` excerpts of a split with every ninth token replaced by a gap, as examples."""
    tokenizer = dataset.vocabulary.tokenizer
    ids, length = dataset.corpus.splits[split].ids, min(48, dataset.recipe.model.context_length // 2)
    gap = " <mask>" if words_carry_spaces(tokenizer) else " <mask> " if tokenizer.token_bytes is None else "<mask>"
    excerpts = []
    for start in np.linspace(0, max(0, len(ids) - length), count + 1, dtype=np.int64)[1:]:
        row = ids[start : start + length].tolist()
        excerpts.append(gap.join(tokenizer.decode(row[begin : begin + 8]) for begin in range(0, len(row), 9)))
    return [text for text in excerpts if "<mask>" in text]
