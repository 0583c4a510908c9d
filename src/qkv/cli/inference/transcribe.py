"""Command ``qkv transcribe``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.options import SpecOption, SpecOptions
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, output_file
from qkv.spec.recipes.transcribing import Transcribing
from qkv.system.errors import UserError, nearest
from qkv.system.files import write_file

if TYPE_CHECKING:
    from qkv.report.progress import Progress

EXAMPLES = """\
qkv transcribe whisper-base/ talk.mp3
qkv transcribe whisper-base/ talk.mp3 --out talk.srt
qkv transcribe whisper-base/ talk.mp3 --language de --task translate --format json --word-times
qkv transcribe whisper-base/ lecture.flac --batch 8 --out lecture.vtt
"""
_FORMATS = ("text", "json", "srt", "vtt")
_SUFFIXES = {".txt": "text"}
"""Format by the suffix of the output file, where it is not the format's own name."""
_LONG = 60.0
"""Seconds of sound from which the progress is shown."""
_OPTIONS = SpecOptions(
    Transcribing,
    {
        "language": SpecOption("CODE", "Spoken language, such as en; default: detected."),
        "task": SpecOption("transcribe|translate", "translate: write the text in English."),
        "word_times": SpecOption(help="Also find the times of words."),
        "timestamps": SpecOption(help="Let the model write the times of segments; default: yes."),
        "prompt": SpecOption("TEXT", "Text before that of the first window, such as names that occur."),
        "previous": SpecOption(help="Let a window read the text of those before it."),
        "batch": "N",
        "guard": SpecOption(help="Write nothing where the sound has no voice activity; default: yes."),
        "temperatures": SpecOption("T", "Temperatures, tried in order; repeatable.", "--temperature"),
        "compression": "R",
        "log_probability": "P",
        "silence": "P",
        "max_new_tokens": SpecOption("N", "Maximum number of tokens of a window."),
        "seed": "N",
    },
)

_Sound = Annotated[str, typer.Argument(metavar="SOUND", help="A sound file; '-' reads one from standard input.")]
_Format = Annotated[
    str | None, typer.Option("--format", metavar="text|json|srt|vtt", help="Default: by the suffix of --out, or text.")
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file; default: standard output.")
]


def transcribe_command(
    run: ModelFolder,
    sound: _Sound,
    format: _Format = None,
    out: _Out = None,
    *,
    options: Annotated[dict[str, Any], _OPTIONS],
    copy: Copy = False,
) -> None:
    """Transcribe a sound: its text, with times, as plain text, JSON or subtitles.

    The model is a published one of Whisper's family, or a run that was trained to transcribe.
    """
    form = _form(format, out)
    if out is not None:
        output_file("--out", out, sound)
    if sound != "-" and not Path(sound).is_file():
        raise UserError(f"there is no sound file {sound}")
    with _OPTIONS.errors():
        Transcribing.parse(options)
    loaded = load_run(run, copy)
    from qkv.report.progress import Progress
    from qkv.runs.transcription.transcribe import transcribe
    from qkv.runs.transcription.transcript import FORMATS

    value: Any = sys.stdin.buffer.read() if sound == "-" else sound
    seconds = _seconds(value)
    progress = Progress("transcribe", round(seconds), "seconds") if seconds >= _LONG else None
    with progress or nullcontext():
        text = FORMATS[form](transcribe(loaded, value, None if progress is None else _telling(progress), **options))
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, indent=1)
    if out is None:
        typer.echo(text)
    else:
        write_file(out, (text.rstrip("\n") + "\n").encode())


def _telling(progress: Progress) -> Callable[[float, float], None]:
    """Return a function that shows the seconds that are done."""

    def tell(done: float, seconds: float) -> None:
        progress.update(round(done))

    return tell


def _form(named: str | None, out: Path | None) -> str:
    """Return the format that is named, or that of the output file. Raises ``UserError`` for an unknown one."""
    suffix = "" if out is None else out.suffix.lower()
    form = named or _SUFFIXES.get(suffix, suffix.removeprefix(".")) or "text"
    if form in _FORMATS:
        return form
    if named is None:
        return "text"
    raise UserError(f"--format: {form!r} given; {nearest(form, _FORMATS)}")


def _seconds(value: Any) -> float:
    """Return the length of a sound. Raises ``UserError`` for one that cannot be read."""
    from qkv.data.records.sounds.sound_files import sound_length
    from qkv.data.records.values import Unusable

    try:
        return sound_length(value)[0]
    except Unusable as error:
        raise UserError(str(error)) from None
