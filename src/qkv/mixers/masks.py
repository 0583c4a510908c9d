"""Building of mask predicates from mask specs."""

from __future__ import annotations

from collections.abc import Callable

from qkv.ops import masks as ops
from qkv.spec import masks as spec
from qkv.spec.register import implementation, implements


def build_mask(part: spec.Mask) -> ops.Mask:
    """Build the predicate of a mask spec."""
    return implementation(part, "qkv.mixers")(part)


def _by_name(predicate: type[ops.Mask]) -> Callable[[spec.Mask], ops.Mask]:
    """Return the builder of a ``predicate`` class whose fields have the same names as the spec's."""
    return lambda part: predicate(**{name: getattr(part, name) for name in type(part).model_fields})


implements(spec.Full)(_by_name(ops.Full))
implements(spec.Causal)(_by_name(ops.Causal))
implements(spec.Window)(_by_name(ops.Window))
implements(spec.Prefix)(_by_name(ops.Prefix))
implements(spec.Strided)(_by_name(ops.Strided))
implements(spec.Fixed)(_by_name(ops.Fixed))
implements(spec.Blocks)(_by_name(ops.Blocks))
implements(spec.Levels)(_by_name(ops.Levels))


@implements(spec.AllOf)
def _all_of(part: spec.AllOf) -> ops.Mask:
    return ops.AllOf(tuple(build_mask(mask) for mask in part.masks))


@implements(spec.AnyOf)
def _any_of(part: spec.AnyOf) -> ops.Mask:
    return ops.AnyOf(tuple(build_mask(mask) for mask in part.masks))
