"""Published checkpoint: a folder or a GGUF file, with its config, which is read only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.interop.adapters.read import StoredAdapter, adapted_tensors, adapted_values, base_of, read_adapter, task_of
from qkv.interop.files import hub
from qkv.interop.files.folder import Stored, config_file, read_config, read_json, stored_tensors
from qkv.interop.files.places import ADAPTER_CONFIG, CONFIG, INDEX, WEIGHTS, gguf_files, is_published, may_be_name
from qkv.interop.gguf.read import gguf_names, gguf_tensors, gguf_values
from qkv.interop.mapping.config import Config, Held
from qkv.interop.mapping.family import Family, read_spec
from qkv.interop.registry import choose
from qkv.interop.schemes.scheme import KEYS, settings_of, with_matrices
from qkv.spec.model import Model
from qkv.system.errors import UserError
from qkv.tokenizers.folder import holds_tokenizer
from qkv.tokenizers.gguf.file import is_gguf


class PublishedCheckpoint(NamedTuple):
    """Folder of a checkpoint in Hugging Face format with the contents of its ``config.json``, or a GGUF file.

    adapter: PEFT adapter to apply to the checkpoint in ``folder``; ``values`` then describe the adapted model.
    base: architecture of the checkpoint without the adapter.
    """

    folder: Path
    values: Mapping[str, Any]
    adapter: StoredAdapter | None = None
    base: str = ""

    def config(self, sizes: Held | None = None) -> Config:
        """Return checked access to the checkpoint's config.

        With ``sizes``, refuse sizes that exceed the contents of the weight files.
        """
        source = self.folder if is_gguf(self.folder) else config_file(self.folder)
        schemes = KEYS if settings_of(self.values, str(source)) else ()
        return Config({key: value for key, value in self.values.items() if key not in schemes}, str(source), sizes)

    def family(self) -> tuple[Family, str]:
        """Return (family, name of the architecture) of the config. Raises ``UserError`` if no family covers it."""
        return choose(self.config())

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the tokenizer: the adapter's folder if it holds a tokenizer, else the checkpoint's."""
        return self.adapter.folder if self.adapter and holds_tokenizer(self.adapter.folder) else self.folder

    def names(self) -> dict[str, str]:
        """Return the name in the GGUF file of each tensor, by published name; empty for a folder."""
        return gguf_names(self.values) if is_gguf(self.folder) else {}

    def tensors(self, pickles: bool = False, copy: bool = True) -> dict[str, Stored]:
        """Return the stored tensors by name, see ``stored_tensors``, with the adapter applied. Raises ``UserError``."""
        if is_gguf(self.folder):
            return gguf_tensors(self.folder, self.values, copy)
        tensors = stored_tensors(self.folder, pickles, copy)
        settings = settings_of(self.values, str(self.folder / CONFIG))
        if settings is not None:
            tensors = with_matrices(tensors, settings)
        if self.adapter is None:
            return tensors
        family, architecture = self.family()
        return adapted_tensors(tensors, self.adapter, family, (self.base, architecture))


def open_checkpoint(source: str | Path, revision: str | None = None, pickles: bool = False) -> PublishedCheckpoint:
    """Open the folder or GGUF file ``source``, or download the published model of that name; only the config is read.

    For a PEFT adapter, open the checkpoint of its base model, with the adapter. Raises ``UserError``.
    """
    folder = find_folder(source, revision, pickles)
    if is_gguf(folder):
        return PublishedCheckpoint(folder, gguf_values(folder))
    if (folder / ADAPTER_CONFIG).is_file():
        return _adapted(folder, pickles)
    return PublishedCheckpoint(folder, read_config(folder))


def published_spec(path: Path) -> Model:
    """Read the spec of a published model from its folder, its ``config.json`` or its GGUF file, without the weights.

    Raises ``UserError``.
    """
    folder = path.parent if path.name == CONFIG and path.is_file() else path
    checkpoint = open_checkpoint(folder)
    family, architecture = checkpoint.family()
    return read_spec(family, architecture, checkpoint.config())


def _adapted(folder: Path, pickles: bool) -> PublishedCheckpoint:
    """Open the base model of the PEFT adapter in ``folder``, with the adapter. Raises ``UserError``."""
    base = PublishedCheckpoint(where := _base_folder(folder, pickles), read_json(where / CONFIG))
    family, architecture = base.family()
    ending = task_of(folder) or ""
    named = [name for name in (architecture, *family.architectures) if name.endswith(ending)]
    if not named:
        names = ", ".join(family.architectures)
        raise UserError(f"{folder / ADAPTER_CONFIG} is for an architecture …{ending}; {family.name} has {names}")
    adapter = read_adapter(folder, family, named[0])
    values = adapted_values(base.values, adapter, family, named[0])
    return PublishedCheckpoint(where, values, adapter, architecture)


def _base_folder(folder: Path, pickles: bool) -> Path:
    """Return the folder of the base model of the adapter in ``folder``.

    Try the path named in the adapter's config relative to the working directory, the adapter's folder and its parent;
    then the adapter's folder if it contains a checkpoint; then a published model. Raises ``UserError``.
    """
    name, revision = base_of(folder)
    places = [Path(name).expanduser(), folder / name, folder.parent / name] if name else []
    candidates = [place for place in places if (place / CONFIG).is_file() and place.resolve() != folder.resolve()]
    base = candidates[0] if candidates else None
    if base is None and (folder / CONFIG).is_file() and any((folder / file).is_file() for file in (WEIGHTS, INDEX)):
        base = folder
    if base is not None:
        return base
    if not may_be_name(name):
        raise UserError(
            f"the adapter in {folder} is for the base model {name!r}, which is not here; "
            f"put the base model there, or its files beside the adapter's, or name it in {ADAPTER_CONFIG}"
        )
    return find_folder(name, revision, pickles)


def _only(files: Sequence[Path], folder: Path) -> Path:
    """Return the single GGUF file of a folder. Raises ``UserError`` if there are several."""
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UserError(f"{folder} contains {len(files)} GGUF files: {names}; name one of them")
    return files[0]


def find_folder(source: str | Path, revision: str | None = None, pickles: bool = False) -> Path:
    """Return the folder or GGUF file of a published checkpoint.

    This is ``source`` itself, or the folder to which the published model of that name is downloaded. Raises
    ``UserError``.
    """
    folder = Path(source).expanduser()
    if is_gguf(folder) and not revision:
        return folder
    if folder.is_dir():
        if not is_published(folder):
            raise UserError(f"{folder} contains no published checkpoint: there is no {CONFIG}")
        if revision:
            raise UserError(f"{folder} is a folder here, and only published names have revisions")
        return _only(gguf_files(folder), folder) if gguf_files(folder) else folder
    if folder.exists():
        raise UserError(f"{folder} is a file; name the folder that contains it, or a published model")
    if folder.suffix.lower() == ".gguf":
        raise UserError(f"there is no file {str(source)!r}")
    if not may_be_name(str(source)):
        raise UserError(
            f"there is no folder {str(source)!r}, and it does not look like a published name ('gpt2', 'owner/name')"
        )
    return hub.fetch(str(source), revision, pickles)
