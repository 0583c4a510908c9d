"""Transcription of a sound of any length by a model that reads windows of it (Whisper, Radford et al. 2022).

    sound ─ windows ─ encoder ─ tokens ─┬─ segments ─ words, each with its times
              ↑                         │
              └── next window: from the last timestamp, where speech was cut, else after this window

With ``batch`` 1, windows follow each other as the text says. Above, the sound is cut at pauses first, and several parts
are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.evaluating import evaluating
from qkv.runs.run import Run, task_of
from qkv.runs.storage.load import load
from qkv.runs.transcription.parts import PartTranscriber
from qkv.runs.transcription.segments import TIME_STEP, TokenSegment, divide
from qkv.runs.transcription.speech_tokens import WITHOUT_SPACES, speech_tokens
from qkv.runs.transcription.transcript import SpokenSegment, SpokenWord, Transcript
from qkv.runs.transcription.windows import SoundWindows
from qkv.runs.transcription.word_times import TimedToken, group_words, time_tokens
from qkv.runs.transcription.writing import WindowWriter, WrittenWindow
from qkv.spec.recipes.transcribing import Transcribing
from qkv.spec.signals.sound import LogMel
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings

_HOT = 0.5
"""Temperature above which the text of a window is not read by later windows."""


@dataclass
class _Part:
    """Part of a sound from frame ``begin`` to ``end`` that is transcribed in order; ``next`` is its next window.

    before: tokens of earlier windows that the next one may read. frames: those of a part of one window, silent after
    its end, so that its sound is read once; None before, and for a whole sound.
    """

    begin: int
    end: int
    next: int
    before: list[int] = field(default_factory=list)
    frames: Tensor | None = None


class Transcriber:
    """Model that transcribes sounds, with its tokens and settings."""

    def __init__(self, run: Run, settings: Transcribing):
        """Raises ``UserError`` for a model that does not transcribe, and for a language that it does not have."""
        processor = run.vocabulary.processor
        if not task_of(run).transcribes or run.model.encoder is None or processor is None or not processor.in_windows:
            raise UserError(f"{run.folder} does not transcribe: its task is {run.recipe.task.kind!r}")
        processor = cast(LogMel, processor)
        if processor.seconds is None or processor.rate is None:
            raise UserError(f"{run.folder}: its processor does not set the seconds of a window, so it reads none")
        self.run, self.settings, self.processor = run, settings, processor
        self.model, self.tokens = run.model, speech_tokens(run)
        self.writer = WindowWriter(run.model, run.tokenizer, self.tokens, settings)
        self.size = processor.frames(processor.samples(processor.seconds))
        self.stride = max(1, round(TIME_STEP * processor.rate / processor.step))
        """Frames of one step of the timestamps."""
        if settings.language is not None and self.tokens.languages:
            self.tokens.language_id(settings.language)

    def steps(self, sound: Any) -> Iterator[tuple[Transcript, float]]:
        """Yield (transcript so far, seconds that are done), first an empty one, then after each batch of windows.

        Raises ``UserError`` for a sound that cannot be read.
        """
        windows, segments = SoundWindows(sound, self.processor, self.size), list[SpokenSegment]()
        yield self._transcript(windows, segments, self._language), 0.0
        for language, some, done in self._segments(windows):
            segments = sorted([*segments, *some], key=lambda segment: segment.start)
            yield self._transcript(windows, segments, language), done

    def _transcript(self, windows: SoundWindows, segments: list[SpokenSegment], language: str | None) -> Transcript:
        return Transcript(tuple(segments), windows.seconds, language, self.settings.task)

    @property
    def _language(self) -> str | None:
        """Code of the language that the settings name; None if it is detected, or the model has only one."""
        return self.settings.language if self.tokens.languages else None

    def _segments(self, windows: SoundWindows) -> Iterator[tuple[str | None, list[SpokenSegment], float]]:
        """Yield (language, new segments, seconds that are done) after each batch of windows."""
        language, waiting, prompt = self._language, self._parts(windows), self._prompt_ids()
        for part in waiting:
            part.before = list(prompt)
        going = list[_Part]()
        while waiting or going:
            going += [waiting.pop(0) for _ in range(min(len(waiting), self.settings.batch - len(going)))]
            going = [part for part in going if self._has_more(windows, part)]
            if not going:
                continue
            memory = self._encode([self._frames(windows, part) for part in going])
            if language is None and self.tokens.languages:
                language = self._detect(memory)
            several = self._write(memory, going, language)
            segments = list[SpokenSegment]()
            for i, (part, window) in enumerate(zip(going, several, strict=True)):
                segments += self._take(windows, part, window, (memory, i), language)
            yield language, segments, going[-1].next * windows.step / windows.rate

    def _parts(self, windows: SoundWindows) -> list[_Part]:
        if self.settings.batch == 1:
            return [_Part(0, windows.count, 0)]
        return [_Part(begin, end, begin) for begin, end in windows.voice.spans(self.size, self.settings.guard)]

    def _has_more(self, windows: SoundWindows, part: _Part) -> bool:
        """Return whether a part has a window left; move on past windows without voice activity."""
        if not self.settings.guard:
            return part.next < part.end
        loud = windows.voice.next_loud(part.next)
        while part.next < part.end and part.next + self.size <= loud:
            part.next += self.size
        return part.next < part.end and loud < part.end

    def _frames(self, windows: SoundWindows, part: _Part) -> Tensor:
        """Return the frames (size, bins) of the next window of a part."""
        if self.settings.batch == 1:
            return windows.at(part.next)
        if part.frames is None:
            part.frames = windows.at(part.begin)
            part.frames[part.end - part.begin :] = windows.silent
        later = part.next - part.begin
        return torch.cat((part.frames[later:], torch.full_like(part.frames[:later], windows.silent)))

    @torch.inference_mode()
    def _encode(self, frames: Sequence[Tensor]) -> Memory:
        with evaluating(self.model):
            return self.model.encode(Signal(torch.stack(list(frames)).to(self.model.device)))

    @torch.inference_mode()
    def _detect(self, memory: Memory) -> str:
        """Return the most probable language of the first window."""
        languages = self.tokens.languages
        assert languages
        one = Memory(tuple(vectors[:1] for vectors in memory.vectors), memory.lengths[:1])
        with evaluating(self.model):
            logits, _ = self.model(torch.tensor([[self.tokens.start]], device=self.model.device), memory=one)
        return max(languages, key=lambda code: float(logits[0, -1, languages[code]]))

    def _prompt_ids(self) -> list[int]:
        text = self.settings.prompt.strip()
        if text and self.tokens.previous is None:
            raise UserError(f"{self.run.folder} has no token that begins the text before a window; leave prompt out")
        return self.run.tokenizer.encode(f" {text}") if text else []

    def _write(self, memory: Memory, parts: Sequence[_Part], language: str | None) -> list[WrittenWindow]:
        forced = self.tokens.forced(language, self.settings.task, self.writer.timed)
        return self.writer.write(memory, [self._prompt(part) for part in parts], [forced] * len(parts))

    def _prompt(self, part: _Part) -> list[int]:
        """Return the tokens before those of the window: of earlier text, if it is read, and the start."""
        if not part.before or self.tokens.previous is None:
            return [self.tokens.start]
        room = (self.model.limit or self.model.spec.context_length) // 2 - 1
        return [self.tokens.previous, *part.before[-room:], self.tokens.start]

    def _take(
        self,
        windows: SoundWindows,
        part: _Part,
        window: WrittenWindow,
        memory: tuple[Memory, int],
        language: str | None,
    ) -> list[SpokenSegment]:
        """Return the segments of a window, and move its part on to the next one."""
        begin, frames = part.next, min(self.size, part.end - part.next)
        if self.writer.is_silent(window):
            part.next += frames
            return []
        pieces, cut = divide(window.tokens, self.tokens.first_time, frames // self.stride)
        part.next += frames if cut is None else max(1, cut) * self.stride
        if self.settings.previous:
            part.before += [token for piece in pieces for token in piece.tokens]
            part.before = part.before if window.temperature <= _HOT else []
        words = self._words(pieces, memory, language, frames) if self.settings.word_times else [None] * len(pieces)
        segments = [self._spoken(piece, window, some, begin) for piece, some in zip(pieces, words, strict=True)]
        return [segment for segment in segments if segment.text.strip() and self._is_heard(windows, segment)]

    def _is_heard(self, windows: SoundWindows, segment: SpokenSegment) -> bool:
        """Return False for a text over a time without voice activity, if the settings guard against it."""
        if not self.settings.guard:
            return True
        first, last = (round(time * windows.rate / windows.step) for time in (segment.start, segment.end))
        return windows.voice.next_active(min(first, windows.count)) <= last

    def _spoken(
        self, piece: TokenSegment, window: WrittenWindow, words: tuple[SpokenWord, ...] | None, begin: int
    ) -> SpokenSegment:
        """Return a segment of the window that begins at frame ``begin``, with its times in the sound."""
        first = begin * self.processor.step / (self.processor.rate or 1)
        start, end = first + piece.start * TIME_STEP, first + piece.end * TIME_STEP
        moved = words and tuple(word._replace(start=first + word.start, end=first + word.end) for word in words)
        silence = None if window.silence != window.silence else window.silence
        figures = window.temperature, window.log_probability, window.compression, silence
        return SpokenSegment(self.writer.text(piece.tokens), start, end, tuple(piece.tokens), *figures, moved)

    def _words(
        self, pieces: Sequence[TokenSegment], memory: tuple[Memory, int], language: str | None, frames: int
    ) -> list[tuple[SpokenWord, ...]]:
        """Return the words of each segment, with their times in the window."""
        ids, (encoded, row) = self.tokens, memory
        one = Memory(tuple(vectors[row : row + 1] for vectors in encoded.vectors), encoded.lengths[row : row + 1])
        texts = [[token for token in piece.tokens if token < ids.end] for piece in pieces]
        forced = ids.forced(language, self.settings.task, False)
        with evaluating(self.model):
            timed = time_tokens(
                self.model,
                one,
                (ids.start, *forced),
                [token for text in texts for token in text],
                ids.end,
                ids.heads,
                frames // self.stride,
            )
        words, first = list[tuple[SpokenWord, ...]](), 0
        for text in texts:
            words.append(self._grouped(timed[first : first + len(text)], language))
            first += len(text)
        return words

    def _grouped(self, timed: Sequence[TimedToken], language: str | None) -> tuple[SpokenWord, ...]:
        groups = group_words(timed, self.writer.text, language not in WITHOUT_SPACES)
        return tuple(
            SpokenWord(text, tokens[0].start, tokens[-1].end, sum(each.probability for each in tokens) / len(tokens))
            for text, tokens in groups
        )


def transcriber_of(run: Run, options: Mapping[str, Any]) -> Transcriber | PartTranscriber:
    """Return the transcriber of a run with ``options``, fields of ``Transcribing``. Raises ``UserError``."""
    settings, processor = Transcribing.parse(dict(options)), run.vocabulary.processor
    whole = run.model.encoder is None or (processor is not None and not processor.in_windows)
    return PartTranscriber(run, settings) if whole else Transcriber(run, settings)


@with_usual_settings
def transcribe(
    run: Run | str | Path, sound: Any, on_progress: Callable[[float, float], None] | None = None, **options: Any
) -> Transcript:
    """Transcribe a sound: ``qkv.transcribe("whisper-base/", "talk.mp3", language="en").srt()``.

    ``run``: a published model of Whisper's family, a run that was trained to transcribe, or the folder of one.
    ``sound``: a file of any format, rate and number of channels, its bytes, or (samples, rate). ``on_progress``: called
    with the seconds that are done, and all. ``options``: fields of ``qkv.spec.recipes.transcribing.Transcribing``:
    language, task, timestamps, word_times, prompt, previous, batch, guard, temperatures, compression, log_probability,
    silence, max_new_tokens, seed; models that read whole clips (CTC, Moonshine) have guard and batch only.

    The transcript has a ``text``, ``segments`` with times, ``words``, and the forms ``srt()``, ``vtt()`` and
    ``to_dict()``. Raises ``UserError``.
    """
    loaded, transcript = load(run) if isinstance(run, (str, Path)) else run, None
    for transcript, done in transcriber_of(loaded, options).steps(sound):
        if on_progress is not None:
            on_progress(min(transcript.seconds, done), transcript.seconds)
    assert transcript is not None
    return transcript
