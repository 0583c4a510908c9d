"""Sphinx extension: pictures drawn anew for each build; phones get the narrow drawing.

Pages name ``pictures/NAME.svg``, the copy in the repository. The built pages show what is drawn during the build, and
the copies of pictures of longer runs, which ``make outputs`` draws.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from making.draw import draw

FRESH = "_build/pictures"
_NAMED = re.compile(r"\]\([./\w]*?pictures/(\w+\.svg)\)")
_IMAGE = re.compile(r'(<img [^>]*src="([./]*)_images/(\w+)\.svg"[^>]*/>)')


def _drawn(app: Any) -> None:
    source, fresh = Path(app.srcdir) / "pictures", Path(app.srcdir) / FRESH
    shutil.copytree(source, fresh, dirs_exist_ok=True)
    draw(fresh)


def _shown(_: Any, name: str, source: list[str]) -> None:
    source[0] = _NAMED.sub(rf"](/{FRESH}/\1)", source[0])


def _narrow_too(app: Any, name: str, template: str, context: dict[str, Any], tree: Any) -> None:
    narrow = r'<picture><source media="(max-width: 640px)" srcset="\2_images/\3.narrow.svg">\1</picture>'
    if "body" in context:
        context["body"] = _IMAGE.sub(narrow, context["body"])


def _copied(app: Any, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    folder, out = Path(app.srcdir) / FRESH, Path(app.outdir)
    (out / "_images").mkdir(exist_ok=True)
    for file in folder.glob("*.narrow.svg"):
        shutil.copy(file, out / "_images")
    shutil.copy(folder / "report-example.html", out)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", _drawn)
    app.connect("source-read", _shown, priority=900)
    app.connect("html-page-context", _narrow_too)
    app.connect("build-finished", _copied)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
