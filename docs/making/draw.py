"""Draw the pictures of the documentation into a folder: ``python docs/making/draw.py docs/pictures``.

Each picture is drawn twice, for pages (``NAME.svg``) and for phones (``NAME.narrow.svg``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from making.pictures.distance import alibi, rope
from making.pictures.masks import masks
from making.pictures.orders import orders
from making.pictures.sheet import NARROW, WIDE
from making.pictures.states import states

PICTURES: dict[str, Callable[[int], Any]] = {
    "masks": masks,
    "orders": orders,
    "rope": rope,
    "alibi": alibi,
    "states": states,
}
"""Functions from a width to a picture or chart, which give the same on every machine."""


def draw(folder: Path, names: list[str] | None = None) -> None:
    """Write the pictures into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        for file, width in ((f"{name}.svg", WIDE), (f"{name}.narrow.svg", NARROW)):
            (folder / file).write_text(PICTURES[name](width).svg(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    draw(parser.parse_args().folder)
