"""Blocks in sequence and a final norm: the base of stacks, encoders, latents and inner stacks of segmentations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.layers.branch import Branch
from qkv.layers.context import Context, Memory
from qkv.layers.layout import Declared
from qkv.layers.norms import Norm, build_norm
from qkv.layers.relative import share_tables
from qkv.models.block import Block
from qkv.models.fast.runners import after_runners
from qkv.models.stack.depth_average import DepthAverage
from qkv.models.stack.reversible import through_reversible
from qkv.ops.selection.choices import table, using
from qkv.spec.model import Layered as LayeredSpec
from qkv.state.pages import Paged


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return context managers for a checkpointed block's forward pass and its recomputation, which set the same
    choices.

    On a GPU, torch recomputes in another thread, which has no table of choices.
    """
    return nullcontext(), using(table())


class Layered(Declared):
    """Base class of modules with blocks in sequence and a final norm, x (B, N, D) -> (B, N, D).

    Subclasses call ``lay`` to build the blocks, and compute their input x.
    """

    blocks: nn.ModuleList
    norm: Norm
    depth_average: DepthAverage | None
    reversible = False
    recompute = False
    """Whether the backward pass recomputes each block's activations (activation checkpointing); not with a tap."""

    def lay(self, spec: LayeredSpec, width: int, name: str, memory_width: int | None = None) -> None:
        """Build blocks and norm; ``name``: path of the blocks in the model, such as "encoder.blocks".

        ``memory_width``: features of the vectors that cross-attention reads; default: ``width``. ``spec`` fills in the
        sizes that depend on the number of positions of a row.
        """
        self.walk = spec.walk
        entering = (width, *spec.widths(width))
        self.blocks = nn.ModuleList(
            Block(block, entering[i], f"{name}.{i}", memory_width) for i, block in enumerate(spec.sized_layers)
        )
        share_tables(self.blocks.modules())
        self.depth_average = DepthAverage(spec.depth_average, len(self.walked)) if spec.depth_average else None
        self.reversible = spec.reversible
        self.norm = build_norm(spec.norm, spec.leaving(width))
        self.norm.assign_name(f"{name.removesuffix('blocks')}norm")

    @property
    def walked(self) -> Sequence[nn.Module]:
        """Blocks in order of execution; a repeated block appears several times."""
        blocks = list(self.blocks)  # an index of a ModuleList takes ten times as long, and each token walks them
        return [blocks[i] for i in self.walk]

    @property
    def branches(self) -> list[Branch]:
        """Branches of all blocks, such as attention and feed-forward of each layer; a repeated branch appears once."""
        return [slot.body for block in self.blocks for slot in block.branches]  # type: ignore[union-attr]

    @property
    def walked_branches(self) -> list[Branch]:
        """Branches in order of execution; a repeated branch appears each time."""
        return [slot.body for block in self.walked for slot in block.branches]  # type: ignore[union-attr]

    def through(self, x: Tensor, context: Context, state: Sequence[Any] | None = None) -> Iterator[tuple[Tensor, Any]]:
        """Yield (output vectors, next state of the branches) of each block; x (B, N, D): input of the first block.

        With a depth average, the vectors are the average. state: decoding state of each block; None to read whole rows
        at once.
        """
        x, walked = self._entering(x), self.walked
        outputs = [] if self.depth_average is None else [x]
        for i, (block, past) in enumerate(zip(walked, state or (None,) * len(walked), strict=True)):
            x, after = self._through(block, x, context.of_layer(i), past)
            context = block.context_after(context)  # type: ignore[operator]
            if self.depth_average is not None:
                outputs.append(x)
                x = self.depth_average(outputs)
            yield x, after

    def last(self, x: Tensor, context: Context) -> Tensor:
        """Return the output (B, N, D) of the last block. Reversible blocks store no activations, except with a tap."""
        if self.reversible and torch.is_grad_enabled() and context.tap is None:
            slots = [(slot, context.of_layer(i)) for i, block in enumerate(self.walked) for slot in block.branches]  # type: ignore[union-attr]
            return through_reversible(slots, self._entering(x))
        for after, _ in self.through(x, context):
            x = after
        return x

    def begin(
        self,
        batch: int,
        capacity: int | None = None,
        memories: Mapping[str, Memory] | None = None,
        pages: bool = False,
    ) -> tuple[tuple[Any, ...], ...]:
        """Create the empty decoding state of each branch, grouped by block, for ``batch`` rows of up to ``capacity``
        positions.

        ``pages``: whether branches that can read pages keep keys and values in pages (``qkv.state.pages``).
        """
        by_name = memories or {}

        def begun(branch: Branch, layer: int) -> Any:
            memory = {"memory": by_name[branch.memory_name].of_layer(layer)} if branch.spec.reads_memory else {}
            state = branch.init_state(batch, capacity, **memory)
            return Paged.instead(state) if pages and branch.reads_pages else state

        return tuple(tuple(begun(slot.body, i) for slot in block.branches) for i, block in enumerate(self.walked))  # type: ignore[union-attr]

    def read(self, x: Tensor, context: Context, state: Sequence[Any] | None = None) -> tuple[Tensor, Any]:
        """Read positions; return (vectors (B, N, D) after the last block and the norm, next state or None)."""
        if state is None:
            return self.norm(self.last(x, context), context), None
        return self.read_on(x, context, state)

    @after_runners
    def read_on(self, x: Tensor, context: Context, state: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        """Read new positions; return (vectors (B, N, D) after the last block and the norm, next state of the
        blocks).
        """
        after = []
        for y, block_state in self.through(x, context, state):
            x = y
            after.append(block_state)
        return self.norm(x, context), tuple(after)

    def _entering(self, x: Tensor) -> Tensor:
        """Return the input of the first block: x, or for reversible blocks x twice, once per stream, (B, N, 2 D)."""
        return torch.cat((x, x), -1) if self.reversible else x

    def _through(self, block: nn.Module, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        if self.recompute and context.tap is None and state is None and torch.is_grad_enabled():
            if torch.compiler.is_compiling():  # torch.compile does not support context functions
                return checkpoint(block, x, context, use_reentrant=False)  # type: ignore[no-any-return]
            return checkpoint(block, x, context, use_reentrant=False, context_fn=_contexts)  # type: ignore[no-any-return]
        return block(x, context, state)  # type: ignore[no-any-return]
