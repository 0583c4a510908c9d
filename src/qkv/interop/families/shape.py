"""What a published family's shape is matched against."""

from __future__ import annotations

from qkv.spec.model import Block, Frontend, Stack


def shape_of(spec: Stack) -> tuple[Block | None, Frontend]:
    """(the first block, or None where there is none; the front end). That the other blocks are alike is judged by reading the keys back."""
    return spec.layers[0] if spec.layers else None, spec.frontend
