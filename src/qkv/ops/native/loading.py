"""Libraries of the package's C++ files, built on first use if there is a C++ compiler, and called through ctypes.

A call takes 3 µs, a sixth of a call of a oneDNN operator, and a build needs no headers of torch or Python. The
libraries use the threads of the OpenMP library that torch has loaded. ``QKV_WITHOUT=native`` turns all libraries off.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qkv.system.compiler import BuildError, build, library_path
from qkv.system.optional import turned_off

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))
_MARCH = {"AVX512": "-march=native", "AVX2": "-march=x86-64-v3"}
"""Compiler flag by torch's CPU capability, which ``ATEN_CPU_CAPABILITY`` can limit."""


def flags() -> list[str]:
    """Return the compiler flags for this processor and the instruction set that torch uses on it."""
    if platform.machine() in ("x86_64", "AMD64"):
        machine = _MARCH.get(torch.backends.cpu.get_cpu_capability(), "-march=x86-64")
        without = ["-mno-avx512bf16"] if machine == "-march=native" and turned_off("bf16") else []
    else:
        machine, without = "-mcpu=native", []
    return ["-std=c++17", "-O2", machine, "-fopenmp", "-fvisibility=hidden", *without]


def names() -> list[str] | None:
    """Return the file names of the libraries, which identify their code; None if turned off or without a compiler.

    The libraries need not have been built.
    """
    paths = [] if turned_off("native") else [library_path(source, flags()) for source in SOURCES]
    files = [path.name for path in paths if path is not None]
    return files or None


def load(name: str, signatures: Mapping[str, Sequence[Any]]) -> Any:
    """Load the library of the source ``name``; return it, or the reason as text if it cannot run here.

    signatures: argument types of its functions, which return nothing.
    """
    library = _opened(name)
    if isinstance(library, str):
        return library
    try:
        for function, types in signatures.items():
            getattr(library, function).argtypes = list(types)
            getattr(library, function).restype = None
    except AttributeError as error:
        return str(error)
    return library


def described(name: str) -> str:
    """Describe a library: its path and instruction set, or the reason why it is unavailable."""
    library = _opened(name)
    if isinstance(library, str):
        return f"none: {library}"
    return f"{build(_source(name), flags())} ({flags()[2].lstrip('-')})"


def _opened(name: str) -> Any:
    setting = turned_off("native")
    return f"{setting} turns it off" if setting else _library(name, *flags())


@cache
def _library(name: str, *flags: str) -> Any:
    try:
        return ctypes.CDLL(str(build(_source(name), flags)))
    except (BuildError, OSError) as error:
        return str(error)


def _source(name: str) -> Path:
    return Path(__file__).with_name(name)
