"""Base class of parts that hold tables."""

from __future__ import annotations

from torch import nn


class Table(nn.Module):
    """A module whose own parameters are rows that are looked up, by a number, a position or a distance, and not a map of features."""
