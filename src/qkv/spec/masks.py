"""Specs of attention masks, written as expressions: ``causal & window(512, sinks=4)``.

The predicates that define the masks are in ``qkv.ops.masks``.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from qkv.spec.base import Part, Seq, call_form
from qkv.spec.errors import Problem


class Mask(Part, slot=True):
    """Base class of attention masks: predicates of (batch, head, query, key), combined with ``&`` and ``|``."""

    @property
    def causal(self) -> bool:
        """True if no query sees a later key."""
        return False

    @property
    def sees_all(self) -> bool:
        """True if every query sees every key."""
        return False

    @property
    def decodes(self) -> bool:
        """True if tokens can be decoded one at a time: no query outside of a row's prefix sees later keys."""
        return self.causal

    @property
    def reads_prefix(self) -> bool:
        """True if the mask depends on the length of each row's prefix."""
        return False

    @property
    def reach(self) -> int | None:
        """Number of most recent positions, the query's own included, that a query may see; None if not bounded."""
        return None

    @property
    def first_visible(self) -> int:
        """Number of first positions of a row (attention sinks) that stay visible beyond ``reach``."""
        return 0

    @property
    def level_factors(self) -> tuple[tuple[int, ...], ...]:
        """Factors of each mask of levels of which it consists; empty if there is none."""
        return ()

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        """Return a copy whose masks of levels have other ``factors``."""
        return self

    @classmethod
    def short_form(cls, text: str) -> Any:
        return _expression(ast.parse(text.strip(), mode="eval").body) if _parses(text) else call_form(Mask, text)

    def __and__(self, other: Mask) -> Mask:
        return AllOf(masks=(self, other))

    def __or__(self, other: Mask) -> Mask:
        return AnyOf(masks=(self, other))

    def __str__(self) -> str:
        fields = type(self).model_fields
        needed = [repr(getattr(self, name)) for name, field in fields.items() if field.is_required()]
        chosen = [
            f"{name}={getattr(self, name)!r}"
            for name, field in fields.items()
            if not field.is_required() and getattr(self, name) != field.default
        ]
        values = ", ".join(needed + chosen)
        return f"{self.kind}({values})" if values else self.kind


