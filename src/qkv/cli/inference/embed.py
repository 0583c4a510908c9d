"""Command ``qkv embed``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.inputs import lines_of_input
from qkv.cli.shared.runs import Copy, output_file, run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.system.errors import UserError

if TYPE_CHECKING:
    import numpy as np

EXAMPLES = """\
qkv embed all-MiniLM-L6-v2/ "A stitch in time" "saves nine"
qkv embed e5-small/ --prompt query "how tall is it"
qkv embed runs/my --pooling max --normalise "Once upon a time"
cat lines.txt | qkv embed all-MiniLM-L6-v2/ - --out vectors.npy
"""

_Pooling = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="cls, mean, max, mean_sqrt_len, weightedmean or lasttoken; default: the model's."
    ),
]


def embed_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published model.")],
    inputs: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts; '-' reads one per line from standard input.")
    ],
    prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of one of the model's prompts, prepended to every text.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Text to prepend to every text.")] = None,
    pooling: _Pooling = None,
    normalise: Annotated[
        bool | None, typer.Option(help="Scale vectors to length 1; default: the model's setting.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of tokens read per text.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output .npy file; default: JSON, one line per text.")
    ] = None,
    copy: Copy = False,
) -> None:
    """Compute one embedding vector per text, with the pooling of a sentence-transformers folder if it has one."""
    if out is not None and out.suffix != ".npy":
        raise UserError(f"--out: {str(out)!r} should end in .npy")
    if out is not None:
        output_file("--out", out)
    folder = run if is_sentence_folder(run) else run_or_published(run)
    texts = [line for text in inputs for line in (lines_of_input() if text == "-" else [text])]
    options: dict[str, Any] = {
        "poolings": tuple(pooling) if pooling else None,
        "normalise": normalise,
        "max_length": max_length,
    }
    settings = {name: value for name, value in options.items() if value is not None}
    vectors = _embedded(folder, texts, prompt, prefix, copy=copy, **settings)
    if out is not None:
        _write(out, vectors)
        return
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        typer.echo(json.dumps({"text": text, "vector": vector}, ensure_ascii=False))


def _embedded(*args: Any, **options: Any) -> np.ndarray:
    """Call ``qkv.embed``, and print its warnings as notes on standard error."""
    from qkv.api.functions import embed

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        vectors = embed(*args, **options)
    for note in notes:
        typer.echo(f"note: {note.message}", err=True)
    return vectors


def _write(path: Path, vectors: np.ndarray) -> None:
    import io

    import numpy as np

    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    file = io.BytesIO()
    np.save(file, vectors, allow_pickle=False)
    with clear_errors(str(path)):
        write_file(path, file.getvalue())
    typer.echo(f"{len(vectors):,} vectors of {vectors.shape[1]:,} numbers in {path}", err=True)
