"""Weights written by hand: linear forms of named features, units of a feed-forward network, heads of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Form = Mapping[int, float]
"""Linear form of the features of a vector: coefficient by feature."""


class StreamFeatures:
    """Names of the features of the residual stream: consecutive features for each name."""

    def __init__(self, sizes: Mapping[str, int]):
        self.places: dict[str, range] = {}
        begin = 0
        for name, size in sizes.items():
            self.places[name] = range(begin, begin + size)
            begin += size
        self.width = begin

    def __getitem__(self, name: str) -> range:
        return self.places[name]

    def single(self, name: str) -> int:
        """Return the feature of a name that has only one."""
        (feature,) = self.places[name]
        return feature


def total(*forms: Form) -> dict[int, float]:
    """Return the sum of linear forms."""
    result: dict[int, float] = {}
    for form in forms:
        for feature, factor in form.items():
            result[feature] = result.get(feature, 0.0) + factor
    return result


def times(factor: float, form: Form) -> dict[int, float]:
    """Return a linear form multiplied by a number."""
    return {feature: factor * each for feature, each in form.items()}


def matrix_of(forms: Iterable[Form], width: int) -> list[list[float]]:
    """Return the matrix (forms, width) whose rows are linear forms."""
    return [[float(form.get(feature, 0.0)) for feature in range(width)] for form in forms]


class ReluNetwork:
    """Feed-forward network x + Σ_u w_u ReLU(form_u(x)) without biases, unit by unit.

    ``one``: a form that is 1 in every vector.
    """

    def __init__(self, one: Form) -> None:
        self.one = one
        self.units: list[tuple[Form, Form]] = []

    def add(self, form: Form, into: Form) -> None:
        """Add a unit: ReLU of ``form``, times the coefficients of ``into``, is added to the features of ``into``."""
        self.units.append((form, into))

    def add_step(self, form: Form, threshold: int, into: Form) -> None:
        """Add two units: [form ≥ t] = ReLU(form - t + 1) - ReLU(form - t), for a form whose value is an integer."""
        self.add(total(form, times(1.0 - threshold, self.one)), into)
        self.add(total(form, times(-threshold, self.one)), times(-1.0, into))

    def add_bits(self, terms: Sequence[Form], constant: int, into: Sequence[Form], gate: Form, lift: int = 0) -> None:
        """Add units that write bit i of Σ_j 2^j terms_j + constant as ``into[i]``.

        It depends on the terms up to i only: S_i = Σ_{j ≤ i} 2^j terms_j + (constant mod 2^(i+1)) + lift 2^(i+1) lies
        in [0, 2^(i+2)), and the bit is [S_i ≥ 2^i] - [S_i ≥ 2 · 2^i] + [S_i ≥ 3 · 2^i]. Terms are bits; with ``lift``
        1, differences of bits. ``gate``: a form that is 0 where the bits are written and 1 where nothing is written.
        """
        sums = times(-float(8 << len(into)), gate)
        for i, (term, features) in enumerate(zip(terms, into, strict=True)):
            sums = total(sums, times(float(1 << i), term))
            shifted = total(sums, times(float(constant % (2 << i) + lift * (2 << i)), self.one))
            for multiple, sign in ((1, 1.0), (2, -1.0), (3, 1.0)):
                self.add_step(shifted, multiple << i, times(sign, features))

    def erase(self, features: Iterable[int]) -> None:
        """Add units that set features to 0, whose values are at least 0: x - ReLU(x)."""
        for feature in features:
            self.add({feature: 1.0}, {feature: -1.0})

    def branch(self) -> dict[str, Any]:
        """Return the spec of the branch."""
        return {"kind": "feed_forward", "hidden": len(self.units), "activation": "relu", "bias": False}

    def pieces(self, layer: int, branch: int, width: int) -> list[dict[str, Any]]:
        """Return the pieces of a constructed start."""
        up = matrix_of((form for form, _ in self.units), width)
        down = [list(row) for row in zip(*matrix_of((into for _, into in self.units), width), strict=True)]
        place = {"layer": layer, "branch": branch}
        return [{**place, "weight": "up", "values": up}, {**place, "weight": "down", "values": down}]


class HeadWires(NamedTuple):
    """Queries, keys and values of a head as linear forms of the vectors, and the features that its output enters."""

    queries: Sequence[Form]
    keys: Sequence[Form]
    values: Sequence[Form]
    into: Sequence[int]
