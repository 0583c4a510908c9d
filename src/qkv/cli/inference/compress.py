"""Command ``qkv compress``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import ModelFolder, output_file
from qkv.system.errors import UserError

EXAMPLES = """\
qkv compress runs/codec clip.wav --out clip.npz
qkv compress runs/codec clip.wav --out clip.npz --codebooks 2
qkv compress runs/codec clip.npz --out again.wav
"""


def compress_command(
    run: ModelFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sound, or a file of codes (npz) to decode.")],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: codes (npz), or a sound such as wav.")],
    codebooks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of first codebooks; default: all.")
    ] = None,
) -> None:
    """Compress a sound to codes with a model that 'qkv train compress' trained, or decode codes to a sound."""
    from qkv.data.records.sounds.written import format_of, written_sound
    from qkv.runs.sound.compression import SUFFIX, CodedWave, compress, decompress
    from qkv.system.files import write_file

    output_file("--out", out, file)
    if (file.suffix == SUFFIX) == (out.suffix == SUFFIX):
        raise UserError(f"one of the two files holds codes, and has the extension {SUFFIX}; {file} and {out} given")
    if out.suffix == SUFFIX:
        wave = compress(run, str(file), codebooks)
        content, (vectors, books) = wave.to_bytes(), wave.codes.shape
        write_file(out, content)
        typer.echo(f"{out}: {vectors:,} vectors of {books} codes, {len(content):,} bytes")
        return
    if codebooks is not None:
        raise UserError("--codebooks is for sounds; a file of codes is decoded with all that it holds")
    form = format_of(out)
    sound = decompress(run, CodedWave.read(file))
    write_file(out, written_sound(sound, form))
    typer.echo(f"{out}: {len(sound.samples) / sound.rate:.2f} s at {sound.rate:,} Hz")
