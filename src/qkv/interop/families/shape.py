"""Structure of a spec, compared with published families."""

from __future__ import annotations

from qkv.spec.model import Block, Frontend, Stack


def shape_of(spec: Stack) -> tuple[Block | None, Frontend]:
    """(first block or None, front end) of a spec, to recognise a family by. Whether the other blocks agree is verified
    by converting the config back.
    """
    return spec.layers[0] if spec.layers else None, spec.frontend
