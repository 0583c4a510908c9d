"""Classification of the nodes of one graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, INPUT, Batch
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.graphs.neighbours import Neighbourhoods, Sample
from qkv.data.graphs.nodes import NodeTable, open_nodes
from qkv.data.processors.graphs import EncodedGraph, GraphsProcessor
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.graph import GraphSignal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.graphs import SampledEdges
from qkv.spec.errors import Problem, SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.signal_tasks import Consistency
from qkv.spec.register import implements
from qkv.spec.signals.graphs import Graphs
from qkv.spec.tasks import NodeClassification
from qkv.system.errors import UserError, nearest
from qkv.tasks.baselines.feature_baselines import FeatureTable
from qkv.tasks.baselines.linear import Solver, label_solver, plain_labels
from qkv.tasks.dataset import HELD_OUT, OTHER, Dataset, with_vocabulary
from qkv.tasks.labels.embedding import points_section
from qkv.tasks.labels.joined import JoinedTask
from qkv.tasks.metrics.label_metrics import agreement, confusion
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

_SHOWN = 8
_CHUNK, _MOST_NODES = 1024, 100_000
"""With ``task.fanouts``: maximum number of nodes predicted at once, and of nodes in their neighbourhood."""
_NORM = 10
"""Root-mean-square norm to which the columns of training nodes are scaled for linear models."""


class NodeDataset(Dataset):
    """Nodes of one graph as batches: the whole graph, or random parts of its nodes with the edges between them.

    An epoch has ``task.parts`` batches. Training nodes and other nodes are each spread evenly over the batches
    (Cluster-GCN, Chiang et al. 2019, with random clusters). With ``task.fanouts``, a batch has ``training.batch_size``
    random training nodes and samples of their neighbours. Held-out nodes are then read in chunks with all their
    neighbours within as many hops as there are fanouts.
    """

    def __init__(self, recipe: Recipe, table: NodeTable, vocabulary: Vocabulary, processor: GraphsProcessor):
        self.recipe, self.table, self.vocabulary = with_vocabulary(recipe, vocabulary), table, vocabulary
        self.name, self.processor, self.parts = table.name, processor, recipe.task.parts  # type: ignore[attr-defined]
        self.graph: EncodedGraph = processor.encoded(table.graph, table.name)
        self.notes = (*table.notes, *processor.notes())
        place = vocabulary.classes
        self.classes = np.array([IGNORED if label is None else place.get(label, IGNORED) for label in table.labels])
        self.fanouts, self._batch_size = tuple(recipe.task.fanouts), recipe.training.batch_size  # type: ignore[attr-defined]
        whole = self.parts == 1 and not self.fanouts
        self._seed, self._whole = recipe.training.seed, processor.signal([self.graph]) if whole else None
        if TRAIN in table.splits and len(table.splits[TRAIN]) < self.parts:
            count = len(table.splits[TRAIN])
            sentence = f"{self.parts} parts are more than the {count} training nodes of {table.name!r}; give fewer"
            raise SpecError([Problem(("task", "parts"), sentence)])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.table.splits)

    @cached_property
    def _neighbourhoods(self) -> Neighbourhoods:
        return Neighbourhoods(self.graph.edges, len(self.graph))

    def batch(self, step: int) -> Batch:
        if self.fanouts:
            nodes = self.table.splits[TRAIN]
            epoch, part = divmod(step, -(-len(nodes) // self._batch_size))
            batch_nodes = random(self._seed, epoch).permutation(nodes)[part * self._batch_size :][: self._batch_size]
            draw = random(self._seed, HELD_OUT + step)
            return self._sampled(batch_nodes, self._neighbourhoods.around(batch_nodes, self.fanouts, draw))
        epoch, part = divmod(step, self.parts)
        return self._batch(TRAIN, self._nodes(TRAIN, epoch)[part])

    def around(self, nodes: np.ndarray) -> Iterator[tuple[GraphSignal, np.ndarray, np.ndarray]]:
        """Yield the signals from which the model predicts ``nodes``.

        Yields (signal, positions of predicted nodes in the signal, their positions in ``nodes``). The signal is the
        whole graph or, with ``task.fanouts``, a chunk of nodes with all their neighbours. Chunks have a bounded size,
        unless the neighbourhood of a single node exceeds it.
        """
        if not self.fanouts:
            yield self._whole or self.processor.signal([self.graph]), nodes, np.arange(len(nodes))
            return
        left = [np.arange(len(nodes))[begin : begin + _CHUNK] for begin in range(0, len(nodes), _CHUNK)][::-1]
        while left:
            places = left.pop()
            sample = self._neighbourhoods.around(nodes[places], self.fanouts)
            if len(sample.nodes) > _MOST_NODES and len(places) > 1:
                left += np.array_split(places, 2)[::-1]
            else:
                yield self._signal(sample), np.searchsorted(sample.nodes, nodes[places]), places

    def _signal(self, sample: Sample) -> GraphSignal:
        part = replace(self.graph.part(sample.nodes), edges=sample.edges)
        signal, near = self.processor.signal([part]), self._neighbourhoods
        assert signal.graph is not None
        facts = (near.into[sample.nodes], near.out[sample.nodes], sample.factors)
        return replace(signal, graph=replace(signal.graph, sampled=SampledEdges(*map(torch.from_numpy, facts))))

    def _sampled(self, nodes: np.ndarray, sample: Sample) -> Batch:
        targets = np.full(len(sample.nodes), IGNORED)
        targets[np.searchsorted(sample.nodes, nodes)] = self.classes[nodes]
        return Batch.of(self._signal(sample), torch.from_numpy(targets)[None], nodes=sample.nodes)

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        if self.fanouts:
            targeted = self.table.splits[self.checked(split)]
            for signal, inside, places in islice(self.around(targeted), batches):
                targets = torch.full(signal.values.shape[:2], IGNORED)
                targets[0, torch.from_numpy(inside)] = torch.from_numpy(self.classes[targeted[places]])
                yield Batch.of(signal, targets)
            return
        for nodes in self._nodes(self.checked(split), HELD_OUT)[:batches]:
            batch = self._batch(split, nodes)
            if batch.num_targets:
                yield batch

    def _nodes(self, split: str, key: int) -> list[np.ndarray]:
        """Return the nodes of each part, sorted; nodes with a target are spread evenly over the parts."""
        if self.parts == 1:
            return [np.arange(len(self.graph))]
        generator, nodes = random(self._seed, key), self.table.splits[split]
        untargeted = np.setdiff1d(np.arange(len(self.graph)), nodes)
        shares = [np.array_split(generator.permutation(some), self.parts) for some in (nodes, untargeted)]
        return [np.sort(np.concatenate(pair)) for pair in zip(*shares, strict=True)]

    def _batch(self, split: str, nodes: np.ndarray) -> Batch:
        targets = np.full(len(self.graph), IGNORED)
        targeted = self.table.splits[split]
        targets[targeted] = self.classes[targeted]
        signal = self._whole or self.processor.signal([self.graph.part(nodes)])
        return Batch.of(signal, torch.from_numpy(targets[nodes])[None], nodes=nodes)

    def digest(self) -> str:
        return self.table.digest

    @property
    def epoch_targets(self) -> int:
        return len(self.table.splits[TRAIN])


@implements(NodeClassification)
class NodeClassificationTask(JoinedTask):
    """Classification of nodes: -Σ log p(label of node i | graph) over the training nodes; the graph has all nodes."""

    loss_unit = "nats a node"
    evaluates = True
    asks = ("node",)
    metric = "accuracy"
    spec: NodeClassification

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        table = open_nodes(recipe.data, self.spec.fold)
        vocabulary = vocabulary or _vocabulary(recipe, table)
        return NodeDataset(recipe, table, vocabulary, _processor(vocabulary))

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        table = open_nodes(recipe.data.changed(source=source), self.spec.fold)
        readable = np.array([label in vocabulary.classes for label in table.labels])
        if not readable.any():
            raise UserError(f"no node of {source} has a label of the run: {', '.join(vocabulary.labels[:5])}")
        table = replace(table, splits={OTHER: np.flatnonzero(readable)})
        return NodeDataset(recipe, table, vocabulary, _processor(vocabulary))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        if self.spec.consistency is not None and model.training:
            return self._consistent(self.spec.consistency, model, batch)
        logits, targets = self.outputs_at_targets(model, batch, tap)
        return model.head.loss(logits[None], targets[None], self.spec.label_smoothing)

    def _consistent(self, consistency: Consistency, model: Transformer, batch: Batch) -> Tensor:
        """Return the mean loss of several passes with different dropout plus a consistency loss; see the spec."""
        mask = batch.targets != IGNORED
        passes = [model(batch.input)[0] for _ in range(consistency.samples)]
        targets, smoothing = batch.targets[mask][None], self.spec.label_smoothing
        losses = [model.head.loss(logits[mask][None], targets, smoothing) for logits in passes]
        chances = torch.stack([logits.softmax(-1) for logits in passes])
        with torch.no_grad():
            # In log space: with a low temperature, powers of the probabilities would all underflow to 0.
            sharp = (chances.mean(0).log() / consistency.temperature).softmax(-1)
        apart = (chances - sharp).square().sum(-1).mean()
        return torch.stack(losses).mean() + consistency.weight * batch.num_targets * apart

    def outputs_at_targets(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
        logits, mask = self.outputs(model, batch.input, tap), batch.targets != IGNORED
        return logits[mask], batch.targets[mask]

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        """Return the loss of a batch; outcomes: (true, predicted) classes of its nodes."""
        return self.observed(model, self.outputs_at_targets(model, batch)[0], batch)

    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        targets = batch.targets[batch.targets != IGNORED]
        pairs = list(zip(targets.tolist(), outputs.argmax(-1).tolist(), strict=True))
        return Observed(model.head.loss(outputs[None], targets[None]), len(pairs), pairs)

    def _chances(self, model: Any, dataset: NodeDataset, nodes: np.ndarray) -> Tensor:
        """Compute the class probabilities (nodes, C) of ``nodes``."""
        return _of_nodes(model, dataset, nodes, lambda signal: self.outputs(model, signal)[0].double().softmax(-1))

    def targets(self, dataset: NodeDataset, split: str) -> np.ndarray:
        return dataset.classes[dataset.table.splits[split]]

    def simple(self, vocabulary: Vocabulary) -> str:
        return "features_alone"

    def simple_features(self, dataset: NodeDataset, split: str, also: str | None = None) -> FeatureTable:
        """Return the columns of the training nodes and of the nodes of ``split``, divided by one common scale.

        With this scale, the root-mean-square norm of the rows of training nodes is 10.
        """
        train, nodes = dataset.table.splits[TRAIN], dataset.table.splits[split]
        columns = dataset.processor.columns(dataset.graph)
        scale = float(np.sqrt(np.square(columns[train]).sum(1).mean())) / _NORM or 1.0
        mean, deviation = np.zeros(columns.shape[1]), np.full(columns.shape[1], scale)
        return FeatureTable(
            "features_alone", np.arange(len(train)), columns[train] / scale, columns[nodes] / scale, mean, deviation
        )

    def solver(self, num_outputs: int) -> Solver:
        return label_solver(num_outputs)

    def baselines(self, dataset: NodeDataset, split: str) -> dict[str, float]:
        """Compute the accuracies, in %, of the most frequent training label and of logistic regression on columns."""
        if TRAIN not in dataset.table.splits:
            return {}
        truth, classes = self.targets(dataset, split), self.targets(dataset, TRAIN)
        usual = Counter(classes.tolist()).most_common(1)[0][0]
        accuracies = {"accuracy_of_most_frequent_label": 100 * float((truth == usual).mean())}
        if len(set(classes.tolist())) < 2:
            return accuracies
        table = self.simple_features(dataset, split)
        best = plain_labels(table.x, classes, len(dataset.vocabulary.labels))(table.unseen).argmax(1)
        return {**accuracies, f"accuracy_of_{table.name}": 100 * float((best == truth).mean())}

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **agreement(seen.outcomes)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, NodeDataset)
        labels, figures = dataset.vocabulary.labels, self.figures(seen, dataset.scale(split))
        sections = [confusion(labels, seen.outcomes)]
        nodes = dataset.table.splits[split]
        vectors = _of_nodes(model, dataset, nodes, lambda signal: model.features(signal)[0][0])
        sections.append(points_section("Nodes", vectors, dataset.classes[nodes], labels))
        return Evaluation({**figures, **self.baselines(dataset, split)}, sections)

    def sample(self, model: Any, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, NodeDataset)
        nodes = dataset.table.splits[VALIDATION][:_SHOWN]
        best = self._chances(model, dataset, nodes).argmax(1)
        table, labels = dataset.table, dataset.vocabulary.labels
        return "\n".join(
            f"{table.names[node]}: {labels[label]} (truth: {table.labels[node]})"
            for node, label in zip(nodes.tolist(), best.tolist(), strict=True)
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Predict the labels of nodes of the run's graph; each row names its ``node``."""
        dataset = self.open(recipe, vocabulary)
        assert isinstance(dataset, NodeDataset)
        place = {name: i for i, name in enumerate(dataset.table.names)}
        answers, names = [], [str(row["node"]).strip() for row in rows]
        unknown = next((name for name in names if name not in place), None)
        if unknown is not None:
            raise UserError(f"{dataset.name} has no node {unknown!r}; {nearest(unknown, list(place)[:10_000])}")
        for each in self._chances(model, dataset, np.array([place[name] for name in names], np.int64)).tolist():
            best = max(range(len(each)), key=each.__getitem__)
            probabilities = dict(zip(vocabulary.labels, each, strict=True))
            answers.append(
                {"answer": vocabulary.labels[best], "probability": each[best], "probabilities": probabilities}
            )
        return answers


