"""A model of one's own training loop: generating from it, saving it as a run, and using the folder like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor

import qkv
from qkv.cli.main import main
from qkv.models.transformer import Transformer
from qkv.spec import tokenizers as spec
from qkv.spec.model import Model
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEXT = "the cat sat on the mat"
SMALL = {"width": 16, "num_layers": 1, "context_length": 16, "blocks": [{"branches": ["attention(2)"]}]}
READER = {**SMALL, "blocks": [{"branches": ["attention(2, mask=full)"]}]}


@pytest.fixture
def characters() -> Tokenizer:
    return train(spec.Characters(), [TEXT])


def built(vocab_size: int, model: dict[str, Any] = SMALL, seed: int = 0) -> Transformer:
    return qkv.build(Model.parse({**model, "frontend": {"kind": "text", "vocab_size": vocab_size}}), seed)


def logits(model: Transformer, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return model.eval()(qkv.Signal(torch.tensor([ids])))[0]


def test_a_model_alone_generates(characters: Tokenizer) -> None:
    model = built(characters.vocab_size).train()
    ids = characters.encode("the c")
    (after,) = qkv.generate(model, ids=ids, max_new_tokens=1, temperature=0.0)
    assert model.training
    assert after == int(logits(model, ids)[0, -1].argmax())
    text = qkv.generate(model, "the c", tokenizer=characters, max_new_tokens=4, temperature=0.0)
    assert text == characters.decode(qkv.generate(model, ids=ids, max_new_tokens=4, temperature=0.0))


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (torch.nn.Linear(2, 2), {}, "Linear given; allowed: a run, its folder, or a model"),
        (None, {"prompt": "the"}, "a model made by qkv.build has no tokenizer"),
        (None, {"prompt": "the", "tokenizer": 3}, "tokenizer: int given; allowed"),
    ],
)
def test_one_sentence_for_what_cannot_generate(model: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        qkv.generate(built(5) if model is None else model, **options)


def test_a_saved_model_is_a_run(tmp_path: Path, characters: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    model = built(characters.vocab_size, seed=3)
    folder = qkv.save(model, tmp_path / "mine", characters, description="my loop", step=7)
    run = qkv.load(folder)
    ids = characters.encode(TEXT)[:16]
    assert torch.equal(logits(run.model, ids), logits(model, ids))
    assert (run.step, run.recipe.name, run.recipe.description) == (7, "mine", "my loop")
    assert run.recipe.task.kind == "next_token"
    options = {"max_new_tokens": 4, "temperature": 0.0}
    assert main(["generate", str(folder), "the", "--max-new-tokens", "4", "--temperature", "0"]) == 0
    assert qkv.generate(model, "the", tokenizer=run, **options) in capsys.readouterr().out
    assert main(["evaluate", str(folder)]) == 2
    (tmp_path / "text.txt").write_text(TEXT * 20)
    assert qkv.evaluate(run, data=tmp_path / "text.txt")["loss"] > 0
    recipe = qkv.Recipe.parse({"data": {"source": str(tmp_path / "text.txt")}, "start": str(folder)})
    settings = ["training.steps=1", "training.batch_size=2", "training.optimizer.lr=1e-12"]
    further = qkv.train(recipe, tmp_path / "on", settings, on_event=lambda _: None)
    torch.testing.assert_close(logits(further.model, ids), logits(model, ids))


def test_saving_again_replaces_the_weights_of_the_same_model(tmp_path: Path, characters: Tokenizer) -> None:
    size, folder = characters.vocab_size, tmp_path / "mine"
    first, second = built(size, seed=1), built(size, seed=2)
    qkv.save(first, folder, characters)
    qkv.save(second, folder, characters, step=9)
    assert torch.equal(logits(qkv.load(folder).model, [1, 2]), logits(second, [1, 2]))
    with pytest.raises(UserError, match=r"holds another model: .*width is 16 there and 8 here"):
        qkv.save(built(size, {**SMALL, "width": 8}), folder, characters)
    with pytest.raises(UserError, match="its tokenizer or its labels differ"):
        qkv.save(second, folder, train(spec.Characters(), [TEXT.replace("m", "q")]))
    assert qkv.load(folder).step == 9
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="holds a run trained by qkv"):
        qkv.save(second, folder, characters)


def test_classes_have_names(tmp_path: Path, characters: Tokenizer) -> None:
    model = built(characters.vocab_size, {**READER, "head": "classification(3)"})
    run = qkv.load(qkv.save(model, tmp_path / "named", characters, labels=["a", "b", "c"]))
    probabilities = logits(model, characters.encode("the cat"))[0].softmax(-1)
    (answer,) = qkv.predict(run, ["the cat"])
    assert answer["probabilities"] == pytest.approx(dict(zip("abc", probabilities.tolist(), strict=True)), abs=1e-5)
    numbered = qkv.load(qkv.save(model, tmp_path / "numbered", characters))
    assert numbered.vocabulary.labels == ("0", "1", "2")
    with pytest.raises(UserError, match="2 different labels given, but the model has 3 classes"):
        qkv.save(model, tmp_path / "few", characters, labels=["a", "b"])
    assert not (tmp_path / "few").exists()


def test_a_model_of_ids_needs_no_tokenizer(tmp_path: Path) -> None:
    model = built(11)
    folder = qkv.save(model, tmp_path / "ids")
    options: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0.0}
    assert qkv.generate(folder, ids=[1, 2], **options) == qkv.generate(model, ids=[1, 2], **options)
    with pytest.raises(UserError, match="the run has no tokenizer"):
        qkv.generate(folder, "a")


def test_tokenizers_of_the_library_are_taken_as_they_are(tmp_path: Path) -> None:
    core = tokenizers.Tokenizer(models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    before = core.to_str()
    run = qkv.load(qkv.save(built(3), tmp_path / "words", core))
    assert run.tokenizer.encode("the cat mat") == [0, 1, 2]
    assert core.to_str() == before
    again = qkv.load(qkv.save(built(3), tmp_path / "again", tmp_path / "words"))
    assert again.tokenizer.encode("cat") == [1]


@pytest.mark.parametrize("kind", ["small tokenizer", "own part", "no model", "weights alone"])
def test_one_sentence_for_what_cannot_be_saved(kind: str, tmp_path: Path, characters: Tokenizer) -> None:
    model: Any = built(characters.vocab_size)
    if kind == "small tokenizer":
        model = built(3)
    if kind == "own part":
        model.extra = torch.nn.Linear(2, 2)
    if kind == "no model":
        model = torch.nn.Linear(2, 2)
    if kind == "weights alone":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    sentences = {"small tokenizer": "vocab", "own part": "extra.weight", "no model": "Linear given"}
    with pytest.raises(UserError, match=sentences.get(kind, "weights of another program")):
        qkv.save(model, tmp_path / "run", characters)
    assert sorted(tmp_path.rglob("*")) == before
