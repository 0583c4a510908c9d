"""Count FLOPs, saved bytes and live memory while a model runs on tensors without values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from qkv.costs.counting import blank
from qkv.costs.counting.flops import flops, gradients
from qkv.costs.counting.memory import LiveBytes
from qkv.ops.selection.counting import Unseen, observed


@dataclass
class Tally:
    """Counted operations and bytes of one part; see ``Share``."""

    flops: int = 0
    backward: int = 0
    attended: int = 0
    masked: int = 0
    skipped: int = 0
    ending: int = 0
    saved: int = 0
    scores: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Segment:
    """Memory use of the run between two calls of ``Counter.mark``.

    rise: peak of live bytes minus live bytes at its start; change: live bytes at its end minus live bytes at its start.
    """

    label: Hashable
    rise: int
    change: int


class Counter(LiveBytes):
    """Dispatch mode that runs every operator without values, and counts it for the innermost module that is being
    computed.

    tallies: counts by part.   segments: live memory over time, between the calls of ``mark``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tallies: defaultdict[Any, Tally] = defaultdict(Tally)
        self.segments: list[Segment] = []
        self.declared: list[tuple[Tally, int, int, Unseen]] = []
        self._scopes: list[Hashable] = []
        self._kept: dict[int, Tally | None] = {}
        self._since: defaultdict[Hashable, int] = defaultdict(int)
        self._inside = self._executed = self._returned = 0
        self._began = 0
        self.backward = False
        self._entered = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes a second

    def __enter__(self) -> Self:
        self._entered.enter_context(observed(self._declare))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered.__exit__(*error)
        if error[0] is None:
            self._evaluate()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = blank.run(func, args, kwargs or {})
        if not self.backward and self._scopes:
            tally, done = self.tallies[self._scopes[-1]], flops(func, args, kwargs or {}, out)
            tally.calls += 1
            tally.flops += done
            self._executed += done
            if done:
                back = done * self._gradients(func, args)
                tally.backward += back
                self._returned += back
            self._since[self._scopes[-1]] += done
        return self._met(out)

    def _gradients(self, func: Any, args: Any) -> int:
        """Return the number of gradients that the backward pass computes for a product.

        Without autograd it is 0, but 2 inside a declared operation, which implements its own backward pass.
        """
        return gradients(func, args) if torch.is_grad_enabled() else 2 * self._inside

    def _storage(self, tensor: Tensor) -> torch.UntypedStorage:
        return _storage(tensor)

    def _freed(self, key: int, size: int) -> None:
        tally = self._kept.pop(key, None)
        if tally is not None and not self.backward:  # freed before the backward pass, as in a loss computed in chunks
            tally.saved -= size

    def watch(self, module: nn.Module, key: Callable[[], Hashable]) -> None:
        """Count the operators that ``module`` runs under the part ``key()``."""

        def enter(*_: Any) -> None:
            self._scopes.append(key())

        def leave(*_: Any) -> None:
            self._scopes.pop()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)

    def mark(self, label: Hashable) -> None:
        """End a segment and start the next. ``label``: label of the segment that ends."""
        self.segments.append(Segment(label, self.peak - self._began, self.now - self._began))
        self._began = self.peak = self.now

    def start(self, parameters: Iterator[Tensor]) -> None:
        """Reset all counts. ``parameters``: weights, which do not count as activations saved for the backward pass."""
        self.tallies.clear()
        self.segments.clear()
        self.declared.clear()
        self._since.clear()
        self._kept = {_storage(tensor)._cdata: None for tensor in parameters}
        self.backward, self._began, self.peak = False, self.now, self.now

    @contextmanager
    def saving(self, outside: Hashable) -> Iterator[None]:
        """Return a context manager that counts the bytes autograd saves, once per storage, for the first part that
        saves it.

        outside: part that is charged when no watched module runs.
        """

        def pack(tensor: Tensor) -> Tensor:
            if self.backward:
                return tensor
            self._since.clear()
            storage = _storage(tensor)
            if storage._cdata not in self._kept:
                tally = self._kept[storage._cdata] = self.tallies[self._scopes[-1] if self._scopes else outside]
                tally.saved += storage.nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def end_block(self) -> None:
        """Count the FLOPs since autograd last saved a tensor as ``ending``: recomputation can omit them."""
        for key, done in self._since.items():
            self.tallies[key].ending += done
        self._since.clear()

    def _declare(self, operation: Callable[[], Any], scores: Unseen) -> Any:
        if self.backward or self._inside or not self._scopes:
            return operation()
        before, self._inside = (self._executed, self._returned), 1
        try:
            return operation()
        finally:
            self._inside = 0
            done, back = self._executed - before[0], self._returned - before[1]
            self.declared.append((self.tallies[self._scopes[-1]], done, back, scores))

    def _evaluate(self) -> None:
        """Add the declared attention scores to their parts. Called outside the mode, because masks are evaluated with
        values.
        """
        for tally, executed, returned, count in self.declared:
            full = executed if count.full is None else max(count.full, executed)
            tally.calls += count.calls
            tally.flops += full - executed
            tally.backward += round((full - executed) * (returned / executed if executed else 2))
            tally.skipped += full - executed
            tally.attended += full if count.stored else 0
            tally.masked += count.hidden(executed)
            tally.scores = max(tally.scores, count.stored)
        self.declared.clear()


class BackwardHook(torch.autograd.Function):
    """Identity function that calls ``reached`` when the backward pass arrives there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reached: Callable[[], None]) -> Tensor:
        """Return a view of x."""
        ctx.reached = reached
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        """Call ``reached``, and return the gradient unchanged."""
        ctx.reached()
        return grads[0], None


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return (tensor.body if isinstance(tensor, blank.Blank) else tensor).untyped_storage()
