"""Specs of blocks, and of stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

from pydantic import Field

from qkv.spec.base import Seq, Spec
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.errors import Problem
from qkv.spec.models.growth import Growth
from qkv.spec.models.merges import AXES, Merge
from qkv.spec.parts import Add, LayerNorm, NoNorm, Norm, Residual
from qkv.spec.register import import_all

import_all("qkv.spec.mixers", "qkv.spec.position_wise")  # registers their kinds in the slot of branches

MOST_LAYERS = 10_000
"""Maximum number of layers of a stack, rounds included; published models have up to a thousand."""


class Block(Spec):
    """Block of residual branches f with a norm (a layer of a stack).

        pre        x + f(norm x)                (GPT-2)
        post       norm(x + f(x))               (Vaswani et al. 2017)
        sandwich   x + norm f(norm x)           (CogView, Ding et al. 2021)
        res_post   x + norm f(x)                (Swin v2, Liu et al. 2022; OLMo 2)
        parallel   x + Σ_k f_k(norm x)          (GPT-J 2021), one norm for all branches

    With ``norms`` branch k has its own norm_k instead of ``norm``; the parallel order becomes x + Σ_k f_k(norm_k x)
    (GPT-NeoX, Black et al. 2022). Parallel branches without residual are Σ_k f_k(norm x) (He & Hofmann 2024). With
    ``merge``, a stage begins: x is first merged to a coarser grid (Swin, Liu et al. 2021). With ``factors`` the output
    of branch k is multiplied by factors[k] (Falcon-H1, 2025). ``end_norm`` is applied to the block's output, as in the
    Conformer (Gulati et al. 2020), whose factors are 1/2, 1, 1, 1/2.
    """

    branches: Seq[Branch] = Field(default=(Attention(), FeedForward()), min_length=1)
    order: Literal["pre", "post", "sandwich", "res_post", "parallel"] = "pre"
    norm: Norm = LayerNorm()
    residual: Residual = Add()
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the output of each branch")
    drop_path: float = Field(
        default=0.0, ge=0, lt=1, description="probability of skipping a branch in training (Huang et al. 2016)"
    )
    norms: Seq[Norm] = Field(default=(), description="one norm per branch; default: the field norm for all")
    merge: Merge | None = Field(
        default=None, description="merge of neighbours on a grid before the branches; default: none"
    )
    factors: Seq[float] = Field(default=(), description="one factor per branch of its output; default: 1 for all")
    end_norm: Norm = Field(default=NoNorm(), description="norm of the block's output (Conformer)")

    def norm_of(self, i: int) -> Norm:
        """Return the norm of branch ``i``: its entry in ``norms``, or the block's ``norm``."""
        return self.norms[i] if self.norms else self.norm

    def residual_of(self, i: int) -> Residual:
        """Return the residual of branch ``i``.

        Parallel branches without residual are added to the first branch's output, not to x.
        """
        alone = self.order != "parallel" or self.residual.keeps_input or i == 0
        return self.residual if alone else Add()

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        """Return a copy with ``sized_for`` applied to merge and branches, which are on ``grid``."""
        branches = tuple(branch.sized_for(positions, grid) for branch in self.branches)
        merge = None if self.merge is None else self.merge.sized_for(grid)
        same = branches == self.branches and merge == self.merge
        return self if same else self.changed(branches=branches, merge=merge)

    @property
    def reversible(self) -> bool:
        """True if the block's residuals are reversible: a branch's input can be recomputed from its output."""
        return self.residual.reversible

    def problems(self) -> list[Problem]:
        problems = self._reversible_problems() if self.reversible else []
        for field, values in (("norms", self.norms), ("factors", self.factors)):
            if len(values) not in (0, len(self.branches)):
                count = len(self.branches)
                sentence = f"{len(values)} {field} are given for {count} branches; give one for each, or none"
                problems.append(Problem((field,), sentence))
        return problems

    def _reversible_problems(self) -> list[Problem]:
        if self.order not in ("pre", "sandwich"):
            return [
                Problem(
                    ("order",),
                    "a reversible residual recomputes x from its sum with y; use 'pre' or 'sandwich', "
                    f"not {self.order!r}",
                )
            ]
        if self.end_norm != NoNorm():
            sentence = "a norm of the block's output cannot be undone, as reversible blocks need; leave it out"
            return [Problem(("end_norm",), sentence)]
        if not any(norm.over_batch for norm in (self.norm, *self.norms)):
            return []
        sentence = (
            "batch_norm would count each batch twice, as reversible blocks are recomputed; "
            "use layer_norm, rms_norm or none"
        )
        return [Problem(("norm",), sentence)]

    @property
    def causal(self) -> bool:
        return self.merge is None and all(branch.causal for branch in self.branches)

    @property
    def decodes(self) -> bool:
        return self.merge is None and all(branch.decodes for branch in self.branches)


