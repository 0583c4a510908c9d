"""Command ``qkv say``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.shared.runs import ModelFolder, output_file
from qkv.cli.shared.sampling import GENERATION
from qkv.spec.base import LARGEST
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

EXAMPLES = """\
qkv say runs/speak "seven" --out seven.wav
qkv say runs/speak "seven" --voice theo --seed 1 --out seven.flac
"""
_STANDARD_OUTPUT = "-"


def say_command(
    run: ModelFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to say.")],
    *,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Sound file to write: wav, flac, mp3, opus or pcm; '-': pcm, streamed.")
    ] = Path("speech.wav"),
    voice: Annotated[str | None, typer.Option(metavar="NAME", help="Voice; default: the first of the data.")] = None,
    options: Annotated[dict[str, Any], GENERATION],
) -> None:
    """Speak a text with a model that 'qkv train speak' trained."""
    with GENERATION.errors():
        Generation(max_new_tokens=LARGEST).requested(**options)  # before the slow import of torch
    if str(out) == _STANDARD_OUTPUT:
        _stream(run, text, voice, options)
        return
    output_file("--out", out)
    from qkv.runs.sound.speech import say

    sound = say(run, text, voice, out, **options)
    typer.echo(f"{out}: {len(sound.samples) / sound.rate:.2f} s at {sound.rate:,} Hz")


def _stream(run: Path, text: str, voice: str | None, options: dict[str, Any]) -> None:
    """Write samples of 16 bits to standard output while they are spoken."""
    from qkv.data.records.sounds.written import pcm_bytes
    from qkv.runs.sound.speech import Speaker
    from qkv.runs.storage.load import load

    if sys.stdout.isatty():
        raise UserError("--out -: samples are no text for a terminal; pipe them, such as to a player, or name a file")
    speaker = Speaker(load(run))
    for piece in speaker.pieces(text, voice, speaker.settings(**options)):
        sys.stdout.buffer.write(pcm_bytes(piece))
        sys.stdout.buffer.flush()
