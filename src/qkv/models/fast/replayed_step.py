"""Decoding of one position per row as a CUDA graph: kernels are recorded once and then launched together.

    x, positions ── copied to ── x (B, 1, D), positions (B, 1) ─ blocks ─ norm ─ y (B, 1, D)
                                         keys and values of the state, all slots

A graph repeats its kernels with the same addresses and shapes. The step therefore reads positions from a tensor, writes
keys and values to the slots of these positions, and attends to all slots under a mask computed from positions
(``qkv.state.slots``). The recording runs the ordinary forward passes of the blocks; a stack is recorded if all its
branches are ``replayable``. Counts of positions stay on the host, outside the graph. The resulting state equals that of
calls of the blocks. ``QKV_WITHOUT=graphs`` turns recording off.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.models.fast.fingerprint import Fingerprint, observed
from qkv.state.arrival import Arrival
from qkv.state.slots import DeviceArrival, Slots
from qkv.state.store import Dense
from qkv.state.tree import stores
from qkv.system.optional import turned_off


class Recorded(Protocol):
    """Recorded kernels of a function without arguments; ``replay`` runs them on the data now at the same addresses."""

    def replay(self) -> Tensor:
        """Run the kernels; return the output of the function, at the same address each time."""
        ...


class CudaGraph:
    """CUDA graph of the function ``run`` on ``device``.

    ``run`` is called twice: the first call performs the set-up that kernels need once, the second is recorded.
    """

    def __init__(self, run: Callable[[], Tensor], device: torch.device):
        self._graph = torch.cuda.CUDAGraph()
        now, aside = torch.cuda.current_stream(device), _stream(device)
        with torch.cuda.stream(now):  # restores the current stream, even if recording fails
            aside.wait_stream(now)
            with torch.cuda.stream(aside):
                run()
            with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
                self._output = run()

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._output


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are recorded: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream(device)


RECORDERS: dict[str, Callable[[Callable[[], Tensor], torch.device], Recorded]] = {"cuda": CudaGraph}
"""Classes that record a function on a device, by device type."""


class StepInputs:
    """Input tensors of a recorded step, at fixed addresses, and constants that survive from one replay to the next.

    x (B, 1, D): vectors with the shape, dtype and device of the input.
    """

    def __init__(self, x: Tensor):
        with torch.inference_mode(mode=False):  # so that steps outside inference mode may write to them too
            self.x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            self.positions = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        self.constants: dict[Hashable, Any] = {}

    def set(self, x: Tensor, positions: Tensor) -> None:
        """Copy x (B, 1, D) and positions (B or 1, 1) to the input tensors."""
        self.x.copy_(x)
        self.positions.copy_(positions)


def fixed_step(stack: Any, inputs: StepInputs, state: Sequence[Sequence[Any]]) -> Callable[[], Tensor]:
    """Return a function without arguments that computes blocks and norm of ``stack`` on ``inputs``: (B, 1, D).

    The function writes keys and values to ``state``, whose stores are dense. Repeated calls with equal inputs leave the
    state as the first call did.
    """
    fixed = [[Slots(s.keys, s.values) if isinstance(s, Dense) else s for s in branches] for branches in state]

    def run() -> Tensor:
        y, place = inputs.x, DeviceArrival(inputs.positions)
        context = Context(inputs.positions, arrival=place, constants=inputs.constants)
        for after, _ in stack.through(y, context, fixed):
            y = after
        return stack.norm(y, context)

    return run


class ReplayedStep:
    """Decoding step of a stack: recorded in the second successive call on stores at the same addresses, then replayed.

    Stores get new addresses when rows join, leave or move, and when the stores grow. The first step on new stores calls
    the blocks, because recording runs the code of a step twice. A recording holds no reference to the stores, and is
    valid for any stores at the same addresses. Each thread has recordings of its own, because the memory of a recording
    serves one step at a time.
    """

    def __init__(self, stack: Any):
        self._parts = _parts(stack)
        self.fingerprint = Fingerprint([module for part in self._parts for module in part.modules()])
        self._before: Hashable = None
        self._recorded: tuple[Hashable, StepInputs, Recorded] | None = None
        self._failed = False

    def current(self, stack: Any) -> bool:
        """Return True if ``stack`` still has the modules and tensors that it had when this object was made."""
        return self._parts == _parts(stack) and self.fingerprint.current()

    def prepare(self, stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> bool:
        """Grow the stores of ``state`` for the new position, and record the step in the second successive call on them.

        Return True if a recording for these stores exists.
        """
        if self._failed:
            return False
        assert context.arrival is not None
        place, before = _place(x, context.arrival, state), self._before
        self._before = place
        if self._recorded is not None and self._recorded[0] == place:
            return True
        if place is None or place != before:
            return False
        self._record(place, stack, x, context, state)
        return not self._failed

    def _record(self, place: Hashable, stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> None:
        self._recorded = None  # frees the memory of the previous recording
        inputs = StepInputs(x)
        inputs.set(x, context.positions)
        try:
            self._recorded = place, inputs, RECORDERS[x.device.type](fixed_step(stack, inputs, state), x.device)
        except RuntimeError as error:
            self._failed = True
            warnings.warn(
                f"decoding steps cannot be recorded on {x.device} and run part by part, which is slower "
                f"(QKV_WITHOUT=graphs skips the recording): {error}",
                stacklevel=2,
            )

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        """Replay the recording that ``prepare`` has selected; return the vectors (B, 1, D) after blocks and norm.

        x (B, 1, D): input of the blocks.
        """
        assert self._recorded is not None
        _, inputs, recorded = self._recorded
        inputs.set(x, context.positions)
        return recorded.replay().clone()


def _parts(stack: Any) -> list[nn.Module]:
    average = stack.depth_average
    return [*stack.walked, stack.norm, *([] if average is None else [average])]


def _place(x: Tensor, arrival: Arrival, state: Sequence[Any]) -> Hashable:
    """Grow all stores for a step; return its shapes and addresses, or None if a store is not dense."""
    row_stores = list(stores(state))
    if any(type(store) is not Dense for store in row_stores):
        return None
    rooms = [t for store in row_stores for t in store.room(arrival.end)]  # type: ignore[attr-defined]
    return x.shape, x.dtype, x.device, *((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in rooms)


class _Made(threading.local):
    def __init__(self) -> None:
        self.steps: WeakKeyDictionary[nn.Module, ReplayedStep | None] = WeakKeyDictionary()


_made = _Made()


def replayed_step(stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> ReplayedStep | None:
    """Return the recorded step of ``stack`` for new positions x (B, N, D); None if the blocks must be called instead.

    stack: module of blocks in sequence.
    """
    kind, one = x.device.type, x.shape[1] == 1 and context.lengths is None
    if kind not in RECORDERS or not one or context.tap is not None or stack.training or _off() or observed(kind):
        return None
    step = _made.steps.get(stack)
    if stack not in _made.steps or (step is not None and not step.current(stack)):
        step = _made.steps[stack] = ReplayedStep(stack) if _replayable(stack) else None
    if step is None or step.fingerprint.heard() or not step.prepare(stack, x, context, state):
        return None
    return step


def _replayable(stack: Any) -> bool:
    replayable = all(branch.replayable for branch in stack.branches)
    return replayable and not any(module.training for part in _parts(stack) for module in part.modules())


def _off() -> bool:
    return bool(turned_off("graphs"))
