"""Prediction of the missing edges of one graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TEST, TRAIN, VALIDATION
from qkv.data.graphs.encodings import adjacency
from qkv.data.graphs.nodes import NodeTable, open_graph
from qkv.data.graphs.pairs import codes, pair_features, parts_of, undirected, without_edge
from qkv.data.processors.graphs import GraphsProcessor
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.features import with_features
from qkv.layers.graph import GraphSignal
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import Problem, SpecError
from qkv.spec.models.wide import PAIR_FEATURES
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.signals.graphs import Graphs
from qkv.spec.tasks import EdgePrediction
from qkv.system.errors import UserError, nearest
from qkv.tasks.baselines.feature_baselines import FeatureTable
from qkv.tasks.baselines.linear import Solver, label_set_solver
from qkv.tasks.dataset import HELD_OUT, OTHER, Dataset, with_vocabulary
from qkv.tasks.labels.joined import JoinedTask
from qkv.tasks.metrics.ranking_metrics import ranking
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

_SHOWN = 8
_SINGLE = (0, 1)
"""Columns of the pair features that are also evaluated as predictors on their own."""


class EdgeDataset(Dataset):
    """Edges of one graph as batches: pairs of nodes with and without an edge, and the graph without these edges.

    The model never reads a graph that contains edges of the held-out splits. A training step hides the fraction
    ``task.hidden`` of the training edges. The model predicts them, together with ``task.negatives`` times as many pairs
    without a training edge. Both depend on (seed, step) only. Structural encodings are computed from the remaining
    edges, so that they do not reveal the hidden edges. Pairs without an edge in a held-out split have no edge in the
    whole graph.

    ``other``: True if the graph is not the run's graph; its held-out edges then form the single split ``OTHER``.
    """

    def __init__(
        self,
        recipe: Recipe,
        table: NodeTable,
        vocabulary: Vocabulary,
        processor: GraphsProcessor,
        other: bool = False,
    ):
        self.recipe, self.table, self.vocabulary = with_vocabulary(recipe, vocabulary), table, vocabulary
        self.name, self.processor, self.wide = table.name, processor, recipe.wide is not None
        task = cast("EdgePrediction", recipe.task)
        self._hidden, self._negatives, self._seed = task.hidden, task.negatives, recipe.training.seed
        self.nodes = int(table.graph["num_nodes"])
        edges = np.asarray(table.graph["edges"]).reshape(-1, 2).astype(np.int64)
        shares = {VALIDATION: recipe.data.validation_fraction, TEST: task.test_fraction}
        pairs = _parts(undirected(edges), {name: share for name, share in shares.items() if share}, table.name)
        held_out = [some for name, some in pairs.items() if name != TRAIN]
        self.pairs = {TRAIN: pairs[TRAIN], OTHER: np.concatenate(held_out)} if other else pairs
        self._known = {name: np.sort(codes(some, self.nodes)) for name, some in self.pairs.items()}
        self._every = np.sort(np.concatenate(list(self._known.values())))
        self._edges = edges[np.isin(_codes(edges, self.nodes), self._known[TRAIN])]
        self.graph = processor.encoded({**table.graph, "edges": self._edges}, table.name)
        self.notes = (*table.notes, *processor.notes())
        self._whole = processor.signal([self.graph])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.pairs)

    @cached_property
    def _adjacency(self) -> Any:
        return adjacency(self.pairs[TRAIN], self.nodes, directed=False)

    def batch(self, step: int) -> Batch:
        draw, pairs = random(self._seed, step), self.pairs[TRAIN]
        order = draw.permutation(len(pairs))
        hidden = pairs[np.sort(order[: max(1, round(self._hidden * len(pairs)))])]
        negative = without_edge(self._known[TRAIN], self.nodes, self._negatives * len(hidden), draw)
        return self._batch(self.without(hidden), hidden, negative)

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        pairs, negative = self.sampled_pairs(self.checked(split))
        yield self._batch(self.without(pairs) if split == TRAIN else self._whole, pairs, negative)

    def sampled_pairs(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (pairs of a split with an edge, at most as many pairs without an edge), the same in every run."""
        pairs = self.pairs[split]
        edges, draw = self._known[TRAIN] if split == TRAIN else self._every, random(0, HELD_OUT + len(pairs))
        return pairs, without_edge(edges, self.nodes, len(pairs), draw)

    def features(self, pairs: np.ndarray) -> np.ndarray:
        """Compute the features (P, F) of pairs of nodes from the training edges."""
        return pair_features(self._adjacency, self.graph.features, pairs)

    def without(self, pairs: np.ndarray) -> GraphSignal:
        """Return the signal of the graph with all training edges except those of ``pairs``."""
        hidden, spec = codes(pairs, self.nodes), self.processor.spec
        if spec.neighbours or spec.encoding_columns:
            left = self._edges[~np.isin(_codes(self._edges, self.nodes), hidden)]
            return self.processor.signal([self.processor.rewired(self.graph, left)])
        assert self._whole.graph is not None
        left = ~np.isin(_codes(self.graph.edges.T.astype(np.int64), self.nodes), hidden)
        graph = replace(self._whole.graph, edges=self._whole.graph.edges[:, torch.from_numpy(left)])
        return replace(self._whole, graph=graph)

    def signal_of(self, signal: GraphSignal, pairs: np.ndarray) -> Signal:
        """Return a copy of a signal of the graph with ``pairs`` as the pairs to predict."""
        assert signal.graph is not None
        pair_signal = replace(signal, graph=replace(signal.graph, pairs=torch.from_numpy(pairs.T.copy())))
        if not self.wide:
            return pair_signal
        return with_features(pair_signal, Signal(torch.from_numpy(self.features(pairs).astype(np.float32))))

    def _batch(self, signal: GraphSignal, positive: np.ndarray, negative: np.ndarray) -> Batch:
        targets = torch.cat((torch.ones(len(positive)), torch.zeros(len(negative))))
        pairs = np.concatenate((positive, negative))
        return Batch.of(self.signal_of(signal, pairs), targets, None, len(targets), pairs=pairs)

    def digest(self) -> str:
        return self.table.digest

    @property
    def epoch_targets(self) -> int:
        return 2 * len(self.pairs[TRAIN])


