"""Theoretical growth of the cost of a branch with the number of positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Growth(NamedTuple):
    """Exponents a of costs that grow as N^a with the number N of positions of a row, for N far above all model sizes.

    An exponent of 0 is a constant cost.

    time: operations of a forward and a backward pass.   memory: numbers stored at the same time in training.
    path: dependent steps between the two positions that are furthest apart; None if positions are not mixed.
    steps: operations that must wait for each other in training.   (Vaswani et al. 2017, table 1)
    """

    time: float = 1.0
    memory: float = 1.0
    path: float | None = None
    steps: float = 0.0

    @staticmethod
    def of(branches: Iterable[Growth]) -> Growth:
        """Combine the growth of branches that follow each other: the largest exponents, and the shortest path."""
        growths = list(branches)
        paths = [growth.path for growth in growths if growth.path is not None]
        return Growth(
            max((growth.time for growth in growths), default=1.0),
            max((growth.memory for growth in growths), default=1.0),
            min(paths, default=None),
            max((growth.steps for growth in growths), default=0.0),
        )


POSITION_WISE = Growth()
"""Each position is processed separately."""
DENSE = Growth(2.0, 1.0, 0.0)
"""Every position reads every other position; attention weights are not stored."""
STORED = Growth(2.0, 2.0, 0.0)
"""Every position reads every other position through a stored matrix."""
NEAR = Growth(1.0, 1.0, 1.0)
"""Each position reads a fixed number of neighbours."""
LINEAR = Growth(1.0, 1.0, 0.0)
"""Every position reaches every other position in one step, through sums over the row, buckets or shared positions."""
CHUNKED = Growth(1.0, 1.0, 0.0, 1.0)
"""Every position reads a sum over the positions before it, chunk by chunk."""
RECURRENT = Growth(1.0, 1.0, 1.0, 1.0)
"""Each state is a function of the previous state."""
