"""Import of modules with user-defined parts: by name, by the variable ``QKV_IMPORT``, or as an entry point.

An installed package names its module in the entry point group ``qkv.parts``. The variable and entry points are read
only when a kind is unknown, so that they cost no time before.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from qkv.system.errors import UserError

VARIABLE, GROUP = "QKV_IMPORT", "qkv.parts"
_PACKAGE = Path(__file__).parents[2]
_files: set[str] = set()
"""Files of the modules imported here."""
_done: set[str] = set()
"""Names and entry points already imported or refused."""


def import_parts(name: str) -> str:
    """Import the Python file or dotted module ``name``, whose classes register themselves.

    Return the name by which another process can import it; for a file, its absolute path. The file's folder is appended
    to ``sys.path``. Raises ``UserError`` if there is no such file or module, or, with file and line, for an error
    inside it.
    """
    path = Path(name).expanduser()
    is_file = path.suffix == ".py" or len(path.parts) > 1 or path.is_file()
    module = _of_file(path.resolve(), name) if is_file else name
    folder = str(path.resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        _files.add(os.path.realpath(str(importlib.import_module(module).__file__)))
    except (Exception, SystemExit) as error:
        raise UserError(_sentence(error, name)) from error
    return str(path.resolve()) if is_file else name


def import_more() -> None:
    """Import the modules that the variable ``QKV_IMPORT`` and entry points name, each once.

    Raises ``UserError`` if a module in the variable cannot be imported; a module of an installed package gives a
    warning.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if name not in _done:
            _done.add(name)
            import_parts(name)
    if GROUP not in _done:
        _done.add(GROUP)
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP):
            try:
                import_parts(point.module)
            except UserError as error:
                owner = point.dist.name if point.dist else point.name
                warnings.warn(f"the parts of the installed package {owner!r} are not available: {error}", stacklevel=2)


def add_to_variable(names: list[str]) -> None:
    """Add ``names`` to the variable ``QKV_IMPORT``, so that child processes can import them."""
    modules = os.environ.get(VARIABLE, "").split(os.pathsep)
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, [*modules, *names])))


def imports_given() -> str:
    """Return the ``--import`` options with which another command imports the modules in ``QKV_IMPORT``, or ""."""
    names = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return "".join(f" --import {shlex.quote(name)}" for name in names)


def imported_line(error: BaseException) -> str | None:
    """Return "file:line" of the last call of ``error``'s traceback inside a module imported here, or None."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if os.path.realpath(frame.filename) in _files
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _of_file(path: Path, text: str) -> str:
    """Return the module name of the file ``path``.

    Raises ``UserError`` if there is no such file, or if another module has this name. ``text``: the text of the user.
    """
    if not path.is_file() or path.suffix != ".py":
        what = "there is no such file" if not path.exists() else "a part is imported from a Python file, NAME.py"
        raise UserError(f"--import {text}: {what}; give a file or a dotted module")
    if "." in path.stem:
        raise UserError(f"--import {text}: a module name cannot have a dot before '.py'; rename the file")
    place = _place(path.stem)
    if place is not None and place != os.path.realpath(path):
        raise UserError(f"--import {text}: the module name {path.stem!r} is taken by {place}; rename the file")
    return path.stem


def _place(name: str) -> str | None:
    """Return the file of the module ``name``, imported or not; None if there is no module.

    A module without a file gives a description.
    """
    from importlib.util import find_spec  # rarely needed, as are other imports inside functions here

    try:
        module_spec = find_spec(name)
    except (ValueError, ImportError):  # a module made by hand, such as __main__
        return "a module without a file"
    if module_spec is None:
        return None
    return os.path.realpath(module_spec.origin) if module_spec.has_location and module_spec.origin else "Python itself"


def _sentence(error: BaseException, name: str) -> str:
    """Return the message for an error that an import raised, with the file and line where it arose."""
    message = " ".join(f"{type(error).__name__}: {error}".strip(": ").split())
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    places = list(_own_lines(error))
    if not places:
        return f"--import {name}: {message}"
    return f"{places[-1]}: {message}"


def _own_lines(error: BaseException) -> Iterator[str]:
    """Yield "file:line" of each call in the traceback outside of qkv, the import system and installed packages."""
    for frame in traceback.extract_tb(error.__traceback__):
        inside = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(inside.parts)
        if not (frame.filename.startswith("<") or inside.is_relative_to(_PACKAGE) or installed or _standard(inside)):
            yield f"{frame.filename}:{frame.lineno}"


def _standard(file: Path) -> bool:
    return file.is_relative_to(Path(os.__file__).parent)
