"""Common parts of decoders whose layers have different kinds of mixers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from qkv.interop.families.common import gated
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TAPS
from qkv.interop.mapping.names import NameRule
from qkv.spec.branches import Attention, Branch
from qkv.spec.mixers.matrix_state import GatedDelta
from qkv.spec.model import Block, Model
from qkv.spec.parts import Rope
from qkv.system.errors import UserError, nearest

T = TypeVar("T")
B = TypeVar("B", bound=Branch)
OLDER = {"attention": "full_attention", "mamba": "linear_attention"}
"""Older names of the kinds of layers -> current names."""


def kinds_of(config: Config, default: Sequence[str], key: str = "layer_types") -> list[str]:
    """Return the kind of each layer from the list under ``key``, by current names; without that key, ``default``.

    Raises ``UserError`` if the length of the list is not the number of layers.
    """
    kinds, layers = config.items(key) or list(default), config.layers("num_hidden_layers")
    if len(kinds) != layers:
        raise UserError(f"{config.source}: {key} names {len(kinds)} layers, but num_hidden_layers is {layers}")
    return [OLDER.get(str(kind), str(kind)) for kind in kinds]


def of_kinds(config: Config, kinds: Sequence[str], parts: Mapping[str, T], key: str = "layer_types") -> list[T]:
    """Return the part of each layer by its kind. Raises ``UserError`` for a kind that ``parts`` does not have."""
    unknown = next((kind for kind in kinds if kind not in parts), None)
    if unknown is not None:
        raise UserError(f"{config.source}: {key} holds {unknown!r}; {nearest(unknown, parts)}")
    return [parts[kind] for kind in kinds]


def first_mixer(spec: Model, kind: type[B]) -> B | None:
    """Return the first mixer of the class ``kind`` in the blocks of ``spec``; None if there is none."""
    return next((block.branches[0] for block in spec.layers if isinstance(block.branches[0], kind)), None)


def with_attention(spec: Model) -> Model:
    """Return ``spec`` with the first attention instead of every other mixer, so that all layers are alike."""
    attention = first_mixer(spec, Attention) or Attention(num_heads=1, bias=False, relative=Rope())
    return spec.changed(blocks=tuple(_replaced(block, attention) for block in spec.layers), num_layers=None)


def _replaced(block: Block, attention: Attention) -> Block:
    first, *rest = block.branches
    return block if isinstance(first, Attention) else block.changed(branches=(attention, *rest))


def config_of(
    spec: Model, more: gated.LayerKeys, kind_names: Callable[[Branch], str], rope: bool = True
) -> dict[str, Any] | None:
    """Return the keys of ``gated.config_of`` and each layer's kind; None if layers differ in more than the mixer."""
    shared = gated.config_of(gated.with_rope(with_attention(spec))[0], more, rope)
    kinds = [kind_names(block.branches[0]) for block in spec.layers]
    return None if shared is None or not all(kinds) else {**shared, "layer_types": kinds}


_OURS, _THEIRS = "blocks.{layer}.branches.0.body.", "model.layers.{layer}.linear_attn."


def delta_of(config: Config, eps: float, **fields: Any) -> GatedDelta:
    """Build the gated delta rule from the config keys of Qwen3-Next; ``fields``: fields that the family sets."""
    return GatedDelta(
        num_heads=config.size("linear_num_value_heads"),
        num_key_heads=config.size("linear_num_key_heads"),
        head_dim=config.size("linear_key_head_dim"),
        value_dim=config.size("linear_value_head_dim"),
        kernel_size=config.size("linear_conv_kernel_dim"),
        convolution_bias=False,
        eps=eps,
        **fields,
    )


def delta_config(spec: Model) -> dict[str, Any]:
    """Return the config keys of the gated delta rule in ``spec``, the inverse of ``delta_of``; empty without one."""
    delta = first_mixer(spec, GatedDelta)
    if delta is None:
        return {}
    head_dim, value_dim = delta.dims(spec.width)
    return {
        "linear_num_value_heads": delta.num_heads,
        "linear_num_key_heads": delta.key_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": delta.kernel_size,
    }


DELTA_NAMES = (
    NameRule(_OURS + "convolution.weight", _THEIRS + "conv1d.weight", TAPS, of="gated_delta"),
    NameRule(_OURS + "step_bias", _THEIRS + "dt_bias", of="gated_delta"),
    NameRule(_OURS + "log_rate", _THEIRS + "A_log", of="gated_delta"),
    NameRule(_OURS + "scale", _THEIRS + "norm.weight", of="gated_delta"),
    NameRule(_OURS + "output.weight", _THEIRS + "out_proj.weight", of="gated_delta"),
)
"""Rows of the name table for the gated delta rule that Qwen3-Next and its successors share."""
