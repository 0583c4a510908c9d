"""Ways in which branches compute rows that ranks share, or the reasons why they cannot."""

from __future__ import annotations

from typing import Literal, NamedTuple

from qkv.layers.branch import Branch

By = Literal["ring", "heads"]
"""Attention by keys that travel, or by heads that are exchanged for positions."""
WAYS = ("alone", "keys", "state")
"""Ways to compute rows that ranks share, see ``RowWay``."""


class RowWay(NamedTuple):
    """Way in which a branch computes rows that ranks share.

    name: "alone", each position by itself; "keys", attention to travelling keys or exchanged heads; "state", the state
    goes from rank to rank; or "", not at all. reason: why not.
    """

    name: Literal["alone", "keys", "state", ""]
    reason: str = ""


def way_of(branch: Branch) -> RowWay:
    """Return how ``branch`` computes rows that ranks share."""
    part = branch.spec
    if not part.mixes or part.reads_memory:
        return RowWay("alone")
    if branch.only_by_keys:
        return RowWay("keys")
    if not part.causal:
        return RowWay("", "reads later positions, so that it has no state to pass on")
    if part.exactness.length is not None:
        return RowWay("", "gives other outputs piece by piece than at once")
    return RowWay("state")
