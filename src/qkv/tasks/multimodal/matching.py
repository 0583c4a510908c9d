"""Matching of two inputs, such as images and texts, in one space of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT, SOURCE, Batch
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.records.model import Records
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.matching import Matcher
from qkv.models.transformer import Transformer
from qkv.models.wide import DEEP, PairMap
from qkv.ops.at_least_single import at_least_single
from qkv.spec.data import NO_DATA, Data
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Matching
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset, Scale
from qkv.tasks.example_task import ExampleTask, Reader, Rows, column, encode_rows, fit_processors, framed_by, trained
from qkv.tasks.inputs import input_roles
from qkv.tasks.metrics.retrieval_metrics import both_ways
from qkv.tasks.multimodal.baseline import matching_baselines, spread
from qkv.tasks.multimodal.pair_inputs import EncodedPair, PairInput, PairInputs, pair_inputs_of, with_wide
from qkv.tasks.task import Evaluation, Observed, Totals

_AT_ONCE = 64
_SHOWN, _CANDIDATES, _OFFERED = 8, 5, 200
"""Numbers of queries in the report, of best candidates of each, and of rows that are candidates."""


@implements(Matching)
class MatchingTask(ExampleTask):
    """Matching of the two inputs of a row; the scores of all pairs of a batch enter its loss."""

    loss_unit = "nats a row"
    evaluates = True
    metric = "recall_1"
    couples_rows, adds_rows = True, False

    def __init__(self, spec: Any):
        super().__init__(spec)
        self.reading(NO_DATA)

    def reading(self, data: Data) -> Self:
        self.roles = input_roles(data)
        self.names = _names(data)
        self.asks, self.may_ask = self.names[:1], self.names[1:]
        return super().reading(data)

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        name = recipe.data.text_input
        processors = fit_processors(recipe.data, records)
        if name is None:
            return Vocabulary(processors=processors)
        tokenizer = framed_by(trained(recipe.data.text_tokenizer, column(records, name)), 1)
        return Vocabulary(tokenizer, tokenizer, processors=processors)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        if recipe.wide is None:
            return recipe
        rows = sum(len(records.splits.get(split, ())) for split in (TRAIN, VALIDATION))
        return recipe.changed(wide=recipe.wide.of_rows(len(spread(rows))))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> PairInputs:
        return pair_inputs_of(recipe, vocabulary)

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, reader: Reader) -> Example:
        assert isinstance(reader, PairInputs)
        pair = reader.read(row)
        return Example(sum(entry.size(value) for entry, value in zip(reader, pair.values, strict=True)), 1, pair)

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Reader) -> tuple[Rows, list[Example], list[str]]:
        return encode_rows(rows, lambda row: self.encode(row, vocabulary, reader))

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Sequence[EncodedPair]], Batch]:
        inputs = self.reader(recipe, vocabulary)

        def collate(rows: Sequence[EncodedPair]) -> Batch:
            first, second = (
                with_wide(entry.signal([row.values[i] for row in rows]), [row.features[i] for row in rows])
                for i, entry in enumerate(inputs)
            )
            contents = torch.tensor([row.contents for row in rows])
            return Batch.of(second, contents, first, len(rows))

        return collate

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch]:
        inputs = self.reader(recipe, vocabulary)

        def changed(batch: Batch, rng: np.random.Generator) -> Batch:
            assert batch.source is not None
            signals = {SOURCE: inputs.first.changed(batch.source, rng), INPUT: inputs.second.changed(batch.input, rng)}
            return replace(batch, signals={**batch.signals, **signals})

        return changed

    def row_outputs(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute the vectors (B, 2, P) of the rows of a batch: of the blocks, and of the encoder.

        In evaluation they are joined with those of the wide path.
        """
        assert batch.source is not None
        wide = None if model.training else self._pair_map

        def deep() -> Tensor:
            assert batch.source is not None
            return model(batch.input, memory=model.encode(batch.source, tap), tap=tap)[0]

        if wide is None:
            return deep()
        of_blocks, encoded = deep().unbind(1) if wide.reads(DEEP) else (None, None)
        sides = (of_blocks, batch.input, wide.second), (encoded, batch.source, wide.first)
        return torch.stack([wide.joined(*side) for side in sides], 1)

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(self.row_outputs(model, batch, tap), batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        outputs = self.row_outputs(model, batch)
        rows, contents = at_least_single(outputs).cpu().numpy(), batch.targets.cpu().numpy()
        loss = model.head.loss(outputs, batch.targets)
        return Observed(loss, batch.num_targets, list(zip(rows, contents, strict=True)))

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = {"loss": seen.loss / max(1, seen.count)}
        if not seen.outcomes:
            return loss
        vectors, contents = (np.stack(part) for part in zip(*seen.outcomes, strict=True))
        return loss | both_ways(*self.names, vectors[:, 0] @ vectors[:, 1].T, contents)

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        inputs = self.reader(recipe, dataset.vocabulary)
        figures = self.figures(seen, dataset.scale(split)) | matching_baselines(dataset, split, inputs)
        rows = dataset.records[split][:_OFFERED]
        vectors = [
            self.vectors(model, dataset.vocabulary, recipe, name, [row[name] for row in rows]).numpy()
            for name in self.names
        ]
        return Evaluation(figures, [*_found(inputs, rows, *vectors)])

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        return None

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        missing = next((name for row in rows for name in self.names if name not in row), None)
        if missing is not None:
            first, second = self.names
            raise UserError(
                f"the run compares a value of {first!r} with one of {second!r}, and {missing!r} is missing; give both, "
                "labels to choose from, or search for one with 'qkv search'"
            )
        embed = partial(self.vectors, model, vocabulary, recipe)
        vectors, encoded = (embed(name, [row[name] for row in rows]) for name in self.names)
        return [{"answer": round(float(similarity), 4)} for similarity in (vectors * encoded).sum(-1)]

    def scores(self, model: Transformer, vectors: Mapping[str, Tensor]) -> Tensor:
        """Compute the scores s a·c + z of vectors (n, P) by name of the input: (n of the first, n of the other)."""
        encoded, of_blocks = (vectors[name].to(model.device) for name in self.names)
        with torch.inference_mode():
            scores = _head(model).scores(of_blocks, encoded).cpu()
        return scores if next(iter(vectors)) == self.names[1] else scores.T

    def vectors(
        self, model: Transformer, vocabulary: Vocabulary, recipe: Recipe, name: str, values: Iterable[Any]
    ) -> Tensor:
        """Compute the vectors (n, P) of values of the input ``name``. Raises ``UserError`` for an unusable value."""
        inputs = self.reader(recipe, vocabulary)
        entry = next((entry for entry in inputs if entry.name == name), None)
        if entry is None:
            raise UserError(f"the run reads {' and '.join(self.names)}, not {name!r}")
        rows, done = [{name: value} for value in values], list[Tensor]()
        for begin in range(0, len(rows), _AT_ONCE):
            signal = _signal(entry, rows[begin : begin + _AT_ONCE]).to(model.device)
            with torch.inference_mode(), evaluating(model):
                done.append(self._side(model, signal, entry is inputs.first).cpu())
        return at_least_single(torch.cat(done)) if done else torch.zeros(0, 1)

    def _side(self, model: Transformer, signal: Signal, first: bool) -> Tensor:
        """Compute the vectors (B, P) of one input, the first or the second, joined with those of the wide path."""
        wide, deep = self._pair_map, None
        if wide is None or wide.reads(DEEP):
            deep = _head(model).encoded(model.encode(signal)) if first else model(signal)[0][:, 0]
        if wide is None:
            assert deep is not None
            return deep
        return wide.joined(deep, signal, wide.first if first else wide.second)

    @property
    def _pair_map(self) -> PairMap | None:
        assert self.wide is None or isinstance(self.wide, PairMap)
        return self.wide


def _names(data: Data) -> tuple[str, str]:
    """Return the names of both inputs; placeholders without data."""
    first, second = data.inputs or ("first", "second")
    return first, second


def _head(model: Transformer) -> Matcher:
    head = model.head
    assert isinstance(head, Matcher)
    return head


def _signal(entry: PairInput, rows: Sequence[Mapping[str, Any]]) -> Signal:
    """Encode one input of rows, with what the wide path reads of it. Raises ``UserError`` for an unusable value."""
    try:
        values = [entry.read(row) for row in rows]
    except Unusable as error:
        raise UserError(str(error)) from None
    features = [] if entry.wide is None else map(entry.wide_features, rows, values)
    return with_wide(entry.signal(values), [*features])


def _found(
    inputs: PairInputs, rows: Sequence[Mapping[str, Any]], first: np.ndarray, second: np.ndarray
) -> Iterable[dict[str, Any]]:
    """Yield a report section for each input: the first rows, with the best candidates among the other inputs."""
    of_first = first @ second.T
    for entry, other, scores in ((inputs.first, inputs.second, of_first), (inputs.second, inputs.first, of_first.T)):
        best = np.argsort(-scores[:_SHOWN], axis=1)[:, :_CANDIDATES]
        queries = [
            {
                **_look(entry, rows[i]),
                "candidates": [_look(other, rows[j], float(scores[i, j]), bool(i == j)) for j in near],
            }
            for i, near in enumerate(best)
        ]
        if queries:
            yield {"kind": "retrieval", "title": f"From {entry.name} to {other.name}", "queries": queries}


def _look(entry: PairInput, row: Mapping[str, Any], score: float = 1.0, right: bool = True) -> dict[str, Any]:
    """Return how a value looks in a report: a picture or a player if it has one, and a caption."""
    look = {"source": entry.picture(row), "sound": entry.player(row), "caption": entry.shown(row)}
    return {**look, "score": score, "right": right}
