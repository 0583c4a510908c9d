"""Transcription by a model that reads a whole clip at once, such as one of CTC: a long sound is cut at its pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.runs.run import Run, task_of
from qkv.runs.transcription.transcript import SpokenSegment, Transcript
from qkv.runs.transcription.voice import Samples, Voice, check_length, levels_of
from qkv.spec.recipes.transcribing import Transcribing
from qkv.system.errors import UserError

_STEP, _AT_ONCE = 100, 3000
"""Frames in a second, and frames of the first pass that are read at once."""
_LONGEST = 20.0
"""Largest number of seconds of a part, if the processor reads longer ones."""
_READ = ("guard", "batch")
"""Options that these models read."""


class PartTranscriber:
    """Transcriber of the parts of a sound, each of which a task reads as a clip."""

    def __init__(self, run: Run, settings: Transcribing):
        """Raises ``UserError`` for a model that reads no sound, and for an option that only other models have."""
        processor: Any = run.vocabulary.processor
        if processor is None or not processor.of_sounds or not task_of(run).transcribes:
            raise UserError(f"{run.folder} does not transcribe: its task is {run.recipe.task.kind!r}")
        fields = Transcribing.model_fields
        other = next((name for name in fields if getattr(settings, name) != fields[name].default), "")
        if other and other not in _READ:
            sentence = f"{other}: {run.folder} reads whole clips and has no such setting"
            raise UserError(f"{sentence}; leave it out (models of Whisper's family have it)")
        self.run, self.settings, self.rate = run, settings, processor.rate
        self.longest = min(_LONGEST, processor.seconds or processor.longest)

    def steps(self, sound: Any) -> Iterator[tuple[Transcript, float]]:
        """Yield (transcript so far, seconds that are done), first an empty one, then after each batch of parts.

        Raises ``UserError`` for a sound that cannot be read.
        """
        voice, seconds = self._measure(sound)
        yield Transcript((), seconds), 0.0
        spans = voice.spans(round(self.longest * _STEP), self.settings.guard)
        samples, task, segments = Samples(sound, self.rate), task_of(self.run), list[SpokenSegment]()
        for first in range(0, len(spans), self.settings.batch):
            some = [(begin / _STEP, min(end / _STEP, seconds)) for begin, end in spans[first:][: self.settings.batch]]
            rows = [{task.asks[0]: (self._part(samples, *times), self.rate)} for times in some]
            answers = task.predict(self.run.model, self.run.vocabulary, self.run.recipe, rows)
            segments += [
                SpokenSegment(f" {answer['answer']}", begin, end)
                for (begin, end), answer in zip(some, answers, strict=True)
                if answer["answer"]
            ]
            yield Transcript(tuple(segments), seconds), some[-1][1]

    def _part(self, samples: Samples, begin: float, end: float) -> np.ndarray:
        return samples.take(round(begin * self.rate), max(round(begin * self.rate) + 1, round(end * self.rate)))

    def _measure(self, sound: Any) -> tuple[Voice, float]:
        """Return (voice activity of a sound, its length in seconds)."""
        samples, levels, begin, step = Samples(sound, self.rate), list[np.ndarray](), 0, max(1, self.rate // _STEP)
        while not samples.complete:
            levels.append(levels_of(samples.take(begin, begin + _AT_ONCE * step), step))
            begin += _AT_ONCE * step
        check_length(sound, samples)
        return Voice(np.concatenate(levels)[: max(1, samples.end // step)], _STEP), samples.end / self.rate
