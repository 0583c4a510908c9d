"""Sphinx configuration: ``make docs``."""

import os
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

# Pages of the documentation whose source is elsewhere in the repository, and programs that make parts of pages.
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

project = "qkv"
version = release = version_of("qkv")
html_title = f"qkv {version}"
html_theme = "furo"
html_copy_source = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "making.formulas",
    "making.pictures.pages",
    "making.notebooks",
    "making.reference",
]
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["pages.css"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

TWICE = {
    "index": "README.md",
    "architecture": "ARCHITECTURE.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "results": "recipes/README.md",
    "benchmarks": "benchmarks/README.md",
}
HERE = {path: f"{name}.md" for name, path in TWICE.items()} | {"docs/decisions": "decisions/index.md"}


def relinked(page: str) -> str:
    """Text of a page from elsewhere, with links relative to this folder."""
    folder = (ROOT / page).parent

    def seen_from_here(link: re.Match[str]) -> str:
        path, _, anchor = link[1].partition("#")
        target = os.path.relpath(folder / path, ROOT)
        return f"]({HERE.get(target) or os.path.relpath(folder / path, ROOT / 'docs')}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"\]\((?!https://)([^)\s]+)\)", seen_from_here, (ROOT / page).read_text(encoding="utf-8"))


def from_elsewhere(_: Any, name: str, source: list[str]) -> None:
    if name in TWICE:
        source[0] = relinked(TWICE[name]) + source[0].partition("\n")[2]


def setup(app: Any) -> None:
    app.connect("source-read", from_elsewhere)
