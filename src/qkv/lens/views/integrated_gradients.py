"""Integrated gradients over the input embeddings, with the error of their sum."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder, Tap
from qkv.lens.record import Replacement
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError

_NODES = 32
"""Nodes of one panel of the quadrature."""
_STUCK = 4
"""Panels from which a doubling has to halve the error."""
_TOGETHER = 8
"""Inputs of the same rows that the model reads at once."""


@dataclass(frozen=True)
class IntegratedGradients:
    """Attribution of one output of B rows to their N positions. values (B, N).

    baseline: name of the input that stands for "no information". output, baseline_output (B): the output that is
    explained, for the input and for the baseline. error (B): completeness error |Σ values - (output - baseline_output)|
    / |output - baseline_output|. steps: gradients that were computed for each row. complete: True if no error is above
    the tolerance.
    """

    values: Tensor
    baseline: str
    output: Tensor
    baseline_output: Tensor
    error: Tensor
    steps: int
    complete: bool


Baseline = Literal["zero", "mean"] | Signal | Tensor
"""Vector 0 at each position, the mean vector of all positions, or another input of the same shape."""


class Scalar:
    """One output of a model for each row: the logit of the class ``target``, at ``position`` if the head has outputs
    for each, or the value number ``target`` of a head that predicts numbers.
    """

    def __init__(
        self,
        model: Transformer,
        signal: Signal | Tensor,
        target: int,
        position: int = -1,
        source: Signal | Tensor | None = None,
        over: Literal["input", "source"] = "input",
    ):
        self.model, self.signal, self.target, self.position = model, Signal.of(signal), target, position
        self.source = source
        if over == "source" and (source is None or model.encoder is None):
            raise UserError("the influence of a source needs an encoder and a source; allowed: over='input'")
        self.point = "encoder.frontend.output" if over == "source" else "frontend.output"
        self.read = Signal.of(source) if over == "source" and source is not None else self.signal

    def __call__(self, tap: Tap) -> Tensor:
        """Return the output (B) when ``tap`` changes values. Raises ``UserError`` for an output that does not exist."""
        memory = None if self.source is None else self.model.encode(self.source, tap)
        output = at_least_single(self.model(self.signal, memory=memory, tap=tap)[0])
        if output.dim() not in (2, 3):
            raise UserError(f"the head {self.model.spec.head.kind!r} has no single outputs that can be attributed")
        if output.dim() == 3 and not -output.shape[1] <= self.position < output.shape[1]:
            raise UserError(f"position {self.position} is outside the row, which has {output.shape[1]} positions")
        if not 0 <= self.target < output.shape[-1]:
            raise UserError(f"output {self.target} does not exist; allowed: 0 to {output.shape[-1] - 1}")
        return output[:, self.target] if output.dim() == 2 else output[:, self.position, self.target]

    def at(self, vectors: Tensor) -> Tensor:
        """Return the output (B) for the input vectors (B, N, D)."""
        return self(Replacement({self.point: vectors}))

    def together(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the outputs (K, B) for K input vectors (B, N, D), several rows of the model at once where the signal
        is no more than a table of rows.
        """
        if not all(each is None or (type(each) is Signal and each.inputs is None) for each in self._signals()):
            return torch.stack([self.at(each) for each in vectors])
        several = copy.copy(self)
        several.signal = _repeated(self.signal, len(vectors))
        several.source = None if self.source is None else _repeated(Signal.of(self.source), len(vectors))
        return several.at(torch.cat(list(vectors))).unflatten(0, (len(vectors), -1))

    def _signals(self) -> tuple[Signal | None, ...]:
        return self.signal, None if self.source is None else Signal.of(self.source)

    @torch.no_grad()
    def vectors(self, signal: Signal | Tensor | None = None) -> Tensor:
        """Return the input vectors (B, N, D), of another signal if given."""
        tap, stack = Recorder("frontend.output"), self.model
        if self.point != "frontend.output":
            assert self.model.encoder is not None
            stack, tap = self.model.encoder, Recorder(self.point)
        stack.embed(self.read if signal is None else Signal.of(signal), tap=tap)
        return tap[self.point]

    def baseline(self, baseline: Baseline) -> tuple[str, Tensor]:
        """Return (name, vectors (B, N, D)) of a baseline."""
        x = self.vectors()
        if isinstance(baseline, str):
            if baseline not in ("zero", "mean"):
                raise UserError(f"there is no baseline {baseline!r}; allowed: 'zero', 'mean', or an input")
            if baseline == "zero":
                return "zero vectors", torch.zeros_like(x)
            lengths = self.read.lengths
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            if lengths is not None and real.shape[1] == self.read.values.shape[1]:
                real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
            return "mean vector of all positions", x[real].mean(0).expand_as(x)
        vectors = self.vectors(baseline)
        if vectors.shape != x.shape:
            raise UserError(f"the baseline has the shape {list(vectors.shape)}, but the input has {list(x.shape)}")
        return "another input", vectors


