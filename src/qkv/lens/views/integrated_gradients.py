"""Integrated gradients over the input embeddings, with the error of their sum."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder, Tap
from qkv.lens.capture import edits
from qkv.models.edit.quantize import widened
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError

_NODES = 8
"""Nodes of a panel of the quadrature, which the model reads at once."""
_PANELS = 4
"""Panels at the beginning."""
_NARROWEST = 2**-20
"""Width of panels that are not halved: the output jumps there, as where a router selects another expert."""


@dataclass(frozen=True)
class IntegratedGradients:
    """Attribution of one output of B rows to their N positions. values (B, N).

    baseline: name of the input that stands for "no information". output, baseline_output (B): the output that is
    explained, for the input and for the baseline. error (B): completeness error |Σ values - (output - baseline_output)|
    / |output - baseline_output|. steps: gradients that were computed for each row. complete: True if no error is above
    the tolerance. As text: the errors in one sentence.
    """

    values: Tensor
    baseline: str
    output: Tensor
    baseline_output: Tensor
    error: Tensor
    steps: int
    complete: bool

    def __str__(self) -> str:
        errors = ", ".join(f"{float(error):.1e}" for error in self.error)
        return (
            f"completeness error {errors} of the difference of the outputs, after {self.steps:,} gradients; baseline: "
            f"{self.baseline}"
        )


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
        return self(edits.replace(self.point, vectors))

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
    baseline: Baseline = "mean",
    source: Signal | Tensor | None = None,
    over: Literal["input", "source"] = "input",
    tolerance: float = 1e-3,
    most: int = 2048,
    precision: torch.dtype = torch.float64,
) -> IntegratedGradients:
    """Attribute the output number ``target``, such as the logit of a token at ``position``, to the input positions:
    Σ_d (x - b)_nd ∫_0^1 ∂f(b + α (x - b)) / ∂x_nd dα, with the front end's vectors x and the baseline b (Sundararajan
    et al. 2017).

    The integral is taken over u with α = u³, because norms change fastest near a zero baseline, by Gauss–Legendre
    quadrature in panels of 8 nodes, at first four. The integral over a panel must equal the difference of the outputs
    at its ends. The panel that misses it most is halved, until the error of the sum and the root of the sum of the
    squared errors of the panels are at most ``tolerance`` of the whole difference, or ``most`` nodes are used.

    All passes are computed by a copy of the model in ``precision``, with narrow weights widened. Attention of a trained
    model moves from one position to another within a small part of the path: most nodes lie there, and single precision
    leaves errors above 1e-3. From zero vectors, deep pre-norm models are not complete with any number of nodes: each
    norm enlarges small vectors up to 1 / √ε times, so that the output changes again in every decade of α, down to √ε to
    the power of the number of norms. The mean vector needs some hundred nodes.

    source: input of the encoder; over: "source" attributes to its positions.

    Raises ``UserError`` for an output or a position that does not exist, and for a baseline of another shape.
    """
    read, beside = _cast(signal, precision), None if source is None else _cast(source, precision)
    scalar = Scalar(_precise(model, precision), read, target, position, beside, over)
    with evaluating(scalar.model), torch.enable_grad():
        x = scalar.vectors()
        name, start = scalar.baseline(baseline if isinstance(baseline, str) else _cast(baseline, precision))
        quadrature = _Quadrature(scalar, x, start)
        quadrature.refine(tolerance, most)
        values, error = quadrature.values(), quadrature.error()
    output, before = quadrature.outputs
    complete = bool((error <= tolerance).all())
    return IntegratedGradients(values, name, output, before, error, quadrature.steps, complete)


def _precise(model: Transformer, precision: torch.dtype) -> Transformer:
    """Return a copy of the model in ``precision``, with the tap that it has inside of ``tapped``; the model itself if
    it has this precision.
    """
    narrow = any(isinstance(module, (QuantizedLinear, QuantizedTable)) for module in model.modules())
    if not narrow and all(parameter.dtype == precision for parameter in model.parameters()):
        return model
    return widened(copy.deepcopy(model, {id(model.tap): model.tap})).to(precision)


def _cast(signal: Signal | Tensor, kind: torch.dtype) -> Signal:
    """Return the signal with floating-point values as ``kind``."""
    signal = Signal.of(signal)
    values = {field.name: getattr(signal, field.name) for field in fields(signal) if field.name != "inputs"}
    cast = {name: v.to(kind) for name, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()}
    inputs = signal.inputs and {name: _cast(each, kind) for name, each in signal.inputs.items()}
    return replace(signal, inputs=inputs, **cast)


@dataclass(frozen=True, eq=False)
class _Panel:
    """Part [begin, end] of the path in u, the outputs (B) at both ends, and the integrated gradients (B, N) of it."""

    begin: float
    end: float
    before: Tensor
    after: Tensor
    values: Tensor

    @property
    def error(self) -> Tensor:
        """Difference (B) of the sum of the values from that of the outputs."""
        return (self.values.sum(1) - (self.after - self.before)).abs()


class _Quadrature:
    """Integral of the gradients along the path from the baseline ``start`` to the input x, both (B, N, D)."""

    def __init__(self, scalar: Scalar, x: Tensor, start: Tensor):
        self.scalar, self.x, self.start, self.steps = scalar, x, start, 0
        self.nodes, self.weights = gauss_legendre(_NODES)
        edges = [i / _PANELS for i in range(_PANELS + 1)]
        outputs = [self._output(edge) for edge in edges]
        self.outputs = outputs[-1], outputs[0]
        self.difference = outputs[-1] - outputs[0]
        parts = zip(edges, edges[1:], outputs, outputs[1:], strict=False)
        self.panels = [self._panel(*part) for part in parts]

    def values(self) -> Tensor:
        """Return the integrated gradients (B, N)."""
        return torch.stack([panel.values for panel in self.panels]).sum(0)

    def error(self) -> Tensor:
        """Return the completeness error (B), relative to the difference of the outputs."""
        return self._relative(self.values().sum(1) - self.difference)

    def refine(self, tolerance: float, most: int) -> None:
        """Halve the panel with the largest error until the errors are within ``tolerance``."""
        while self.steps + 2 * _NODES <= most and self._spread() > tolerance:
            wide = [panel for panel in self.panels if panel.end - panel.begin > _NARROWEST]
            if not wide:
                return
            panel = max(wide, key=lambda panel: float(self._relative(panel.error).max()))
            middle = (panel.begin + panel.end) / 2
            output = self._output(middle)
            self.panels.remove(panel)
            self.panels.append(self._panel(panel.begin, middle, panel.before, output))
            self.panels.append(self._panel(middle, panel.end, output, panel.after))

    def _spread(self) -> float:
        """Return the largest error of a row, of the sum or of all panels together."""
        together = self._relative(torch.stack([panel.error for panel in self.panels]).norm(dim=0))
        return float(torch.maximum(together, self.error()).max())

    def _relative(self, error: Tensor) -> Tensor:
        return error.abs() / self.difference.abs().clamp(min=1e-12)

    def _vectors(self, u: float) -> Tensor:
        return self.start + u**3 * (self.x - self.start)

    @torch.no_grad()
    def _output(self, u: float) -> Tensor:
        return self.scalar.at(self._vectors(u)).double()

    def _panel(self, begin: float, end: float, before: Tensor, after: Tensor) -> _Panel:
        places = [begin + (end - begin) * node for node in self.nodes.tolist()]
        vectors = [self._vectors(u).detach().requires_grad_() for u in places]
        output = self.scalar.together(vectors).sum()
        total = torch.zeros(self.x.shape[:2], dtype=torch.float64, device=self.x.device)
        self.steps += len(places)
        if output.requires_grad:  # else the output does not depend on the input
            gradients = torch.autograd.grad(output, vectors, allow_unused=True, materialize_grads=True)
            along = (self.x - self.start).double()
            for gradient, u, weight in zip(gradients, places, self.weights.tolist(), strict=True):
                total += (end - begin) * weight * 3 * u**2 * (gradient.double() * along).sum(-1)
        return _Panel(begin, end, before, after, total)


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
