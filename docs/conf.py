"""How the documentation is built: ``make docs``."""

from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "qkv"
version = release = version_of("qkv")
html_title = f"qkv {version}"
html_theme = "furo"
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

# The pages that readers look for in the root of the repository stand there, and here under a second name.
ROOT = Path(__file__).resolve().parents[1]
TWICE = {"index": "README.md", "architecture": "ARCHITECTURE.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}


def relinked(text: str) -> str:
    """A page of the root with its links seen from this folder."""
    for here, there in TWICE.items():
        text = text.replace(f"]({there}", f"]({here}.md")
    text = text.replace("](docs/decisions/)", "](decisions/index.md)").replace("](docs/", "](")
    return text.replace("](examples/", "](../examples/").replace("](LICENSE", "](../LICENSE")


def from_the_root(_: Any, name: str, source: list[str]) -> None:
    if name in TWICE:
        _, _, rest = source[0].partition("\n")
        source[0] = relinked((ROOT / TWICE[name]).read_text(encoding="utf-8")) + rest


def setup(app: Any) -> None:
    app.connect("source-read", from_the_root)
