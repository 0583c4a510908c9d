"""Read video: animations, folders of frames and arrays, converted to a fixed number of frames of one size."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.data.processors.images import ImageProcessor
from qkv.data.processors.processor import Processor
from qkv.data.records.columns.profile import profiles
from qkv.data.records.images.clips import ARRAYS, are_frames, holds_clips, in_order
from qkv.data.records.images.image_files import image_name, opened_image, reduced
from qkv.data.records.images.pictures import SUFFIXES, URI
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.video import Video

_MOST = 100_000
"""Maximum number of frames of a file."""
_FRAMES, _SAMPLE = 16, 100
"""Maximum number of frames that is chosen automatically, and number of training clips from which it is chosen."""
_SHOWN_FRAMES = 8
"""Number of frames of a clip in reports."""


@implements(Video)
class VideoProcessor(Processor):
    """Video: an animation, a folder of frames, an array file (.npy), an array (T, H, W) or (T, H, W, C), or a list of
    images -> pixels (T, C, H, W).
    """

    example = "clip.gif"
    simple = "pixels"
    signals_only = ImageProcessor.signals_only
    spec: Video

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        if Path(source).expanduser().is_dir():
            return holds_clips(Path(source).expanduser())
        rows = table()
        return rows is not None and any(profile.is_clips for profile in profiles(rows).values())

    @property
    def _frame(self) -> ImageProcessor:
        return ImageProcessor(self.spec)

    def fitted(self, values: Sequence[Any]) -> Video:
        chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _SAMPLE)).astype(int))
        clips = [clip for clip in map(_readable, (values[i] for i in chosen)) if clip is not None]
        count = self.spec.frames or min(_FRAMES, max(1, int(np.median([clip.count for clip in clips] or [1]))))
        frames = [frame for clip in clips for frame in _spread(clip, min(4, count))]
        return self._frame.fitted(frames or list(values[:1])).changed(frames=count)  # type: ignore[return-value]

    def encode(self, value: Any) -> np.ndarray:
        assert self.spec.frames is not None
        return np.stack([self._frame.encode(frame) for frame in _spread(_clip(value), self.spec.frames)])

    def size(self, encoded: np.ndarray) -> int:
        return 1  # all clips take the same number of positions

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        frames = self._frame.signal([frame for clip in encoded for frame in clip]).values
        return Signal(frames.unflatten(0, (len(encoded), -1)))

    def features(self, encoded: np.ndarray) -> np.ndarray:
        return self._frame.features(encoded.mean(0))

    def picture(self, value: Any) -> str | None:
        try:
            frames = [reduced(frame) for frame in _spread(_clip(value), _SHOWN_FRAMES)]
        except Unusable:
            return None
        buffer = io.BytesIO()
        frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=150, loop=0)
        return f"{URI}gif;base64,{base64.b64encode(buffer.getvalue()).decode()}"

    def picture_read(self, encoded: np.ndarray) -> str | None:
        return self._frame.picture_read(encoded[len(encoded) // 2])

    def frames_read(self, encoded: np.ndarray, count: int) -> list[str]:
        each = len(encoded) // count
        pictures = [self._frame.picture_read(encoded[i * each + each // 2]) for i in range(count)]
        return [picture for picture in pictures if picture is not None]

    def shown(self, value: Any) -> str:
        return image_name(value, "clip")


class _Clip(NamedTuple):
    """Number of frames, and the function that returns the frame at an index as a raw image."""

    count: int
    frame: Callable[[int], Any]


def _readable(value: Any) -> _Clip | None:
    try:
        return _clip(value)
    except Unusable:
        return None


def _spread(clip: _Clip, count: int) -> Iterator[Any]:
    """Yield ``count`` evenly spaced frames of a clip; frames of a shorter clip are repeated. Raises ``Unusable``."""
    for i in np.linspace(0, clip.count - 1, count).round().astype(int):
        yield clip.frame(int(i))


def _clip(value: Any) -> _Clip:
    """Return the frames of a raw value. Raises ``Unusable``."""
    if isinstance(value, (str, Path)) and not str(value).startswith(URI):
        path = Path(value).expanduser()
        if path.is_dir():
            files = [each for each in path.iterdir() if each.suffix.lower() in SUFFIXES]
            return _listed([str(each) for each in in_order(files)], str(value))
        if path.suffix.lower() == ARRAYS:
            return _listed(_array(_loaded(path), str(value)), str(value))
    elif isinstance(value, np.ndarray):
        return _listed(_array(value, "the clip"), "the clip")
    elif isinstance(value, (list, tuple)):
        plain = value and isinstance(value[0], (list, tuple))
        return _listed(_array(np.asarray(value), "the clip") if plain else value, "the clip")
    return _animation(opened_image(value), image_name(value))


def _listed(frames: Sequence[Any] | np.ndarray, name: str) -> _Clip:
    if not len(frames):
        raise Unusable(f"{name} has no frames")
    return _Clip(len(frames), frames.__getitem__)


def _loaded(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise Unusable(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError):
        raise Unusable(f"{path} is not an array file") from None


def _array(frames: np.ndarray, name: str) -> np.ndarray:
    if not are_frames(frames.shape, frames.dtype):
        raise Unusable(f"{name} has the shape {frames.shape}, not (frames, height, width) or (…, 1, 3 or 4 channels)")
    if frames.dtype.kind == "f" and frames.size and np.isfinite(frames).all() and frames.min() >= 0:
        return (255 * frames).round().astype(np.uint8) if frames.max() <= 1 else frames
    return frames


def _animation(image: Any, name: str) -> _Clip:
    try:
        count = int(getattr(image, "n_frames", 1))
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise Unusable(f"{name} cannot be decoded: {error}") from None
    if count > _MOST:
        raise Unusable(f"{name} has {count:,} frames, more than {_MOST:,}")

    def frame(i: int) -> Any:
        try:
            image.seek(i)
            return image.copy()
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise Unusable(f"{name} cannot be decoded: {error}") from None

    return _Clip(count, frame)
