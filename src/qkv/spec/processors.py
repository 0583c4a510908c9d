"""Specs of processors, which transform raw input values; fitted on the training split and stored with the run."""

from __future__ import annotations

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem


class Processor(Part, slot=True):
    """Base class of processors: fitted transformations of inputs other than text. The fields are the fitted state."""


class Scaler(Processor, kind="scaler"):
    """Standardisation: (x - mean) / deviation of each feature, with the mean and deviation of the training split."""

    mean: Seq[float]
    deviation: Seq[float]

    def problems(self) -> list[Problem]:
        if len(self.mean) != len(self.deviation):
            sentence = f"{len(self.deviation)} deviations are given for {len(self.mean)} means; give one for each"
            return [Problem(("deviation",), sentence)]
        if any(value <= 0 for value in self.deviation):
            return [
                Problem(
                    ("deviation",), f"{min(self.deviation)} given, and values are divided by it; give numbers above 0"
                )
            ]
        return []
