"""Speech of a run that 'qkv train speak' trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.processors.speech import SpeechCodesProcessor
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.written import format_of, written_sound
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.system.torch_settings import with_usual_settings
from qkv.tasks.sound.speaking import say_in_pieces, speech_of

VECTORS = 10
"""Number of vectors of the codec in a piece of streamed speech."""


class Speaker:
    """Model of speech: texts to samples at ``rate`` Hz, in one of ``voices``. Raises ``UserError`` for other runs."""

    def __init__(self, run: Run):
        self.run, self.processor = run, _processor(run)
        self.rate = self.processor.coder.rate
        self.voices = self.processor.spec.voices or ()

    def settings(self, **options: Any) -> Generation:
        """Return the run's settings with ``options``, fields of ``Generation``. Raises ``UserError``."""
        return self.run.recipe.sample.requested(**options)

    def pieces(
        self, text: str, voice: str | None, generation: Generation, vectors: int = VECTORS
    ) -> Iterator[np.ndarray]:
        """Yield the samples of a spoken text in pieces of ``vectors`` vectors; 0: all at once. Raises ``UserError``."""
        yield from say_in_pieces(self.run.model, self.processor, text, voice, generation, vectors)

    def say(self, text: str, voice: str | None, generation: Generation) -> Sound:
        """Speak a text. Raises ``UserError``."""
        samples = [np.zeros(0, np.float32), *self.pieces(text, voice, generation, 0)]
        return Sound(np.concatenate(samples), self.rate)


def speaks(run: Run) -> bool:
    """Return True if a run speaks."""
    return run.recipe.task.kind == "speech"


@with_usual_settings
def say(
    run: Run | str | Path, text: str, voice: str | None = None, out: str | Path | None = None, **generation: Any
) -> Sound:
    """Speak a text with a run that ``qkv.train(…, task="speak")`` trained; return its samples and their rate in Hz.

    ``voice``: a name in the data; default: the first. ``out``: file to write, wav, flac, mp3, opus or pcm by its
    extension. ``generation``: settings such as ``temperature`` and ``seed``. Raises ``UserError``.
    """
    path = None if out is None else Path(out).expanduser()
    form = None if path is None else format_of(path)
    speaker = Speaker(load(run) if isinstance(run, (str, Path)) else run)
    sound = speaker.say(text, voice, speaker.settings(**generation))
    if path is not None and form is not None:
        write_file(path, written_sound(sound, form))
    return sound


def _processor(run: Run) -> SpeechCodesProcessor:
    if not speaks(run):
        raise UserError(
            f"{run.folder}: the run has the task {run.recipe.task.kind!r} and does not speak; name one that 'qkv train "
            "speak' trained"
        )
    return speech_of(run.vocabulary)
