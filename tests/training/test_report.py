"""What a report says of the run that wrote it: how weights were chosen, what was computed, what was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.report.checks import page_data, read_page
from tests.tasks.tables import recipe_for
from tests.training.kill_storm import ignore
from tests.training.test_automatic_task import FAST
from torch.utils.flop_counter import FlopCounterMode

from qkv.choosing.automatic_task import automatic_task
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import build_task
from qkv.training.loop import train


def written(path: Path) -> Path:
    path.write_text(
        "text,label\n" + "".join(f"{'good ' * (i % 7 + 1)}film,{'yes' if i % 3 else 'no'}\n" for i in range(60))
    )
    return path


def trained(folder: Path) -> Recipe:
    validation = {"every": 3, "best": "accuracy", "batches": None}
    model = {"width": 32, "num_layers": 2}
    recipe = recipe_for(
        "classification",
        written(folder / "table.csv"),
        data={"tokenizer": "words(20)"},
        training={"validation": validation},
        **model,
    )
    train(recipe, folder / "run", on_event=ignore)
    return load(folder / "run").recipe


def test_compute_is_that_of_every_position_and_weights_were_chosen_by_accuracy(tmp_path: Path) -> None:
    recipe = trained(tmp_path)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "which had the highest validation accuracy" in read_page(page).text
    run, task = load(tmp_path / "run"), build_task(recipe.task)
    dataset = task.open(recipe, run.vocabulary)
    batches = [dataset.batch(step).input for step in range(recipe.training.steps)]
    with torch.no_grad():
        for batch in batches:  # chooses kernels by time on first use, which must not be counted
            run.model(batch)
        with FlopCounterMode(display=False) as counter:
            for batch in batches:
                run.model(batch)
    assert page_data(page)["run"]["figures"]["flops"] == pytest.approx(3 * counter.get_total_flops(), rel=0.15)


def test_a_description_says_what_is_taken_after_a_change(tmp_path: Path) -> None:
    data = {"source": str(written(tmp_path / "table.csv"))}
    recipe = automatic_task("classification", data, ["training.steps=7"], machine=FAST)
    assert recipe.description.endswith("; overridden: training.steps=7.")
    for quick in (False, True):  # the steps are planned later
        assert "steps" not in automatic_task("classification", data, quick=quick, machine=FAST).description
    assert (
        automatic_task("classification", data, ["description=mine", "training.steps=7"], machine=FAST).description
        == "mine"
    )
