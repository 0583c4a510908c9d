"""Structure of a spec, compared with published families."""

from __future__ import annotations

from qkv.spec.model import Block, Frontend, Stack


def shape_of(spec: Stack) -> tuple[Block | None, Frontend]:
    """Return (first block or None, front end) of a spec, by which a family is recognised. Callers verify the other
    blocks by converting the config back.
    """
    return spec.layers[0] if spec.layers else None, spec.frontend
