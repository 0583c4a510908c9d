"""The contract that every mixer, and every stack of them, must keep.

Each check raises AssertionError where it is broken. Cut a sequence anywhere and pass the state along: outputs and final
state are those of one call.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.subjects import OneBranch, Stack, Subject, whole_model
from torch import Tensor

from qkv.state import tree
from qkv.system.errors import UserError

LENGTH = 11
TOLERANCE = 1e-10
STEP = 1e-6
"""Of central differences: their own error falls with its square, and rounding is far below the tolerance in float64."""
GROUPS = 16
"""Number of groups of a stack's weights whose gradients are compared."""

Check = Callable[[Subject], None]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def same(got: Tensor, expected: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)} where {tuple(expected.shape)} is right"
    assert not got.isnan().any(), f"{what}: NaN"
    if got.numel():
        worst, size = float((got.double() - expected.double()).abs().max()), float(expected.abs().max())
        assert worst <= tolerance * max(1.0, size), f"{what}: off by {worst:.1e}"


def same_state(got: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Equal leaf by leaf; where one has more room than the other, the rest of it is still empty."""
    pairs = zip(tree.tensors(got), tree.tensors(expected), strict=True)
    for number, (a, b) in enumerate(pairs):
        assert a.dtype == b.dtype, f"leaf {number} of the state: {a.dtype} where {b.dtype} is right"
        shape = [max(x, y) for x, y in zip(a.shape, b.shape, strict=True)]
        same(enlarged(a, shape), enlarged(b, shape), f"leaf {number} of the state", tolerance)


def enlarged(t: Tensor, shape: Sequence[int]) -> Tensor:
    room = t.new_zeros(shape)
    room[tuple(slice(size) for size in t.shape)] = t
    return room


def cuts(seed: int, length: int = LENGTH) -> list[int]:
    """Sizes of pieces, zeros and ones among them, that add up to ``length``."""
    chance, sizes = random.Random(seed), []
    while sum(sizes) < length:
        sizes.append(min(chance.choice([0, 1, 1, 2, 3, 5]), length - sum(sizes)))
    return [*sizes, 0]


def fed(s: Subject, x: Tensor, sizes: Iterable[int], state: Any) -> tuple[Tensor, Any]:
    """All outputs and the last state of ``x`` in pieces."""
    outs, first = [], 0
    for size in sizes:
        y, state = s.call(x[:, first : first + size], state)
        outs.append(y)
        first += size
    return torch.cat(outs, 1), state


@check("cut anywhere")
@torch.no_grad()
def check_cuts(s: Subject) -> None:
    for batch, pieces in ((1, ([1] * LENGTH, cuts(0))), (3, ([4, 7], cuts(1), cuts(2)))):
        x = s.inputs(batch, LENGTH, seed=batch)
        short = x[:, : s.exact_length]
        same(s.call(short, s.start(batch))[0], s.whole(short), "one call with a state, against reading at once")
        expected = s.decoded(x)
        once, final = s.call(x, s.start(batch))
        same(once, expected, "one call with a state")
        for sizes in pieces:
            y, state = fed(s, x, sizes, s.start(batch))
            same(y, expected, f"cut into {sizes}")
            same_state(state, final)


@check("exactness")
@torch.no_grad()
def check_exactness(s: Subject) -> None:
    """Rows longer than what decodes exactly do differ: the part's own statement is neither too much nor too little."""
    if s.exact_length is None or s.exact_length > LENGTH:
        return
    x = s.inputs(3, 2 * LENGTH)
    assert (s.whole(x) - s.decoded(x)).abs().max() > 1e-6, f"rows longer than {s.exact_length} are decoded exactly"


@check("zero positions")
@torch.no_grad()
def check_zero_positions(s: Subject) -> None:
    x = s.inputs(2, 5)
    assert s.whole(x[:, :0]).shape[:2] == (2, 0)
    y, fresh = s.call(x[:, :0], s.start(2))
    assert y.shape[:2] == (2, 0)
    same_state(fresh, s.start(2))
    _, state = s.call(x, fresh)
    before = tree.map_tensors(Tensor.clone, state)
    _, after = s.call(x[:, :0], state)
    same_state(after, before)
    _, after = s.call(x, after, torch.zeros(2, dtype=torch.long))
    same_state(after, before)


@check("ragged rows")
@torch.no_grad()
def check_ragged(s: Subject) -> None:
    """Rows of different lengths in pieces of different lengths, junk in the padding, against each row alone."""
    totals, widths = [LENGTH, 0, 4, 7], [5, 1, 3, 6]
    x, junk = s.inputs(4, LENGTH), s.inputs(4, max(widths), seed=9)
    junk = junk * 50 if junk.is_floating_point() else junk
    taken, outs, state = [0] * 4, [[] for _ in totals], s.start(4)
    for width in widths:
        came = [min(width, total - done) for total, done in zip(totals, taken, strict=True)]
        piece = junk[:, :width].clone()
        for row, count in enumerate(came):
            piece[row, :count] = x[row, taken[row] : taken[row] + count]
        y, state = s.call(piece, state, torch.tensor(came))
        for row, count in enumerate(came):
            outs[row].append(y[row, :count])
            taken[row] += count
    more = s.inputs(4, 2, seed=5)
    after, grown = s.call(more, tree.map_tensors(Tensor.clone, state))
    for row, total in enumerate(totals):
        own = x[row : row + 1, :total]
        same(torch.cat(outs[row])[None], s.decoded(own), f"row {row}, length {total}")
        _, alone = s.call(own, s.start(1))
        same_state(tree.rows(state, [row]), alone)
        y, alone = s.call(more[row : row + 1], alone)
        same(after[row : row + 1], y, f"what follows row {row}")
        same_state(tree.rows(grown, [row]), alone)


@check("rows: reorder, drop, fork")
@torch.no_grad()
def check_rows(s: Subject) -> None:
    x, later = s.inputs(3, 6), s.inputs(5, 4, seed=1)
    _, origin = s.call(x, s.start(3))
    for index in ([2, 0, 1], [1], [2, 0, 0, 1, 2], [0, 1, 2]):
        branch = tree.rows(origin, index)
        y, final = s.call(later[: len(index)], branch)
        joined = torch.cat((x[index], later[: len(index)]), 1)
        same(y, s.decoded(joined)[:, 6:], f"rows {index}")
        same_state(final, s.call(joined, s.start(len(index)))[1])
    # Whatever was done to the copies, the original goes on as if nothing had happened.
    y, _ = s.call(later[:3], origin)
    same(y, s.decoded(torch.cat((x, later[:3]), 1))[:, 6:], "the original after its forks")


@check("join")
@torch.no_grad()
def check_join(s: Subject) -> None:
    """Two batches of different lengths and capacities go on as one, as each does alone."""
    first, second, later = s.inputs(2, 9), s.inputs(3, 20, seed=1), s.inputs(5, 5, seed=2)
    expected = [
        s.decoded(torch.cat((x, more), 1))[:, x.shape[1] :] for x, more in ((first, later[:2]), (second, later[2:]))
    ]
    for capacities in ((None, None), (20, None), (16, 70)):
        states = [
            s.call(x, s.start(len(x), capacity))[1] for x, capacity in zip((first, second), capacities, strict=True)
        ]
        together = tree.join(*states)
        y, state = fed(s, later, [1, 3, 1], together)
        same(y, torch.cat(expected), f"two batches joined, capacities {capacities}")
        _, alone = s.call(later[2:], states[1])
        same_state(tree.rows(state, [2, 3, 4]), alone)


@check("rewind")
@torch.no_grad()
def check_rewind(s: Subject) -> None:
    x, other = s.inputs(3, 6), s.inputs(3, 4, seed=1)
    back = torch.tensor([6, 0, 3])
    _, state = s.call(x, s.start(3))
    if not s.rewindable:
        if isinstance(s, Stack):
            with pytest.raises(UserError, match="cannot be truncated"):
                s.rewind(state, back)
        return
    y, _ = s.call(other, s.rewind(state, back))
    for row, length in enumerate(back.tolist()):
        own = torch.cat((x[row : row + 1, :length], other[row : row + 1]), 1)
        same(y[row : row + 1], s.decoded(own)[:, length:], f"row {row} after going back to {length}")


def with_room(s: Subject, state: Any, other: Any) -> list[Tensor]:
    """The leaves whose size follows the capacity."""
    pairs = zip(tree.tensors(s.remembered(state)), tree.tensors(s.remembered(other)), strict=True)
    return [a for a, b in pairs if a.shape != b.shape]


@check("fixed capacity")
@torch.no_grad()
def check_fixed_capacity(s: Subject) -> None:
    """The buffers stay where they are, step for step, and one position too many is an error."""
    x = s.inputs(2, LENGTH + 1)
    state, roomier = s.start(2, LENGTH), s.start(2, 3 * LENGTH)
    places = [t.data_ptr() for t in with_room(s, state, roomier)]
    outs = []
    for i in range(LENGTH):
        y, state = s.call(x[:, i : i + 1], state)
        outs.append(y)
        assert [t.data_ptr() for t in with_room(s, state, roomier)] == places, f"a buffer moved at position {i}"
    same(torch.cat(outs, 1), s.decoded(x[:, :LENGTH]), "fixed capacity")
    if isinstance(s, Stack):
        room = LENGTH + s.before
        with pytest.raises(UserError, match=f"holds {room} positions and {room + 1} are needed"):
            s.call(x[:, LENGTH:], state)


@check("growth by doubling")
@torch.no_grad()
def check_growth(s: Subject) -> None:
    sizes = [50, *[4] * 3, *[1] * 4, *[7] * 8, 5, *[1] * 4, 7]  # one by one past each power of two
    length = sum(sizes)
    x, state, done = s.inputs(1, length), s.start(1), 0
    outs, places = [], set()
    for size in sizes:
        y, state = s.call(x[:, done : done + size], state)
        outs.append(y)
        done += size
        places.add(tuple(t.data_ptr() for t in with_room(s, state, s.start(1, 1000))))
    same(torch.cat(outs, 1), s.decoded(x), "growing")
    assert len(places) <= 3, f"the buffers moved {len(places) - 1} times in {len(sizes)} steps"
    kept, needed = tree.nbytes(s.remembered(state)), s.state_bytes(length, 1)
    assert kept <= 2 * needed, f"{kept} bytes are kept where {needed} are needed"
    check_ragged_growth(s, s.inputs(2, 80))


def check_ragged_growth(s: Subject, x: Tensor) -> None:
    """A short row beside one for which the buffers grow: what nobody wrote there must not be read."""
    lengths = torch.tensor([3, 70])
    _, state = s.call(x[:, :70], s.start(2), lengths)
    y, _ = s.call(x[:, 70:], state)
    for row, length in enumerate(lengths.tolist()):
        own = torch.cat((x[row : row + 1, :length], x[row : row + 1, 70:]), 1)
        same(y[row : row + 1], s.decoded(own)[:, length:], f"row of length {length} in buffers that grew to 70")


@check("state bytes")
@torch.no_grad()
def check_state_bytes(s: Subject) -> None:
    for length, batch in ((1, 2), (LENGTH, 1), (40, 3)):
        _, state = s.call(s.inputs(batch, length), s.start(batch, length))
        assert all(t.shape[0] == batch for t in tree.tensors(state)), "a leaf of the state has no batch axis in front"
        leaves = list(tree.tensors(s.remembered(state)))
        real = sum(t.numel() * t.element_size() for t in leaves)
        assert tree.nbytes(s.remembered(state)) == real
        said = s.state_bytes(length, batch)
        assert said == real, f"state_bytes({length}, batch={batch}) says {said}, the state has {real}"
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in leaves if t.numel()}
        assert sum(storages.values()) <= real, "the state is a view that keeps something larger alive"


