"""Take the pictures of the page on looking inside: ``python docs/making/inspection.py docs/pictures``.

The model of docs/inside.md is trained by the commands of that page; its inspection is opened in a headless browser.
Needs what ``docs/making/browser.py`` needs.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image

import qkv
from making.browser import SIZES, open_browser
from qkv.cli.main import main

PAGE = Path(__file__).resolve().parents[1] / "inside.md"
LARGEST = 60_000
"""Maximum number of bytes of a picture."""
SHOWN = {"attention": "wide", "neurons": "wide", "checkpoints": "wide", "lens": "narrow"}
"""Views that are shown, and the size of the window."""
HEIGHT = 700


def train(folder: Path) -> qkv.Run:
    """Run the first two blocks of the page as far as the training; return the run."""
    data, commands = re.findall(r"^```(?:python|bash)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[:2]
    with chdir(folder):
        exec(data, {})
        if main(shlex.split(commands.splitlines()[0])[1:]):
            raise RuntimeError("the training failed")
        return qkv.load(next(Path("runs").resolve().iterdir()))


def compressed(picture: bytes) -> bytes:
    """WebP without loss, of at most 256 colours."""
    out = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).convert("RGB").save(out, "WEBP", lossless=True)
    return out.getvalue()


def take(browser: Any, page: Path, view: str, size: str) -> bytes:
    """Picture of a view of a page, in light colours."""
    width, height = SIZES[size]
    window = {"width": width, "height": min(height, HEIGHT)}
    tab = browser.new_context(viewport=window, color_scheme="light").new_page()
    tab.goto(f"{page.as_uri()}#view={view}")
    tab.wait_for_timeout(500)
    picture = tab.screenshot()
    tab.context.close()
    return compressed(picture)


def write(folder: Path) -> None:
    """Write the pictures ``inside_VIEW.webp`` of all views that are shown."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        run = train(Path(scratch))
        text = (Path(scratch) / "foxes.txt").read_text(encoding="utf-8")
        page = qkv.inspect(run, "the quick brown fox", over=text).save(Path(scratch) / "page.html")
        browser = open_browser(playwright)
        for view, size in SHOWN.items():
            picture = take(browser, page, view, size)
            if len(picture) > LARGEST:
                raise RuntimeError(f"{view}: {len(picture):,} bytes, more than {LARGEST:,}")
            (folder / f"inside_{view}.webp").write_bytes(picture)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
