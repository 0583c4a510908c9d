"""Attention rollout and flow beside ablation and integrated gradients of the same output."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.views.attention_maps import attention_maps
from qkv.lens.views.integrated_gradients import Baseline, IntegratedGradients, Scalar, integrated_gradients
from qkv.models.evaluating import evaluating
from qkv.models.rollout import rollout
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

NOT_EXPLANATIONS = (
    "Attention weights show where a head reads, not why the model answers: other weights can give the same answer "
    "(Jain & Wallace 2019), values may be small where weights are large, and other branches carry the answer too; "
    "compare with ablation before you explain by them."
)
"""Sentence for every page that shows attention weights."""
_MOST_FLOW = 32
"""Positions up to which flow is computed."""
_TOGETHER = 8
"""Inputs of the same rows that the model reads at once."""
_LEAST = 1e-9
"""Capacities below it count as none."""


@dataclass(frozen=True)
class Importance:
    """Importance of N positions for one output of B rows, by four measures (B, N).

    ablation: output minus the output when the vector of the position is replaced by the baseline; NaN where it was not
    measured. gradients: integrated gradients, with their completeness error. rollout: attention rollout (Abnar and
    Zuidema 2020), and flow: maximum flow through the averaged weights (same paper), both None without attention between
    all positions; flow also above 32 positions. agreement: Spearman's rank correlation with ablation (B), by measure.
    sentence: why weights are no explanation.
    """

    ablation: Tensor
    gradients: IntegratedGradients
    rollout: Tensor | None
    flow: Tensor | None
    agreement: dict[str, Tensor]
    sentence: str = NOT_EXPLANATIONS


def importance(
    model: Transformer,
    signal: Signal | Tensor,
    target: int,
    position: int = -1,
    baseline: Baseline = "mean",
    source: Signal | Tensor | None = None,
    most: int = 1024,
    ablated: int | None = None,
    precision: torch.dtype = torch.float64,
) -> Importance:
    """Return the importance of each position for the output number ``target`` by ablation, integrated gradients,
    attention rollout and attention flow; see ``integrated_gradients`` for the arguments.

    ablated: number of positions that are taken out, those with the highest integrated gradients; None: all.

    Rollout and flow go from ``position``, or for a head that pools from the mean of the positions that it reads.
    """
    scalar = Scalar(model, signal, target, position, source)
    gradients = integrated_gradients(model, signal, target, position, baseline, source, most=most, precision=precision)
    count = gradients.values.shape[1]
    highest = gradients.values.abs().amax(0).topk(count if ablated is None else min(ablated, count)).indices.sort()
    with evaluating(model), torch.no_grad():
        ablation = _ablation(scalar, scalar.baseline(baseline)[1], highest.values.cpu())
    weights = _weights(model, signal, source, ablation.shape[1])
    paths = None if weights is None else _read_by_head(model, rollout(weights), position)
    flows = None if weights is None or ablation.shape[1] > _MOST_FLOW else flow(weights, _readers(model, position))
    measured = highest.values
    agreement = {"integrated gradients": rank_correlation(gradients.values[:, measured], ablation[:, measured])}
    for name, measure in (("rollout", paths), ("flow", flows)):
        if measure is not None:
            agreement[name] = rank_correlation(measure[:, measured], ablation[:, measured].abs())
    return Importance(ablation, gradients, paths, flows, agreement)


def _ablation(scalar: Scalar, baseline: Tensor, positions: Tensor) -> Tensor:
    """Return the fall (B, N) of the output when the vector of each of ``positions`` is replaced by the baseline."""
    x = scalar.vectors()
    output = scalar.at(x)
    falls = output.new_full((len(output), x.shape[1]), torch.nan)
    for places in positions.split(_TOGETHER):
        changed = [x.index_copy(1, place[None].to(x.device), baseline[:, [place]]) for place in places]
        falls[:, places.to(x.device)] = (output - scalar.together(changed)).T
    return falls


def _weights(
    model: Transformer, signal: Signal | Tensor, source: Signal | Tensor | None, count: int
) -> list[Tensor] | None:
    """Return the weights between all positions of the model's own layers; None if there are none."""
    maps = [each for each in attention_maps(model, signal, source) if each.stack == "model" and each.kind == "self"]
    return [at_least_single(each.weights) for each in maps if each.weights.shape[-2:] == (count, count)] or None


