"""Linear maps beside a model that matches two inputs: their fit, the joined similarities, and what a run keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from tests.tasks.test_matching import write_pairs

import qkv
from qkv.models.build import build
from qkv.models.heads.matching import Matcher
from qkv.models.wide import DEEP, WIDE, PairMap, build_wide
from qkv.runs.run import Run, task_of
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.multimodal.matching import MatchingTask
from qkv.tasks.registry import build_task
from qkv.training.wide.pairs import _factors, _similarities
from qkv.training.wide.paths import fit_wide

CHANGES = {
    "wide": {"kind": "pair_map", "first": "hog", "second": {"kind": "ngrams", "buckets": 256}, "axes": 16},
    "training": {"steps": 4, "batch_size": 8, "validation": {"every": 2}},
}


def recipe_of(folder: Path, **changes: object) -> Recipe:
    fields = {
        "data": {
            "source": str(write_pairs(folder)),
            "inputs": {"image": {"kind": "images"}, "text": {"kind": "wordpiece", "vocab_size": 100}},
        },
        "task": "matching",
        "model": {
            "width": 16,
            "num_layers": 1,
            "context_length": 12,
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
            "encoder": {"num_layers": 1, "frontend": "patches(patch=8)"},
            "head": "matching(features=8)",
        },
    }
    return Recipe.parse(fields | CHANGES | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pairs")
    return qkv.train(recipe_of(folder), out=folder / "run")


def opened(run: Run) -> tuple[MatchingTask, ExampleDataset]:
    task = task_of(run)
    dataset = task.open(run.recipe)
    assert isinstance(task, MatchingTask)
    assert isinstance(dataset, ExampleDataset)
    return task, dataset


def test_the_map_predicts_the_principal_axes_of_the_second_input(tmp_path: Path) -> None:
    task = build_task(recipe_of(tmp_path).task, recipe_of(tmp_path).data)
    dataset = task.open(recipe_of(tmp_path))
    assert isinstance(dataset, ExampleDataset)
    assert dataset.recipe.wide is not None
    wide = task.wide = build_wide(dataset.recipe.wide, 8)
    assert isinstance(wide, PairMap)
    assert "fitted to" in fit_wide(build(dataset.recipe.model, 1), task, dataset)[0]
    rows = dataset.examples["train"]
    signal = task.collator(dataset.recipe, dataset.vocabulary)([row.fields for row in rows])
    assert signal.source is not None
    of_words = wide.second(signal.input).double()
    bags = [row.fields.features[1] for row in rows]
    x = np.zeros((len(rows), 512))
    for row, bag in zip(x, bags, strict=True):
        idf = np.log((1 + len(rows)) / (1 + np.array([sum(i in other.ids for other in bags) for i in bag.ids]))) + 1
        weights = (1 + np.log(bag.counts)) * idf
        for part in (bag.ids < 256, bag.ids >= 256):
            row[bag.ids[part]] = weights[part] / np.linalg.norm(weights[part])
    axes = TruncatedSVD(16, random_state=0).fit(x).components_
    assert of_words.numpy() == pytest.approx(x @ axes.T, abs=1e-5)
    guessed = torch.nn.functional.cosine_similarity(wide.first(signal.source), wide.second(signal.input))
    assert guessed.mean() > 0.8  # the words follow from the picture


def test_joined_vectors_have_the_weighted_similarity_of_both_paths(run: Run) -> None:
    task, dataset = opened(run)
    wide, batch = run.wide, next(iter(dataset.rows("validation")))
    assert isinstance(wide, PairMap)
    before, found = wide.share.clone(), {}
    for shares in ((1.0, 0.0), (0.0, 1.0), (0.3, 0.7)):
        wide.set_share(*shares)
        with torch.no_grad():
            outputs = task.row_outputs(run.model, batch).double()
        assert outputs.norm(dim=-1) == pytest.approx(torch.ones(outputs.shape[:2]).numpy(), abs=1e-5)
        found[shares] = outputs[:, 0] @ outputs[:, 1].T
    wide.set_share(*before.tolist())
    deep, linear, both = found.values()
    assert both.numpy() == pytest.approx((0.3 * deep + 0.7 * linear).numpy(), abs=1e-5)


@pytest.mark.parametrize("objective", ["softmax", "sigmoid"])
def test_factors_have_the_lowest_loss_of_a_grid(run: Run, objective: str) -> None:
    task, dataset = opened(run)
    head = run.model.head
    assert isinstance(head, Matcher)
    other = Matcher(head.part.changed(objective=objective), 16, None)
    assert run.wide is not None
    before = run.wide.share.clone()
    batches = [*_similarities(run.model, task, dataset, "fp32", lambda: False)]
    run.wide.set_share(*before.tolist())

    def loss(a: float, b: float, z: float) -> float:
        return sum(float(other.loss_of_scores(a * each.deep + b * each.wide + z, each.contents)) for each in batches)

    best = loss(*_factors(other, batches, (DEEP, WIDE)))
    offsets = (-8.0, -4.0, 0.0) if objective == "sigmoid" else (0.0,)
    grid = (0.1, 1.0, 4.0, 10.0, 30.0, 90.0)
    assert best <= min(loss(a, b, z) for a in grid for b in grid for z in offsets) + 1e-4
    alone = _factors(other, batches, (WIDE,))
    assert alone[0] == 0
    assert alone[1] > 0


def test_a_run_is_at_least_as_good_as_the_linear_map_and_finds_after_reload(run: Run, tmp_path: Path) -> None:
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(each for each in validation["sections"] if each["kind"] == "contestants")
    assert {row[0] for row in table["rows"]} == {
        "linear map",
        "attention",
        "attention, linear map",
        "nearest neighbour",
    }
    column = table["columns"].index("recall 1")
    linear = next(float(row[column]) for row in table["rows"] if row[0] == "linear map")
    assert float(table["rows"][0][column]) >= linear
    again, values = qkv.load(run.folder), [str(run.folder.parent / f"{i}.png") for i in range(6)]
    assert isinstance(again.wide, PairMap)
    pairs = [
        task_of(each).vectors(each.model, each.vocabulary, each.recipe, "image", values)  # type: ignore[attr-defined]
        for each in (run, again)
    ]
    assert torch.equal(*pairs)


def test_the_nearest_row_is_found_by_its_definition_and_kept_by_a_run(run: Run) -> None:
    task, dataset = opened(run)
    wide = run.wide
    assert isinstance(wide, PairMap)
    before = wide.share.clone(), bool(wide.finds_rows)
    rows = [*dataset.examples["train"], *dataset.examples["validation"]]
    batch = task.collator(run.recipe, run.vocabulary)([row.fields for row in rows])
    assert batch.source is not None
    assert int(wide.kept) == len(rows)
    raw = np.stack([row.fields.features[0] for row in rows]).astype(np.float64)
    x = (raw - raw.mean(0)) / (raw.std(0) + 1e-6)
    x = TruncatedSVD(16, random_state=0).fit_transform(x)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    vectors = wide.second(batch.input).numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    wide.set_share(0.0, 1.0)
    wide.find_rows(True)
    found = wide.joined(None, batch.source, wide.first).numpy()
    for row, vector in enumerate(found):
        alike = np.flatnonzero(x @ x[row] > (x @ x[row]).max() - 1e-3)  # equal pictures, up to rounding
        assert max(float(vectors[each] @ vector) for each in alike) == pytest.approx(1, abs=1e-3)
    wide.find_rows(False)
    linear = wide.joined(None, batch.source, wide.first).numpy()
    assert np.abs(linear - found).max() > 0.01
    wide.set_share(*before[0].tolist())
    wide.find_rows(before[1])


def test_parts_that_do_not_read_their_input_are_refused(tmp_path: Path) -> None:
    for wide, sentence in (
        ({"kind": "pair_map", "first": "ngrams", "second": "ngrams"}, "does not read the input 'image'"),
        ({"kind": "pair_map", "first": "hog", "second": "features"}, "does not read the input 'text'; use 'ngrams'"),
        ({"kind": "pair_map", "first": "dlinear", "second": "ngrams"}, "not 'dlinear'"),
    ):
        with pytest.raises(SpecError, match=sentence):
            recipe_of(tmp_path, wide=wide)
    model = {"frontend": "text", "head": "classification"}
    table = {"data": {"source": "t.csv", "tokenizer": "word_list"}, "task": "classification", "model": model}
    with pytest.raises(SpecError, match="use the head 'matching'"):
        Recipe.parse(table | {"wide": CHANGES["wide"]})