def _codes(edges: np.ndarray, nodes: int) -> np.ndarray:
    """Return the pair codes (E) of edges (E, 2), the same for both directions."""
    return codes(np.sort(edges, 1), nodes)


def _parts(pairs: np.ndarray, shares: dict[str, float], name: str) -> dict[str, np.ndarray]:
    least = 2 * (len(shares) + 1)
    if len(pairs) < least:
        raise UserError(f"data.source: {name!r} has {len(pairs)} edges, and at least {least} are needed")
    parts = parts_of(pairs, shares, TRAIN)
    if not len(parts[TRAIN]):
        raise UserError("data.validation_fraction, task.test_fraction: no edge is left to train on; lower them")
    return parts


@implements(EdgePrediction)
class EdgePredictionTask(JoinedTask):
    """Prediction of edges: -Σ log p(edge or not | pair, other edges) over hidden edges and pairs without an edge."""

    loss_unit = "nats a pair"
    evaluates = True
    asks = ("source", "target")
    metric = "auc"
    spec: EdgePrediction

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        if recipe.data.validation or recipe.data.test:
            raise UserError("held-out edges are taken from the graph itself; leave data.validation and data.test out")
        table, processor = open_graph(recipe.data), cast("Graphs", recipe.data.processor)
        if processor.distances:
            sentence = "lengths of shortest paths reveal the hidden edges; leave them out"
            raise SpecError([Problem(("data", "processor", "distances"), sentence)])
        try:
            vocabulary = vocabulary or Vocabulary(processors={INPUT: build_processor(processor).fitted([table.graph])})
        except Unusable as error:
            raise UserError(f"data.source: {table.name}: {error}") from None
        return EdgeDataset(recipe, table, vocabulary, _processor(vocabulary))

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        """Open another graph; the edges that a run on it would hold out are hidden and predicted."""
        table = open_graph(recipe.data.changed(source=source))
        return EdgeDataset(recipe, table, vocabulary, _processor(vocabulary), other=True)

    def outputs_at_targets(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
        return self.outputs(model, batch.input, tap), batch.targets

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(*self.outputs_at_targets(model, batch, tap))

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        """Return the loss of a batch; outcomes: (target, logit) of its pairs."""
        return self.observed(model, self.outputs_at_targets(model, batch)[0], batch)

    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        outcomes = list(zip(batch.targets.tolist(), at_least_single(outputs[:, 0]).tolist(), strict=True))
        return Observed(model.head.loss(outputs, batch.targets), batch.num_targets, outcomes)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        targets, scores = np.array(seen.outcomes, np.float64).reshape(-1, 2).T
        return {"loss": seen.loss / max(1, seen.count), **ranking(targets, scores)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, EdgeDataset)
        figures = {**self.figures(seen, dataset.scale(split)), **self.baselines(dataset, split)}
        pairs, names = np.concatenate(dataset.sampled_pairs(split)), dataset.table.names
        wrong = [(logit if not target else -logit, i) for i, (target, logit) in enumerate(seen.outcomes)]
        rows = [
            [names[pairs[i][0]], names[pairs[i][1]], f"{_chance(-worst if seen.outcomes[i][0] else worst):.3f}", truth]
            for worst, i in sorted(wrong, reverse=True)[:_SHOWN]
            for truth in ("edge" if seen.outcomes[i][0] else "no edge",)
        ]
        columns = ["source", "target", "probability of an edge", "truth"]
        return Evaluation(figures, [{"kind": "examples", "title": "Mistakes", "columns": columns, "rows": rows}])

    def sample(self, model: Any, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, EdgeDataset)
        pairs = np.concatenate([some[: _SHOWN // 2] for some in dataset.sampled_pairs(VALIDATION)])
        names, chances = dataset.table.names, self._chances(model, dataset, pairs)
        return "\n".join(
            f"{names[a]} – {names[b]}: {chance:.2f} (truth: {'edge' if i < len(pairs) / 2 else 'no edge'})"
            for i, ((a, b), chance) in enumerate(zip(pairs.tolist(), chances, strict=True))
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Predict from the training edges the probability of an edge between ``source`` and ``target`` of each row."""
        dataset = self.open(recipe, vocabulary)
        assert isinstance(dataset, EdgeDataset)
        place = {name: i for i, name in enumerate(dataset.table.names)}
        ends = [[_place(place, str(row[name]).strip(), dataset.name) for name in self.asks] for row in rows]
        chances = self._chances(model, dataset, np.sort(np.array(ends, np.int64).reshape(-1, 2), 1))
        return [{"answer": "edge" if chance >= 0.5 else "no edge", "probability": chance} for chance in chances]

    def _chances(self, model: Any, dataset: EdgeDataset, pairs: np.ndarray) -> list[float]:
        """Predict the probabilities of edges between pairs of nodes from the training edges except those of the
        pairs.
        """
        signal = dataset.signal_of(dataset.without(pairs), pairs).to(model.device)
        with torch.inference_mode(), evaluating(model):
            return self.outputs(model, signal)[:, 0].double().sigmoid().tolist()

    def targets(self, dataset: EdgeDataset, split: str) -> np.ndarray:
        positive, negative = dataset.sampled_pairs(split)
        return np.concatenate((np.ones((len(positive), 1)), np.zeros((len(negative), 1))))

    def simple(self, vocabulary: Vocabulary) -> str:
        return "features_of_pairs"

    @property
    def singles(self) -> dict[str, int]:
        return {PAIR_FEATURES[column]: column for column in _SINGLE}

    def simple_features(self, dataset: EdgeDataset, split: str, also: str | None = None) -> FeatureTable:
        x, unseen = (dataset.features(np.concatenate(dataset.sampled_pairs(side))) for side in (TRAIN, split))
        mean, scale = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
        name = self.simple(dataset.vocabulary)
        return FeatureTable(name, np.arange(len(x)), (x - mean) / scale, (unseen - mean) / scale, mean, scale)

    def solver(self, num_outputs: int) -> Solver:
        return label_set_solver()

    def baselines(self, dataset: EdgeDataset, split: str) -> dict[str, float]:
        """Compute the metrics of two single predictors: the number of common neighbours and the Adamic–Adar index."""
        features, truth = (
            dataset.features(np.concatenate(dataset.sampled_pairs(split))),
            self.targets(dataset, split)[:, 0],
        )
        return {
            f"{metric}_of_{name.replace(' ', '_').replace('-', '_').lower()}": value
            for name, column in self.singles.items()
            for metric, value in ranking(truth, features[:, column]).items()
        }


def _processor(vocabulary: Vocabulary) -> GraphsProcessor:
    return GraphsProcessor(cast("Graphs", vocabulary.processor))


def _place(place: dict[str, int], name: str, graph: str) -> int:
    if name not in place:
        raise UserError(f"{graph} has no node {name!r}; {nearest(name, list(place)[:10_000])}")
    return place[name]


def _chance(logit: float) -> float:
    return 1 / (1 + float(np.exp(-logit)))
