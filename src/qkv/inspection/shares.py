"""Cost of single parts, and the register of cost formulas. Imports no torch.

User-defined parts register their own formula:

    @formula(MyBranch)
    def my_branch(part: MyBranch, at: Setting) -> Share:
        return linear(at.width, at.width, True, at)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from qkv.spec.base import Part, Spec, words
from qkv.spec.errors import UserError

FLOAT = 4
"""Bytes per number of weights in training, gradients and the residual stream."""


@dataclass(frozen=True)
class Setting:
    """Arguments of a cost formula: ``batch`` rows of ``length`` positions of ``width`` features.

    item: bytes per number in matrix products, 4 in fp32 and 2 in bf16.
    context_length, vocab_size: of the model, the sizes of its position and token tables.
    shared_input: True if another branch already saves the same input for the backward pass.
    attention, irregular: attention implementations in training, for causal or full attention and for other masks (``qkv why``).
    memory: vectors per row of an encoder's output or another memory.   shared_memory: True if another branch already saves
    them.   memory_width: their features; 0: ``width``.
    shared_tables: tables owned by earlier branches of the stack.
    """

    width: int
    batch: int
    length: int
    context_length: int
    vocab_size: int
    item: int = FLOAT
    shared_input: bool = False
    attention: str = "sdpa"
    irregular: str = "sdpa"
    memory: int = 0
    shared_memory: bool = False
    memory_width: int = 0
    shared_tables: frozenset[Hashable] = frozenset()

    @property
    def tokens(self) -> int:
        """Positions in the batch."""
        return self.batch * self.length

    @property
    def read_width(self) -> int:
        """Features of memory vectors."""
        return self.memory_width or self.width

    @property
    def input(self) -> int:
        """Bytes to save a branch's input."""
        return 0 if self.shared_input else self.tokens * self.width * self.item


@dataclass(frozen=True)
class Share:
    """Cost of a part. Shares are added, except ``working``, of which the maximum counts.

    parameters: number of parameters.   matrices: those in matrices of blocks.
    flops: forward pass over the batch; a product of (m, k) and (k, n) counts 2 m k n, other operations 0.
    attended: part of ``flops`` in attention scores and their products with values.
    masked: part of ``flops`` for masked pairs.   skipped: part of ``masked`` that is not computed.
    ending: part of ``flops`` in the last product, if the backward pass does not need its result.
    step: FLOPs to decode one position per row after ``length`` positions.
    saved: bytes saved for the backward pass.   working: temporary bytes in the backward pass.
    scores: bytes of the attention matrices, if materialised.
    state: bytes of the state after ``length`` positions.
    calls: number of small operators in a forward pass, or equivalent overhead.   step_calls: the same in a decoding step.
    """

    parameters: int = 0
    matrices: int = 0
    flops: int = 0
    attended: int = 0
    masked: int = 0
    skipped: int = 0
    ending: int = 0
    step: int = 0
    saved: int = 0
    working: int = 0
    scores: int = 0
    state: int = 0
    calls: int = 0
    step_calls: int = 0

    def __add__(self, other: Share) -> Share:
        total = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Share(**{**total, "working": max(self.working, other.working)})


Formula = Callable[[Any, Setting], Share]
F = TypeVar("F", bound=Formula)
FORMULAS: dict[type[Spec], Formula] = {}


def formula(part: type[Spec]) -> Callable[[F], F]:
    """Decorator: ``@formula(GRU)`` registers the cost formula of that part."""

    def register(function: F) -> F:
        FORMULAS[part] = function
        return function

    return register


def share(part: Part | Spec, at: Setting) -> Share:
    """Evaluate the cost formula of ``part``. Raises ``UserError`` if none is registered."""
    if type(part) not in FORMULAS:
        name = getattr(part, "kind", "") or words(type(part).__name__)
        raise UserError(f"no cost formula is registered for {name!r}; register one with qkv.inspection.shares.formula")
    return FORMULAS[type(part)](part, at)


def linear(inputs: int, outputs: int, bias: bool, at: Setting, saved: int | None = None) -> Share:
    """y = x W^T + b. ``saved``: bytes to save x; None: all of x. In bf16 rounded weights are saved too."""
    matrix = inputs * outputs
    return Share(
        parameters=matrix + (outputs if bias else 0),
        matrices=matrix,
        flops=2 * at.tokens * matrix,
        step=2 * at.batch * matrix,
        saved=(at.tokens * inputs * at.item if saved is None else saved) + (matrix * at.item if at.item != FLOAT else 0),
        calls=3,
        step_calls=3,
    )


def last(product: Share) -> Share:
    """Mark a linear layer as the last of its branch."""
    return replace(product, ending=product.flops)
