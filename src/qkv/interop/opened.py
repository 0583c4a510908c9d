"""Published checkpoint folder with its config, which is read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.interop import hub
from qkv.interop.folder import read_json
from qkv.interop.mapping.config import Config, Held
from qkv.interop.mapping.family import Family, choose
from qkv.interop.places import CONFIG, is_published, may_be_name
from qkv.interop.registry import FAMILIES
from qkv.spec.errors import UserError


class Opened(NamedTuple):
    """Folder of a checkpoint in Hugging Face format, with the contents of its ``config.json``."""

    folder: Path
    values: Mapping[str, Any]

    def config(self, held: Held | None = None) -> Config:
        """Checked access to the folder's config; with ``held``, sizes larger than its weight files are refused."""
        return Config(self.values, str(self.folder / CONFIG), held)

    def family(self) -> tuple[Family, str]:
        """(family, name of the architecture) of the config. Raises ``UserError`` if no family covers it."""
        return choose(FAMILIES, self.config())


def opened(source: str | Path, revision: str | None = None, pickles: bool = False) -> Opened:
    """Open the checkpoint folder ``source``, or download the published model of that name; reads its config only.
    Raises ``UserError``.
    """
    folder = find_folder(source, revision, pickles)
    return Opened(folder, read_json(folder / CONFIG))


def find_folder(source: str | Path, revision: str | None = None, pickles: bool = False) -> Path:
    """Folder of a published checkpoint: ``source`` itself, or where the published model of that name was downloaded to.
    Raises ``UserError``.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not is_published(folder):
            raise UserError(f"{folder} holds no published checkpoint: there is no {CONFIG}")
        if revision:
            raise UserError(f"{folder} is a folder here, and only published names have revisions")
        return folder
    if folder.exists():
        raise UserError(f"{folder} is a file; name the folder that holds it, or a published model")
    if not may_be_name(str(source)):
        raise UserError(
            f"there is no folder {str(source)!r}, and it is not the form of a published name ('gpt2', 'owner/name')"
        )
    return hub.fetch(str(source), revision, pickles)