def _parses(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _expression(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        kind = "all_of" if isinstance(node.op, ast.BitAnd) else "any_of"
        return {"kind": kind, "masks": [_expression(node.left), _expression(node.right)]}
    return call_form(Mask, node)


class Full(Mask, kind="full"):
    """No restriction: every key is visible to every query."""

    @property
    def sees_all(self) -> bool:
        return True


class Causal(Mask, kind="causal"):
    """Key j is visible to query i if j <= i."""

    @property
    def causal(self) -> bool:
        return True


class Window(Mask, kind="window"):
    """Key j is visible to query i if i - size < j < i + size, or if j is one of the first ``sinks`` positions.

    With ``causal`` this is the sliding window of Longformer (Beltagy et al. 2020); with sinks the Λ shape of
    LM-Infinite (Han et al. 2023) and StreamingLLM (Xiao et al. 2023).
    """

    size: int = Field(gt=0, description="positions visible to each side, the query's own included")
    sinks: int = Field(default=0, ge=0, description="number of first positions visible to all queries")

    @property
    def reach(self) -> int | None:
        return self.size

    @property
    def first_visible(self) -> int:
        return self.sinks


class Prefix(Mask, kind="prefix"):
    """Key j is visible to all queries if j < length; used as ``causal | prefix``.

    Without a length each row has its own prefix, such as the source text (prefix language model, Raffel et al. 2020).
    With ``own`` it is visible to its own queries only; used beside a window (PaliGemma 2, Steiner et al. 2024).
    """

    length: int | None = Field(
        default=None,
        gt=0,
        description="prefix length; default: that of each row, the source of a sequence-to-sequence task",
    )
    own: bool = Field(default=False, description="visible to the queries of the prefix only; default: to all queries")

    @property
    def decodes(self) -> bool:
        return self.length is None

    @property
    def reads_prefix(self) -> bool:
        return self.length is None


class Strided(Mask, kind="strided"):
    """Key j is visible to query i if (i - j) is a multiple of ``stride`` (Sparse Transformer, Child et al. 2019)."""

    stride: int = Field(gt=0)


class Fixed(Mask, kind="fixed"):
    """Key j is visible to query i in the same block of ``stride``; the last keys of a block are visible to all queries.

    ``summary`` is the number of these last keys. Fixed pattern of the Sparse Transformer (Child et al. 2019).
    """

    stride: int = Field(gt=0)
    summary: int = Field(default=1, gt=0)


class Blocks(Mask, kind="blocks"):
    """Key j is visible to query i in the same block of ``size``, or in one of the blocks before or after it.

    These are the ``back`` blocks before and the ``ahead`` blocks after the query's block. Local attention of the
    Reformer (Kitaev et al. 2020).
    """

    size: int = Field(gt=0)
    back: int = Field(default=0, ge=0, description="number of visible blocks before the query's")
    ahead: int = Field(default=0, ge=0, description="number of visible blocks after the query's")

    @property
    def reach(self) -> int | None:
        return self.size * (self.back + 1)


LARGEST_FACTOR = 4096
"""Upper bound of a factor of ``scales``, far beyond any useful one."""
Factor = Annotated[int, Field(gt=0, le=LARGEST_FACTOR)]
FACTORS = (1, 4, 16)
"""Default factors of the levels of ``scales``."""


def factors_problems(factors: Sequence[int]) -> list[Problem]:
    """Return the errors if ``factors`` of levels are not 1 and then multiples, each of the one before."""
    nested = all(a < b and b % a == 0 for a, b in itertools.pairwise(factors))
    if factors[0] == 1 and nested:
        return []
    sentence = f"{list(factors)} given; give 1, then larger multiples, each of the one before"
    return [Problem(("factors",), sentence)]


class Levels(Mask, kind="levels"):
    """Key j is visible to query i if both are on the same level of ``scales`` (``within``), or not (``across``).

    The level of a position is that of the rows that ``scales`` makes with the same factors. Under ``across``, a query
    also sees itself. ``levels(see=within) | levels(see=across)`` is ``full``.
    """

    factors: Seq[Factor] = Field(default=FACTORS, min_length=1, max_length=32, description="those of ``scales``")
    see: Literal["within", "across"] = "within"

    @property
    def level_factors(self) -> tuple[tuple[int, ...], ...]:
        return (self.factors,)

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        return self.changed(factors=factors)

    def problems(self) -> list[Problem]:
        return factors_problems(self.factors)


class Combination(Mask):
    """Base class of masks that consist of others."""

    masks: Seq[Mask] = Field(min_length=1)

    @property
    def level_factors(self) -> tuple[tuple[int, ...], ...]:
        return tuple(factors for mask in self.masks for factors in mask.level_factors)

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        return self.changed(masks=tuple(mask.with_factors(factors) for mask in self.masks))


class AllOf(Combination, kind="all_of"):
    """Intersection of ``masks``; written ``a & b``."""

    @property
    def causal(self) -> bool:
        return any(mask.causal for mask in self.masks)

    @property
    def decodes(self) -> bool:
        return any(mask.decodes for mask in self.masks)

    @property
    def reads_prefix(self) -> bool:
        return any(mask.reads_prefix for mask in self.masks)

    @property
    def reach(self) -> int | None:
        return min((mask.reach for mask in self.masks if mask.reach is not None), default=None)

    @property
    def first_visible(self) -> int:
        # Only sinks of masks that bound the reach remain visible.
        return max((mask.first_visible for mask in self.masks if mask.reach is not None), default=0)

    def __str__(self) -> str:
        # Operators are left-associative, so a nested mask on the right keeps its brackets.
        return " & ".join(
            f"({m})" if isinstance(m, AnyOf) or (i and isinstance(m, AllOf)) else str(m)
            for i, m in enumerate(self.masks)
        )


class AnyOf(Combination, kind="any_of"):
    """Union of ``masks``; written ``a | b``."""

    @property
    def causal(self) -> bool:
        return all(mask.causal for mask in self.masks)

    @property
    def decodes(self) -> bool:
        return all(mask.decodes for mask in self.masks)

    @property
    def reads_prefix(self) -> bool:
        return any(mask.reads_prefix for mask in self.masks)

    @property
    def reach(self) -> int | None:
        reaches = [mask.reach for mask in self.masks]
        return None if None in reaches else max(r for r in reaches if r is not None)

    @property
    def first_visible(self) -> int:
        return max((mask.first_visible for mask in self.masks), default=0)

    def __str__(self) -> str:
        return " | ".join(f"({m})" if i and isinstance(m, AnyOf) else str(m) for i, m in enumerate(self.masks))
