"""RoPE settings of published configs, conversion in both directions.

They are in ``rope_parameters``, or in the older ``rope_theta`` and ``rope_scaling``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.interop.mapping.config import Config
from qkv.spec.branches import Attention
from qkv.spec.model import Block, Model
from qkv.spec.parts import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from qkv.system.errors import UserError

BASE = 10000.0
ORIGINAL = "original_max_position_embeddings"
FRACTION = "partial_rotary_factor"
_REFUSED = {
    **dict.fromkeys(("short_factor", "long_factor"), "the frequencies of LongRoPE"),
}
"""RoPE keys that the published library reads and qkv does not support, with what they change."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""RoPE keys without effect on text, where all axes have the same position (M-RoPE)."""


def rope_of(config: Config, fraction: float | None = None) -> Rope:
    """Build the RoPE spec from a config's RoPE keys. Raises ``UserError`` for an unknown scaling.

    ``fraction``: default fraction of a head that is rotated. None: the family rotates whole heads, and a
    ``partial_rotary_factor`` other than 1 is refused, because libraries interpret it differently.
    """
    base, part = config.number("rope_theta", BASE), config.number(FRACTION, 1.0 if fraction is None else fraction)
    table = table_of(config)
    scaling = table.word("rope_type", table.word("type", "default"), SCALINGS)(table, config)
    part = 1.0 if isinstance(scaling, ProportionalScaling) else table.number(FRACTION, part)
    if fraction is None and part != 1.0:
        raise UserError(
            f"{config.source}: {FRACTION} is {part:g}, but this family rotates whole heads: some libraries "
            "ignore the key, some fail and some apply it; delete the key if the model was trained with whole heads"
        )
    rope = Rope(base=table.number("rope_theta", base), fraction=part, scaling=scaling)
    table.leave_unread(_OF_IMAGES, _REFUSED)
    return rope


def table_of(config: Config) -> Config:
    """Return the table with the settings of RoPE: ``rope_scaling`` if it is not empty, else ``rope_parameters``."""
    older, newer = config.table("rope_scaling"), config.table("rope_parameters")
    return older if older.values else newer


def layer_ropes(
    config: Config, bases: Mapping[str, float], scaled: str = "", fraction: float | None = None
) -> dict[str, Rope]:
    """Return the RoPE of each kind of layer, from one table per kind in ``rope_parameters``.

    ``bases``: base of each kind without a table; ``scaled``: kind to which the older ``rope_scaling`` applies; empty:
    none. ``fraction``: as in ``rope_of``.
    """
    tables, length = config.table("rope_parameters"), config.integer("max_position_embeddings", 131072)
    older = {scaled: config.table("rope_scaling").values}
    ropes = {}
    for kind, base in bases.items():
        table = {**tables.table(kind).values, **older.get(kind, {})}
        keys = {"rope_parameters": table, "rope_theta": base, "max_position_embeddings": length}
        ropes[kind] = rope_of(Config(keys, f"{config.source}: {kind}"), fraction)
    tables.finish(())
    return ropes


def layer_tables(
    spec: Model, kinds: Sequence[str], bases: Mapping[str, float], partial: bool = False
) -> dict[str, Any] | None:
    """Return the tables of ``rope_parameters``, one per kind of layer; None if configs cannot express them.

    ``kinds``: kind of each layer; ``bases``: base of a kind without layers; ``partial``: as in ``rope_config``.
    """
    ropes = {kind: Rope(base=base) for kind, base in bases.items()}
    for kind, block in zip(kinds, spec.layers, strict=True):
        relative = getattr(block.branches[0], "relative", None)
        if isinstance(relative, Rope):
            ropes[kind] = relative
    tables = {kind: rope_table(rope, partial) for kind, rope in ropes.items()}
    return None if None in tables.values() else tables


def _default(table: Config, config: Config) -> RopeScaling | None:
    table.has("factor")
    return None


def _linear(table: Config, config: Config) -> RopeScaling | None:
    factor = table.number("factor")
    return LinearScaling(factor=factor) if factor != 1.0 else None


def _proportional(table: Config, config: Config) -> RopeScaling:
    part = table.number(FRACTION, config.number(FRACTION, 1.0))
    return ProportionalScaling(fraction=part, factor=table.number("factor", 1.0))


def _llama3(table: Config, config: Config) -> RopeScaling:
    return Llama3Scaling(
        factor=table.number("factor"),
        original_length=_original(table, config),
        low_frequency_factor=table.number("low_freq_factor"),
        high_frequency_factor=table.number("high_freq_factor"),
    )


