"""``metrics.jsonl``: one JSON object a line, appended while a run goes on, whole again after any crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.spec.errors import UserError

FLAG = "nonfinite"
"""The key under which a row names its numbers that JSON cannot write: ``{"loss": null, "nonfinite": {"loss": "nan"}}``."""

_FLUSH_SECONDS = 1.0


class MetricsLog:
    """Appends rows to ``path``, which is made if it does not exist; a torn last line is repaired.

    Rows reach the file together: at the first ``write`` a second or more after the last time, at ``flush`` and at ``close``. Before a
    checkpoint calls ``flush(durable=True)``, so that a run resumed from it has every row up to its step. Raises OSError where the file cannot
    be written; what was not written is kept for the next attempt. Raises UserError for a file that holds something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._waiting = bytearray()
        self._flushed = time.monotonic()
        self._file = _open(self.path)

    def write(self, **row: Any) -> None:
        """Append one row. Values are numbers, text, booleans or None; 0-dimensional arrays and tensors count as numbers."""
        self._waiting += _encode(row)
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self, durable: bool = False) -> None:
        """Hand every row to the operating system; ``durable`` waits until the disk has them."""
        self._flushed = time.monotonic()
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
            if durable:
                os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def truncate_after(self, step: int) -> None:
        """Drop the rows of later steps, and what was logged after them without a step; the file is replaced whole or not at all."""
        self.flush()
        lines = b"".join(_kept(self.path, step))
        if len(lines) == os.fstat(self._file).st_size:
            return
        _replace(self.path, lines)
        os.close(self._file)
        self._file = _open(self.path)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if self._file < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every whole row, NaN and infinities restored; a torn last line is left out.

    Raises UserError for a line before the last that is not a JSON object, FileNotFoundError where there is no file.
    """
    return [_restored(row) for _, row in _rows(Path(path))]


def _encode(row: dict[str, Any]) -> bytes:
    if FLAG in row:
        raise ValueError(f"the name {FLAG!r} is kept for numbers that JSON cannot write; give the figure another name")
    plain = {key: _plain(key, value) for key, value in row.items()}
    wild = {key: str(value) for key, value in plain.items() if isinstance(value, float) and not math.isfinite(value)}
    if wild:
        plain |= dict.fromkeys(wild)
        plain[FLAG] = wild
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _plain(key: str, value: Any) -> Any:
    """``value`` as JSON has it. A float is itself: its shortest decimal form reads back as the same number."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise TypeError(f"{key} is a {type(value).__name__}; a row holds numbers, text, booleans and None")


def _restored(row: dict[str, Any]) -> dict[str, Any]:
    wild = row.pop(FLAG, {})
    return row | {key: float(spelling) for key, spelling in wild.items()}


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line with its row; stops silently before a torn last line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = _row(line)
            if row is not None:
                yield line, row
            elif line.strip() and file.read(1):
                raise UserError(
                    f"{path}:{number}: each line is one JSON object, and this one is not; the file was changed by something else"
                )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _kept(path: Path, step: int) -> Iterator[bytes]:
    later = False
    for line, row in _rows(path):
        if isinstance(row.get("step"), (int, float)):
            later = row["step"] > step
        if not later:
            yield line


def _open(path: Path) -> int:
    _repair(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _repair(path: Path) -> None:
    """End the last line if it is whole and remove it if it is not."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = _last_line(file, end)
        file.seek(start)
        line = file.read()
        if _row(line) is None:
            # What a crash tears begins as our lines do, or as zeros after a power cut; anything else is somebody's file.
            if line.strip(b"\0\r\n\t ") and not line.startswith(b"{"):
                raise UserError(
                    f"{path}: this is not a log of metrics, whose lines are JSON objects; give another name or move the file away"
                )
            file.truncate(start)
        elif not line.endswith(b"\n"):
            file.write(b"\n")


def _last_line(file: Any, end: int) -> int:
    """Where the last line of a file of ``end`` bytes begins; its own line end does not count."""
    size = 4096
    while True:
        start = max(0, end - size)
        file.seek(start)
        before = file.read(end - start)[:-1].rfind(b"\n")
        if before >= 0 or start == 0:
            return start + before + 1
        size *= 4


def _replace(path: Path, content: bytes) -> None:
    """Write ``path`` anew by way of a file beside it, so that a crash leaves the old one or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path)
        _sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename outlive a power cut, where the system lets a folder be opened."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class TensorBoardLog:
    """The numbers of each row as TensorBoard scalars in ``folder``, text as text. Raises ImportError if TensorBoard is not installed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed; pip install qkv[tensorboard]") from None
        self._writer = SummaryWriter(str(folder))

    def write(self, **row: Any) -> None:
        """Add one row at its ``step``; None is left out."""
        step = row.get("step")
        for key, value in row.items():
            if key == "step" or value is None:
                continue
            if isinstance(value, str):
                self._writer.add_text(key, value, step)
            else:
                self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Write what is waiting and close."""
        self._writer.close()
