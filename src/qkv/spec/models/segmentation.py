"""Specs of segmentations: how a model's blocks read a row in segments, or at several scales, instead of as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import LARGEST, Part, Seq
from qkv.spec.errors import Problem
from qkv.spec.frontends import WIDEST
from qkv.spec.masks import FACTORS, Factor, factors_problems
from qkv.spec.models.blocks import Layered
from qkv.spec.models.growth import RECURRENT, Growth


class Segmentation(Part, slot=True):
    """Base class of segmentations: the blocks read one segment at a time, and a state from earlier segments.

    The blocks are causal, and decode with a state of constant size for the current segment; exceptions say so.
    """

    in_segments: ClassVar[bool] = True
    """True if the blocks read one segment after the other, and so must be causal."""
    inner_name: ClassVar[str] = ""
    """Name of the field with the segmentation's own stack of blocks; empty if it has none."""

    @property
    def row_positions(self) -> int:
        """Number of positions of the longest row that the blocks read."""
        raise NotImplementedError

    @property
    def growth(self) -> Growth | None:
        """Theoretical growth of the cost with the number of positions, at constant segment size; None: not stated."""
        return None if self.inner is None else self.inner.growth

    @property
    def inner(self) -> Layered | None:
        """The segmentation's own stack of blocks; None if it has none."""
        return getattr(self, self.inner_name) if self.inner_name else None

    def inner_width(self, width: int) -> int:
        """Return the width of ``inner`` in a model of ``width`` features."""
        return width

    def with_inner(self, change: Callable[[Layered], Layered]) -> Self:
        """Return a copy in which ``inner`` is replaced by ``change(inner)``; unchanged if there is no ``inner``."""
        return self.changed(**{self.inner_name: change(self.inner)}) if self.inner else self

    @property
    def level_factors(self) -> tuple[int, ...]:
        """Positions per vector of each level of the rows that the blocks read; empty without levels."""
        return ()

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        """Return a copy with the levels of ``factors``."""
        return self

    def extrapolates(self, length: int) -> bool:
        """Return False if rows longer than the training ``length`` have distances unseen in training (as for RoPE)."""
        return True

    def positions_read(self, length: int) -> int:
        """Return the length of the longest row that the blocks read for an input of ``length`` positions."""
        return min(length, self.row_positions)

    def positions_held(self, length: int) -> int:
        """Return the number of positions in the state of a branch of the blocks after ``length`` positions."""
        return self.row_positions

    def problems_with(self, stack: Layered, width: int) -> list[Problem]:
        """Return the errors of a model of ``width`` features whose ``stack`` reads segments; empty if none."""
        wrong = stack.first_branch(lambda branch: not branch.causal)
        if wrong and self.in_segments:
            sentence = f"{self.kind!r} reads one segment after the other, so blocks must be causal; use a causal mask"
            return [Problem(wrong, sentence)]
        wrong = stack.first_branch(lambda branch: branch.reads_memory)
        if wrong:
            sentence = f"the blocks of {self.kind!r} read only the row, not another memory; leave it out"
            return [Problem(wrong, sentence)]
        wrong = stack.first_branch(lambda branch: branch.reads_types)
        if wrong:
            sentence = f"{self.kind!r} adds vectors without a token type; use attention that does not read types"
            return [Problem(wrong, sentence)]
        if stack.reversible:
            sentence = f"{self.kind!r} passes on one vector per position, but reversible blocks have two; use 'add'"
            return [Problem(("blocks", 0, "residual"), sentence)]
        return []


class RecurrentMemory(Segmentation, kind="recurrent_memory"):
    """Recurrent memory (Bulatov et al. 2022): the blocks read segments of S positions between M memory vectors.

        [m_τ ; x_1 … x_S ; m_τ]  ─ blocks, norm ─  [· ; y_1 … y_S ; m_{τ+1}]

    The segment's positions read the copy of the memory at the start. The outputs at the copy at the end, which have
    read the whole segment, are the memory of the next segment. m_0 is learned. In the blocks, positions restart in each
    segment; in the front end, they are positions in the row. Gradients pass through the memory of up to ``bptt``
    consecutive segments: it is detached at every multiple of ``bptt``.
    """

    segment: int = Field(default=64, gt=0, description="positions of a segment, S")
    num_memory: int = Field(default=8, gt=0, le=4096, description="memory vectors, M")
    bptt: int | None = Field(
        default=None, gt=0, description="maximum number of segments through which gradients pass; default: all"
    )

    @property
    def growth(self) -> Growth:
        return RECURRENT

    @property
    def row_positions(self) -> int:
        return self.segment + 2 * self.num_memory

    def positions_read(self, length: int) -> int:
        return self.row_positions if length >= self.segment else length + self.num_memory


class PatchStack(Layered):
    """Causal blocks over the patches of a row, one position per patch."""

    width: int | None = Field(default=None, gt=0, le=WIDEST, description="features of a patch; default: the model's")

    @property
    def row_positions(self) -> int:
        return LARGEST  # no causal branch has weights of positions

    @property
    def rows_known(self) -> bool:
        return False


