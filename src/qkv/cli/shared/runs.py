"""Shared path checks and options of commands, without slow imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.interop.files.places import is_published, may_be_name
from qkv.system.collector import paused
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.run import Run

Copy = Annotated[bool, typer.Option("--copy", help="Read the weights into memory instead of mapping the file.")]
"""Option of every command that uses the weights of a run or of a published folder."""
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by 'qkv train'.")]
"""First argument of commands that use a trained run."""
ModelFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, a folder in Hugging Face format, a GGUF file, or a name.")
]
"""First argument of commands that use a trained model, of qkv or published."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
"""Option of commands that print a table."""


PAGES = (".html", ".htm")
"""Suffixes of pages."""


def run_folder(path: Path) -> Path:
    """Return ``path`` if it is a run folder. Raises UserError that names the runs nearby."""
    if (path / "spec.yaml").is_file():
        return path
    if path.is_dir():
        inside = _runs_in(path)
        hint = nearest("", inside) if inside else "it holds no spec.yaml"
        raise UserError(f"{path} is not a run folder; {hint}")
    if path.exists():
        raise UserError(f"{path} is a file, not a run folder; 'qkv train {path}' creates a run from a recipe or a text")
    runs = _runs_in(path.parent)
    hint = nearest(str(path), runs) if runs else "'qkv train' creates one"
    raise UserError(f"there is no run folder {path}; {hint}")


def run_or_published(path: Path) -> Path:
    """Return ``path`` if it is a run folder, a Hugging Face folder, or could be the name of a published model.

    Raises ``UserError`` for anything else.
    """
    if is_published(path) or path.suffix.lower() == ".gguf":  # a missing file is refused when it is read
        return path
    mistyped = nearest(str(path), _runs_in(path.parent)).startswith("did you mean")
    return path if not path.exists() and may_be_name(str(path)) and not mistyped else run_folder(path)


def load_run(path: Path, copy: bool) -> Run:
    """Import torch and the package, then load the run or published checkpoint ``path``. Raises ``UserError``."""
    folder = run_or_published(path)
    with paused():
        from qkv.runs.storage.load import load
    return load(folder, copy=copy)


def output_file(option: str, path: Path, *sources: str | Path | None) -> Path:
    """Return ``path`` if a file can be written there and it is none of the input files ``sources``.

    Raises ``UserError`` that names ``option``, before anything slow starts.
    """
    if path.is_dir():
        raise UserError(f"{option}: {str(path)!r} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(
            f"{option}: {str(path)!r} is a device or a pipe, but output files are written and then renamed; "
            "name a regular file"
        )
    if not path.parent.is_dir():
        raise UserError(f"{option}: there is no folder {str(path.parent)!r}")
    for source in sources:
        if source and path.exists() and Path(source).exists() and path.samefile(source):
            raise UserError(f"{option}: {str(path)!r} is an input file; name another one")
    return path


def page_file(option: str, path: Path, *sources: str | Path | None) -> Path:
    """Return ``path`` if an HTML page can be written there, see ``output_file``. Raises ``UserError``."""
    output_file(option, path, *sources)
    if path.suffix.lower() not in PAGES:
        raise UserError(f"{option}: {str(path)!r} given, but an HTML page is written; name a file that ends in .html")
    return path


def _runs_in(folder: Path) -> list[str]:
    return sorted(str(spec.parent) for spec in folder.glob("*/spec.yaml"))[:12]
