"""Captioning: CIDEr against a loop over its definition, and a run that describes coloured shapes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.tasks.test_matching import SHAPES, write_pairs

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.tasks.metrics.caption_metrics import cider

WRITTEN = ["a red dog runs fast", "two cats", "the the the the", "a boat on the sea"]
REFERENCES = [["a red dog runs", "one dog runs fast!"], ["two black cats sleep"], ["the end"], ["a boat on the sea"]]


def defined_cider(written: list[str], references: list[list[str]]) -> float:
    """CIDEr-D as in its equation, with every n-gram counted anew."""

    def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
        words = text.lower().replace("!", "").split()
        return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]

    def weights(text: str, size: int) -> dict[tuple[str, ...], float]:
        found = {}
        for ngram in ngrams(text, size):
            images = sum(any(ngram in ngrams(each, size) for each in some) for some in references)
            found[ngram] = ngrams(text, size).count(ngram) * math.log(len(references) / max(1, images))
        return found

    total = 0.0
    for text, some in zip(written, references, strict=True):
        for reference in some:
            penalty = math.exp(-((len(ngrams(text, 1)) - len(ngrams(reference, 1))) ** 2) / 72)
            for size in range(1, 5):
                one, two = weights(text, size), weights(reference, size)
                norms = [math.sqrt(sum(value**2 for value in each.values())) for each in (one, two)]
                if all(norms):
                    product = sum(min(one[ngram], two[ngram]) * two[ngram] for ngram in one if ngram in two)
                    total += 10 * penalty * product / (norms[0] * norms[1]) / 4 / len(some)
    return total / len(written)


def test_cider_is_that_of_its_definition() -> None:
    assert cider(WRITTEN, REFERENCES) == pytest.approx(defined_cider(WRITTEN, REFERENCES), rel=1e-9)
    equal = [each[0] for each in REFERENCES[:1] + REFERENCES[3:]]
    assert cider(equal, [[text] for text in equal]) == pytest.approx(10.0)
    assert cider(["dogs"], [["two cats"]]) == 0.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sacrebleu")
    folder = tmp_path_factory.mktemp("captions")
    block = {"branches": ["attention(2)", "cross_attention(2)", "feed_forward(32)"]}
    recipe = {
        "data": {
            "source": str(write_pairs(folder)),
            "processor": "images",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 60},
            "columns": {"image": "picture", "target": "words"},
        },
        "task": {"kind": "captioning", "label_smoothing": 0.0},
        "model": {
            "width": 24,
            "context_length": 10,
            "num_layers": 1,
            "blocks": [block],
            "encoder": {"width": 32, "num_layers": 1, "frontend": "patches(patch=4)"},
        },
        "training": {
            "steps": 300,
            "batch_size": 16,
            "optimizer": {"kind": "adamw", "lr": 0.005},
            "validation": {"every": 300},
        },
    }
    qkv.train(Recipe.parse(recipe), out=folder / "run")
    return folder


def test_a_run_describes_pictures(run: Path) -> None:
    figures = qkv.load(run / "run").evaluation["splits"]["validation"]["figures"]
    assert figures["cider"] > 3
    assert figures["exact"] > 25
    assert {"bleu", "cider_of_nearest_neighbour"} <= figures.keys()
    asked = [line.split(",") for line in (run / "pairs.csv").read_text().splitlines()[1:40]]
    answers = qkv.predict(run / "run", *(str(run / name) for name, _ in asked))
    assert sum(answer["answer"] == words for answer, (_, words) in zip(answers, asked, strict=True)) > 25


def test_the_report_shows_where_each_word_looked(run: Path) -> None:
    sections = qkv.load(run / "run").evaluation["splits"]["validation"]["sections"]
    looked = next(section for section in sections if section["title"] == "Where each word looked")
    assert len(looked["pictures"]) >= 3
    heat = looked["pictures"][0]["heat"]
    assert len(heat) == len(heat[0]) == 4
    assert max(map(max, heat)) == pytest.approx(1.0)


def test_the_command_chooses_both_stacks(tmp_path: Path) -> None:
    recipe = automatic_task("captioning", {"source": str(write_pairs(tmp_path, 24))})
    assert recipe.data.columns == {"image": "picture", "target": "words"}
    assert recipe.model.encoder is not None
    assert recipe.model.encoder.width != recipe.model.width
    assert recipe.data.processor is not None
    assert [change.kind for change in recipe.data.processor.augment] == ["crop"]  # type: ignore[attr-defined]


def test_models_that_read_no_signal_are_refused() -> None:
    data = {"source": "x.csv", "processor": "images"}
    with pytest.raises(SpecError, match="does not read images"):
        Recipe.parse({"data": data, "task": "captioning"})
    model = {"encoder": {"frontend": "text"}, "blocks": [{"branches": ["cross_attention"]}]}
    with pytest.raises(SpecError, match="needs an encoder that reads images or another signal"):
        Recipe.parse({"data": {"source": "x.csv"}, "task": "captioning", "model": model})


def test_at_gate_zero_a_decoder_does_not_read_the_picture() -> None:
    gated = {"branches": ["cross_attention(2)", "feed_forward(16)"], "residual": "gated"}
    plain = {"branches": ["attention(2)", "feed_forward(16)"]}
    encoder = {"width": 12, "frontend": {"kind": "text", "vocab_size": 7}, "latents": {"count": 2}}
    fields = {"width": 8, "frontend": {"kind": "text", "vocab_size": 11}, "num_layers": 4}
    reader = build(Model.parse({**fields, "blocks": [gated, plain], "encoder": encoder})).eval()
    writer = build(Model.parse({**fields, "num_layers": 2, "blocks": [plain]})).eval()
    weights = {name: value for name, value in reader.state_dict().items() if not name.startswith("encoder.")}
    for i in range(2):
        own = {name: value for name, value in weights.items() if name.startswith(f"blocks.{2 * i + 1}.")}
        weights |= {name.replace(f"blocks.{2 * i + 1}.", f"blocks.{i}.", 1): value for name, value in own.items()}
    writer.load_state_dict({name: weights[name] for name in writer.state_dict()})
    ids, memory = torch.tensor([[1, 2, 3]]), reader.encode(torch.tensor([[4, 5]]))
    assert torch.equal(reader(ids, memory=memory)[0], writer(ids)[0])
    with torch.no_grad():
        for name, parameter in reader.named_parameters():
            if name.endswith("gate"):
                parameter.fill_(0.5)
    assert not torch.equal(reader(ids, memory=memory)[0], writer(ids)[0])


def test_one_stack_reads_the_picture_and_a_question_before_the_text(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    lines = write_pairs(tmp_path).read_text().splitlines()[1:]
    rows = ["picture,question,words"]
    for line in lines:
        name, words = line.split(",")
        _, colour, shape = words.split()
        rows += [f"{name},which colour,{colour}", f"{name},which shape,{shape}"]
    (tmp_path / "asked.csv").write_text("\n".join(rows) + "\n")
    recipe = {
        "data": {
            "source": str(tmp_path / "asked.csv"),
            "inputs": {"image": "images", "question": {"kind": "wordpiece", "vocab_size": 150}},
            "columns": {"image": "picture", "question": "question", "target": "words"},
        },
        "task": {"kind": "captioning", "label_smoothing": 0.0},
        "model": {
            "width": 24,
            "context_length": 48,
            "num_layers": 2,
            "frontend": {"kind": "joined", "inputs": {"image": "patches(patch=4)"}},
            "blocks": [{"branches": ["attention(2, mask=causal | prefix)", "feed_forward(48)"]}],
        },
        "training": {
            "steps": 200,
            "batch_size": 24,
            "optimizer": {"kind": "adamw", "lr": 0.005},
            "validation": {"every": 200},
        },
    }
    qkv.train(Recipe.parse(recipe), out=tmp_path / "run")
    figures = qkv.load(tmp_path / "run").evaluation["splits"]["validation"]["figures"]
    assert figures["exact"] > 60
    picture = str(tmp_path / "1.png")
    asked = [{"image": picture, "question": question} for question in ("which colour", "which shape")]
    colour, shape = (answer["answer"] for answer in qkv.predict(tmp_path / "run", *asked))
    assert colour == "green"
    assert shape in SHAPES
