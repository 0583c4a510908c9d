"""Command ``qkv particles``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.runs import load_run, page_file
from qkv.system.errors import UserError, quoted

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = """\
qkv particles
qkv particles --beta 9 --dim 2 --time 30 --out particles.html
qkv particles --run runs/my --text "the cat sat on the mat" --out particles.html
"""
_TIMES = 13
"""Number of times in the table."""


def particles_command(
    count: Annotated[int, typer.Option(min=2, max=1000, metavar="N", help="Number of particles.")] = 32,
    dim: Annotated[int, typer.Option(min=2, max=1000, metavar="D", help="Dimension; they are on its sphere.")] = 3,
    beta: Annotated[float, typer.Option(min=0.001, max=100.0, metavar="B", help="Inverse temperature.")] = 4.0,
    time: Annotated[float, typer.Option(min=0.1, max=1000.0, metavar="T", help="Length of the simulation.")] = 12.0,
    dynamics: Annotated[str, typer.Option(metavar="SA|USA", help="With or without the softmax's denominator.")] = "SA",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the first positions.")] = 0,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Model whose hidden states are shown beside; needs --text.")
    ] = None,
    text: Annotated[str, typer.Option(metavar="TEXT", help="Text that the model reads.")] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with pictures.")] = None,
) -> None:
    """Simulate tokens as particles on the sphere that attract each other by attention (Geshkovski et al. 2023), beside
    the hidden states of a model over depth, with and without residuals and feed-forward branches.
    """
    page = None if out is None else page_file("--out", out)
    if dynamics not in ("SA", "USA"):
        raise UserError(f"--dynamics: {quoted(dynamics)} given; allowed: SA, USA")
    if (run is None) != (not text.strip()):
        raise UserError("give --run and --text together: a model, and the text that it reads")
    from qkv.theory.particles import count_clusters, energy, random_particles, trajectory

    every = time / (_TIMES - 1)
    sets = list(trajectory(random_particles(count, dim, 1, seed), beta, _TIMES, every, dynamics))  # type: ignore[arg-type]
    rows = [
        [every * i, int(count_clusters(x)), float(energy(x, beta)), float((x @ x.mT).mean())]
        for i, x in enumerate(sets)
    ]
    depth = dict[str, list[float]]() if run is None else _depth(run, text)
    _tell(rows, depth)
    if page is not None:
        about = f"{count} particles in {dim} dimensions, β = {beta:g}, {dynamics} dynamics."
        _write(page, about, rows, sets, depth)
        typer.echo(f"page: {page}")


def _depth(run: Path, text: str) -> Mapping[str, list[float]]:
    loaded = load_run(run, copy=False)
    from qkv.lens.steps.walk import text_signal
    from qkv.theory.depth import similarity_over_depth

    signal = text_signal(loaded, text)
    if signal.values.shape[1] < 2:
        raise UserError("--text: the text has a single token; the similarity of tokens needs at least two")
    return similarity_over_depth(loaded.model, signal)


def _tell(rows: list[list[Any]], depth: Mapping[str, list[float]]) -> None:
    from qkv.report.table import print_table

    print_table("", ["time", "clusters", "energy", "mean inner product"], [[f"{r[0]:.2f}", *r[1:]] for r in rows])
    if depth:
        typer.echo()
        table = [
            [i, *(f"{value:.3f}" for value in values)] for i, values in enumerate(zip(*depth.values(), strict=True))
        ]
        print_table("mean cosine of two positions", ["point of the stream", *depth], table)


def _write(page: Path, about: str, rows: list[list[Any]], sets: list[Tensor], depth: Mapping[str, list[float]]) -> None:
    from qkv.report.theory.particles import ParticlesPage
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    pictures = {
        rows[i][0]: [(float(p[0]), float(p[1])) for p in sets[i][0]] for i in (0, len(sets) // 2, len(sets) - 1)
    }
    times, clusters, energies = ([row[i] for row in rows] for i in range(3))
    content = ParticlesPage("Tokens as particles", about, times, energies, clusters, pictures, depth)
    with clear_errors(str(page)):
        write_file(page, content.html().encode())
