"""What one part adds to the cost of a model, and the register of formulas that say so. Imports no torch.

A part defined elsewhere joins by registering its own formula:

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
"""Bytes of a weight in training, of a gradient, and of the residual stream."""


@dataclass(frozen=True)
class Setting:
    """What a formula is asked about: ``batch`` rows of ``length`` positions of ``width`` features.

    item: bytes of what matrix products read and write, 4 in fp32 and 2 in bf16.
    context_length, vocab_size: the model's own, the sizes of its position and token tables.
    shared_input: True if another branch keeps the same input for the backward pass already.
    attention, irregular: the paths that attention takes in training, plain and under any other mask, where the machine at hand chooses
    (``qkv why``).
    memory: vectors of an encoder's output, or of another memory, that each row reads.   shared_memory: True if another branch keeps them
    already.   memory_width: features of each of them, 0 for ``width``.
    shared_tables: what a branch before owns and lends to the others of its stack.
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
        """Positions of the whole batch."""
        return self.batch * self.length

    @property
    def read_width(self) -> int:
        """Features of a vector of the memory."""
        return self.memory_width or self.width

    @property
    def input(self) -> int:
        """Bytes that keeping a branch's input costs."""
        return 0 if self.shared_input else self.tokens * self.width * self.item


@dataclass(frozen=True)
class Share:
    """The cost of a part; shares add, but for ``working``, of which the larger counts.

    parameters: numbers that are trained.   matrices: those of them in matrices of a block.
    flops: of a forward pass over the batch; a product of (m, k) and (k, n) counts 2 m k n, all else nothing.
    attended: those of ``flops`` in the scores of attention and their products with values.
    masked: those of ``flops`` that go to pairs which the mask hides.   skipped: those of them that are not computed.
    ending: those of ``flops`` in the product that the part ends with, if the backward pass does not need its result.
    step: FLOPs of one more position a row when ``length`` are remembered.
    saved: bytes kept from the forward to the backward pass.   working: bytes that its backward pass takes for a while.
    scores: bytes of its attention matrices, were they kept.
    state: bytes remembered after ``length`` positions.
    calls: small operators of a forward pass, or what takes their time.   step_calls: those of one more position.
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
    """``@formula(GRU)`` makes the function the cost of that part."""

    def register(function: F) -> F:
        FORMULAS[part] = function
        return function

    return register


def share(part: Part | Spec, at: Setting) -> Share:
    """The cost of ``part``. Raises ``UserError`` if no formula is registered for it."""
    if type(part) not in FORMULAS:
        name = getattr(part, "kind", "") or words(type(part).__name__)
        raise UserError(f"no cost formula is registered for {name!r}; a part registers its own with qkv.inspection.shares.formula")
    return FORMULAS[type(part)](part, at)


def linear(inputs: int, outputs: int, bias: bool, at: Setting, saved: int | None = None) -> Share:
    """y = x W^T + b. ``saved``: bytes that keeping x costs, if not all of it; in bf16 the rounded weights are kept too."""
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
    """A linear map that ends its branch."""
    return replace(product, ending=product.flops)
