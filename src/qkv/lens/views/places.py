"""Places of branches: which stack a branch belongs to, and at which depth it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from qkv.layers.branch import Branch
from qkv.layers.tap import Location
from qkv.models.stack.layered import Layered
from qkv.models.transformer import Transformer

StackName = Literal["model", "encoder", "latents", "segmentation"]
Reads = Literal["self", "cross"]


@dataclass(frozen=True, kw_only=True)
class BranchPlace:
    """One execution of a branch. path: module of the branch, such as "blocks.3.branches.0".

    stack: the model's own blocks, its encoder, its latents, or the inner stack of its segmentation. layer: place of the
    block in the order of execution of its stack, from 0; a repeated block has several. kind: "cross" if the branch
    reads a memory, else "self". part: kind of the branch, such as "attention". call: number of the execution of this
    branch in the pass, from 0; branches run several times in repeated blocks and for several segments.
    """

    path: str
    stack: StackName
    layer: int
    kind: Reads
    part: str
    call: int = 0

    def place(self) -> dict[str, Any]:
        """Return the fields of the place by name, without those of a subclass."""
        return {field.name: getattr(self, field.name) for field in fields(BranchPlace)}


def list_stacks(model: Transformer) -> Iterator[tuple[StackName, Layered]]:
    """Yield (name, stack) of all stacks of ``model``, in the order in which they run."""
    inner = model.segmentation and model.segmentation.inner
    names: tuple[StackName, ...] = ("encoder", "latents", "segmentation", "model")
    for name, stack in zip(names, (model.encoder, model.latents, inner, model), strict=True):
        if stack is not None:
            yield name, stack


def list_branches(
    model: Transformer, which: Callable[[Branch], bool] = lambda branch: True
) -> list[tuple[StackName, Branch]]:
    """Return (stack, branch) of all branches of ``model`` for which ``which`` is true; repeated branches once."""
    return [(name, branch) for name, stack in list_stacks(model) for branch in stack.branches if which(branch)]


def find_place(model: Transformer, location: Location) -> BranchPlace:
    """Return the place of the branch whose point a tap has received at ``location``."""
    for name, stack in list_stacks(model):
        for number, block in enumerate(stack.blocks):
            for slot in block.branches:  # type: ignore[union-attr]
                if slot.body.name == location.module:
                    layers = [i for i, walked in enumerate(stack.walk) if walked == number]
                    kind: Reads = "cross" if slot.body.spec.reads_memory else "self"
                    layer = layers[location.call % len(layers)]
                    return BranchPlace(
                        path=location.module,
                        stack=name,
                        layer=layer,
                        kind=kind,
                        part=slot.body.spec.kind,
                        call=location.call,
                    )
    raise KeyError(location.module)
