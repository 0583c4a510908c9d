"""Sums over the edges of a graph: attention and propagation in O(E).

edges (2, E): source j and target i of each edge, as indices into V flattened nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from qkv.ops.dropout import dropout


@dataclass(frozen=True)
class SampledEdges:
    """Properties of edges sampled from a larger graph.

    into, out (V): number of incoming and outgoing edges of each node in the whole graph. factors (E): number of
    incoming edges of the edge's target in the whole graph, divided by their number in the sample.
    """

    into: Tensor
    out: Tensor
    factors: Tensor

    def to(self, device: torch.device | str) -> Self:
        """Copy to ``device``."""
        return type(self)(self.into.to(device), self.out.to(device), self.factors.to(device))


class Weighted(NamedTuple):
    """Weighted edges. edges (2, E); weights (E)."""

    edges: Tensor
    weights: Tensor


def with_loops(edges: Tensor, nodes: int) -> Tensor:
    """Append a self-loop of each of V = ``nodes`` nodes to edges (2, E) -> (2, E + V)."""
    every = torch.arange(nodes, device=edges.device)
    return torch.cat((edges, torch.stack((every, every))), 1)


def summed(values: Tensor, targets: Tensor, nodes: int) -> Tensor:
    """Sum edge values (E, …) by target node -> (V, …)."""
    return values.new_zeros(nodes, *values.shape[1:]).index_add(0, targets, values)


def normalised(edges: Tensor, nodes: int, dtype: torch.dtype, sampled: SampledEdges | None = None) -> Weighted:
    """Return edges with self-loops and the weights of Â = D_in^-½ (A + I) D_out^-½ (Kipf & Welling 2017).

    ``sampled``: given if the edges are a sample. Degrees are then taken from the whole graph, and the weights of
    sampled edges are multiplied by ``sampled.factors``, so that the expected sum over a node's sampled edges equals the
    sum over all of its edges.
    """
    looped = with_loops(edges, nodes)
    source, target = looped
    ones = torch.ones(looped.shape[1], dtype=dtype, device=edges.device)
    if sampled is None:
        into, out = summed(ones, target, nodes), summed(ones, source, nodes)
        return Weighted(looped, into.rsqrt()[target] * out.rsqrt()[source])
    into, out = (1 + degrees.to(dtype) for degrees in (sampled.into, sampled.out))
    factors = torch.cat((sampled.factors.to(dtype), ones[:nodes]))
    return Weighted(looped, into.rsqrt()[target] * out.rsqrt()[source] * factors)


def propagated(x: Tensor, graph: Weighted) -> Tensor:
    """Compute Â x for x (V, D): at each node, the weighted sum over the sources of its incoming edges."""
    source, target = graph.edges
    return summed(x.index_select(0, source) * graph.weights[:, None].to(x.dtype), target, x.shape[0])


def edge_weights(scores: Tensor, targets: Tensor, nodes: int) -> Tensor:
    """Compute the softmax of scores (E, H) over the edges of each target node."""
    index = targets[:, None].expand_as(scores)
    largest = scores.detach().new_full((nodes, scores.shape[1]), -torch.inf)
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax")
    weights = (scores - largest.index_select(0, targets)).exp()
    return weights / summed(weights, targets, nodes).index_select(0, targets)


def edge_attention(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, scale: float, rate: float = 0.0) -> Tensor:
    """Compute attention of each node over its incoming edges: Σ_{j -> i} softmax_j(scale · q_i · k_j) v_j, (V, H, Dv).

    q, k (V, H, Dk), v (V, H, Dv); every node has an edge, such as a self-loop. ``rate``: dropout of the weights.
    """
    source, target = edges
    scores = scale * (q.index_select(0, target) * k.index_select(0, source)).sum(-1)
    weights = dropout(edge_weights(scores, target, q.shape[0]), rate)
    return summed(weights[..., None] * v.index_select(0, source), target, q.shape[0])


def global_attention(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, scaled: bool) -> Tensor:
    """Compute linear attention (V + Q̃ (K̃^T V) / n) / (1 + Q̃ (K̃^T 1) / n) (SGFormer, Wu et al. 2023).

    q, k, v (B, H, N, Dk or Dv), 0 at padding; counts n (B): number of nodes of each row. Q̃ = Q / |Q|_F, times √n if
    ``scaled``.
    """
    n = counts[:, None, None, None].to(q.dtype).clamp(min=1)
    q, k = (_unit(t) * (n.sqrt() if scaled else 1.0) for t in (q, k))
    above = v + q @ (k.transpose(-1, -2) @ v) / n
    below = 1 + q @ k.sum(-2)[..., None] / n
    return above / torch.where(below.abs() < 1e-3, torch.full_like(below, 1e-3), below)


def _unit(t: Tensor) -> Tensor:
    return t / t.flatten(-2).norm(dim=-1)[..., None, None].clamp(min=1e-12)