def _vocabulary(recipe: Recipe, table: NodeTable) -> Vocabulary:
    """Build the vocabulary: labels of all splits, and the processor fitted to the graph. Raises ``UserError``."""
    labels = tuple(sorted({label for label in table.labels if label is not None}))
    if len(labels) < 2:
        raise UserError(f"data.source: the nodes of {table.name!r} have {len(labels)} label; give at least two")
    processor = recipe.data.processor
    assert processor is not None
    try:
        fitted = build_processor(processor).fitted([table.graph])
    except Unusable as error:
        raise UserError(f"data.source: {table.name}: {error}") from None
    return Vocabulary(labels=labels, processors={INPUT: fitted})


def _processor(vocabulary: Vocabulary) -> GraphsProcessor:
    return GraphsProcessor(cast("Graphs", vocabulary.processor))


def _of_nodes(model: Any, dataset: NodeDataset, nodes: np.ndarray, call: Callable[[GraphSignal], Tensor]) -> Tensor:
    """Compute values (nodes, …) of ``nodes``; ``call`` runs the model: values (N, …) of the N nodes of a signal."""
    pieces: list[tuple[np.ndarray, Tensor]] = []
    with torch.inference_mode(), evaluating(model):
        for signal, inside, places in dataset.around(nodes):
            pieces.append((places, call(signal.to(model.device)).cpu()[torch.from_numpy(inside)]))
    order = np.argsort(np.concatenate([places for places, _ in pieces]))
    return torch.cat([values for _, values in pieces])[torch.from_numpy(order)].clone()
