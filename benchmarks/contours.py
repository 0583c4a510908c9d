"""Benchmark of contours: overlap of a shape with the polygon of few points, sampled in several ways.

    python benchmarks/contours.py FOLDER|images.tar.gz

The shapes are what is not transparent in each picture. Intersection over union of the pixels inside, with 95 %
intervals over the pictures, and the same of the difference from uniform sampling.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from qkv.data.features.contours import SAMPLINGS, filled, overlap, sampled, trace
from qkv.data.processors.contours import ContourProcessor
from qkv.data.records.values import Unusable
from qkv.report.table import print_table
from qkv.spec.signals.contours import Contours
from side_by_side import parser, say_where

COUNTS = (16, 32, 64)
COLUMNS = ("points", "sampling", "IoU", "± 95 %", "difference from uniform", "± 95 %", "better on")
Figures = dict[tuple[int, str], list[float]]


def overlaps(files: list[Path]) -> Figures:
    """Overlap of each shape with its polygon of few points, by number of points and sampling."""
    found: Figures = {(count, sampling): [] for count in COUNTS for sampling in SAMPLINGS}
    processor = ContourProcessor(Contours())
    for path in files:
        try:
            field = processor.field(str(path))
        except Unusable as error:
            print(error)
            continue
        contours, mask = trace(field), field > 0.5
        if not contours:
            continue
        for (count, sampling), figures in found.items():
            figures.append(overlap(filled(sampled(contours, count, sampling), *mask.shape), mask))
    return found


def rows(found: Figures) -> list[list[str]]:
    """Table of means with 95 % intervals (normal approximation) and paired differences."""
    table: list[list[str]] = []
    for (count, sampling), figures in found.items():
        values, uniform = np.array(figures), np.array(found[count, "uniform"])
        difference = values - uniform
        mean, error = (f"{100 * each:.2f}" for each in (values.mean(), _interval(values)))
        said = ["", "", ""]
        if sampling != "uniform":
            said = [f"{100 * each:+.2f}" for each in (difference.mean(), _interval(difference))]
            said = [said[0], said[1].lstrip("+"), f"{100 * (difference > 0).mean():.0f} %"]
        table.append([str(count), sampling, mean, error, *said])
    return table


def _interval(values: np.ndarray) -> float:
    return 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5


def drawn(folder: Path) -> list[Path]:
    """Pictures of ellipses and rectangles, for a short try."""
    paths = [folder / f"{i}.png" for i in range(6)]
    for i, path in enumerate(paths):
        image = Image.new("RGBA", (48, 48))
        draw = ImageDraw.Draw(image)
        (draw.ellipse if i % 2 else draw.rectangle)((4 + i, 6, 40, 40 - 2 * i), fill="black")
        image.save(path)
    return paths


def pictures(source: Path, folder: Path) -> list[Path]:
    """PNG files in ``source``, a folder or an archive, which is unpacked into ``folder``."""
    if source.is_file():
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        source = folder
    return sorted(source.rglob("*.png"))


def main(asked: argparse.Namespace) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as place:
        files = drawn(Path(place)) if asked.smoke else pictures(Path(asked.pictures), Path(place))
        found = overlaps(files)
    shapes = len(found[COUNTS[0], "uniform"])
    print_table(f"{shapes:,} shapes, intersection over union in %", COLUMNS, rows(found))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("pictures", nargs="?", default=".", help="folder or archive of pictures with transparency")
    given = options.parse_args()
    print("overlap of contours")
    say_where("pillow")
    main(given)
