"""A run that begins with the weights of another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.kill_storm import ignore

import qkv
from qkv.spec.errors import UserError
from qkv.training.events import Event, Notice
from qkv.training.loop import train
from qkv.training.run import Run

MODEL = {
    "width": 16,
    "num_layers": 2,
    "context_length": 24,
    "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(32)"]}],
}
TRAINING = {"steps": 3, "batch_size": 2, "validation": {"every": 3, "batches": 1}}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text("the film is good and the day is bad\n" * 60)
    data = {"source": str(folder / "text.txt"), "tokenizer": "words(64)"}
    recipe = qkv.Recipe.parse({"data": data, "model": MODEL, "task": "masked_tokens", "training": TRAINING})
    return train(recipe, folder / "run", on_event=ignore)


def classifier(folder: Path, start: Path, **model: object) -> qkv.Recipe:
    table = folder / "rows.tsv"
    table.write_text("text\tlabel\n" + "".join(f"the {word} day\t{word}\n" for word in ("good", "bad") * 20))
    described = {**MODEL, "head": "classification", **model}
    return qkv.Recipe.parse(
        {"data": str(table), "model": described, "task": "classification", "start": str(start), "training": {**TRAINING, "steps": 1}}
    )


def begun(recipe: qkv.Recipe, folder: Path) -> tuple[Run, list[str]]:
    """The run after one step without a learning rate to speak of, and what was said."""
    events: list[Event] = []
    still = qkv.override(recipe, ["training.optimizer.lr=1e-30", "training.optimizer.weight_decay=0.0"])
    return train(still, folder, on_event=events.append), [event.text for event in events if isinstance(event, Notice)]


def test_the_stack_begins_with_the_weights_of_the_run_and_the_head_does_not(pretrained: Run, tmp_path: Path) -> None:
    run, said = begun(classifier(tmp_path, pretrained.folder), tmp_path / "run")
    mine, theirs = run.model.state_dict(), pretrained.model.state_dict()
    stack = [name for name in mine if not name.startswith("head.")]
    assert stack
    for name in stack:
        torch.testing.assert_close(mine[name][: len(theirs[name])], theirs[name], rtol=0, atol=1e-20)
    assert run.tokenizer.encode("the good day") == pretrained.tokenizer.encode("the good day")
    assert any("its head begins at random" in sentence for sentence in said)


def test_the_same_head_begins_with_its_weights_too(pretrained: Run, tmp_path: Path) -> None:
    recipe = pretrained.recipe.changed(start=str(pretrained.folder), data={"source": pretrained.recipe.data.source})
    run, said = begun(recipe, tmp_path / "run")
    for name, tensor in run.model.state_dict().items():
        torch.testing.assert_close(tensor, pretrained.model.state_dict()[name], rtol=0, atol=1e-20)
    assert any(sentence.endswith(f"the weights of {str(pretrained.folder)!r}") for sentence in said)


def test_it_goes_on_where_the_first_run_is_gone(pretrained: Run, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (start / name).write_bytes((pretrained.folder / name).read_bytes())
    recipe = classifier(tmp_path, start)
    train(recipe, tmp_path / "run", on_event=ignore)
    (start / "model.safetensors").unlink()
    longer = qkv.override(recipe, ["training.steps=2"])
    assert [row["step"] for row in train(longer, tmp_path / "run", on_event=ignore).metrics if "loss" in row] == [1, 2]


def test_another_start_is_another_recipe(pretrained: Run, tmp_path: Path) -> None:
    recipe = classifier(tmp_path, pretrained.folder)
    train(recipe, tmp_path / "run", on_event=ignore)
    tokenizer = {"kind": "file", "path": str(pretrained.folder / "tokenizer.json")}
    other = recipe.changed(start=None, data={**recipe.data.to_dict(), "tokenizer": tokenizer})
    with pytest.raises(UserError, match="start is"):
        train(other, tmp_path / "run", on_event=ignore)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_layers": 3}, r"start: the model has 'blocks\.2\..*', and the run .* does not"),
        ({"num_layers": 1}, r"start: the run .* has 'blocks\.1\..*', and the model has no place for it"),
        ({"width": 32}, r"start: '.*' has the shape .* here and .* in the run"),
    ],
    ids=["deeper", "shallower", "wider"],
)
def test_a_model_that_is_built_otherwise_is_refused(pretrained: Run, tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        train(classifier(tmp_path, pretrained.folder, **changes), tmp_path / "run", on_event=ignore)
    assert not (tmp_path / "run" / "spec.yaml").exists()


def test_a_folder_without_a_run_is_refused(pretrained: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"start: .* holds no model\.safetensors"):
        train(classifier(tmp_path, tmp_path / "nothing"), tmp_path / "run", on_event=ignore)


def test_another_tokenizer_is_refused(pretrained: Run, tmp_path: Path) -> None:
    recipe = qkv.override(classifier(tmp_path, pretrained.folder), ["data.tokenizer=words"])
    with pytest.raises(UserError, match=r"data\.tokenizer: 'words' would give other ids"):
        train(recipe, tmp_path / "run", on_event=ignore)
