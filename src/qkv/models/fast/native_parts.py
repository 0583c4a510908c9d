"""Fields of specs that the native library supports.

The library supports a spec if every field that is not listed here has its default value. A field added to a spec later
is not listed, so that a model that sets it decodes module by module.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import PydanticUndefined

from qkv.spec import branches, heads, masks, parts
from qkv.spec.base import Spec
from qkv.spec.frontends import Text
from qkv.spec.models import cross
from qkv.spec.models.blocks import Block


class KnownFields(NamedTuple):
    """Names of the supported fields of a spec.

    computed: fields that the library computes; it must support the parts in these fields, too.   elsewhere: fields that
    do not affect decoding, or that Python computes before it calls the library.
    """

    computed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


_FEED_FORWARD = KnownFields(("hidden", "activation", "bias"), ("dropout",))
_HEADS = ("num_heads", "num_kv_heads", "head_dim", "value_dim", "temperature", "bias", "output_bias")
FIELDS: dict[type[Spec], KnownFields] = {
    Block: KnownFields(("branches", "order", "norm", "norms", "residual"), ("dropout", "drop_path")),
    branches.Attention: KnownFields((*_HEADS, "mask", "relative", "key_bias"), ("dropout",)),
    cross.CrossAttention: KnownFields(_HEADS, ("dropout", "key_bias")),
    branches.FeedForward: _FEED_FORWARD,
    branches.GatedFeedForward: _FEED_FORWARD,
    masks.Causal: KnownFields(),
    parts.NoRelative: KnownFields(),
    parts.Rope: KnownFields(("base", "fraction"), ("scaling",)),
    parts.Add: KnownFields(),
    parts.NoNorm: KnownFields(),
    parts.LayerNorm: KnownFields(("eps", "bias")),
    parts.RMSNorm: KnownFields(("eps", "weight")),
    parts.NoPositions: KnownFields(),
    parts.Learned: KnownFields(("offset",)),
    Text: KnownFields(("positions", "norm"), ("vocab_size", "dropout", "vectors", "width")),
    heads.LanguageModelHead: KnownFields(("tied", "bias"), ("norm", "transform_bias")),
}


def beyond(spec: Spec) -> str:
    """Return the first part or field of ``spec`` that the library does not support, such as "attention with top_k".

    The result is "" if the library supports all of ``spec``.
    """
    name = getattr(spec, "kind", "") or type(spec).__name__.lower()
    if type(spec) not in FIELDS:
        return f"{name!r}"
    fields = FIELDS[type(spec)]
    for field, about in type(spec).model_fields.items():
        value = getattr(spec, field)
        if field in fields.computed:
            inner = next((inner_name for part in _parts(value) if (inner_name := beyond(part))), "")
            if inner:
                return inner if isinstance(spec, Block) else f"{name} with {field} {inner}"
        elif field not in fields.elsewhere:
            default = about.get_default(call_default_factory=True)
            if default is PydanticUndefined or value != default:
                return f"{name} with {field}"
    return ""


def _parts(value: object) -> list[Spec]:
    several = value if isinstance(value, tuple) else (value,)
    return [part for part in several if isinstance(part, Spec)]
