"""``metrics.jsonl``: append-only metrics log of a run, one JSON object per line; an incomplete last line is repaired
after a crash.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.system.errors import UserError
from qkv.system.files import write_file

FLAG = "nonfinite"
"""Key of a row under which numbers that JSON cannot represent are stored: ``{"loss": null, "nonfinite": {"loss":
"nan"}}``.
"""

_FLUSH_SECONDS = 1.0


class MetricsLog:
    """Writer that appends rows to the JSONL file ``path``, created if missing; an incomplete last line is repaired.

    Rows are buffered and written at ``flush``, at ``close`` and by a ``write`` at least one second after the previous
    one. Saving a checkpoint calls ``flush(durable=True)`` first, so that a resumed run has every row up to its step.
    Raises OSError if the file cannot be written; unwritten rows are kept for the next attempt. Raises UserError for a
    file with other contents.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._waiting = bytearray()
        self._flushed = time.monotonic()
        self._file = _open(self.path)

    def write(self, **row: Any) -> None:
        """Append one row of metrics. Values: numbers, strings, booleans, None, or 0-dimensional arrays and tensors."""
        self._waiting += _encode(row)
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self, durable: bool = False) -> None:
        """Write all buffered rows; ``durable`` also syncs the file to disk."""
        self._flushed = time.monotonic()
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
            if durable:
                os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def truncate_after(self, step: int) -> None:
        """Remove the rows of steps after ``step``, and rows without a step that follow such rows.

        The file is replaced atomically.
        """
        self.flush()
        lines = b"".join(_rows_until(self.path, step))
        if len(lines) == os.fstat(self._file).st_size:
            return
        write_file(self.path, lines)
        os.close(self._file)
        self._file = _open(self.path)

    def close(self) -> None:
        """Write all buffered rows and close the file; further calls do nothing."""
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
    """Read the rows of a run's ``metrics.jsonl``; convert NaN and infinities back to floats, and skip an incomplete
    last line.

    Raises UserError for an earlier line that is not a JSON object, FileNotFoundError if there is no file.
    """
    return [_restored(row) for _, row in _rows(Path(path))]


def _encode(row: dict[str, Any]) -> bytes:
    if FLAG in row:
        raise ValueError(
            f"the name {FLAG!r} is reserved for numbers that JSON cannot represent; give the metric another name"
        )
    plain = {key: _plain(key, value) for key, value in row.items()}
    wild = {key: str(value) for key, value in plain.items() if isinstance(value, float) and not math.isfinite(value)}
    if wild:
        plain |= dict.fromkeys(wild)
        plain[FLAG] = wild
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _plain(key: str, value: Any) -> Any:
    """Convert ``value`` to a JSON type. Floats are kept: their shortest decimal form reads back exactly."""
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
    """Yield (line, parsed row) of each complete line of a metrics file; skip an incomplete last line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = _row(line)
            if row is not None:
                yield line, row
            elif line.strip() and file.read(1):
                raise UserError(
                    f"{path}:{number}: this line is not a JSON object; the file was changed by another program"
                )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _rows_until(path: Path, step: int) -> Iterator[bytes]:
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
    """Repair the end of a metrics file: remove an incomplete last line, or end a complete one with a line break."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = _last_line(file, end)
        file.seek(start)
        line = file.read()
        if _row(line) is None:
            # A crash leaves the beginning of a row, and a power cut zeros; anything else is not a metrics log.
            if line.strip(b"\0\r\n\t ") and not line.startswith(b"{"):
                raise UserError(
                    f"{path}: this is not a metrics log, whose lines are JSON objects; "
                    "use another name or move the file"
                )
            file.truncate(start)
        elif not line.endswith(b"\n"):
            file.write(b"\n")


def _last_line(file: Any, end: int) -> int:
    """Return the byte offset of the last line of a file of ``end`` bytes; a line break at the very end is ignored."""
    size = 4096
    while True:
        start = max(0, end - size)
        file.seek(start)
        before = file.read(end - start)[:-1].rfind(b"\n")
        if before >= 0 or start == 0:
            return start + before + 1
        size *= 4


class TensorBoardLog:
    """Writer of rows to TensorBoard files in ``folder``: numbers as scalars, strings as text. Raises ImportError if
    TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed; pip install qkv[tensorboard]") from None
        self._writer = SummaryWriter(str(folder))

    def write(self, **row: Any) -> None:
        """Write one row of metrics to TensorBoard at its ``step``; None values are skipped."""
        step = row.get("step")
        for key, value in row.items():
            if key == "step" or value is None:
                continue
            if isinstance(value, str):
                self._writer.add_text(key, value, step)
            else:
                self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Write all buffered values and close the files."""
        self._writer.close()
