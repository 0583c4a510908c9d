"""Structure and numbers of a spec, for the comparison with published families."""

from __future__ import annotations

from collections.abc import Callable

from qkv.spec.model import Block, Frontend, Stack


def shape_of(spec: Stack) -> tuple[Block | None, Frontend]:
    """Return (first block or None, front end) of a spec, by which callers recognise a family.

    Callers verify the other blocks by converting the config back.
    """
    return spec.layers[0] if spec.layers else None, spec.frontend


def shortest(value: float, exact: Callable[[float], bool]) -> float:
    """Return ``value`` rounded to the fewest digits with which ``exact`` holds; ``value`` itself if it never holds."""
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    return next((number for number in rounded if exact(number)), value)
