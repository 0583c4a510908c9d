"""Equations of the branches of a block: norm, attention head by head, feed-forward, residual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.norms import LayerNorm, Norm, RMSNorm
from qkv.layers.tap import Location, Recorder
from qkv.lens.steps.equations import difference, number_text, vector_text
from qkv.mixers.attention.attention import Attention
from qkv.ops.at_least_single import at_least_single
from qkv.report.theory.equations import EquationStep

POINTS = (
    *("residual_before", "input", "q", "k", "v", "scores", "weights", "head_outputs"),
    *("gate", "up", "pre_activation", "activation", "output", "residual_after"),
)
"""Names of the points that the equations read."""
MOST_KEYS = 12
"""Largest number of keys that a table of weights shows: those with the largest weights, in order of position."""


class SlotPass(NamedTuple):
    """One execution of a branch: where it is, what a tap read there, and which numbers are shown.

    position: of the row whose numbers are shown.   features: numbers shown of a vector.
    """

    slot: Any
    layer: int
    call: int
    tap: Recorder
    context: Context
    tokens: list[str]
    position: int
    features: int

    def read(self, point: str) -> Tensor:
        """Return the value at a point of the branch, without the axis of rows."""
        return at_least_single(self.tap.records[Location(self.call, self.slot.name, point)][0])

    def here(self, point: str) -> Tensor:
        """Return the vector at the position that is shown."""
        return self.read(point)[self.position]

    def text(self, vector: Tensor) -> str:
        """Write a vector."""
        return vector_text(vector, self.features)

    def step(self, title: str, formula: str, **fields: Any) -> EquationStep:
        """Create a step of the branch."""
        kind = self.slot.body.spec.kind.replace("_", " ")
        return EquationStep(f"layer {self.layer} · {kind}", title, formula, layer=self.layer, **fields)


def branch_steps(at: SlotPass, x: Tensor, before: Norm | None, after: Norm | None) -> Iterator[EquationStep]:
    """Yield the equations of a branch. x (D): vector that it reads, before the norm.

    before, after: norms of its input, and of its output or of the sum.
    """
    if before is not None:
        yield norm_step(before, x, at.here("input"), at)
    body = at.slot.body
    if isinstance(body, Attention):
        yield from _attention(at, body)
    elif body.spec.kind in ("feed_forward", "gated_feed_forward"):
        yield from _feed_forward(at, body)
    else:
        lines = [("input", at.text(at.here("input"))), ("y", at.text(at.here("output")))]
        note = "the equations of this branch are on the page of parts; here are its input and its output"
        yield at.step("branch", "y = f(input)", lines=lines, note=note)
    yield _residual(at, after)


def norm_step(norm: Norm, x: Tensor, value: Tensor, at: SlotPass) -> EquationStep:
    """Return the equation of a norm of the vector x (D) with the result ``value``."""
    lines, formula = [("x", at.text(x))], "x̂ = norm(x)"
    if isinstance(norm, LayerNorm | RMSNorm):
        mean = x.mean() if isinstance(norm, LayerNorm) else x.new_zeros(())
        scale = ((x - mean).square().mean() + (norm.eps or torch.finfo(x.dtype).eps)).sqrt()
        if isinstance(norm, LayerNorm):
            formula = "x̂ = (x − mean) / s ⊙ w + b,  s = √(mean((x − mean)²) + ε)"
            lines.append(("mean", number_text(float(mean))))
        else:
            formula = "x̂ = x / s ⊙ w,  s = √(mean(x²) + ε)"
        lines += [("s", number_text(float(scale)))]
    error = difference(at_least_single(norm(x[None, None].to(_dtype(norm)), at.context)[0, 0]), value)
    return at.step("norm", formula, lines=[*lines, ("x̂", at.text(value))], error=error)


def _dtype(module: torch.nn.Module) -> torch.dtype:
    return next((weight.dtype for weight in module.parameters()), torch.float32)


def _attention(at: SlotPass, body: Attention) -> Iterator[EquationStep]:
    """Yield a step for each head, and one for the output projection."""
    q, k = (at.read(point)[None].to(_dtype(body)) for point in ("q", "k"))
    rotated = [at_least_single(x[0]) for x in body.rotated(q, k, at.context.of_layer(at.layer))]
    for head in range(body.num_heads):
        yield _head(at, body, head, rotated[0], rotated[1])
    outputs = at.read("head_outputs")[:, at.position]
    joined, y = outputs.flatten(), at.here("output")
    formula = "y = concat(o₀, o₁, …) W_O" + (" + b_O" if getattr(body.output, "bias", None) is not None else "")
    lines = [("concat(o)", at.text(joined)), ("y", at.text(y))]
    plain = body.output_gate is None and body.output_norm is None and at.slot.factor == 1
    error = difference(at_least_single(body.output(joined.to(_dtype(body)))), y) if plain else 0.0
    yield at.step("heads together", formula, lines=lines, error=error)


def _head(at: SlotPass, body: Attention, head: int, queries: Tensor, keys: Tensor) -> EquationStep:
    """Return the equations of one head at the position: products, softmax, weighted sum. queries (H, N, Dk)."""
    group = head * body.kv_heads // body.num_heads
    q, k, v = queries[head, at.position], keys[group], at.read("v")[group]
    scores, weights = at.read("scores")[head, at.position], at.read("weights")[head, at.position]
    output = at.read("head_outputs")[head, at.position]
    products = (k @ q) * body.scale
    visible = scores > -torch.inf
    biased = difference(products[visible], scores[visible]) > 1e-4
    largest = weights.masked_fill(~visible, -1.0).topk(min(MOST_KEYS, int(visible.sum()))).indices.sort().values
    exponents = (scores - scores.max()).exp()
    columns = ["token", "k", "q · k", f"· {number_text(body.scale)}", *(["score s"] if biased else [])]
    rows = [
        [
            at.tokens[j],
            at.text(k[j]),
            *map(number_text, (float(k[j] @ q), float(products[j]), *([float(scores[j])] if biased else []))),
            *map(number_text, (float(exponents[j]), float(weights[j]))),
            at.text(v[j]),
        ]
        for j in largest.tolist()
    ]
    left = int(visible.sum()) - len(rows)
    rest = number_text(float(weights.sum() - weights[largest].sum()))
    note = f"{left} more keys, with {rest} of the weight" if left else ""
    formula = "s = q · k / √d" + (" + bias" if biased else "") + ",  a = softmax(s),  o = Σ a v"
    total = exponents.sum()
    sums = exponents / total if body.sink is None else weights
    error = max(difference(sums, weights), difference(weights @ v, output) if body.shape is None else 0.0)
    lines = [("q", at.text(q)), ("Σ exp(s − max)", number_text(float(total))), ("o = Σ a v", at.text(output))]
    columns += ["exp(s − max)", "weight a", "v"]
    fields = {"lines": lines, "columns": columns, "rows": rows, "note": note, "error": error, "head": head}
    return at.step(f"head {head}", formula, **fields)


def _feed_forward(at: SlotPass, body: Any) -> Iterator[EquationStep]:
    hidden, y = at.here("activation"), at.here("output")
    if body.spec.kind == "feed_forward":
        first = at.here("pre_activation")
        name = str(body.spec.activation)
        title, formula = f"hidden units, φ = {name}", "h = φ(x W₁ + b₁)"
        lines = [("x W₁ + b₁", at.text(first)), ("h", at.text(hidden))]
        error = difference(body.activation(first), hidden)
    else:
        gate, up = at.here("gate"), at.here("up")
        title, formula = f"gated units, φ = {body.spec.activation}", "h = φ(x W_g) ⊙ (x W_u)"
        lines = [("x W_g", at.text(gate)), ("x W_u", at.text(up)), ("h", at.text(hidden))]
        error = difference(body.multiply(gate, up), hidden)
    active = int((hidden.abs() > 1e-6).sum())
    note = f"{active} of {hidden.numel()} units are not 0"
    yield at.step(title, formula, lines=lines, note=note, error=error)
    plain = at.slot.factor == 1 and getattr(body, "norm", None) is None
    error = difference(at_least_single(body.down(hidden.to(_dtype(body)))), y) if plain else 0.0
    bias = " + b₂" if body.down.bias is not None else ""
    yield at.step("back to the width", f"y = h W₂{bias}", lines=[("y", at.text(y))], error=error)


def _residual(at: SlotPass, after: Norm | None) -> EquationStep:
    """Return the equation of the sum. after: norm of the output of the branch, or of the sum."""
    x, y, result = (at.here(point) for point in ("residual_before", "output", "residual_after"))
    formula = "x ← x + y"
    added = y
    if after is not None:
        order = at.slot.__class__.__name__
        formula = "x ← norm(x + y)" if order == "PostNorm" else "x ← x + norm(y)"
        inner = x + y if order == "PostNorm" else y
        added = at_least_single(after(inner[None, None].to(_dtype(after)), at.context)[0, 0])
        error = difference(added if order == "PostNorm" else x + added, result)
    else:
        error = difference(at.slot.residual(x[None, None], added[None, None])[0, 0], result)
    lines = [("x", at.text(x)), ("y", at.text(y)), ("x + y" if after is None else "result", at.text(result))]
    return at.step("residual", formula, lines=lines, error=error)
