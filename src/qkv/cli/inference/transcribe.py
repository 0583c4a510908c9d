"""Command ``qkv transcribe``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
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
    from qkv.runs.run import Run

EXAMPLES = """\
qkv transcribe whisper-base/ talk.mp3
qkv transcribe whisper-base/ talk.mp3 --out talk.srt
qkv transcribe whisper-base/ talk.mp3 --language de --task translate --format json --word-times
qkv transcribe whisper-base/ lecture.flac --batch 8 --out lecture.vtt
qkv transcribe runs/heard - --pcm 16000
qkv transcribe runs/heard --microphone
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

_Sound = Annotated[
    str | None, typer.Argument(metavar="SOUND", help="A sound file; '-' reads standard input while it arrives.")
]
_PCM = Annotated[
    int | None, typer.Option("--pcm", metavar="HZ", help="Rate of raw 16-bit mono samples on standard input.")
]
_Microphone = Annotated[bool, typer.Option("--microphone", help="Listen to the microphone until Ctrl-C.")]
_Format = Annotated[
    str | None, typer.Option("--format", metavar="text|json|srt|vtt", help="Default: by the suffix of --out, or text.")
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file; default: standard output.")
]


def transcribe_command(
    run: ModelFolder,
    sound: _Sound = None,
    format: _Format = None,
    out: _Out = None,
    *,
    pcm: _PCM = None,
    microphone: _Microphone = False,
    options: Annotated[dict[str, Any], _OPTIONS],
    copy: Copy = False,
) -> None:
    """Transcribe a sound: its text, with times, as plain text, JSON or subtitles.

    The model is a published one of Whisper's family, or a run that was trained to transcribe.
    """
    form = _form(format, out)
    if microphone or sound in (None, "-"):
        _live(run, sound, form, out, pcm, microphone, options, copy)
        return
    if pcm is not None:
        raise UserError(f"--pcm: {pcm} given for a file; it is the rate of raw samples on standard input, '-'")
    if out is not None:
        output_file("--out", out, sound)
    if not Path(sound).is_file():
        raise UserError(f"there is no sound file {sound}")
    with _OPTIONS.errors():
        Transcribing.parse(options)
    _whole(load_run(run, copy), sound, form, out, options)


def _live(
    run: Path,
    sound: str | None,
    form: str,
    out: Path | None,
    pcm: int | None,
    microphone: bool,
    options: Mapping[str, Any],
    copy: bool,
) -> None:
    """Transcribe standard input or the microphone: as plain text while it arrives, in other forms as a whole."""
    if microphone and (sound is not None or pcm is not None):
        raise UserError("a sound and --microphone are given; give one of them")
    if sound is None and not microphone:
        raise UserError("no sound given; name a file, '-' for standard input, or --microphone")
    plain = form == "text" and out is None
    if microphone and not plain:
        raise UserError("--microphone writes plain text while it listens; leave --format and --out out")
    with _OPTIONS.errors():
        Transcribing.parse(dict(options))
    loaded = load_run(run, copy)
    import numpy as np

    from qkv.data.records.sounds.streams import microphone_sound, piped_sound
    from qkv.runs.transcription.streaming import write_stream

    processor: Any = loaded.vocabulary.processor
    if processor is None or not processor.of_sounds:
        raise UserError(f"{loaded.folder} does not transcribe: its task is {loaded.recipe.task.kind!r}")
    stream = microphone_sound(int(processor.rate)) if microphone else piped_sound(sys.stdin.buffer, pcm)
    if isinstance(stream, bytes):
        _whole(loaded, stream, form, out, options)
    elif plain:
        with suppress(KeyboardInterrupt):
            write_stream(loaded, stream, lambda piece: typer.echo(piece, nl=False), **options)
        typer.echo()
    else:
        samples = np.concatenate([np.zeros(0, np.float32), *stream.blocks])
        _whole(loaded, (samples, stream.rate), form, out, options)


def _whole(loaded: Run, value: Any, form: str, out: Path | None, options: Mapping[str, Any]) -> None:
    """Transcribe a sound that is there as a whole."""
    from qkv.report.progress import Progress
    from qkv.runs.transcription.transcribe import transcribe
    from qkv.runs.transcription.transcript import FORMATS

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
