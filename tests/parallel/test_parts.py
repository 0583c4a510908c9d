"""Parts of a batch hold its rows, and the losses of the parts add up to that of the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.kill_storm import small_recipe

from qkv.data.batching.batch import Batch
from qkv.layers.graph import GraphSignal
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.parallel.exchange import BUCKET, buckets
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import task_of_recipe
from qkv.training.steps.gradients import check, part

TABLE = "text,label,value\n" + "".join(
    f"{'good ' * (i % 5 + 1)}film {i},{'yes' if i % 3 else 'no'},{i / 7:.3f}\n" for i in range(40)
)
SMALL = {"width": 16, "num_layers": 1, "context_length": 32}


def recipes(text: Path, folder: Path) -> dict[str, Recipe]:
    """Runs of tasks over text and over a table."""
    (folder / "rows.csv").write_text(TABLE)
    data = {"source": str(folder / "rows.csv"), "tokenizer": "characters"}
    training = {"batch_size": 7, "steps": 4}
    columns = {
        "classification": ("label", "classification"),
        "regression": ("value", "regression"),
    }
    tables = {
        task: Recipe.parse(
            {
                "data": {**data, "columns": {"text": "text", role: role}},
                "model": {
                    **SMALL,
                    "blocks": [{"branches": ["attention(num_heads=2, mask=full)", "feed_forward"]}],
                    "head": head,
                },
                "task": task,
                "training": training,
            }
        )
        for task, (role, head) in columns.items()
    }
    plain = small_recipe(text, 4, batch_size=7).changed(model={**SMALL, "blocks": [{"branches": ["gru"]}]})
    return {"next_token": plain, **tables}


@pytest.mark.parametrize("task", ["next_token", "classification", "regression"])
def test_losses_of_parts_add_up(task: str, text: Path, tmp_path: Path) -> None:
    recipe = recipes(text, tmp_path)[task]
    opened = task_of_recipe(recipe).open(recipe)
    owner = task_of_recipe(opened.recipe)
    model = build(opened.recipe.model, 0).double()
    batch = opened.batch(0)
    check(model, owner)
    expected = owner.summed_loss(model, batch)
    parts = [part(batch, owner, i, 4) for i in range(4)]
    assert [rows.input.num_rows for rows in parts] == [1, 2, 2, 2]
    assert sum(rows.num_targets for rows in parts) == batch.num_targets
    torch.testing.assert_close(sum(owner.summed_loss(model, rows) for rows in parts), expected, rtol=1e-12, atol=1e-12)
    assert [part(batch, owner, i, 16).input.num_rows for i in range(16)].count(0) == 9


def test_fields_for_all_rows_stay_whole() -> None:
    signal = Signal(torch.arange(12).view(4, 3), torch.tensor([3, 2, 1, 3]), positions=torch.arange(3)[None])
    batch = Batch.of(signal, torch.arange(12).view(4, 3), count=8, unit=torch.tensor(2.0))
    rows = batch.part(1, 2)
    assert rows is not None
    assert rows.input.values.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert rows.input.lengths is not None
    assert rows.input.lengths.tolist() == [1, 3]
    assert rows.input.positions is signal.positions
    assert (rows.num_targets, rows.extras["unit"]) == (4, 2.0)


def test_rows_that_share_something_are_not_divided() -> None:
    ids = torch.zeros(4, 3, dtype=torch.long)
    batch = Batch.of(ids, ids)
    assert Batch.of(GraphSignal(ids), ids).part(0, 2) is None
    assert Batch.of(replace(batch.input, inputs={"image": batch.input}), ids).part(0, 2) is None
    other = Batch.of(ids, ids, None, None, pairs=torch.zeros(4))
    assert other.part(0, 2) is None
    rows = other.part(0, 2, ("pairs",))
    assert rows is not None
    assert rows.extras["pairs"].shape == (2,)


def test_norms_over_a_batch_are_refused(text: Path) -> None:
    recipe = small_recipe(text, 4).changed(model={**SMALL, "norm": "batch_norm", "blocks": [{"branches": ["gru"]}]})
    opened = task_of_recipe(recipe).open(recipe)
    with pytest.raises(UserError, match="batch_norm computes with the statistics of a whole batch"):
        check(build(opened.recipe.model, 0), task_of_recipe(opened.recipe))


def test_buckets_have_one_dtype_and_a_bound() -> None:
    sizes = [BUCKET - 1, 1, 1, 2 * BUCKET]
    parameters = [torch.empty(size, device="meta") for size in sizes]
    parameters.append(torch.empty(3, dtype=torch.float64, device="meta"))
    assert [[p.numel() for p in bucket] for bucket in buckets(parameters)] == [
        [BUCKET - 1, 1],
        [1],
        [2 * BUCKET],
        [3],
    ]
