"""Checkpoints from which a run resumes exactly, in folders numbered by step, which are complete or absent.

    resume/step-00000250/weights.safetensors     all parameters and buffers
                         optimizer.safetensors   optimiser state by parameter name
                         random.safetensors      states of the random generators
                         state.json              step, best loss, properties of the run; checksums of the other files

A folder is written under a temporary name, flushed to disk and renamed; older checkpoints are removed only after that.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qkv.models.edit.assign import place, places_of
from qkv.runs.storage.files import clear_errors, read_tensors, remove, remove_partial, write_tensors
from qkv.system.errors import UserError, nearest
from qkv.system.files import PARTIAL, sync, write_file
from qkv.system.world import ALONE, World

PARTS = ("weights", "optimizer", "random")
WIDE = "wide."
"""Prefix of the names of the wide path's tensors in a run's files of weights, where they stand beside the model's."""
_NAME = re.compile(r"step-(\d+)$")


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after ``step`` updates, from which it can resume: tensors (of weights, optimizer and random
    generators), and the rest as plain data.
    """

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]


class CheckpointStore:
    """Folder of a run's checkpoints, which keeps the newest ``keep``. The first process of ``world`` writes them, and
    all processes read the same one.
    """

    def __init__(self, folder: Path, keep: int = 2, world: World = ALONE):
        self.folder, self.keep, self._world = folder, keep, world

    def paths(self) -> list[Path]:
        """Return the folders of the checkpoints, newest first."""
        paths = [p for p in self.folder.glob("step-*") if _NAME.match(p.name)]
        return sorted(paths, key=lambda p: int(p.name.removeprefix("step-")), reverse=True)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove older ones; return its folder. On a disk error, raise UserError and keep the
        existing checkpoints.
        """
        return self._world.lead(lambda: self._save(checkpoint))

    def _save(self, checkpoint: Checkpoint) -> Path:
        final = self._path(checkpoint.step)
        partial = self.folder / f".{final.name}{PARTIAL}"
        with clear_errors(f"the checkpoint of step {checkpoint.step} in {self.folder}"):
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                sync(self.folder.parent)
            remove_partial(self.folder)
            try:
                _write(partial, checkpoint)
                self._rename(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        for old in self.paths()[self.keep :]:
            remove(old)
        return final

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _rename(self, partial: Path, final: Path) -> None:
        replaced = self.folder / f".{final.name}.replaced{PARTIAL}"
        if final.exists():  # a damaged checkpoint that was skipped when the run resumed
            final.rename(replaced)
        partial.rename(final)
        sync(self.folder)
        remove(replaced)

    def load(self, notice: Callable[[str], object]) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there are no checkpoints.

        Damaged checkpoints are skipped; ``notice`` is called with a sentence on each. Raises UserError if all are
        damaged.
        """
        read = list[Checkpoint]()
        step = self._world.lead(lambda: self._load(notice, read))
        if step is None:
            return None
        return read.pop() if read else read_checkpoint(self._path(step))

    def _load(self, notice: Callable[[str], object], read: list[Checkpoint]) -> int | None:
        """Append the newest complete checkpoint to ``read``; return its step."""
        refused: list[UserError] = []
        paths = self.paths()
        for path in paths:
            try:
                checkpoint = read_checkpoint(path)
            except UserError as error:
                refused.append(error)
                continue
            for error in refused:
                notice(f"{error}; resuming from the previous checkpoint, step {checkpoint.step}")
            read.append(checkpoint)
            return checkpoint.step
        if self.paths() != paths:  # a training process has meanwhile written newer checkpoints
            return self._load(notice, read)
        if refused:
            raise refused[0]
        return None


def read_checkpoint(path: Path, parts: Sequence[str] = PARTS) -> Checkpoint:
    """Read the checkpoint in the folder ``path``, with the tensors of ``parts``. Raises UserError naming the file that
    is missing, damaged, edited or of another step.
    """
    state = _read_state(path / "state.json")
    tensors = {}
    for part in parts:
        file = path / f"{part}.safetensors"
        tensors[part], metadata = read_tensors(file)
        if metadata.get("sha256") != state["files"][part]:
            raise UserError(
                f"{file} does not match {path / 'state.json'}: its checksum differs from the one stored there"
            )
    return Checkpoint(state["step"], tensors, state["state"])


def newest_state(folder: Path) -> dict[str, Any] | None:
    """Read the plain data of the newest checkpoint in ``folder``, without its tensors; None if there is none. Raises
    UserError if it was edited.
    """
    paths = CheckpointStore(folder).paths()
    return _read_state(paths[0] / "state.json")["state"] if paths else None


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    files = {
        part: write_tensors(folder / f"{part}.safetensors", checkpoint.tensors[part], {"step": checkpoint.step})
        for part in PARTS
    }
    content = {"step": checkpoint.step, "files": files, "state": checkpoint.state}
    body = json.dumps(content, indent=1, sort_keys=True)
    write_file(
        folder / "state.json",
        json.dumps({"sha256": _text_digest(body), "content": content}, indent=1, sort_keys=True).encode(),
    )
    sync(folder)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        content, expected = stored["content"], stored["sha256"]
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is truncated or not the state of a checkpoint ({error})") from None
    if _text_digest(json.dumps(content, indent=1, sort_keys=True)) != expected:
        raise UserError(f"{path} was changed after it was written: its content does not match the checksum inside it")
    return content


def weights(model: nn.Module, wide: nn.Module | None = None) -> dict[str, Tensor]:
    """Return parameters and persistent buffers of ``model``, and of the run's wide path under the prefix ``WIDE``, by
    name, without copies. A tensor with several names (a tied head) is returned only under its first name.
    """
    seen: set[int] = set()
    tensors = {}
    beside = {} if wide is None else wide.state_dict(prefix=WIDE, keep_vars=True)
    for name, tensor in {**model.state_dict(keep_vars=True), **beside}.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def of_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the model in a run's file of weights, without those of a wide path."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(WIDE)}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: Path, wide: nn.Module | None = None) -> None:
    """Copy ``tensors`` into the parameters and buffers of ``model`` and of the run's wide path. ``source``: file of the
    tensors, for messages. Raises UserError naming the first tensor that is missing, unknown or of the wrong shape.
    """
    _checked(model, tensors, source, wide)
    model.load_state_dict(of_model(tensors), strict=False)  # not strict: shared tensors are stored under one name only
    _load_wide(wide, tensors)


def _load_wide(wide: nn.Module | None, tensors: Mapping[str, Tensor]) -> None:
    if wide is not None:
        wide.load_state_dict({name: tensors[WIDE + name] for name in wide.state_dict()})


def _checked(
    model: nn.Module, tensors: Mapping[str, Tensor], source: Path, wide: nn.Module | None
) -> dict[str, Tensor]:
    """Return the tensors of the model alone, by name; ``tensors`` fit them and those of the wide path."""
    model_weights = weights(model, wide)
    for name, tensor in model_weights.items():
        if name not in tensors:
            raise UserError(f"{source} lacks the tensor {name!r}, which this model has")
        if tensors[name].shape != tensor.shape:
            shapes = f"{list(tensors[name].shape)} in {source}, but {list(tensor.shape)} in the model"
            raise UserError(f"the tensor {name!r} has the shape {shapes}")
    unknown = next((name for name in tensors if name not in model_weights), None)
    if unknown:
        raise UserError(
            f"{source} holds the tensor {unknown!r}, which this model does not have; {nearest(unknown, model_weights)}"
        )
    return of_model(model_weights)


def take_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: Path, wide: nn.Module | None = None) -> None:
    """Assign ``tensors``, without copying, to the parameters and buffers of ``model``, which is on the meta device, and
    copy those of the run's wide path. Raises UserError as ``load_weights``.
    """
    model_weights, places = _checked(model, tensors, source, wide), places_of(model)
    for name, tensor in model_weights.items():
        place(places[name], tensors[name].to(tensor.dtype))
    _load_wide(wide, tensors)


def save_weights(path: Path, model: nn.Module, metadata: Mapping[str, Any], wide: nn.Module | None = None) -> None:
    """Write the weights of ``model`` and of the run's wide path atomically. On a disk error, raise UserError and keep
    the existing file.
    """
    with clear_errors(str(path)):
        write_tensors(path, weights(model, wide), metadata)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
