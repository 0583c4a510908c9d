"""Precisions in which a model runs on this machine: memory of its weights, rate of decoding, longest text.

weights     matrices · b / 8 + vectors · 4 bytes;  b = 32, 16, 8 or 4.5 bits (4 and a scale for 32 weights)
rate        bandwidth / (weights that a step reads + state of a short text), an upper bound
longest     largest N ≤ context length with weights + state(N) within three quarters of the memory
"""

from __future__ import annotations

from typing import NamedTuple

from qkv.costs.cost import Cost
from qkv.costs.longest import longest_state
from qkv.costs.measuring.machine import Machine, usable_memory
from qkv.report.figures import short, size

BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.0, "int4": 4.5}
"""Bits of a matrix weight in each precision, scales included."""
_TABLE = 8.0
"""Least bits of an embedding or output table."""
_FLOAT = 4
_SHORT = 256
"""Positions of a short text."""
_SHARE = 0.75
COLUMNS = ("weights in", "memory", "at most tokens/s", "positions that fit")


class PrecisionFit(NamedTuple):
    """Model in one precision on this machine.

    weights: bytes. rate: upper bound of decoded tokens per second in a short text; None for a machine that was not
    measured. longest: number of positions whose state fits the memory beside the weights.
    """

    precision: str
    weights: int
    rate: float | None
    longest: int


def fits(counted: Cost, machine: Machine | None, memory: int | None = None) -> list[PrecisionFit]:
    """Estimate how a decoder runs in each precision. ``memory``: bytes; default: those usable here."""
    memory = usable_memory() if memory is None else memory
    return [_fit(counted, name, machine, memory) for name in BITS]


def weight_bytes(counted: Cost, precision: str) -> int:
    """Return the bytes of all weights: matrices in ``precision``, tables in at least 8 bits, vectors in fp32."""
    bits, matrices = BITS[precision], counted.total.matrices
    tables = (part.parameters for name, part in counted.parts.items() if name.split(".")[-1] in ("embedding", "head"))
    table = sum(tables)
    rest = counted.parameters - matrices - table
    return int(matrices * bits / 8 + table * max(bits, _TABLE) / 8 + rest * _FLOAT)


def _fit(counted: Cost, precision: str, machine: Machine | None, memory: int | None) -> PrecisionFit:
    weights, context = weight_bytes(counted, precision), counted.model.context_length
    read = counted.step_bytes(1) - counted.state_bytes(1)
    step = read * weights / (_FLOAT * counted.parameters) + counted.state_bytes(min(_SHORT, context))
    room = None if memory is None else _SHARE * memory - weights
    longest = context if room is None else longest_state(counted.state_bytes, room, context)
    return PrecisionFit(precision, weights, machine.bandwidth / step if machine else None, longest)


def fit_rows(by_precision: list[PrecisionFit]) -> list[tuple[str, str, str, str]]:
    """Build the rows of the table with the columns ``COLUMNS``, as text."""
    return [
        (
            fit.precision,
            size(fit.weights),
            "not measured; use --probe" if fit.rate is None else short(fit.rate),
            f"{fit.longest:,}" if fit.longest else "none",
        )
        for fit in by_precision
    ]
