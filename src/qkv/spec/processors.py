"""Processors: what turns raw values of a signal into those that a model reads, fitted on the training part and stored with the run."""

from __future__ import annotations

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem


class Processor(Part, slot=True):
    """Base class of processors, such as that of a tokenizer for values other than text. Its fields are all that there is to store."""


class Scaler(Processor, kind="scaler"):
    """(x - mean) / deviation of each feature, with the mean and deviation of the training part."""

    mean: Seq[float]
    deviation: Seq[float]

    def problems(self) -> list[Problem]:
        if len(self.mean) != len(self.deviation):
            sentence = f"{len(self.deviation)} deviations are given for {len(self.mean)} means; give one for each"
            return [Problem(("deviation",), sentence)]
        if any(value <= 0 for value in self.deviation):
            return [Problem(("deviation",), f"{min(self.deviation)} given, and values are divided by it; give numbers above 0")]
        return []
