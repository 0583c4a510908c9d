"""Compilation of the package's C++ files to shared libraries in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from qkv.system.cache import cache_folder
from qkv.system.files import write_file
from qkv.system.processor import processor_model

_COMPILERS = ("g++", "c++", "clang++")
_LONGEST = 300
"""Timeout of a compiler call in seconds; a build usually takes about ten."""


class BuildError(Exception):
    """Raised if a source cannot be compiled on this machine; the message is the reason."""


def compiler() -> str | None:
    """Return the path of the C++ compiler: ``CXX`` if set, else the first of g++, c++ and clang++; None if absent."""
    variable = os.environ.get("CXX")
    return next((path for name in ([variable] if variable else _COMPILERS) if (path := shutil.which(name))), None)


def library_path(source: Path, flags: Sequence[str]) -> Path | None:
    """Return the path of the library of ``source``, whether or not it is built; None without a compiler.

    The file name contains a digest of the source, the headers beside it, flags, compiler and processor, so that a
    change of any of them causes a new build.
    """
    program = compiler()
    if program is None:
        return None
    code = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    whole = code + "\0".join([*flags, program, processor_model()]).encode()
    return cache_folder() / "native" / f"{source.stem}-{hashlib.sha256(whole).hexdigest()[:16]}.so"


def build(source: Path, flags: Sequence[str]) -> Path:
    """Compile ``source`` unless its library is in the cache folder; return the path of the shared library.

    Compiler and linker run separately, so that no library that a compiler flag implies, such as ``-fopenmp``, is
    linked. The file is written under a temporary name and renamed: of two processes that build at the same time, the
    last one wins. A failed build is recorded in a text file beside the library. The first build of a process is
    announced. Raises ``BuildError``.
    """
    path = library_path(source, flags)
    if path is None:
        raise BuildError("there is no C++ compiler")
    failure = path.with_suffix(".txt")
    if not path.exists():
        if failure.exists():
            raise BuildError(f"{failure.read_text()} (remove {failure} to build again)")
        _announce()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                _compile(source, flags, Path(folder), path)
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"{source.name} cannot be compiled: {error}") from None
        except BuildError as error:
            write_file(failure, str(error))
            raise
    return path


@cache
def _announce() -> None:
    """Tell the user that kernels are being compiled: one line per process, only if standard error is a terminal."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write("compiling native kernels for this processor, once (about 6 s)\n")
            sys.stderr.flush()


def _compile(source: Path, flags: Sequence[str], folder: Path, path: Path) -> None:
    compiled, library, program = folder / "a.o", folder / "a.so", str(compiler())
    for command in (
        [program, *flags, "-fPIC", "-c", str(source), "-o", str(compiled)],
        [program, "-shared", str(compiled), "-o", str(library)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LONGEST, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
            raise BuildError(f"{Path(program).name} does not compile {source.name}: {lines[0].strip()}")
    os.replace(library, path)
