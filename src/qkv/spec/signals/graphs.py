"""Specs of graphs: the processor of nodes, edges and structural encodings, and the front end of nodes."""

from __future__ import annotations

from typing import Literal, Self, cast

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import WIDEST, Frontend
from qkv.spec.parts import NoNorm, Norm
from qkv.spec.processors import Processor, Role

_MOST = 1024
DEGREES = 8
"""Largest node degree that the simple features of a graph distinguish."""
NEIGHBOURHOODS = 32
"""Number of hashes of neighbourhoods that the simple features of a graph count."""


class Graphs(Processor, kind="graphs"):
    """Graphs of nodes with features or tags, and encodings of their structure, computed once per graph.

    Columns of a node: its features, one column per tag, then the encodings. Self-loops and repeated edges are dropped;
    mixers add self-loops where they need them. Directed graphs have two sets of each encoding, or complex encodings.
    """

    role = Role("graph", "signal", ("graph", "molecule"), values="graphs")

    of_graphs = True
    scaling: Literal["none", "rows", "standard"] = Field(
        default="none",
        description="scaling of features: rows: divided by their sum per node; standard: (x - mean) / deviation",
    )
    directed: bool = Field(default=False, description="encodings represent the direction of edges")
    both_ways: bool = Field(default=True, description="mixers read an edge in both directions")
    neighbours: bool = Field(default=False, description="attention sees neighbours and the node itself only")
    laplacian: int = Field(
        default=0,
        ge=0,
        le=_MOST,
        description="number of eigenvectors of the normalised Laplacian (Dwivedi & Bresson 2020), of the magnetic one "
        "for directed graphs",
    )
    potential: float = Field(
        default=0.25, ge=0, lt=1, description="phase of a directed edge in the magnetic Laplacian, in turns"
    )
    walk: int = Field(
        default=0,
        ge=0,
        le=_MOST,
        description="number of steps of random walks, whose columns are probabilities of return after 1, 2, … steps "
        "(Dwivedi et al. 2022); for directed graphs, expected visits along the edges, and against them",
    )
    degree: int = Field(
        default=0, ge=0, le=_MOST, description="maximum of the one-hot encoded degrees; 0: degrees are not encoded"
    )
    distances: int = Field(
        default=0, ge=0, le=_MOST, description="maximum length of shortest paths for attention; 0: no distances"
    )
    num_features: int | None = Field(
        default=None, ge=0, le=WIDEST, description="features of a node; default: by the data"
    )
    tags: Seq[str] | None = Field(default=None, description="tags of nodes; default: all tags of the training part")
    whole: Seq[bool] = Field(
        default=(), description="true for each feature that is an integer in all graphs; default: by the data"
    )
    mean: Seq[float] = ()
    deviation: Seq[float] = ()

    def following(self, start: Processor) -> Self:
        """Return a copy that takes settings left at their defaults from ``start``, with its tags and scaling."""
        fields = type(self).model_fields
        return self.changed(
            **{name: getattr(start, name) for name in fields if getattr(self, name) == fields[name].default}
        )

    @property
    def sides(self) -> int:
        """Number of sets of each encoding: one, or one for each direction where edges are directed."""
        return 2 if self.directed else 1

    @property
    def given_columns(self) -> int | None:
        """Number of columns of features and tags; None until the data is known."""
        return None if self.num_features is None or self.tags is None else self.num_features + len(self.tags)

    @property
    def encoding_columns(self) -> int:
        """Number of columns of the structural encodings."""
        return self.sides * (self.laplacian + self.walk + (self.degree + 1 if self.degree else 0))

    @property
    def num_columns(self) -> int | None:
        """Number of columns of a node; 1 (a constant) if it has no others; None until the data is known."""
        return None if self.given_columns is None else self.given_columns + self.encoding_columns or 1

    @property
    def num_simple(self) -> int | None:
        """Number of simple features of a graph; None until the data is known.

        Features: the numbers of nodes and edges, and the sum and mean of each feature, tag, degree, neighbourhood and
        walk.
        """
        if self.given_columns is None:
            return None
        return 2 + 2 * (self.given_columns + DEGREES + 1 + NEIGHBOURHOODS + self.sides * self.walk)

    def problems(self) -> list[Problem]:
        if len(self.mean) == len(self.deviation):
            return []
        sentence = f"{len(self.deviation)} deviations are given for {len(self.mean)} means; give one for each"
        return [Problem(("deviation",), sentence)]


class Nodes(Frontend, kind="nodes"):
    """Linear map of the columns of a node: the sum of projections of its features, tags and encodings.

    In training, the sign of each Laplacian eigenvector is random in every graph; for complex eigenvectors, the phase.
    """

    processor = Graphs
    num_columns: int | None = Field(
        default=None, gt=0, le=WIDEST, description="columns of a node; default: the processor's"
    )
    eigenvectors: int = Field(default=0, ge=0, le=_MOST, description="number of eigenvectors; filled in from the data")
    first_eigenvector: int = Field(
        default=0, ge=0, description="column of the first eigenvector; filled in from the data"
    )
    phases: bool = Field(default=False, description="eigenvectors are complex; filled in from the data")
    distances: int = Field(
        default=0, ge=0, le=_MOST, description="maximum length of shortest paths; filled in from the data"
    )
    norm: Norm = Field(default=NoNorm(), description="norm of the vectors")
    input_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout of the columns")
    node_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="probability that a node has no columns in a step (Feng et al. 2020)"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def fitted(self, processor: Processor) -> Self:
        graphs = cast("Graphs", processor)
        if graphs.num_columns is None:
            return self
        if self.num_columns not in (None, graphs.num_columns):
            sentence = f"{self.num_columns} columns given, but the nodes of the data have {graphs.num_columns}"
            raise SpecError([Problem(("num_columns",), f"{sentence}; leave the key out to take their number")])
        return self.changed(
            num_columns=graphs.num_columns,
            eigenvectors=graphs.laplacian,
            first_eigenvector=graphs.given_columns if graphs.laplacian else 0,
            phases=graphs.directed and graphs.laplacian > 0,
            distances=graphs.distances,
        )

    def unsized(self) -> Self:
        return self.changed(num_columns=None, eigenvectors=0, first_eigenvector=0, phases=False, distances=0)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0, input_dropout=0.0, node_dropout=0.0)

    def problems(self) -> list[Problem]:
        last = self.first_eigenvector + self.eigenvectors * (2 if self.phases else 1)
        if self.num_columns is None or last <= self.num_columns:
            return []
        return [Problem(("eigenvectors",), f"they end at column {last}, but there are {self.num_columns} columns")]
