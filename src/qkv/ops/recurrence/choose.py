"""Selection of the implementation of recurrent cells: torch's kernels in the faster precision, or the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops.recurrence import reference, sizes, torch_loop, widened
from qkv.ops.recurrence.reference import Memory, Weights
from qkv.ops.selection.choices import Choice, choose, fastest
from qkv.ops.selection.counting import Unseen, declares

TWINS: dict[str, Callable[..., tuple[Tensor, Memory]]] = {"torch": torch_loop.recur, "torch, fp32": widened.recur}
_ROWS, _POSITIONS, _WIDTH = 8, 16, 128
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


# Overhead per position, as the number of operator calls from Python that take as long: torch's loop over positions is
# in C++, and the LSTM on the CPU is one operator.
_CALLS = {"rnn": 3, "gru": 8, "lstm": 1}


@declares(lambda cell, x, *arguments: Unseen(calls=_CALLS[cell] * x.shape[1]))
def recur(
    cell: str, x: Tensor, state: Memory, weights: Weights, starts: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """Run a recurrent cell; return (h at all positions, (B, N, E), state after each row's last unpadded position).

    See ``reference`` for shapes and equations.
    """
    if x.shape[1] == 0 or x.shape[0] == 0:
        return reference.recur(cell, x, state, weights)
    if x.is_meta and x.device.type == "cpu":  # a meta tensor has no values; a loop over positions would take long
        return sizes.recur(cell, x, state, weights)
    if starts is not None:
        reason = "the hidden state is reset at each document"
        choose(cell, "packed documents", lambda: Choice(cell, "packed documents", "reference", reason))
        return reference.recur(cell, x, state, weights, starts, lengths)
    autocast = torch.is_autocast_enabled("cpu")
    if x.device.type == "cpu" and (autocast or x.dtype in (torch.bfloat16, torch.float16)):
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        return TWINS[_lowered(cell, dtype, autocast).twin](cell, x, state, weights, lengths)
    choose(cell, "sequence", lambda: Choice(cell, "sequence", "torch", "the loop over positions runs in C++"))
    return torch_loop.recur(cell, x, state, weights, lengths)


def _lowered(cell: str, dtype: torch.dtype, autocast: bool) -> Choice:
    """Return the implementation for inputs of ``dtype`` below fp32; it is timed once.

    Torch's kernels support these precisions on some processors only, and are not always faster.
    """
    training = torch.is_grad_enabled()
    precision = f"{'autocast to ' * autocast}{str(dtype).removeprefix('torch.')}"
    case = f"{'training' if training else 'inference'}, {precision}"

    def decide() -> Choice:
        runs = {name: _run(twin, cell, dtype, autocast, training) for name, twin in TWINS.items()}
        direction = "forward and backward" if training else "forward"
        return fastest(cell, case, "torch", runs, f"{direction}, {_ROWS} rows of {_POSITIONS} × {_WIDTH}")

    return choose(cell, case, decide, TWINS)


def _run(
    twin: Callable[..., tuple[Tensor, Memory]], cell: str, dtype: torch.dtype, autocast: bool, training: bool
) -> Callable[[], object]:
    kind, sizes = torch.float32 if autocast else dtype, (_GATES[cell] * _WIDTH, _WIDTH)
    # As in a model: under autocast the input of a cell is the fp32 output of a norm.
    x = torch.ones(_ROWS, _POSITIONS, _WIDTH, dtype=kind, requires_grad=training)
    weights = [
        torch.full(size, 1 / _WIDTH, dtype=kind, requires_grad=training)
        for size in (sizes, sizes, sizes[:1], sizes[:1])
    ]
    state = tuple(torch.zeros(_ROWS, _WIDTH, dtype=kind) for _ in range(2 if cell == "lstm" else 1))

    def run() -> None:
        with torch.set_grad_enabled(training):
            with torch.autocast("cpu", dtype, enabled=autocast):
                hs, _ = twin(cell, x, state, weights)
            if training:
                torch.autograd.grad(hs, (x, *weights), hs.detach())

    return run