def integrated_gradients(
    model: Transformer,
    signal: Signal | Tensor,
    target: int,
    position: int = -1,
    baseline: Baseline = "zero",
    source: Signal | Tensor | None = None,
    over: Literal["input", "source"] = "input",
    tolerance: float = 1e-3,
    most: int = 1024,
) -> IntegratedGradients:
    """Attribute the output number ``target``, such as the logit of a token at ``position``, to the input positions:
    Σ_d (x - b)_nd ∫_0^1 ∂f(b + α (x - b)) / ∂x_nd dα, with the front end's vectors x and the baseline b (Sundararajan
    et al. 2017).

    The integral is taken over u with α = u³, because norms change fastest near a zero baseline, by Gauss–Legendre
    quadrature with 32 nodes; panels are doubled until the completeness error of each row is at most ``tolerance``, up
    to ``most`` nodes, or until doubling no longer halves the error, as with quantised activations.

    source: input of the encoder; over: "source" attributes to its positions.

    Raises ``UserError`` for an output or a position that does not exist, and for a baseline of another shape.
    """
    scalar = Scalar(model, signal, target, position, source, over)
    with evaluating(model), torch.enable_grad():
        x = scalar.vectors()
        name, start = scalar.baseline(baseline)
        with torch.no_grad():
            output, before = scalar.at(x), scalar.at(start)
        panels, worst = 1, float("inf")
        while True:
            values = _integral(scalar, x, start, panels)
            error = (values.sum(1) - (output - before)).abs() / (output - before).abs().clamp(min=1e-12)
            complete = bool((error <= tolerance).all())
            stuck = panels >= _STUCK and float(error.max()) > worst / 2
            if complete or stuck or 2 * panels * _NODES > most:
                break
            panels, worst = 2 * panels, float(error.max())
    return IntegratedGradients(values, name, output, before, error, panels * _NODES, complete)


def _integral(scalar: Scalar, x: Tensor, start: Tensor, panels: int) -> Tensor:
    """Return the integrated gradients (B, N) by quadrature in ``panels`` panels."""
    nodes, weights = gauss_legendre(_NODES)
    places = (torch.arange(panels)[:, None] + nodes).flatten() / panels
    shares = weights.repeat(panels) / panels * 3 * places**2
    total = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
    for some, share in zip(places.split(_TOGETHER), shares.split(_TOGETHER), strict=True):
        vectors = [(start + u**3 * (x - start)).detach().requires_grad_() for u in some.tolist()]
        output = scalar.together(vectors).sum()
        if not output.requires_grad:  # the output does not depend on the input
            break
        gradients = torch.autograd.grad(output, vectors, allow_unused=True, materialize_grads=True)
        for gradient, weight in zip(gradients, share.tolist(), strict=True):
            total += weight * (gradient * (x - start)).sum(-1).double()
    return total.to(at_least_single(x).dtype)


def _repeated(signal: Signal, times: int) -> Signal:
    """Return a signal with all rows ``times`` times, one after the other."""

    def repeated(value: Tensor | None) -> Tensor | None:
        alike = value is None or (len(value) == 1 and signal.num_rows > 1)
        return value if alike else value.repeat(times, *(1,) * (value.dim() - 1))  # type: ignore[union-attr]

    names = (field.name for field in fields(Signal) if field.name != "inputs")
    return replace(signal, **{name: repeated(getattr(signal, name)) for name in names})


def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the Gauss–Legendre quadrature on [0, 1], from the eigenvalues of the Jacobi matrix
    (Golub & Welsch 1969).
    """
    steps = torch.arange(1, count, dtype=torch.float64)
    beside = steps / (4 * steps**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (nodes + 1) / 2, vectors[0] ** 2