class Megabyte(Segmentation, kind="megabyte"):
    """MEGABYTE (Yu et al. 2023): blocks over patches of P positions, and the model's own blocks inside each patch.

        h_k = global(W [x_{(k-1)P} ; … ; x_{kP-1}])    h_0 from a learned start; blocks ``patches``, causal over k
        l_{kP}, …, l_{kP+P-1} = local(U_0 h_k + e, U_1 h_k + x_{kP}, …, U_{P-1} h_k + x_{kP+P-2})

    l_s has read x_0 … x_{s-1}; it is the output at position s - 1 and predicts value s. e is learned. So every output
    is exact: patches before the current patch are read through h, and the current patch value by value. With P =
    N^{1/3}, attention costs O(N^{4/3}).

    Two differences from the paper: local and global blocks read the same vectors x, and W, U are matrices, where the
    paper concatenates embeddings of width G / P and splits h into P vectors (W = 1, U_p one matrix for each slice).
    """

    inner_name = "patches"

    size: int = Field(default=8, gt=0, description="positions of a patch, P")
    patches: PatchStack = PatchStack()

    @property
    def row_positions(self) -> int:
        return self.size

    def positions_read(self, length: int) -> int:
        return min(length + 1, self.size)

    def inner_width(self, width: int) -> int:
        return self.patches.width or width

    def extrapolates(self, length: int) -> bool:
        patches = max(1, length // self.size)
        return all(branch.extrapolates(patches) for block in self.patches.blocks for branch in block.branches)

    def problems_with(self, stack: Layered, width: int) -> list[Problem]:
        path = ("segmentation", "patches")
        inner_width = self.inner_width(width)
        problems = super().problems_with(stack, width)
        problems += [
            p.under(*path)
            for p in (*self.patches.block_problems(inner_width), *super().problems_with(self.patches, inner_width))
        ]
        wrong = self.patches.first_branch(lambda branch: branch.exactness.length is not None)
        if wrong:
            sentence = "decoding reads patches one by one, and this branch decodes only short rows exactly"
            problems.append(Problem((*path, *wrong), f"{sentence}; use another mixer over patches"))
        return problems


class Scales(Segmentation, kind="scales"):
    """Several scales of one row: the blocks read its vectors, and after every F of them a coarser one, for each F.

        x_t                                                 the front end's vectors
        z_w = W_F pool(x_{wF}, …, x_{wF + F - 1}) + b_F     one vector per window of F positions, for each F > 1
        x_0 x_1 x_2 x_3 z_0 x_4 …                           each after its window, those of smaller F first

    The outputs at the N vectors x_t are those of the N positions; a window that is not full has no vector. As the row
    is in order of time, the blocks' masks, recurrences and rotary positions apply to all levels, and causal blocks see
    no later position. The mask ``levels`` lets attention read one level, or the others. A row is decoded in calls of
    any length: the state is that of the blocks, and the vectors of the current window of the largest F. Coarse vectors
    are pooled as in the Hourglass (Nawrot et al. 2022), but stay beside the fine ones.
    """

    in_segments = False
    factors: Seq[Factor] = Field(
        default=FACTORS, min_length=1, max_length=32, description="positions of a window of each level, from 1"
    )
    pool: Literal["mean", "max", "last"] = Field(default="mean", description="vector of a window, before the map")

    @property
    def row_positions(self) -> int:
        return LARGEST  # branches with weights of positions are refused

    @property
    def level_factors(self) -> tuple[int, ...]:
        return self.factors

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        return self.changed(factors=factors)

    def positions_read(self, length: int) -> int:
        return sum(length // factor for factor in self.factors)

    def positions_held(self, length: int) -> int:
        return self.positions_read(length)

    def problems(self) -> list[Problem]:
        return factors_problems(self.factors)

    def problems_with(self, stack: Layered, width: int) -> list[Problem]:
        problems = super().problems_with(stack, width)
        wrong = stack.first_branch(lambda branch: branch.sized_for(1, None).longest_row is not None)
        if wrong:
            sentence = f"{self.kind!r} reads rows of any length, but this branch has weights of positions; use another"
            problems.append(Problem(wrong, sentence))
        if stack.reads_prefix:
            wrong = stack.first_branch(lambda branch: branch.reads_prefix)
            sentence = f"{self.kind!r} inserts vectors into the prefix of a row; use a mask without the row's prefix"
            problems.append(Problem(wrong, sentence))
        for i, block in enumerate(stack.blocks):
            for j, branch in enumerate(block.branches):
                if any(factors != self.factors for factors in branch.level_factors):
                    sentence = f"the levels of the mask are not those of 'scales', {list(self.factors)}; give the same"
                    problems.append(Problem(("blocks", i, "branches", j, "mask"), sentence))
        return problems
