"""Base class of modules with lookup tables."""

from __future__ import annotations

from torch import nn


class Table(nn.Module):
    """Module whose own parameters are lookup tables (by id, position or distance), not weight matrices."""
