"""User's cache of computed results, written atomically and rebuilt if missing or damaged."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from qkv.system.cache import cache_folder
from qkv.system.errors import UserError

T = TypeVar("T")
PARTIAL = ".partial-"
ABANDONED = 24 * 3600
"""Age in seconds after which an unfinished folder is assumed to belong to a killed process."""


def stored(shelf: str, key: str, load: Callable[[Path], T | None], build: Callable[[Path], None]) -> T:
    """Return the result of ``load`` for the cache folder ``shelf``/``key``.

    If the folder is missing, or ``load`` returns None because it is damaged, ``build`` writes it first. If the cache is
    not writable, a temporary folder of this process is used. Raises ``UserError`` if that fails too.
    """
    home = cache_folder() / shelf
    result = load(home / key)
    if result is not None:
        return result
    try:
        return _built(home / key, load, build)
    except OSError as error:
        refused = error
    logging.getLogger(__name__).warning(
        "the cache %s cannot be written (%s); using a temporary folder", home, refused.strerror
    )
    try:
        temporary = Path(tempfile.mkdtemp(prefix="qkv-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return _built(temporary / key, load, build)
    except OSError as error:
        raise UserError(
            f"the {shelf} of the data can be written neither to the cache {home} ({refused.strerror}) "
            f"nor to {tempfile.gettempdir()} ({error.strerror}); free disk space, or set QKV_CACHE to another folder"
        ) from None


def _built(target: Path, load: Callable[[Path], T | None], build: Callable[[Path], None]) -> T:
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=target.parent))
    try:
        build(partial)
        _publish(partial, target, load)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    result = load(target)
    if result is None:
        raise OSError(errno.EIO, "the files just written are damaged")
    return result


def _publish(partial: Path, target: Path, load: Callable[[Path], object | None]) -> None:
    """Rename ``partial`` to ``target``, unless another process wrote a valid ``target`` meanwhile; a damaged ``target``
    is replaced.
    """
    try:
        os.rename(partial, target)
    except OSError:
        if not target.exists():
            raise
        if load(target) is None:
            shutil.rmtree(target)
            os.rename(partial, target)


def _sweep(home: Path) -> None:
    for folder in home.glob(f"{PARTIAL}*"):
        try:
            abandoned = time.time() - folder.stat().st_mtime > ABANDONED
        except OSError:  # another process has just removed it
            continue
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)
