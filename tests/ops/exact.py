"""Paths that compute exactly on some processors only, as parameters of tests: elsewhere ``choose`` never takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from qkv.ops import onednn

needs_onednn = pytest.mark.skipif(
    not onednn.available(), reason="this build of torch has no oneDNN that keeps fp32 exact here"
)


def exact(names: Iterable[str]) -> list[Any]:
    """Names of twins, of which those by oneDNN are skipped where it rounds numbers in fp32, as AMX does."""
    return [pytest.param(name, marks=needs_onednn) if name.endswith("oneDNN") else name for name in names]