class Place(NamedTuple):
    """Positions of a row at a layer, and the sizes of the axes of their grid; None for a sequence."""

    positions: int
    grid: tuple[int, ...] | None


class DepthAverage(Spec):
    """Weighted average of the outputs of all blocks so far and of their input, read by the next block (DenseFormer).

    After block i: y_i = Σ_j w_ij x_j over j = i, i - k, … >= 0, with the input x_0, outputs x_j and learned weights,
    initially 1 for j = i and 0 for all others (Pagliardini et al. 2024).
    """

    dilation: int = Field(default=1, gt=0, le=MOST_LAYERS, description="k: every k-th output is averaged")
    period: int = Field(default=1, gt=0, le=MOST_LAYERS, description="number of blocks from one average to the next")

    def averaged(self, i: int) -> range:
        """Return the indices j of the vectors x_j that the average after block ``i`` reads, latest first."""
        return range(i, -1, -self.dilation)


class Layered(Spec):
    """Base class of specs with a stack: ``num_layers`` blocks, cyclically repeating those listed, and a final norm."""

    num_layers: int | None = Field(
        default=None, gt=0, le=MOST_LAYERS, description="default: the number of listed blocks"
    )
    blocks: Seq[Block] = Field(
        default=(Block(),), max_length=MOST_LAYERS, description="an empty list: the head reads the embeddings"
    )
    norm: Norm = LayerNorm()
    depth_average: DepthAverage | None = Field(
        default=None, description="weighted average over the blocks so far, read by the next; default: none"
    )

    @property
    def layers(self) -> tuple[Block, ...]:
        """Block of every layer: the listed blocks, repeated cyclically up to ``num_layers``."""
        return tuple(self.blocks[i % len(self.blocks)] for i in range(self.depth))

    @property
    def growth(self) -> Growth | None:
        """Theoretical growth of all blocks' cost with the number of positions; None if a branch does not state it."""
        growths = [branch.growth for block in self.layers for branch in block.branches]
        stated = [growth for growth in growths if growth is not None]
        return Growth.of(stated) if len(stated) == len(growths) else None

    @property
    def depth(self) -> int:
        """Number of layers, repeated blocks included."""
        return self.num_layers or len(self.blocks) if self.blocks else 0

    @property
    def walk(self) -> tuple[int, ...]:
        """Index of the block applied at each step, in order of execution."""
        return tuple(range(self.depth))

    @property
    def row_positions(self) -> int:
        """Maximum number of positions of a row that the blocks read in training."""
        raise NotImplementedError

    @property
    def rows_known(self) -> bool:
        """False while ``row_positions`` is only a default, because the sizes of the data are not known yet."""
        return True

    @property
    def grid(self) -> tuple[int, ...] | None:
        """Shape of the grid of the positions that the blocks read; None for a sequence."""
        return None

    @property
    def grid_axes(self) -> int:
        """Number of axes of the grid of the positions that the blocks read; 1 for a sequence."""
        return 1

    @property
    def sized_layers(self) -> tuple[Block, ...]:
        """Block of every layer; sizes that depend on the positions of a row are filled in."""
        if self.merges:
            return tuple(block.sized_for(*place) for block, place in zip(self.layers, self.places, strict=True))
        sized = tuple(block.sized_for(self.row_positions, self.grid) for block in self.blocks)
        return tuple(sized[i % len(sized)] for i in range(self.depth))

    @property
    def merges(self) -> bool:
        """True if a block begins with a merge, so that layers read grids of several sizes and vectors of several
        widths.
        """
        return any(block.merge is not None for block in self.blocks)

    @property
    def places(self) -> tuple[Place, ...]:
        """Positions of a row and their grid at every layer, after its merge."""
        places, place = list[Place](), Place(self.row_positions, self.grid)
        for block in self.layers:
            place = place if block.merge is None else Place(*block.merge.place(place.grid, place.positions))
            places.append(place)
        return tuple(places)

    def widths(self, width: int) -> tuple[int, ...]:
        """Return the features of the vectors of every layer, given ``width`` features of the stack's input."""
        widths = list[int]()
        for block in self.layers:
            width = width if block.merge is None else block.merge.width_at(width)
            widths.append(width)
        return tuple(widths)

    @property
    def limiting_branch(self) -> Branch | None:
        """Branch with the smallest ``longest_row``, which limits the length of rows; None if no branch limits it."""
        layers = self.sized_layers if self.merges else self.sized_layers[: len(self.blocks)]
        sized = [branch for block in layers for branch in block.branches]
        limits = [branch for branch in sized if branch.longest_row is not None]
        return min(limits, key=lambda branch: branch.longest_row or 0, default=None)

    @property
    def reversible(self) -> bool:
        """True if the blocks are reversible (Reformer): two residual streams, of which each branch updates one."""
        return any(block.reversible for block in self.blocks)

    def leaving(self, width: int) -> int:
        """Return the width of the last block's output, given that of the input; twice if reversible (two streams)."""
        last = self.widths(width)[-1] if self.merges else width
        return 2 * last if self.reversible else last

    @property
    def causal(self) -> bool:
        """True if no position depends on a later one in any branch."""
        return all(block.causal for block in self.blocks)

    @property
    def decodes(self) -> bool:
        """True if the stack can decode token by token: it is causal except within each row's prefix."""
        return all(block.decodes for block in self.blocks)

    @property
    def reads_memory(self) -> bool:
        """True if a branch reads a memory: an encoder's output or latents."""
        return any(branch.reads_memory for block in self.blocks for branch in block.branches)

    @property
    def reads_types(self) -> bool:
        """True if a branch itself, not only the front end, reads token types (segment ids)."""
        return any(branch.reads_types for block in self.blocks for branch in block.branches)

    @property
    def reads_prefix(self) -> bool:
        """True if the output of a branch depends on the length of each row's prefix (source text before a target)."""
        return any(branch.reads_prefix for block in self.blocks for branch in block.branches)

    @property
    def place_axes(self) -> int:
        """Largest number of axes of positions in a row that a branch reads; 0: all read the indices in the row."""
        return max((branch.place_axes for block in self.blocks for branch in block.branches), default=0)

    def first_branch(self, wrong: Callable[[Branch], bool]) -> tuple[str | int, ...]:
        """Return the path of the first branch for which ``wrong`` is true, as ("blocks", 0, "branches", 1), or ()."""
        for i, block in enumerate(self.blocks):
            for j, branch in enumerate(block.branches):
                if wrong(branch):
                    return ("blocks", i, "branches", j)
        return ()

    def first_not_decoding(self) -> tuple[str | int, ...]:
        """Return the path of the first branch that cannot decode; empty if there is none."""
        return self.first_branch(lambda branch: not branch.decodes)

    def decoding_advice(self, path: tuple[str | int, ...], otherwise: str) -> str:
        """Return ``decoding_advice`` of the branch at ``path``, see ``first_branch``; ``otherwise`` if it is empty."""
        if path[:1] != ("blocks",):
            return otherwise
        return self.blocks[int(path[1])].branches[int(path[3])].decoding_advice or otherwise

    def first_inexact(self, length: int) -> tuple[tuple[str | int, ...], Branch | None]:
        """Return (path, spec) of the first branch whose decoding of ``length`` positions differs from training.

        Branches whose spec accepts the difference are skipped; ((), None) if there is none.
        """
        path = self.first_branch(lambda branch: not (branch.exactness.covers(length) or branch.exactness.accepted))
        return path, self.blocks[int(path[1])].branches[int(path[3])] if path else None

    def block_problems(self, width: int) -> list[Problem]:
        """Return the errors in the blocks' settings for a stack of ``width`` features, with paths; empty if none."""
        problems = self._merge_problems(width)
        if problems:
            return problems
        for i, (block, place, features) in enumerate(self._distinct_layers(width)):
            for j, branch in enumerate(block.branches):
                wrong = branch.width_problems(features)
                if self.rows_known:
                    wrong += branch.position_problems(place.positions)
                wrong += branch.grid_problems(self.grid_axes)
                problems += [p.under("blocks", i % len(self.blocks), "branches", j) for p in wrong]
        if self.num_layers and not self.blocks:
            problems.append(
                Problem(
                    ("num_layers",),
                    f"{self.num_layers} layers given, but no block is listed; leave the key out, or list a block",
                )
            )
        if self.num_layers and self.num_layers < len(self.blocks):
            problems.append(
                Problem(
                    ("num_layers",),
                    f"{self.num_layers} layers are fewer than the {len(self.blocks)} blocks of the pattern",
                )
            )
        other = (
            next((i for i, block in enumerate(self.blocks) if not block.reversible), None) if self.reversible else None
        )
        if other is not None:
            sentence = (
                "other blocks are reversible (two streams) and this one is not (one stream); "
                "make all of them reversible, or none"
            )
            problems.append(Problem(("blocks", other, "residual"), sentence))
        return problems + self._average_problems()

    def _distinct_layers(self, width: int) -> Sequence[tuple[Block, Place, int]]:
        """Return (block, place, features) of every layer; only of the pattern's blocks if its repetitions are equal."""
        if self.merges:
            return list(zip(self.layers, self.places, self.widths(width), strict=True))
        place = Place(self.row_positions, self.grid)
        return [(block, place, width) for block in self.blocks]

    def _merge_problems(self, width: int) -> list[Problem]:
        """Return the errors in the merges of the blocks; empty if none."""
        grid = self.grid
        for i, block in enumerate(self.layers if self.merges else ()):
            path = ("blocks", i % len(self.blocks), "merge")
            if block.merge is None:
                continue
            if self.grid_axes != AXES:
                return [Problem(path, f"a merge needs a grid of {AXES} axes, such as image patches; leave it out")]
            if self.reversible or self.depth_average:
                other = "reversible blocks" if self.reversible else "a depth average"
                return [Problem(path, f"{other} read vectors of one width and grid; leave it or the merge out")]
            if wrong := block.merge.problems_at(width, grid):
                return [problem.under(*path) for problem in wrong]
            width, grid = block.merge.width_at(width), None if grid is None else block.merge.grid_at(grid)
        return []

    def _average_problems(self) -> list[Problem]:
        if self.depth_average is None:
            return []
        if self.reversible:
            sentence = "reversible blocks do not store the outputs to average; leave it out, or change the residual"
            return [Problem(("depth_average",), sentence)]
        if self.depth_average.period > self.depth:
            sentence = f"a stack of {self.depth} layers has no average after {self.depth_average.period} blocks"
            return [Problem(("depth_average", "period"), f"{sentence}; give at most the number of layers")]
        return []