@check("causality")
@torch.no_grad()
def check_causality(s: Subject) -> None:
    length = LENGTH if s.exact_length is None else min(LENGTH, s.exact_length)
    if not length:  # a prefix that is longer than a chunk
        return
    x, other = s.inputs(2, length), s.inputs(2, length, seed=1)
    if not x.is_floating_point():
        other = (x + 1) % int(x.max() + 1)
    y = s.whole(x)
    for t in range(length):
        changed = x.clone()
        changed[:, t] = other[:, t]
        z = s.whole(changed)
        same(z[:, :t], y[:, :t], f"outputs before the changed position {t}")
        alone = t in s.apart or not s.reads_input
        assert alone or (z[:, t] - y[:, t]).abs().max() > 1e-6, f"the output at {t} does not depend on the input at {t}"


def gradients(s: Subject, y: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Every leaf must be used, but for an input that says nothing: its gradient is 0."""
    return torch.autograd.grad(y, leaves, allow_unused=not s.reads_input, materialize_grads=not s.reads_input)


@check("padding")
def check_padding(s: Subject) -> None:
    """Rows padded on the right have the outputs of rows alone, and no gradient reaches the padding."""
    lengths = torch.tensor([LENGTH, 3, 0, 6])
    x = s.inputs(4, LENGTH)
    if x.is_floating_point():
        x.requires_grad_()
    y = s.whole(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        same(
            y[row : row + 1, :length].detach(),
            s.whole(x[row : row + 1, :length]).detach(),
            f"row {row}, length {length}",
        )
    if x.is_floating_point():
        real = torch.arange(LENGTH) < lengths[:, None]
        (grad,) = gradients(s, (y[real] ** 2).sum(), [x])
        same(grad[~real], torch.zeros_like(grad[~real]), "gradient at the padding")


@check("packed documents")
@torch.no_grad()
def check_packed(s: Subject) -> None:
    lengths = [(4, 1, 6), (2, 8, 1)]
    x = s.inputs(2, LENGTH)
    segments = torch.tensor([[number for number, n in enumerate(row) for _ in range(n)] for row in lengths])
    y = s.whole(x, segments=segments)
    for row, documents in enumerate(lengths):
        first = 0
        for n in documents:
            part = slice(first, first + n)
            same(y[row : row + 1, part], s.whole(x[row : row + 1, part]), f"row {row}, document at {part}")
            first += n


@check("gradients")
def check_gradients(s: Subject) -> None:
    """Along random directions of inputs and weights, against central differences in float64."""
    x = s.inputs(2, 6)
    leaves = [p for p in s.module.parameters() if p.requires_grad]
    if x.is_floating_point():
        leaves.append(x.requires_grad_())
    generator = torch.Generator().manual_seed(3)
    seen = torch.randn(s.whole(x).shape, dtype=torch.float64, generator=generator)
    grads = gradients(s, (s.whole(x) * seen).sum(), leaves)
    # A branch leaf by leaf; of a stack, whose branches are checked so by themselves, several leaves together.
    groups = len(leaves) if isinstance(s, OneBranch) else min(len(leaves), GROUPS)
    directions = [torch.randn(leaf.shape, dtype=torch.float64, generator=generator) for leaf in leaves]
    before = [leaf.detach().clone() for leaf in leaves]
    for first in range(groups):
        moved = list(zip(leaves[first::groups], directions[first::groups], strict=True))
        values = []
        for sign in (1, -1):
            for leaf, direction in moved:
                leaf.data += sign * STEP * direction
            with torch.no_grad():
                values.append(float((s.whole(x) * seen).sum()))
            for leaf, weights in zip(leaves[first::groups], before[first::groups], strict=True):
                leaf.data.copy_(weights)
        slopes = zip(grads[first::groups], directions[first::groups], strict=True)
        slope, expected = sum(float((g * d).sum()) for g, d in slopes), (values[0] - values[1]) / (2 * STEP)
        assert abs(slope - expected) <= 1e-5 * (1 + abs(expected)), f"gradient {slope} where differences say {expected}"


@check("save, load, convert")
@torch.no_grad()
def check_save_and_convert(s: Subject) -> None:
    x, later = s.inputs(2, 6), s.inputs(2, 3, seed=1)
    expected = s.decoded(torch.cat((x, later), 1))[:, 6:]
    _, state = s.call(x, s.start(2))
    with tempfile.TemporaryDirectory() as folder:
        tree.save(state, Path(folder) / "state.safetensors")
        loaded = tree.load(s.start(2), Path(folder) / "state.safetensors")
    same_state(loaded, state, tolerance=0.0)
    same(s.call(later, loaded)[0], expected, "after saving and loading")
    single = tree.to(state, dtype=torch.float32)
    assert {t.dtype for t in tree.tensors(single)} <= {torch.float32, torch.long}
    double = tree.to(single, dtype=torch.float64)
    same_state(double, state, tolerance=1e-5)
    same(s.call(later, double)[0], expected, "through float32", tolerance=1e-3)


def subject_like(s: Subject, dtype: torch.dtype) -> Subject:
    return OneBranch(s.part, dtype) if isinstance(s, OneBranch) else whole_model(s.module.spec, dtype)  # type: ignore[arg-type]


@check("equation")
@torch.no_grad()
def check_equation(s: Subject) -> None:
    """The same numbers as loops over single positions."""
    x = s.inputs(2, 8)
    same(s.whole(x), s.equation(x), "the equation")


@check("long sequences")
@torch.no_grad()
def check_long(s: Subject) -> None:
    """Far past any window, where attention takes other paths."""
    sizes = [600, 1, 1, 498] if s.reads_far else [60, 1, 1, 98]
    x = s.inputs(1, sum(sizes))
    y, _ = fed(s, x, sizes, s.start(1))
    same(y, s.decoded(x), "long")


@check("single precision")
@torch.no_grad()
def check_single_precision(s: Subject) -> None:
    """Prefill and one token at a time in fp32 within 1e-4 of one forward pass."""
    s = subject_like(s, torch.float32)
    x = s.inputs(3, 2 * LENGTH)
    expected = s.decoded(x)
    y, state = fed(s, x, [LENGTH] + [1] * LENGTH, s.start(3))
    same(y, expected, "prefill and steps", tolerance=1e-4)
    assert all(t.dtype == torch.float32 for t in tree.tensors(s.remembered(state)) if t.is_floating_point())


NOT_OF_DECODING = ("padding", "packed documents", "gradients", "equation")
"""What is asked of every branch, also of one that sees later positions."""


def assert_kept(name: str, s: Subject) -> None:
    """Raise AssertionError if ``s`` breaks this part of the contract."""
    if name not in s.unasked:
        CHECKS[name](s)


def failures(s: Subject, names: Iterable[str] = tuple(CHECKS)) -> Iterable[tuple[str, str]]:
    """(check, what it said) of each check that ``s`` fails."""
    for name in names:
        try:
            assert_kept(name, s)
        except (AssertionError, RuntimeError, IndexError, UserError, pytest.fail.Exception) as error:
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