def _yarn(table: Config, config: Config) -> RopeScaling:
    original = _original(table, config)
    stretch = config.integer("max_position_embeddings") / original if "factor" in table.nulls else None
    factor = table.number("factor", stretch)
    magnitude = _magnitude(table, factor)
    return YarnScaling(
        factor=factor,
        original_length=original,
        beta_fast=table.number("beta_fast", 32.0) or 32.0,
        beta_slow=table.number("beta_slow", 1.0) or 1.0,
        magnitude=None if math.isclose(magnitude, yarn_scale(factor), rel_tol=1e-6) else magnitude,
        whole_pairs=table.flag("truncate", True),
    )


def _magnitude(table: Config, factor: float) -> float:
    """Return YaRN's scale of queries and keys: ``attention_factor``, else from ``mscale`` and ``mscale_all_dim``."""
    above, below = (table.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    both = yarn_scale(factor, above) / yarn_scale(factor, below) if above and below else yarn_scale(factor)
    return table.number("attention_factor", both)


def yarn_scale(factor: float, share: float = 1.0) -> float:
    """Compute YaRN's scale 0.1 · share · ln(factor) + 1 for a context ``factor`` times as long (Peng et al. 2023)."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _dynamic(table: Config, config: Config) -> RopeScaling:
    if table.has("alpha"):
        raise UserError(f"{table.source}: alpha is set, which qkv does not support with 'dynamic' in this family")
    return DynamicScaling(factor=table.number("factor"), original_length=config.integer("max_position_embeddings"))


def _longrope(table: Config, config: Config) -> RopeScaling:
    length = config.integer("max_position_embeddings")
    original = config.integer(ORIGINAL) if config.has(ORIGINAL) else table.integer(ORIGINAL, length)
    table.has(ORIGINAL)
    factor = table.number("factor", length / max(original, 1))
    short, long = (tuple(table.items(key)) for key in ("short_factor", "long_factor"))
    magnitude = table.number("attention_factor", longrope_magnitude(factor, original))
    return LongRopeScaling(
        short=short,
        long=long,
        original_length=original,
        magnitude=magnitude,
        inexact_decoding=length > original,  # published decoders are used in this way
    )


def longrope_magnitude(factor: float, original: int) -> float:
    """Return LongRoPE's factor of queries and keys, √(1 + ln factor / ln original_length)."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0


def _original(table: Config, config: Config) -> int:
    return table.integer(ORIGINAL, config.integer("max_position_embeddings"))


SCALINGS: dict[str, Callable[[Config, Config], RopeScaling | None]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}


def rope_table(rope: Rope, partial: bool = False) -> dict[str, Any] | None:
    """Return a RoPE as a ``rope_parameters`` table; None if configs cannot express it.

    ``partial``: write the rotated fraction of a head, too.
    """
    turned = rope_config(rope, partial)
    if turned is None:
        return None
    table = {"rope_type": "default", "rope_theta": turned["rope_theta"], **turned.get("rope_scaling", {})}
    return {**table, FRACTION: rope.fraction} if partial else table


def rope_config(rope: Rope, partial: bool = False) -> dict[str, Any] | None:
    """Return the config keys of a RoPE, in the older form that every version of transformers reads; None without one.

    ``partial``: allow a rotated fraction below 1, whose key the caller writes, because families differ in it.
    """
    if rope.fraction != 1.0 and not partial:
        return None
    keys: dict[str, Any] = {"rope_theta": rope.base}
    match rope.scaling:
        case None:
            return keys
        case LinearScaling(factor=factor):
            table: dict[str, Any] = {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as s:
            table = {"rope_type": "llama3", "factor": s.factor, ORIGINAL: s.original_length}
            table |= {"low_freq_factor": s.low_frequency_factor, "high_freq_factor": s.high_frequency_factor}
        case ProportionalScaling() as s:
            table = {"rope_type": "proportional", FRACTION: s.fraction, "factor": s.factor}
        case YarnScaling() as s:
            table = {"rope_type": "yarn", "factor": s.factor, ORIGINAL: s.original_length}
            table |= {"beta_fast": s.beta_fast, "beta_slow": s.beta_slow}
            table |= {} if s.magnitude is None else {"attention_factor": s.magnitude}
            table |= {} if s.whole_pairs else {"truncate": False}
        case LongRopeScaling() as s:
            table = {"rope_type": "longrope", "short_factor": list(s.short), "long_factor": list(s.long)}
            table |= {ORIGINAL: s.original_length, "attention_factor": s.magnitude}
        case DynamicScaling(factor=factor):
            table = {"rope_type": "dynamic", "factor": factor}
        case _:
            return None
    return {**keys, "rope_scaling": table}


def partial_rope_config(spec: Model, keys: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return ``keys`` with the keys of the first block's RoPE and its rotated fraction of a head.

    None if ``keys`` is None, if there is no RoPE, or if configs cannot express it.
    """
    match spec.layers[:1], keys:
        case (Block(branches=(Attention(relative=Rope() as rope), *_)),), dict():
            turned = rope_config(rope, partial=True)
            return None if turned is None else {**keys, **turned, FRACTION: rope.fraction}
        case _:
            return None
