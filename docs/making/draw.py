"""Draw the pictures of the documentation into a folder: ``python docs/making/draw.py docs/pictures``.

Each picture is drawn twice, for pages (``NAME.svg``) and for phones (``NAME.narrow.svg``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from making.pictures.batch import batch
from making.pictures.distance import alibi, rope
from making.pictures.masks import masks
from making.pictures.orders import orders
from making.pictures.report import pictures as report_pictures
from making.pictures.sheet import NARROW, WIDE
from making.pictures.states import states

PICTURES: dict[str, Callable[[int], Any]] = {
    "batch": batch,
    "masks": masks,
    "orders": orders,
    "rope": rope,
    "alibi": alibi,
    "states": states,
}
"""Functions from a width to a picture or chart, which give the same on every machine."""


def draw(folder: Path, report: bool = True) -> None:
    """Write the pictures into ``folder``; ``report``: also those of a run that is trained for it, and its report."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        for file, width in ((f"{name}.svg", WIDE), (f"{name}.narrow.svg", NARROW)):
            (folder / file).write_text(picture(width).svg(), encoding="utf-8")
    if report:
        with tempfile.TemporaryDirectory() as scratch:
            for file, content in report_pictures(Path(scratch)):
                (folder / file).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    draw(parser.parse_args().folder)
