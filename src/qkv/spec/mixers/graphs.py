"""Specs of mixers that read the edges of a graph. Without a graph, each node is a neighbour of all others."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field

from qkv.spec.branches import Branch, DotProduct, heads_divide
from qkv.spec.errors import Problem
from qkv.spec.masks import Full, Mask
from qkv.spec.models.growth import LINEAR, NEAR, STORED, Growth


class GraphAttention(DotProduct, kind="graph_attention"):
    """Attention over the edges of a graph, in time and memory O(E): a node attends to its neighbours and itself.

    concat_h(softmax over the edges j -> i of q_i · k_j / (temperature √Dk)) W_o (Graph Transformer, Dwivedi & Bresson
    2020). Not causal. Equal to ``attention`` with ``data.processor.neighbours``, which takes O(N²).
    """

    @property
    def mask(self) -> Mask:
        """Mask used without a graph: all nodes are neighbours."""
        return Full()

    @property
    def growth(self) -> Growth:
        return STORED

    @property
    def causal(self) -> bool:
        return False


class Neighbourhood(Branch):
    """Base class of mixers in which each node reads its neighbours in a graph. Not causal."""

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False


class Propagation(Neighbourhood, kind="propagation"):
    """Propagation over the edges of a graph: Â^k x W + b, Â = D^-½ (A + I) D^-½ (GCN, Kipf & Welling 2017).

    A_ij = 1 for an edge j -> i. D: row sums of A + I; for directed edges, the right factor D^-½ has its column sums.
    Not causal. ``restart`` α: x_{t+1} = (1 - α) Â x_t + α x_0 (APPNP, Gasteiger et al. 2019). ``identity`` λ: each step
    has a separate map, x_{t+1} = relu(h ((1 - β) I + β W_t)), where h is the result of the step without the map and β =
    ln(λ / t + 1), t = 1 … k (GCNII, Chen et al. 2020).
    """

    steps: int = Field(default=1, gt=0, le=1000, description="number of propagation steps, k")
    restart: float = Field(default=0.0, ge=0, lt=1, description="fraction of the input that each step adds, α")
    identity: float | None = Field(
        default=None,
        gt=0,
        le=1.7,
        description="λ of the linear map and ReLU after each step, nearer to the identity as t grows; none: no map",
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="dropout of the input and, with identity, of each step's output"
    )
    linear: bool = Field(default=True, description="linear map after the propagation")
    bias: bool = True

    def shares(self) -> list[float]:
        """Return the weight β of the learned map in each step; empty if the steps have no map."""
        return [] if self.identity is None else [math.log(self.identity / t + 1) for t in range(1, self.steps + 1)]

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)


class SumAggregation(Neighbourhood, kind="gin"):
    """Sum over the neighbours and an MLP: W_2 relu(W_1 ((1 + ε) x_i + Σ_{j -> i} x_j) + b_1) + b_2, ε is learned.

    Graph Isomorphism Network (GIN, Xu et al. 2019): sums distinguish multisets of neighbours that means do not, so that
    the network distinguishes as many graphs as the test of Weisfeiler & Leman (1968). Not causal.
    """

    hidden: int | None = Field(default=None, gt=0, description="features of W_1; default: the width")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout after the ReLU")
    bias: bool = True

    def hidden_at(self, width: int) -> int:
        """Return the number of hidden features, between W_1 and W_2, in a model of ``width`` features."""
        return self.hidden or width

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width), dropout=0.0)


class GlobalAttention(Branch, kind="global_attention"):
    """Global attention of linear cost without softmax (SGFormer, Wu et al. 2023). Not causal.

    y = (V + Q̃ (K̃^T V) / n) / (1 + Q̃ (K̃^T 1) / n) W_o. Q̃ and K̃ are the queries and keys of a head, divided by
    their Frobenius norm over the row and multiplied by √n, so that weights do not vanish with the number n of nodes.
    """

    num_heads: int = Field(default=1, gt=0)
    bias: bool = True
    scaled: bool = Field(default=True, description="factor √n of Q̃ and K̃; false: as in the paper")

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def causal(self) -> bool:
        return False

    def width_problems(self, width: int) -> list[Problem]:
        return heads_divide(width, self.num_heads)
