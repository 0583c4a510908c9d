"""Influence of position s on position t in every branch that mixes positions: one measure for all mixers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Tap, matches
from qkv.lens.views.places import BranchPlace, find_place, list_branches
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.ops.selection.choices import references
from qkv.system.errors import UserError

MOST_EXACT = 4096
"""Number of outputs of a row, N · D, up to which influence is exact by default."""
PROBES = 8
"""Default number of probes above that."""
_TOGETHER = 64
"""Vector–Jacobian products that are computed at once."""


@dataclass(frozen=True, kw_only=True)
class InfluenceMap(BranchPlace):
    """Influence of the inputs of a branch on its outputs, for one execution of it; see ``BranchPlace``.

    norms (B, T, M): J[t, s] = ‖∂ output_t / ∂ input_s‖_F, of the function between the points "input" and "output" of
    the branch; if ``kind`` is "cross", input_s are the vectors of the memory. T: positions whose outputs are measured.
    error (B, T, M): standard error of the estimated norms; 0 if they are exact. probes: number of probes; 0 if exact.
    """

    norms: Tensor
    error: Tensor
    probes: int


class Influence(NamedTuple):
    """Norms (B, T, M) of Jacobian blocks, their standard errors, and the number of probes, 0 if they are exact."""

    norms: Tensor
    error: Tensor
    probes: int


def influence_maps(
    model: Transformer,
    signal: Signal | Tensor,
    source: Signal | Tensor | None = None,
    probes: int | None = None,
    branches: Sequence[str] = ("*",),
    positions: Sequence[int] | None = None,
) -> list[InfluenceMap]:
    """Return ‖∂ y_t / ∂ x_s‖_F of every branch that mixes positions or reads a memory, in the order of computation,
    without dropout.

    probes: P random vectors v ~ N(0, I) for each position t, with which ‖J_ts‖_F² = E ‖J_ts^T v‖² is estimated
    (Hutchinson 1990); the relative standard error of a norm is at most 1 / √(2 P). 0: exact, from all D rows of each
    block; None: exact up to N · D = 4096, else 8 probes. branches: paths of branches, such as "blocks.3.branches.0"
    or "blocks.*.branches.0"; "*" for all. positions: positions t that are measured, by default all.

    Every operation is its reference, in the model's precision. Causal branches have no influence on earlier positions.
    Raises ``UserError`` for negative probes, a position outside the row, or a branch that the model does not have.
    """
    if probes is not None and probes < 0:
        raise UserError(f"the number of probes is {probes}; allowed: at least 1, or 0 for exact influence")
    mixing = [b for _, b in list_branches(model, lambda b: b.spec.mixes or b.spec.reads_memory)]
    paths = [b.path_of("").removesuffix(".") for b in mixing]
    paths = [path for path in paths if any(name == "*" or matches(name, path) for name in branches)]
    if not paths:
        raise UserError(
            f"the model has no branch that mixes positions or reads a memory at {', '.join(branches)}; it has "
            f"{', '.join(str(b.name) for b in mixing) or 'none'}"
        )
    tap = _Leaves(paths)
    with evaluating(model), references(), torch.enable_grad(), _memory_leaves(model) as memories:
        memory = None if source is None else model.encode(source, tap)
        model(signal, memory=memory, tap=tap)
        return [_map(model, location, leaf, output, memories, probes, positions) for location, leaf, output in tap]


class _Leaves(Tap):
    """Tap that cuts the graph before each branch: the input of a branch becomes a leaf, and its output is kept."""

    def __init__(self, paths: Sequence[str]):
        super().__init__(*(f"{path}.{point}" for path in paths for point in ("input", "output")))
        self.leaves: dict[tuple[str, int], Tensor] = {}
        self.outputs: dict[tuple[str, int], Tensor] = {}

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        key = location.module, location.call
        if location.point == "output":
            self.outputs[key] = value
            return None
        self.leaves[key] = value.detach().requires_grad_()
        return self.leaves[key]

    def __iter__(self) -> Iterator[tuple[Location, Tensor, Tensor]]:
        return (
            (Location(call, path, "output"), self.leaves[path, call], y) for (path, call), y in self.outputs.items()
        )


@contextmanager
def _memory_leaves(model: Transformer) -> Iterator[dict[str, tuple[Tensor, ...]]]:
    """Make the vectors of every memory leaves inside; yield them by the stack that computes them."""
    leaves: dict[str, tuple[Tensor, ...]] = {}

    def cut(name: str) -> Callable[[nn.Module, Any, Memory], Memory]:
        def replaced(module: nn.Module, inputs: Any, memory: Memory) -> Memory:
            leaves[name] = tuple(vectors.detach().requires_grad_() for vectors in memory.vectors)
            return Memory(leaves[name], memory.lengths)

        return replaced

    def read(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        leaves["input"] = (inputs[0].detach().requires_grad_(),)
        return (*leaves["input"], *inputs[1:])

    stacks = (("encoder", model.encoder), ("latents", model.latents))
    hooks = [stack.register_forward_hook(cut(name)) for name, stack in stacks if stack is not None]
    hooks += [model.latents.register_forward_pre_hook(read)] if model.latents is not None else []
    try:
        yield leaves
    finally:
        for hook in hooks:
            hook.remove()


def _map(
    model: Transformer,
    location: Location,
    leaf: Tensor,
    output: Tensor,
    memories: dict[str, tuple[Tensor, ...]],
    probes: int | None,
    positions: Sequence[int] | None,
) -> InfluenceMap:
    place = find_place(model, location)
    if place.kind == "cross":
        name = "input" if place.stack == "latents" else "latents" if model.latents is not None else "encoder"
        vectors = memories[name]
        leaf = vectors[place.layer if len(vectors) > 1 else 0]
    return InfluenceMap(**place.place(), **measure(output, leaf, probes, positions)._asdict())


def measure(
    output: Tensor, leaf: Tensor, probes: int | None = None, positions: Sequence[int] | None = None
) -> Influence:
    """Measure ‖∂ output_t / ∂ leaf_s‖_F of an output (B, N, D) computed from a leaf (B, M, E); see
    ``influence_maps``.
    """
    count, width = output.shape[1:]
    wrong = next((t for t in positions or [] if not -count <= t < count), None)
    if wrong is not None:
        raise UserError(f"position {wrong} is outside the row of the branch, which has {count} positions")
    places = range(count) if positions is None else [t % count for t in positions]
    if probes is None:
        probes = 0 if count * width <= MOST_EXACT else PROBES
    generator = torch.Generator(output.device).manual_seed(0)
    rows = torch.eye(width, dtype=output.dtype, device=output.device)
    samples = []
    for position in places:
        vectors = torch.randn(probes, width, generator=generator, dtype=output.dtype, device=output.device)
        samples.append(_squares(output, leaf, position, vectors if probes else rows))
    squares = torch.stack(samples, 2)  # (P or D, B, T, M)
    if not probes:
        norms = squares.sum(0).sqrt()
        return Influence(norms, torch.zeros_like(norms), 0)
    norms = squares.mean(0).sqrt()
    deviation = squares.var(0, correction=0).sqrt() / max(1, probes - 1) ** 0.5
    return Influence(norms, deviation / (2 * norms).clamp(min=torch.finfo(norms.dtype).tiny), probes)


def _squares(output: Tensor, leaf: Tensor, position: int, vectors: Tensor) -> Tensor:
    """Return ‖v^T ∂ output_t / ∂ leaf_s‖² at the position t for vectors v (P, D), as (P, B, M)."""
    squares = []
    for some in vectors.split(_TOGETHER):
        seeds = output.new_zeros(len(some), *output.shape)
        seeds[:, :, position] = some[:, None]
        squares.append(at_least_single(_products(output, leaf, seeds)).square().sum(-1))
    return torch.cat(squares)


def _products(output: Tensor, leaf: Tensor, seeds: Tensor) -> Tensor:
    """Return the vector–Jacobian products (P, B, M, E) of seeds (P, B, N, D)."""
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    if not output.requires_grad:  # the output does not depend on any input
        return leaf.new_zeros(len(seeds), *leaf.shape)
    try:
        (products,) = torch.autograd.grad(output, leaf, seeds, is_grads_batched=True, **options)
    except RuntimeError:  # an operation whose gradient cannot be computed for several vectors at once
        one = [torch.autograd.grad(output, leaf, seed, **options)[0] for seed in seeds]
        products = None if one[0] is None else torch.stack([each for each in one if each is not None])
    return leaf.new_zeros(len(seeds), *leaf.shape) if products is None else products
