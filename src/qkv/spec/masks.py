"""Specs of attention masks, written as expressions: ``causal & window(512, sinks=4)``.

The predicates that define the masks are in ``qkv.ops.masks``.
"""

from __future__ import annotations

import ast
from typing import Any

from pydantic import Field

from qkv.spec.base import Part, Seq, call_form


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
        """True if the mask allows token-by-token decoding: only queries in a row's prefix (one call) see later keys."""
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
    """

    length: int | None = Field(
        default=None,
        gt=0,
        description="prefix length; default: that of each row, the source of a sequence-to-sequence task",
    )

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


class AllOf(Mask, kind="all_of"):
    """Intersection of ``masks``; written ``a & b``."""

    masks: Seq[Mask] = Field(min_length=1)

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


class AnyOf(Mask, kind="any_of"):
    """Union of ``masks``; written ``a | b``."""

    masks: Seq[Mask] = Field(min_length=1)

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
