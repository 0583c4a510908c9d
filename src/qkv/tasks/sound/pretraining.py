"""Contrastive pretraining on sounds without labels (wav2vec 2.0, Baevski et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.records.model import Records
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.layers.times import MaskedSignal
from qkv.models.heads.contrastive import ChosenCodes, ContrastivePretrainer, candidate_logits, code_perplexity
from qkv.models.transformer import Transformer
from qkv.spec.data import NO_DATA, Data
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import ContrastivePretraining
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, ExampleTask, Rows, encode_rows, fit_processors
from qkv.tasks.inputs import EncodedRow, InputReader, input_roles
from qkv.tasks.named_inputs import reader_of
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

NEGATIVES = "negatives"
"""Name of the tensor (M, K), in the extras of a batch, with the places of the wrong candidates of each target."""
_FEWEST = 3
"""Minimum number of positions of a row, so that two of them can be masked."""


class MaskedRow(NamedTuple):
    """Results of a row: numbers of masked positions and of right choices, and the codes (M, G) of the positions."""

    count: int
    right: int
    codes: np.ndarray


class Contrast(NamedTuple):
    """Results of a batch: logits (M, 1 + K) of the candidates, the right one first; codes of the masked positions."""

    logits: Tensor
    codes: ChosenCodes


@implements(ContrastivePretraining)
class ContrastivePretrainingTask(ExampleTask):
    """Pretraining: -log p(quantised latent vector | other candidates), at masked positions of sounds without labels.

    Spans of the latent vectors are masked before the position convolution and the blocks. Wrong candidates are drawn
    from the other masked positions of the row. The loss adds ``diversity`` · (G V - Σ_g exp(H(p̄_g))) / (G V).
    """

    loss_unit = "nats a masked position"
    next_command = "qkv train transcribe --data clips.csv --from {run}"
    adds_rows = False  # wrong candidates come from all rows
    evaluates = True
    metric = "accuracy"

    def __init__(self, spec: ContrastivePretraining):
        super().__init__(spec)
        self.reading(NO_DATA)

    def reading(self, data: Data) -> Self:
        self.roles = input_roles(data)[:1]
        self.asks = tuple(role.name for role in self.roles)
        return super().reading(data)

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        return Vocabulary(processors=fit_processors(recipe.data, records))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> InputReader:
        return reader_of(recipe, vocabulary)

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, reader: Any) -> Example:
        return reader.example(row, None)

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Any) -> tuple[Rows, list[Example], list[str]]:
        processor, frontend = vocabulary.processor, self.frontend
        assert processor is not None

        def encoded(row: Mapping[str, Any]) -> Example:
            example = self.encode(row, vocabulary, reader)
            count = frontend.positions_of(processor.values_of(example.size))
            if count < _FEWEST:
                raise Unusable(f"{reader.shown(row)} has {count} positions, and {_FEWEST} are needed")
            return example

        return encode_rows(rows, encoded)

    def _dataset(
        self, recipe: Recipe, records: Records, vocabulary: Vocabulary, reader: Any, notes: Sequence[str] = ()
    ) -> ExampleDataset:
        self.frontend = recipe.model.frontend
        return super()._dataset(recipe, records, vocabulary, reader, notes)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        """Return the function that builds a batch, whose masks are a function of the lengths of its rows alone."""
        read, frontend = self.reader(recipe, vocabulary), recipe.model.frontend

        def collate(rows: Sequence[EncodedRow]) -> Batch:
            signal = read.signal(rows)[0]
            sizes = [signal.values.shape[1]] * len(rows) if signal.lengths is None else signal.lengths.tolist()
            counts = [frontend.positions_of(size) for size in sizes]
            return self.masked(signal, counts, np.random.default_rng(counts))

        return collate

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        read, frontend = self.reader(recipe, vocabulary), recipe.model.frontend

        def change(batch: Batch, rng: np.random.Generator) -> Batch:
            batch = read.change(batch, rng)
            signal = batch.input
            sizes = [signal.values.shape[1]] * signal.num_rows if signal.lengths is None else signal.lengths.tolist()
            return self.masked(signal, [frontend.positions_of(size) for size in sizes], rng)

        return change

    def masked(self, signal: Signal, counts: Sequence[int], rng: np.random.Generator) -> Batch:
        """Mask spans of the positions of a signal and draw the wrong candidates; ``counts``: positions of each row.

        Targets (M) are the places of the masked positions, row by row: row · positions + position.
        """
        most = max(counts)
        masked = np.zeros((len(counts), most), bool)
        for row, count in enumerate(counts):
            masked[row, :count] = span_mask(count, self.spec.share, self.spec.span, rng)
        places, negatives = list[np.ndarray](), list[np.ndarray]()
        for row in range(len(counts)):
            row_places = np.flatnonzero(masked[row]) + row * most
            places.append(row_places)
            negatives.append(row_places[other_places(len(row_places), self.spec.negatives, rng)])
        values = {field.name: getattr(signal, field.name) for field in fields(Signal)}
        read = MaskedSignal(**values, masked=torch.from_numpy(masked))
        targets = torch.from_numpy(np.concatenate(places))
        extras = {NEGATIVES: torch.from_numpy(np.concatenate(negatives))}
        return Batch({INPUT: read}, targets, extras, len(targets))

    def contrast(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Contrast:
        """Compute the logits of the candidates of the masked positions of a batch."""
        head, frontend = model.head, model.frontend
        assert isinstance(head, ContrastivePretrainer)
        outputs = model(batch.input, tap=tap)[0].flatten(0, 1)
        latents: Tensor = frontend.latents.flatten(0, 1)  # type: ignore[union-attr, operator]
        codes = head.quantised(latents[batch.targets])
        where = torch.full((len(latents),), 0, device=latents.device)
        where[batch.targets] = torch.arange(len(batch.targets), device=latents.device)
        negatives = where[batch.extras[NEGATIVES]]
        same = (codes.ids[negatives] == codes.ids[:, None]).all(-1)
        right, wrong = codes.vectors, codes.vectors[negatives]
        logits = candidate_logits(outputs[batch.targets], right, wrong, same, head.part.temperature)
        return Contrast(logits, codes)

    def _loss(self, contrast: Contrast) -> Tensor:
        chances = contrast.codes.chances
        most = chances.shape[-2] * chances.shape[-1]
        alike = (most - code_perplexity(chances)) / most
        truth = torch.zeros(len(contrast.logits), dtype=torch.long, device=contrast.logits.device)
        loss = F.cross_entropy(contrast.logits, truth, reduction="sum")
        return loss + self.spec.diversity * len(truth) * alike

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return self._loss(self.contrast(model, batch, tap))

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        contrast = self.contrast(model, batch)
        right, codes = (contrast.logits.argmax(1) == 0).cpu(), contrast.codes.ids.cpu().numpy()
        masked = MaskedSignal.of(batch.input).masked
        assert masked is not None
        counts = masked.sum(1).tolist()
        rows, begin = list[MaskedRow](), 0
        for count in counts:
            some = slice(begin, begin + count)
            rows.append(MaskedRow(count, int(right[some].sum()), codes[some]))
            begin += count
        return Observed(self._loss(contrast), batch.num_targets, rows)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        rows: Sequence[MaskedRow] = seen.outcomes
        count = sum(row.count for row in rows)
        return {
            "loss": seen.loss / max(1, seen.count),
            "accuracy": 100 * sum(row.right for row in rows) / count if count else math.nan,
            **_means(group_usage(rows)),
        }

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        figures = self.figures(seen, dataset.scale(split))
        chance = 100 / (1 + self.spec.negatives)
        rows = [
            [str(group + 1), f"{len(uses):,}", f"{codes:,}", f"{perplexity:.1f}"]
            for group, (uses, codes, perplexity) in enumerate(group_usage(seen.outcomes))
        ]
        columns = ["group", "masked positions", "codes in use", "perplexity"]
        table = {"kind": "examples", "title": "Use of the codes", "columns": columns, "rows": rows}
        return Evaluation(figures | {"accuracy_of_chance": chance}, [table])


def span_mask(count: int, share: float, span: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a mask (``count``), True in spans of ``span`` positions that may overlap (Baevski et al. 2020, 3.1).

    A fraction ``share`` of the positions, without replacement, begin a span; at least one does. At least two positions
    are masked, and at least one is not. Spans are at most half as long as the row.
    """
    length = max(2, min(span, count // 2))
    starts = rng.choice(count - length + 1, max(1, min(count - length + 1, round(share * count))), replace=False)
    mask = np.zeros(count, bool)
    mask[starts[:, None] + np.arange(length)] = True
    if mask.all():
        mask[rng.integers(count)] = False
    return mask


def other_places(count: int, negatives: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``negatives`` of the ``count`` places for each of them, with replacement, never itself: (count, K)."""
    drawn = rng.integers(0, count - 1, (count, negatives))
    return drawn + (drawn >= np.arange(count)[:, None])


def group_usage(rows: Sequence[MaskedRow]) -> list[tuple[np.ndarray, int, float]]:
    """Return (codes of all positions, number of codes in use, perplexity) of each group of codes."""
    if not rows:
        return []
    codes, result = np.concatenate([row.codes for row in rows]), list[tuple[np.ndarray, int, float]]()
    for column in codes.T:
        _, counts = np.unique(column, return_counts=True)
        shares = counts / counts.sum()
        result.append((column, len(counts), math.exp(-float((shares * np.log(shares)).sum()))))
    return result


def _means(groups: Sequence[tuple[np.ndarray, int, float]]) -> dict[str, float]:
    if not groups:
        return {}
    count = len(groups)
    return {
        "codes_in_use": sum(codes for _, codes, _ in groups) / count,
        "code_perplexity": sum(perplexity for _, _, perplexity in groups) / count,
    }
