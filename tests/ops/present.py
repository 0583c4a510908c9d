"""Paths that are present on some machines only: tests of them are skipped elsewhere, where nothing ever takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from qkv.ops.selection import onednn
from qkv.system import compiler
from qkv.system.optional import turned_off

needs_onednn = pytest.mark.skipif(
    not onednn.available(), reason="this build of torch has no oneDNN that keeps fp32 exact here"
)
# Asked of the compiler, as loading the library would build it outside of the folder of the tests.
needs_native = pytest.mark.skipif(
    compiler.compiler() is None or bool(turned_off("native")), reason="there is no native library here"
)


def exact(names: Iterable[str]) -> list[Any]:
    """Names of twins, of which those by oneDNN are skipped where it rounds numbers in fp32, as AMX does."""
    return [pytest.param(name, marks=needs_onednn) if name.endswith("oneDNN") else name for name in names]
