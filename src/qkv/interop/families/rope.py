"""Rotary positions as published configs say them: ``rope_parameters``, or the older ``rope_theta`` with ``rope_scaling``; and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from qkv.interop.config import Config
from qkv.spec.errors import UserError
from qkv.spec.parts import LinearScaling, Llama3Scaling, Rope, RopeScaling, YarnScaling

BASE = 10000.0
ORIGINAL = "original_max_position_embeddings"


def rope_of(config: Config, fraction: float = 1.0) -> Rope:
    """The rotation that a config asks for; ``fraction``: of a head, where it does not say. Raises ``UserError`` for scalings unknown here."""
    older, base = config.has("rope_scaling"), config.number("rope_theta", BASE)
    newer, part = config.has("rope_parameters"), config.number("partial_rotary_factor", fraction)
    table = config.table("rope_scaling" if older and not newer else "rope_parameters")
    scaling = table.word("rope_type", table.word("type", "default"), SCALINGS)(table, config)
    rope = Rope(base=table.number("rope_theta", base), fraction=table.number("partial_rotary_factor", part), scaling=scaling)
    table.finish(())
    return rope


def _default(table: Config, config: Config) -> RopeScaling | None:
    table.has("factor")
    return None


def _linear(table: Config, config: Config) -> RopeScaling | None:
    factor = table.number("factor")
    return LinearScaling(factor=factor) if factor != 1.0 else None


def _llama3(table: Config, config: Config) -> RopeScaling:
    return Llama3Scaling(
        factor=table.number("factor"),
        original_length=_original(table, config),
        low_frequency_factor=table.number("low_freq_factor"),
        high_frequency_factor=table.number("high_freq_factor"),
    )


def _yarn(table: Config, config: Config) -> RopeScaling:
    factor = table.number("factor")
    table.fixed("truncate", True, "where the ramp between fast and slow pairs begins")
    magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
    if not math.isclose(table.number("attention_factor", magnitude), magnitude, rel_tol=1e-6):
        raise UserError(f"{table.source}: attention_factor should be 0.1 ln(factor) + 1 = {magnitude:.6g}; qkv knows no other")
    return YarnScaling(
        factor=factor,
        original_length=_original(table, config),
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
    )


def _original(table: Config, config: Config) -> int:
    return table.integer(ORIGINAL, config.integer("max_position_embeddings"))


SCALINGS: dict[str, Callable[[Config, Config], RopeScaling | None]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def rope_config(rope: Rope) -> dict[str, Any] | None:
    """The keys of a rotation, in the older form that every version reads; None for one that configs cannot say."""
    found: dict[str, Any] = {"rope_theta": rope.base}
    if rope.fraction != 1.0:
        found["partial_rotary_factor"] = rope.fraction
    match rope.scaling:
        case None:
            return found
        case LinearScaling(factor=factor):
            table: dict[str, Any] = {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as s:
            table = {"rope_type": "llama3", "factor": s.factor, ORIGINAL: s.original_length}
            table |= {"low_freq_factor": s.low_frequency_factor, "high_freq_factor": s.high_frequency_factor}
        case YarnScaling() as s:
            table = {"rope_type": "yarn", "factor": s.factor, ORIGINAL: s.original_length}
            table |= {"beta_fast": s.beta_fast, "beta_slow": s.beta_slow}
        case _:
            return None
    return {**found, "rope_scaling": table}
