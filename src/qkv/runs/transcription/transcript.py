"""Transcripts: segments and words with their times, and the files that players read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple


class SpokenWord(NamedTuple):
    """Word of a transcript with its times in seconds and the mean probability of its tokens."""

    text: str
    start: float
    end: float
    probability: float


class SpokenSegment(NamedTuple):
    """Part of a transcript with its times in seconds.

    tokens: ids as written, with timestamps. temperature: at which they were sampled. log_probability: mean of all
    tokens of the window. compression: zlib ratio of the window's text. silence: probability of no speech in the window,
    or None. words: None without word times.
    """

    text: str
    start: float
    end: float
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    log_probability: float | None = None
    compression: float | None = None
    silence: float | None = None
    words: tuple[SpokenWord, ...] | None = None


@dataclass(frozen=True)
class Transcript:
    """Text of a sound. language: code, or None if unknown. seconds: length of the sound."""

    segments: tuple[SpokenSegment, ...]
    seconds: float
    language: str | None = None
    task: str = "transcribe"

    @property
    def text(self) -> str:
        """Whole text, without times."""
        return "".join(segment.text for segment in self.segments).strip()

    def __str__(self) -> str:
        return self.text

    @property
    def words(self) -> list[SpokenWord]:
        """All words with their times; empty without word times."""
        return [word for segment in self.segments for word in segment.words or ()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the field names of OpenAI's verbose JSON."""
        words = {"words": [_word(word) for word in self.words]} if self._has_words else {}
        return {
            "task": self.task,
            "language": self.language,
            "duration": round(self.seconds, 3),
            "text": self.text,
            "segments": [_segment(i, segment) for i, segment in enumerate(self.segments)],
            **words,
        }

    def srt(self) -> str:
        """Return subtitles in SubRip format."""
        lines = [
            f"{i}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
            for i, (start, end, text) in enumerate(self._cues(), 1)
        ]
        return "\n".join(lines)

    def vtt(self) -> str:
        """Return subtitles in WebVTT format."""
        cues = [
            f"{_clock(start, '.')} --> {_clock(end, '.')}\n{escape(text, quote=False)}\n"
            for start, end, text in self._cues()
        ]
        return "\n".join(["WEBVTT\n", *cues])

    @property
    def _has_words(self) -> bool:
        return any(segment.words is not None for segment in self.segments)

    def _cues(self) -> list[tuple[float, float, str]]:
        """Return (start, end, text) of each subtitle; an empty line would end it."""
        texts = [" ".join(segment.text.split()) for segment in self.segments]
        return [(each.start, each.end, text) for each, text in zip(self.segments, texts, strict=True) if text]

    def _repr_html_(self) -> str:
        """Table of the segments for notebooks."""
        rows = "".join(
            f"<tr><td>{start:.2f} – {end:.2f}</td><td>{escape(text)}</td></tr>" for start, end, text in self._cues()
        )
        return f"<table>{rows}</table>"


FORMATS: Mapping[str, Callable[[Transcript], str | dict[str, Any]]] = {
    "text": lambda transcript: transcript.text,
    "json": Transcript.to_dict,
    "srt": Transcript.srt,
    "vtt": Transcript.vtt,
}
"""Forms of a transcript by name."""


def _clock(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and milliseconds, such as ``00:01:02,500``."""
    total = max(0, round(1000 * seconds))
    hours, rest = divmod(total, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _word(word: SpokenWord) -> dict[str, Any]:
    return {
        "word": word.text.strip(),
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "probability": round(word.probability, 4),
    }


def _segment(index: int, segment: SpokenSegment) -> dict[str, Any]:
    words: Sequence[SpokenWord] | None = segment.words
    return {
        "id": index,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.log_probability,
        "compression_ratio": segment.compression,
        "no_speech_prob": segment.silence,
        **({} if words is None else {"words": [_word(word) for word in words]}),
    }