def _readers(model: Transformer, position: int) -> list[int] | None:
    """Return the positions that the head reads for the output; None for all."""
    if model.spec.head.per_position:
        return [position]
    return list(range(model.spec.head.leading_read)) or None


def _read_by_head(model: Transformer, paths: Tensor, position: int) -> Tensor:
    readers = _readers(model, position)
    return (paths if readers is None else paths[:, readers]).mean(1)


def flow(weights: Sequence[Tensor], readers: Sequence[int] | None) -> Tensor:
    """Return the maximum flow (B, N) from ``readers`` at the last layer (None: all) to each position of the input
    (Abnar & Zuidema 2020).

    Capacities: (mean over heads + I) / 2 from each layer to the one below, and 1 / R for each of R readers.
    """
    rows = []
    for b in range(len(weights[0])):
        layers = [(each[b].mean(0) + torch.eye(each.shape[-1]).to(each)) / 2 for each in reversed(weights)]
        tables = [layer.double().tolist() for layer in layers]
        count = len(tables[0])
        begins = range(count) if readers is None else [place % count for place in readers]
        rows.append([_Network(tables, list(begins), end).flow() for end in range(count)])
    return torch.tensor(rows, dtype=weights[0].dtype, device=weights[0].device)


class _Network:
    """Layers of nodes with capacities; edges are stored in pairs, an edge at an even index and its reverse behind it.

    tables: capacity [t][s] from node t of each layer to node s of the next. Node 0 is the source of all ``begins`` in
    the first layer, node 1 the node ``end`` below the last layer.
    """

    def __init__(self, tables: Sequence[Sequence[Sequence[float]]], begins: Sequence[int], end: int):
        count, depth = len(tables[0]), len(tables)
        self.ends, self.room = list[int](), list[float]()
        self.edges = [list[int]() for _ in range(2 + depth * count)]
        for t in begins:
            self._join(0, 2 + t, 1 / len(begins))
        for layer, table in enumerate(tables):
            for t, row in enumerate(table):
                for s, capacity in enumerate(row):
                    last = layer + 1 == depth
                    if capacity > _LEAST and (not last or s == end):
                        self._join(2 + layer * count + t, 1 if last else 2 + (layer + 1) * count + s, capacity)

    def _join(self, a: int, b: int, capacity: float) -> None:
        self.edges[a].append(len(self.ends))
        self.edges[b].append(len(self.ends) + 1)
        self.ends += [b, a]
        self.room += [capacity, 0.0]

    def flow(self) -> float:
        """Return the maximum flow, by blocking flows over shortest paths (Dinic 1970)."""
        total = 0.0
        while (levels := self._levels())[1] >= 0:
            self.next = [0] * len(self.edges)
            while (pushed := self._push(0, float("inf"), levels)) > 0:
                total += pushed
        return total

    def _levels(self) -> list[int]:
        """Return the number of edges from the source to each node; -1 where no path has room."""
        levels, queue = [-1] * len(self.edges), deque([0])
        levels[0] = 0
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                after = self.ends[edge]
                if levels[after] < 0 and self.room[edge] > _LEAST:
                    levels[after] = levels[node] + 1
                    queue.append(after)
        return levels

    def _push(self, node: int, most: float, levels: list[int]) -> float:
        """Push at most ``most`` along one path of rising levels; return how much."""
        if node == 1:
            return most
        while self.next[node] < len(self.edges[node]):
            edge = self.edges[node][self.next[node]]
            after = self.ends[edge]
            if self.room[edge] > _LEAST and levels[after] == levels[node] + 1:
                pushed = self._push(after, min(most, self.room[edge]), levels)
                if pushed > 0:
                    self.room[edge] -= pushed
                    self.room[edge ^ 1] += pushed
                    return pushed
            self.next[node] += 1
        return 0.0


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's rank correlation (B) of the rows of a and b (B, N), equal values with their mean rank."""
    ranks = [
        ((x[:, :, None] > x[:, None]).double() + 0.5 * (x[:, :, None] == x[:, None]).double()).sum(2) for x in (a, b)
    ]
    a, b = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
