"""Constant factors in published configs: of attention scores, embeddings and branches."""

from __future__ import annotations

from qkv.interop.families.common.shape import shortest
from qkv.interop.mapping.config import Config
from qkv.spec.branches import Attention
from qkv.system.errors import UserError


def factor_of(config: Config, key: str, default: float = 1.0) -> float:
    """Return the factor under ``key`` of a config. Raises ``UserError`` if it is not above 0."""
    value = config.number(key, default)
    if value <= 0:
        raise UserError(f"{config.source}: {key} is {value:g}, but it should be above 0")
    return value


def temperature_of(config: Config, key: str) -> float:
    """Return the temperature τ for which the scale of the scores, 1 / (τ √Dk), is the factor under ``key``."""
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = config.size("head_dim") if config.has("head_dim") else width // heads
    return _temperature(factor_of(config, key), head_dim)


def _temperature(scale: float, head_dim: int) -> float:
    return head_dim**-0.5 / scale  # exactly 1 for Dk^-0.5, which published classes write if the key is missing


def attention_multiplier(attention: Attention, width: int) -> float:
    """Return the scale 1 / (τ √Dk) of an attention, as the number of fewest digits with the same temperature."""
    head_dim = attention.dims(width)[0]
    scale = head_dim**-0.5 / attention.temperature
    return shortest(scale, lambda number: _temperature(number, head_dim) == attention.temperature)
