"""Folder in Hugging Face format. Untrusted files can neither run code nor refer to paths outside the folder."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv.interop.files.places import (
    CONFIG,
    INDEX,
    OPEN_CLIP,
    OPEN_CLIP_PICKLE,
    OPEN_CLIP_WEIGHTS,
    PICKLE,
    PICKLE_INDEX,
    WEIGHTS,
)
from qkv.interop.files.safetensors_file import Entry, entries
from qkv.interop.mapping.config import Held
from qkv.system.errors import UserError

_MOST_JSON = 256 << 20
"""Size limit of a JSON file in bytes; the index of the largest published models has a few megabytes."""


class Stored(Protocol):
    """Interface of a tensor in a file, whose dtype and shape are known before it is read."""

    @property
    def dtype(self) -> torch.dtype:
        """torch dtype in which the tensor is stored."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        ...

    @property
    def numbers(self) -> int:
        """Number of elements of the tensor."""
        ...

    def read(self) -> Tensor:
        """Read the tensor from its file into new memory."""
        ...

    def read_into(self, out: Tensor) -> None:
        """Read the tensor from its file into ``out``, which has its shape."""
        ...


class Unpickled:
    """Tensor of a pickle file, which is loaded as a whole, with all its tensors."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.dtype, self.shape, self.numbers = tensor.dtype, tuple(tensor.shape), tensor.numel()

    def read(self) -> Tensor:
        """Copy the tensor, which is already in memory."""
        return self.tensor.clone()

    def read_into(self, out: Tensor) -> None:
        """Copy the tensor into ``out``."""
        out.copy_(self.tensor)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object. Raises ``UserError`` if it is missing, damaged or of another kind."""
    try:
        size = path.stat().st_size
        tree = json.loads(path.read_text(encoding="utf-8")) if size <= _MOST_JSON else None
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if size > _MOST_JSON:
        raise UserError(f"{path} has {size:,} bytes; a JSON file may have at most {_MOST_JSON:,}")
    if not isinstance(tree, dict):
        raise UserError(f"{path} should contain a mapping, but contains a {type(tree).__name__}")
    return tree


def config_file(folder: Path) -> Path:
    """Return the file with the config of a checkpoint: that of OpenCLIP in a folder that has no other."""
    of_open_clip = (folder / OPEN_CLIP).is_file() and not (folder / CONFIG).is_file()
    return folder / (OPEN_CLIP if of_open_clip else CONFIG)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a checkpoint; of OpenCLIP, the part that describes the model. Raises ``UserError``."""
    file = config_file(folder)
    values = read_json(file)
    if file.name != OPEN_CLIP:
        return values
    model = values.get("model_cfg")
    if not isinstance(model, dict):
        raise UserError(f"{file} has no 'model_cfg', which describes the model")
    return {**model, "model_type": "open_clip"}


def stored_tensors(folder: Path, pickles: bool = False, copy: bool = True) -> dict[str, Stored]:
    """Return all tensors of a checkpoint folder by name, without reading them.

    They are in one safetensors file, or in the shards that an index lists. ``pickles``: if there is no safetensors
    file, read ``pytorch_model.bin`` with ``weights_only``. ``copy`` False: memory-map safetensors files if the system
    supports it. Raises ``UserError``.
    """
    for name in (WEIGHTS, *OPEN_CLIP_WEIGHTS):
        if (folder / name).is_file():
            return {**entries(folder / name, copy)}
    if (folder / INDEX).is_file():
        return _of_shards(folder, INDEX, copy)
    pickled = next((name for name in (PICKLE, OPEN_CLIP_PICKLE, PICKLE_INDEX) if (folder / name).is_file()), None)
    if pickled is None:
        raise UserError(f"{folder} contains no weights: neither {WEIGHTS} nor {INDEX}")
    if not pickles:
        raise UserError(
            f"{folder} has its weights only in a pickle ({pickled}), which qkv does not open by default; "
            "use pickles=True (--pickles), which reads tensors only, or convert them to safetensors"
        )
    files = [folder / pickled] if pickled != PICKLE_INDEX else sorted(set(_listed(folder, PICKLE_INDEX).values()))
    return {name: Unpickled(tensor) for file in files for name, tensor in _unpickled(file).items()}


def _of_shards(folder: Path, index: str, copy: bool) -> dict[str, Stored]:
    listed = _listed(folder, index)
    tensors: dict[str, Stored] = {}
    for file in sorted(set(listed.values())):
        shard: Mapping[str, Entry] = entries(file, copy)
        missing = next((name for name, where in listed.items() if where == file and name not in shard), None)
        if missing:
            raise UserError(f"{folder / index} says that {missing!r} is in {file.name}, but it is not there")
        twice = next((name for name in shard if name in tensors), None)
        if twice:
            raise UserError(f"{folder}: the tensor {twice!r} is in more than one shard")
        tensors.update(shard)
    return tensors


def _listed(folder: Path, index: str) -> dict[str, Path]:
    """Return the file (shard) of each tensor, from the index.

    Raises ``UserError`` for a shard name that refers outside the folder.
    """
    table = read_json(folder / index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{folder / index} has no 'weight_map' from names to files")
    for name in table.values():
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise UserError(
                f"{folder / index} names the shard {name!r}, which is outside the folder; nothing was read from there"
            )
    return {tensor: folder / name for tensor, name in table.items()}


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise UserError(f"{file} contains more than tensors: {str(error).splitlines()[0]}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{file} does not contain a mapping from names to tensors")
    odd = next((name for name, tensor in tensors.items() if not _is_whole(tensor)), None)
    if odd:
        raise UserError(f"{file}: {odd!r} has more elements than the file stores for it")
    return tensors


def _is_whole(tensor: Tensor) -> bool:
    """Return True if the file stores every element of the tensor.

    False for a strided view that repeats elements, which a copy would expand.
    """
    strided = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return strided and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def held_by(tensors: Mapping[str, Stored]) -> Held:
    """Return number, total elements and names of the stored tensors, which limit the sizes in a config."""
    numbers = sum(tensor.numbers for tensor in tensors.values())
    return Held(len(tensors), numbers, frozenset(tensors), lambda name: tensors[name].read())
