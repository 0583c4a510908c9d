"""Command ``qkv where``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.runs import run_or_published

if TYPE_CHECKING:
    from qkv.interop.mapping.family import Family
    from qkv.interop.where import Place
    from qkv.models.transformer import Transformer

EXAMPLES = """\
qkv where transformer.h.3.attn.c_attn.weight
qkv where model.layers.0.self_attn.q_proj.weight ./Qwen3-0.6B
qkv where blocks.0.branches.1.body.up.weight runs/my
"""


def where_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a tensor in qkv or in the checkpoint.")],
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN|FOLDER]", help="A run or a published checkpoint; default: any family."),
    ] = None,
) -> None:
    """Locate a tensor of a model: spec path, module, file and line."""
    from qkv.interop.where import everywhere, where
    from qkv.report.table import print_table

    if run is None:
        for family, place in everywhere(name):
            print_table(f"{name}, in {family}", ["property", "value"], _rows(place, shape=False))
    else:
        model, family, architecture = _model(run_or_published(run))
        print_table(name, ["property", "value"], _rows(where(model, name, family, architecture), shape=True))


def _rows(place: Place, shape: bool) -> list[tuple[str, Any]]:
    """Build the (title, text) rows for one tensor. ``shape``: include its shape, which is unknown without a run."""
    rows = [
        ("name", place.ours),
        ("published as", ", ".join(place.theirs) + (f" ({place.way})" if place.way else "")),
        ("shape", " × ".join(map(str, place.shape)) if shape else ""),
        ("spec path", place.spec_path),
        ("module", place.module),
        ("code", f"{place.file}:{place.line}"),
    ]
    return [row for row in rows if row[1]]


def _model(path: Path) -> tuple[Transformer, Family | None, str]:
    """Read a run or checkpoint; return (model, published family or None, the family's architecture name)."""
    from qkv.interop.load import described
    from qkv.interop.save import covering

    if not (path / "spec.yaml").is_file():
        return described(path)
    from qkv.runs.storage.load import load

    model = load(path).model
    match = covering(model.spec)
    return model, match.family if match else None, match.architecture if match else ""
