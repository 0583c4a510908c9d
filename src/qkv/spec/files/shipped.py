"""Files of the recipes and comparisons that ship with the package, by name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
COMPARISONS = FOLDER.with_name("comparisons")


def shipped() -> dict[str, Path]:
    """Return the files of the recipes that ship with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def shipped_comparisons() -> dict[str, Path]:
    """Return the files of the comparisons that ship with the package, by name."""
    return {path.stem: path for path in sorted(COMPARISONS.glob("*.yaml"))}


def is_shipped(source: str | Path) -> bool:
    """Return True if ``source`` names a shipped recipe, and no file or folder in the working directory."""
    return str(source) in shipped() and not Path(source).exists()


def located(source: str | Path) -> Path:
    """Return the file of the shipped recipe ``source``; ``source`` itself for other names and existing paths."""
    return shipped()[str(source)] if is_shipped(source) else Path(source)
