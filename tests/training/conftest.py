"""One text and one undisturbed run for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.kill_storm import STEPS, ignore, small_recipe, write_text

from qkv.training.loop import train


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def straight(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    train(small_recipe(text, STEPS), folder, on_event=ignore)
    return folder
