"""Optional paths: faster implementations that some machines lack. ``QKV_WITHOUT`` turns them off.

    QKV_WITHOUT=native,bf16 qkv train recipe.yaml          QKV_WITHOUT=all qkv bench

The process then computes as on a machine without these paths. This serves to test the code that every machine runs, and
to find the path that causes a fault or a difference. Every operation also has a path that is not optional.
"""

from __future__ import annotations

import os

from qkv.system.errors import UserError

VARIABLE, ALL = "QKV_WITHOUT", "all"
PATHS = {
    "native": "the library compiled from the package's C++ files: products, activations, attention, decoding steps",
    "tiles": "the processor's matrix unit (AMX) in the native library's products",
    "onednn": "fp32 products by oneDNN in torch's own operators, training included",
    "onednn-operator": "oneDNN's fused linear operator",
    "bf16": "products in bf16 where a recipe permits them, and instructions for bf16 in the native library",
    "huge-pages": "weights in huge pages while a model decodes",
    "graphs": "decoding steps that are recorded as CUDA graphs",
}
"""Optional paths by name, with a description of each."""


def turned_off(path: str) -> str:
    """Return the setting that turns ``path`` off, such as "QKV_WITHOUT=native", or "" if the path is on.

    Raises ``UserError`` if the variable names an unknown path.
    """
    assert path in PATHS, path
    if path in named() or (path == "tiles" and "native" in named()):
        return f"{VARIABLE}={os.environ[VARIABLE]}"
    return ""


def named() -> tuple[str, ...]:
    """Return the paths that ``QKV_WITHOUT`` turns off. Raises ``UserError`` if it names an unknown path."""
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if ALL in names:
        return tuple(PATHS)
    unknown = next((name for name in names if name not in PATHS), None)
    if unknown is not None:
        raise UserError(f"{VARIABLE}: there is no optional path {unknown!r}; choose from {', '.join(PATHS)}, {ALL}")
    return tuple(names)
