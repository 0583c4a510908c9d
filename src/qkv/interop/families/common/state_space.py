"""Common parts of families with Mamba-2, whose config keys have different names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TAPS
from qkv.interop.mapping.names import NameRule
from qkv.spec.mixers.matrix_state import Mamba2
from qkv.system.errors import UserError

INFINITY = {"__float__": "Infinity"}
"""Infinity as the published library writes it in JSON."""


@dataclass(frozen=True)
class StateSpaceKeys:
    """Names of a family's config keys of Mamba-2, for conversion in both directions.

    ``expansion``: None if configs contain only the number and the width of heads; ``eps``: key of the output norm's
    epsilon.
    """

    num_heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    state_size: str = "mamba_d_state"
    num_groups: str = "mamba_n_groups"
    kernel_size: str = "mamba_d_conv"
    bias: str = "mamba_proj_bias"
    convolution_bias: str = "mamba_conv_bias"
    expansion: str | None = "mamba_expand"
    activation: str = "hidden_act"
    eps: str = "rms_norm_eps"

    def read(self, config: Config, **fields: Any) -> Mamba2:
        """Build the spec of a config; ``fields``: fields that the family sets."""
        config.word(self.activation, "silu", {"silu": "silu"})
        width, heads = config.size("hidden_size"), config.size(self.num_heads)
        inner = heads * self._head_dim(config, width, heads)
        groups = config.size(self.num_groups)
        return Mamba2(
            num_heads=heads,
            expansion=inner / width,
            state_size=config.size(self.state_size),
            kernel_size=config.size(self.kernel_size),
            bias=config.flag(self.bias, False),
            convolution_bias=config.flag(self.convolution_bias, True),
            **{"num_groups": groups, "norm_groups": groups, "eps": config.number(self.eps, 1e-5), **fields},
        )

    def _head_dim(self, config: Config, width: int, heads: int) -> int:
        """Return the features of a head; "auto": as computed from ``expansion``.

        Raises ``UserError`` if both disagree, as the published classes do.
        """
        if self.expansion is None:
            return config.size(self.head_dim)
        expanded = int(config.number(self.expansion, 2) * width)
        automatic = config.values.get(self.head_dim, config.defaults.get(self.head_dim)) == "auto"
        head_dim = expanded // heads if config.has(self.head_dim) and automatic else config.size(self.head_dim)
        if heads * head_dim != expanded:
            raise UserError(
                f"{config.source}: {self.num_heads} is {heads} and {self.head_dim} {head_dim}, but their product "
                f"should be {expanded}, {self.expansion} times hidden_size"
            )
        return head_dim

    def write(self, part: Mamba2, width: int) -> dict[str, Any]:
        """Return the config keys of a spec, the inverse of ``read``."""
        inner = part.inner(width)
        return {
            self.num_heads: part.num_heads,
            self.head_dim: inner // part.num_heads,
            self.state_size: part.state_size,
            self.num_groups: part.num_groups,
            self.kernel_size: part.kernel_size,
            self.bias: part.bias,
            self.convolution_bias: part.convolution_bias,
            **({self.expansion: inner // width} if self.expansion else {}),
        }


def min_step_of(config: Config, key: str = "time_step_limit") -> float:
    """Return the lower limit of the step. Raises ``UserError`` for an upper limit, which qkv does not support."""
    limits = config.values.get(key) if config.has(key) else None
    match limits:
        case None:
            return 0.0
        case [int() | float() as low, high] if high == INFINITY or (isinstance(high, float) and math.isinf(high)):
            return float(low)
        case _:
            raise UserError(f"{config.source}: {key} is {limits}; qkv has no upper limit of Mamba-2's step")


def step_limits(part: Mamba2) -> list[Any]:
    """Return the limits of the step in the form of configs, the inverse of ``min_step_of``."""
    return [part.min_step, INFINITY]


def mamba2_names(theirs: str) -> tuple[NameRule, ...]:
    """Return the name-table rows of Mamba-2 as a block's first branch; ``theirs``: prefix of published names."""
    ours, kind = "blocks.{layer}.branches.0.body.", "mamba2"
    plain = {"step_bias": "dt_bias", "log_rate": "A_log", "skip": "D", "scale": "norm.weight"}
    return (
        NameRule(f"{ours}input.*", f"{theirs}in_proj.*", of=kind),
        NameRule(f"{ours}output.*", f"{theirs}out_proj.*", of=kind),
        NameRule(f"{ours}convolution.weight", f"{theirs}conv1d.weight", TAPS, of=kind),
        NameRule(f"{ours}convolution.bias", f"{theirs}conv1d.bias", of=kind),
        *(NameRule(f"{ours}{name}", f"{theirs}{published}", of=kind) for name, published in plain.items()),
    )
