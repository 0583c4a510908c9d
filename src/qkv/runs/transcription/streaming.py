"""Transcription of a sound while it arrives, from a pipe or a microphone.

A causal CTC model reads each block as it comes and writes the same text as for the whole sound. Other models read
the parts between pauses, each as a sound of its own, and at most a window at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.processors.processor import build_processor
from qkv.data.records.sounds.streams import SoundStream
from qkv.layers.context import Context
from qkv.models.evaluating import evaluating
from qkv.runs.run import Run
from qkv.runs.transcription.transcribe import transcribe, transcriber_of
from qkv.runs.transcription.voice import levels_of
from qkv.state.arrival import Arrival, Counts
from qkv.system.torch_settings import with_usual_settings

_FRAME, _PAUSE, _LEAST, _LEAD = 0.02, 0.5, 1.0, 0.2
"""Seconds of a frame whose level is measured, of a pause that ends a part, of the shortest part, and of the silence
before speech that is kept.
"""
_QUIETEST, _RANGE = -65.0, 40.0
"""Level in dB below which a frame is quiet, and levels below the loudest so far that are quiet."""
_LATE = 2 / 3
"""Share of the longest part after which the quietest frame ends it, if there was no pause."""
_AT_ONCE = 0.25
"""Seconds of new samples that a causal model reads at once."""


def stream_transcript(run: Run, sound: SoundStream, **options: Any) -> Iterator[str]:
    """Yield the text of a sound piece by piece, as soon as it is known; the pieces joined are the text.

    ``options``: fields of ``qkv.spec.recipes.transcribing.Transcribing``. Raises ``UserError``.
    """
    transcriber_of(run, options)  # refuses what does not transcribe, and wrong options
    if reads_as_it_arrives(run):
        yield from _CausalReader(run).pieces(sound)
    else:
        yield from _between_pauses(run, sound, options)


def reads_as_it_arrives(run: Run) -> bool:
    """Return True if a CTC model reads no samples later than a few after each position: its blocks are causal, its
    front end and processor local, and its search greedy.
    """
    model, processor = run.model.spec, run.vocabulary.processor
    search = getattr(run.recipe.task, "search", None)
    return (
        model.encoder is None
        and model.latents is None
        and model.head.serves == "ctc"
        and processor is not None
        and processor.local
        and model.frontend.reach is not None
        and all(block.causal for block in model.blocks)
        and search is not None
        and search.beams == 1
    )


class _CausalReader:
    """Reader of the positions of a causal model, in the order of time.

    Samples that positions on both sides of a border depend on are read twice, with so many positions more than needed
    that borders change none. The blocks keep their state.
    """

    def __init__(self, run: Run):
        spec: Any = run.vocabulary.processor
        part: Any = run.model.spec.frontend
        self.run, self.model, self.rate = run, run.model, int(spec.rate)
        self.processor, self.part, self.values_of = build_processor(spec), part, spec.values_of
        self.step = part.stride * spec.step
        """Samples from one position to the next."""
        self.margin = -(-(part.reach * spec.step + spec.frame) // self.step) + 1
        """Positions read before and after those that are kept."""
        segmentation = self.model.segmentation
        self.state = self.model.begin(1) if segmentation is None else segmentation.init_state(self.model, 1, None)
        self.samples, self.first, self.read = np.zeros(0, np.float32), 0, 0
        self.tokens, self.last, self.written = list[int](), -1, 0

    def pieces(self, sound: SoundStream) -> Iterator[str]:
        """Yield the pieces of the text."""
        waiting = 0
        for block in sound.at(self.rate):
            self.samples = np.concatenate((self.samples, block))
            waiting += len(block)
            if waiting >= _AT_ONCE * self.rate:
                waiting = 0
                end = self.first + len(self.samples)
                yield from self._piece(self._take(end // self.step - self.margin - 1), False)
        end = self.first + len(self.samples)
        yield from self._piece(self._take(self.part.positions_of(self.values_of(end)) if end else 0), True)

    @torch.inference_mode()
    def _take(self, end: int) -> list[int]:
        """Read the positions up to ``end``; return the most probable class of each."""
        if end <= self.read:
            return []
        begin = max(0, self.read - self.margin)
        samples = self.samples[begin * self.step - self.first :]
        signal = self.processor.signal([samples]).to(self.model.device)
        with evaluating(self.model):
            count = self.model.frontend.count(signal)
            positions = torch.arange(begin, begin + count, device=self.model.device)[None]
            x, _ = self.model.frontend.embed(replace(signal, positions=positions))
            best = self._classes(x[:, self.read - begin : end - begin])
        self.read = end
        first = max(self.first, (end - self.margin) * self.step)
        self.samples, self.first = self.samples[first - self.first :], first
        return best

    def _classes(self, x: Tensor) -> list[int]:
        arrival = Arrival(Counts((self.read,)), x.shape[1], None, x.device)
        context, segmentation = Context(arrival.positions, arrival=arrival), self.model.segmentation
        if segmentation is None:
            y, self.state = self.model.read(x, context, self.state)
        else:
            y, self.state = segmentation(x, context, self.model, self.state)
        return self.model.head(y)[0].argmax(-1).tolist()

    def _piece(self, classes: list[int], complete: bool) -> Iterator[str]:
        """Yield the text that new positions complete: whole words, or the rest."""
        blank = self.model.spec.head.blank  # type: ignore[attr-defined]
        for index in classes:
            if index not in (blank, self.last):
                self.tokens.append(index)
            self.last = index
        text = self.run.vocabulary.target.decode(self.tokens, skip_special=True).lstrip()
        end = len(text.rstrip()) if complete else text.rstrip().rfind(" ") + 1
        if end > self.written:
            yield text[self.written : end]
            self.written = end


def _between_pauses(run: Run, sound: SoundStream, options: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of the parts between pauses."""
    processor: Any = run.vocabulary.processor
    rate, before = int(processor.rate), ""
    longest = min(30.0, processor.seconds or 20.0)
    for part in _parts(sound.at(rate), rate, longest):
        text = transcribe(run, (part, rate), **options).text.strip()
        if text:
            yield before + text
            before = " "


def _parts(blocks: Iterator[np.ndarray], rate: int, longest: float) -> Iterator[np.ndarray]:
    """Yield the parts of a sound: each ends with a pause after speech, or, at its longest, at a quiet place."""
    step, samples, loudest = max(1, round(_FRAME * rate)), np.zeros(0, np.float32), _QUIETEST
    pause, least, most, lead = (round(seconds / _FRAME) for seconds in (_PAUSE, _LEAST, longest, _LEAD))
    for block in blocks:
        samples = np.concatenate((samples, block))
        while len(samples) >= least * step:
            levels = levels_of(samples[: len(samples) // step * step], step)
            loudest = max(loudest, float(levels.max()))
            loud = levels > max(_QUIETEST, loudest - _RANGE)
            before = int(loud.argmax()) if loud.any() else len(loud)
            if before > lead:  # silence before speech is left out
                samples = samples[(before - lead) * step :]
                continue
            if len(loud) < most and (loud[-pause:].any() or not loud.any()):
                break
            late = int(most * _LATE)
            end = late + int(levels[late:most].argmin()) + 1 if len(loud) >= most else len(loud)
            yield samples[: end * step]
            samples = samples[end * step :]
    if len(samples):
        yield samples


@with_usual_settings
def write_stream(run: Run, sound: SoundStream, write: Callable[[str], None], **options: Any) -> None:
    """Call ``write`` with each piece of the text of a sound while it arrives. Raises ``UserError``."""
    for piece in stream_transcript(run, sound, **options):
        write(piece)
