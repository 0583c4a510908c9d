"""Spec of the front end of text whose tokens have further marks, such as boxes on a page or cells of a table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qkv.spec.base import Seq, Spec
from qkv.spec.errors import Problem
from qkv.spec.frontends import MOST_TOKENS, WIDEST, Text

Rows = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
BOX = 4
"""Number of marks of a box: left, upper, right and lower coordinate."""


class MarkVectors(Spec):
    """Embedding table of a mark: number of rows and width, which may differ from the width of a token."""

    rows: int = Field(gt=0, le=MOST_TOKENS)
    width: int = Field(gt=0, le=WIDEST)


class MarkedText(Text, kind="marked_text"):
    """As ``text``, for tokens with further marks: whole numbers, by default 0, that select learned vectors.

    ``marks``: number of values of each mark whose vectors are added to the token's (TAPAS, Herzig et al. 2020).
    ``box``: number of values of the coordinates of a box on a page, which are four more marks: left, upper, right
    and lower. The sum X[left] + Y[upper] + X[right] + Y[lower] + H[lower - upper] + W[right - left] is added to the
    token's vector (LayoutLM, Xu et al. 2020). ``appended``: marks whose vectors are appended to the token's, before
    a linear map W x + b of the joined vectors to the token's width (RoCBert, Su et al. 2022). The marks of a token
    are given in this order. ``cells``: positions start at 0 in each cell. A cell consists of the tokens of one row
    whose first two marks are equal (TAPAS).
    """

    marks: Seq[Rows] = Field(default=(), max_length=64, description="number of values of each mark that is added")
    box: int | None = Field(
        default=None, gt=0, le=MOST_TOKENS, description="number of values of a coordinate; default: no boxes"
    )
    appended: Seq[MarkVectors] = Field(default=(), max_length=64, description="marks whose vectors are appended")
    cells: bool = Field(default=False, description="count positions anew in each cell of a table")

    @property
    def num_marks(self) -> int:
        """Number of marks of a token."""
        return len(self.marks) + (BOX if self.box else 0) + len(self.appended)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.cells and len(self.marks) < 2:
            sentence = f"a cell is two marks, but there are {len(self.marks)}; give two marks, or leave cells out"
            problems.append(Problem(("cells",), sentence))
        return problems
