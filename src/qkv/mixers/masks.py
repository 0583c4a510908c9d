"""Mask specs to mask predicates."""

from __future__ import annotations

from qkv.ops import masks as ops
from qkv.spec import masks as spec

_PLAIN: dict[type[spec.Mask], type[ops.Mask]] = {
    spec.Full: ops.Full,
    spec.Causal: ops.Causal,
    spec.Window: ops.Window,
    spec.Prefix: ops.Prefix,
    spec.Strided: ops.Strided,
    spec.Fixed: ops.Fixed,
    spec.Blocks: ops.Blocks,
}


def build_mask(part: spec.Mask) -> ops.Mask:
    """Build the predicate of a mask spec. Fields of elementary masks are passed by name."""
    if isinstance(part, spec.AllOf):
        return ops.AllOf(tuple(build_mask(mask) for mask in part.masks))
    if isinstance(part, spec.AnyOf):
        return ops.AnyOf(tuple(build_mask(mask) for mask in part.masks))
    return _PLAIN[type(part)](**{name: getattr(part, name) for name in type(part).model_fields})
