"""Checks of every registered branch on rows that ranks share against whole rows, for ``context_process``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, WIDTH, describe
from tests.contracts.subjects import scrambled
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import MEMORY, Context, Memory
from qkv.mixers.attention.attention import KeyValueBranch
from qkv.mixers.registry import build_branch
from qkv.parallel.context.layout import RankLayout
from qkv.parallel.context.ranks import Ranks
from qkv.parallel.context.relay import Relay
from qkv.parallel.context.ring import RingAttention
from qkv.parallel.context.ways import way_of
from qkv.spec.branches import Branch as BranchSpec

LENGTH, ROWS = 24, 2
FORMS = ("plain", "padded", "packed")


def built(part: BranchSpec) -> Branch:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return scrambled(build_branch(part, WIDTH), torch.float64)


def parts() -> Iterator[tuple[BranchSpec, tuple[str, ...]]]:
    """The first sample of each kind in all forms of rows, and some of the others in one form each."""
    others = list(BIDIRECTIONAL)
    for first, *more in SAMPLES.values():
        yield first, FORMS if first.mixes else FORMS[:1]
        others += more
    for number, part in enumerate(others[::6]):
        yield part, FORMS[number % 3 : number % 3 + 1]


def context(form: str, index: Tensor) -> Context:
    """Context of the positions ``index`` of rows in one of ``FORMS``."""
    steps = torch.arange(LENGTH)
    memory = torch.randn(ROWS, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    memories = {MEMORY: Memory((memory,), torch.full((ROWS,), 3))}
    if form == "plain":
        return Context(steps[None, index], memories=memories)
    if form == "padded":
        lengths = torch.tensor([LENGTH - 5, 7])
        return Context(steps[None, index], (index < lengths[:, None]).sum(1), memories=memories)
    borders = torch.tensor([[0, 3, 4, 17], [0, 12, 13, 20]])
    segments = (steps[None, :, None] >= borders[:, None]).sum(-1)
    places = steps - borders.gather(1, segments - 1)
    return Context(places[:, index], segments=segments[:, index], memories=memories)


def results(branch: Branch, x: Tensor, inside: Context, seen: Tensor, relay: Relay | None) -> list[Tensor]:
    """Output, and gradients of the input and of the weights."""
    x = x.clone().requires_grad_()
    y = branch(x, inside)[0] if relay is None else relay(branch, x, inside)
    if inside.valid is not None:
        y = y * inside.valid[..., None]
    leaves = [p for p in branch.parameters() if p.requires_grad]
    grads = torch.autograd.grad((y * seen).sum(), (x, *leaves), allow_unused=True, materialize_grads=True)
    return [y.detach(), *grads]


def farthest(part: BranchSpec, form: str, ranks: Ranks) -> float:
    """Largest difference of outputs and gradients of parts of rows to those of whole rows, relative to the largest."""
    generator = torch.Generator().manual_seed(1)
    x, seen = (torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2))
    expected = results(built(part), x, context(form, torch.arange(LENGTH)), seen, None)
    layout, branch = RankLayout(ranks.size), built(part)
    index = layout.positions(ranks.rank, LENGTH // ranks.size)
    way = way_of(branch).name
    if way == "keys":
        assert isinstance(branch, KeyValueBranch)
        branch.elsewhere = RingAttention(ranks, layout)
    relay = Relay(ranks, layout) if way == "state" else None
    got = results(branch, x[:, index], context(form, index), seen[:, index], relay)
    ranks.add_up(got[2:])
    pairs = [(a, b[:, index] if i < 2 else b) for i, (a, b) in enumerate(zip(got, expected, strict=True))]
    return max(float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in pairs if a.numel())


def mixer_checks(ranks: Ranks, share: slice) -> dict[str, float]:
    """Largest differences by "kind, form, spec" of the branches that claim to compute rows that ranks share."""
    claimed = [(part, forms) for part, forms in parts() if way_of(built(part)).name]
    return {
        f"{part.kind}, {form}, {describe(part)}": farthest(part, form, ranks)
        for part, forms in claimed[share]
        for form in forms
    }
