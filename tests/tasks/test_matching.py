"""Matching of two inputs: its loss against loops in float64, accumulated batches, and what a run answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.batching.batch import Batch
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.heads.matching import Matcher
from qkv.ops.linear.precision import autocast
from qkv.spec.errors import SpecError
from qkv.spec.heads import MatchingHead
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Matching
from qkv.system.errors import UserError
from qkv.tasks.metrics.retrieval_metrics import both_ways, ranks
from qkv.tasks.registry import build_task
from qkv.training.steps.joint import joint_backward

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "white": (250, 250, 250)}
SHAPES = ("square", "bar", "frame")


def write_pairs(folder: Path, count: int = 72) -> Path:
    """Write pictures of coloured shapes, and a table of their names and descriptions."""
    rng, lines = np.random.default_rng(0), ["picture,words"]
    for i in range(count):
        colour, shape = list(COLOURS)[i % 4], SHAPES[i // 4 % 3]
        pixels = np.zeros((16, 16, 3), np.uint8)
        row, column = rng.integers(1, 6, 2)
        where = {"square": (8, 8), "bar": (4, 9), "frame": (9, 9)}[shape]
        pixels[row : row + where[0], column : column + where[1]] = COLOURS[colour]
        if shape == "frame":
            pixels[row + 2 : row + 7, column + 2 : column + 7] = 0
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(f"{i}.png,a {colour} {shape}")
    table = folder / "pairs.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def matcher(**fields: Any) -> Matcher:
    torch.manual_seed(0)
    return Matcher(MatchingHead(features=3, **fields), 4, None).double()


@pytest.mark.parametrize("objective", ["softmax", "sigmoid"])
def test_the_loss_is_that_of_a_loop_over_all_pairs(objective: str) -> None:
    head = matcher(objective=objective)
    outputs = torch.nn.functional.normalize(torch.randn(5, 2, 3, dtype=torch.float64), dim=-1)
    targets = torch.tensor([[0, 9], [1, 8], [2, 9], [3, 6], [1, 5]])  # rows 0 and 2, and 1 and 4 match
    scale = {"softmax": 1 / 0.07, "sigmoid": 10.0}[objective]
    offset = {"softmax": 0.0, "sigmoid": -10.0}[objective]
    scores = [[scale * float(outputs[i, 0] @ outputs[j, 1]) + offset for j in range(5)] for i in range(5)]
    right = [[i == j or {i, j} in ({0, 2}, {1, 4}) for j in range(5)] for i in range(5)]
    total = 0.0
    for i in range(5):
        if objective == "sigmoid":
            total -= sum(math.log(1 / (1 + math.exp(-scores[i][j] if right[i][j] else scores[i][j]))) for j in range(5))
            continue
        for row in (scores[i], [scores[j][i] for j in range(5)]):
            logs = [value - math.log(sum(map(math.exp, row))) for value in row]
            total -= sum(log for log, yes in zip(logs, right[i], strict=True) if yes) / sum(right[i]) / 2
    assert head.loss(outputs, targets).item() == pytest.approx(total, rel=1e-6)


def test_the_scale_is_bounded() -> None:
    head = matcher()
    with torch.no_grad():
        head.scale.fill_(50.0)
    one = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    assert head.scores(one, one).item() == pytest.approx(100.0)


def test_ranks_count_equal_scores_against_the_query() -> None:
    scores = np.array([[0.5, 0.5, 0.1], [0.2, 0.9, 0.3]])
    assert ranks(scores, np.array([[True, False, False], [False, False, True]])).tolist() == [2, 2]


def test_recall_takes_equal_contents_as_one_candidate() -> None:
    contents = np.array([[0, 5], [1, 5], [2, 6]])
    scores = np.array([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1], [0.7, 0.2, 0.6]])  # of the second inputs and the first
    figures = both_ways("image", "text", scores, contents)
    assert figures["image_to_text_recall_1"] == pytest.approx(100.0)
    assert figures["text_to_image_recall_1"] == pytest.approx(50.0)  # "6" prefers image 0
    assert figures["recall_1"] == pytest.approx(75.0)


def two_towers(dropout: float = 0.0) -> Model:
    block = {"branches": ["attention(2, mask=full)", "feed_forward(16)"], "dropout": dropout}
    return Model.parse(
        {
            "width": 8,
            "frontend": {"kind": "text", "vocab_size": 11},
            "blocks": [block],
            "encoder": {"width": 12, "frontend": {"kind": "text", "vocab_size": 7}, "blocks": [block]},
            "head": {"kind": "matching", "features": 5},
        }
    )


def pairs(rows: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    own, source = (Signal(torch.randint(size, (rows, 4), generator=generator)) for size in (11, 7))
    contents = torch.randint(1 << 40, (rows, 2), generator=generator)
    return Batch.of(own, contents, source, rows)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_accumulated_batches_have_the_gradient_of_one_large_batch(dropout: float) -> None:
    model, task = build(two_towers(dropout)).double(), build_task(Matching())
    model.train()
    parts = [pairs(3, seed) for seed in range(8)]
    torch.manual_seed(1)
    nats = joint_backward(model, task, parts, 24, autocast("fp32", torch.device("cpu")))
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    torch.manual_seed(1)
    outputs = torch.cat([task.row_outputs(model, part) for part in parts])  # the same dropout masks, in one graph
    loss = model.head.loss(outputs, torch.cat([part.targets for part in parts]))
    (loss / 24).backward()
    assert nats.item() == pytest.approx(loss.item(), rel=1e-6)
    assert len(found) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_an_encoder_of_another_width_is_read_by_cross_attention() -> None:
    spec = Model.parse(
        {
            "width": 8,
            "frontend": {"kind": "text", "vocab_size": 11},
            "blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(16)"]}],
            "encoder": {"width": 12, "frontend": {"kind": "text", "vocab_size": 7}},
        }
    )
    model = build(spec).double().eval()
    memory = model.encode(torch.tensor([[1, 2, 3]]))
    assert memory.vectors[0].shape == (1, 3, 12)
    whole, _ = model(torch.tensor([[4, 5, 6]]), memory=memory)
    state, steps = model.init_state(1, memory=memory), list[torch.Tensor]()
    for token in (4, 5, 6):
        logits, state = model(torch.tensor([[token]]), state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_latents_of_an_encoder_are_the_memory() -> None:
    latents = {"count": 3, "width": 10, "blocks": [{"branches": ["cross_attention(2)", "feed_forward(12)"]}]}
    spec = Model.parse(
        {
            "width": 8,
            "frontend": {"kind": "text", "vocab_size": 11},
            "blocks": [{"branches": ["attention(2)", "cross_attention(2)"]}],
            "encoder": {"width": 12, "frontend": {"kind": "text", "vocab_size": 7}, "latents": latents},
        }
    )
    model = build(spec).double().eval()
    assert model.encoder is not None
    assert model.encoder.latents is not None
    ids, lengths = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 1]]), torch.tensor([3, 4])
    memory = model.encode(Signal(ids, lengths))
    assert memory.vectors[0].shape == (2, 3, 10)
    alone = model.encode(torch.tensor([[1, 2, 3]]))  # padding is not read
    torch.testing.assert_close(memory.vectors[0][:1], alone.vectors[0])
    x, context = model.encoder.embed(Signal(ids, lengths))
    normed = model.encoder.norm(model.encoder.last(x, context), context)
    expected = model.encoder.latents(normed, context)
    torch.testing.assert_close(memory.vectors[0], expected.vectors[0])
    model(torch.tensor([[1, 2]]).expand(2, -1), memory=memory)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_latents_of_an_encoder_that_cannot_read_it_are_refused() -> None:
    model = {
        "blocks": [{"branches": ["cross_attention"]}],
        "encoder": {"latents": {"blocks": [{"branches": ["attention"]}]}},
    }
    with pytest.raises(SpecError, match=r"encoder\.latents\.blocks: no branch of these blocks reads"):
        Model.parse(model)
    model["encoder"] = {"latents": {}, "memory": "layers", "num_layers": 1}
    with pytest.raises(SpecError, match="they read the last output only"):
        Model.parse({**model, "num_layers": 1})


def test_rows_that_are_filled_read_the_fill_token() -> None:
    spec = Model.parse(
        {
            "width": 8,
            "context_length": 6,
            "frontend": {"kind": "text", "vocab_size": 11, "fill": 9},
            "blocks": [{"branches": ["attention(2, mask=full)"]}],
            "head": "vectors",
        }
    )
    model = build(spec).double().eval()
    filled, _ = model(torch.tensor([[1, 2, 9, 9, 9, 9], [3, 9, 9, 9, 9, 9]]))
    short, _ = model(Signal(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])))
    torch.testing.assert_close(short, filled)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    table = write_pairs(folder)
    recipe = Recipe.parse(
        {
            "data": {
                "source": str(table),
                "inputs": {"image": {"kind": "images"}, "text": {"kind": "wordpiece", "vocab_size": 60}},
                "columns": {"image": "picture", "text": "words"},
            },
            "task": "matching",
            "model": {
                "width": 24,
                "context_length": 8,
                "num_layers": 1,
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(32)"]}],
                "encoder": {"width": 32, "num_layers": 1, "frontend": "patches(patch=4)"},
                "head": "matching(features=16)",
            },
            "training": {
                "steps": 120,
                "batch_size": 12,
                "accumulate": 2,
                "optimizer": {"kind": "adamw", "lr": 0.005},
                "validation": {"every": 120},
            },
        }
    )
    qkv.train(recipe, out=folder / "run")
    return folder


def test_a_run_finds_pictures_for_words_and_words_for_pictures(run: Path) -> None:
    figures = qkv.load(run / "run").evaluation["splits"]["validation"]["figures"]
    assert figures["recall_5"] > 90
    assert {"recall_1_of_linear_map", "recall_1_of_nearest_neighbour", "text_to_image_recall_10"} <= figures.keys()
    (hits,) = qkv.search(run / "run", run / "pairs.csv", "a red bar", top=3)
    asked = {line.split(",")[0]: line.split(",")[1] for line in (run / "pairs.csv").read_text().splitlines()}
    assert asked[Path(hits[0].text).name] == "a red bar"
    (texts,) = qkv.search(run / "run", run / "pairs.csv", str(run / "0.png"), top=1, column="words")
    assert texts[0].text == "a red square"


def test_a_run_chooses_among_labels_and_compares_pairs(run: Path) -> None:
    (answer,) = qkv.predict(run / "run", str(run / "1.png"), labels=["red square", "green square"], hypothesis="a {}")
    assert answer["answer"] == "green square"
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0)
    own, other = (
        qkv.predict(run / "run", {"image": str(run / "2.png"), "text": text})[0]["answer"]
        for text in ("a blue square", "a red bar")
    )
    assert -1 <= other < own <= 1
    (several,) = qkv.predict(
        run / "run", str(run / "1.png"), labels=["red", "green"], hypothesis="a {} square|a {} bar"
    )
    assert several["answer"] == "green"


def test_bad_requests_are_refused_in_one_sentence(run: Path) -> None:
    picture = str(run / "0.png")
    with pytest.raises(UserError, match="'text' is missing; give both"):
        qkv.predict(run / "run", picture)
    with pytest.raises(UserError, match="single values of 'image'"):
        qkv.predict(run / "run", {"image": picture, "text": "a"}, labels=["a"])
    with pytest.raises(UserError, match=r"trained to choose among texts.*model\.head\.objective=sigmoid"):
        qkv.predict(run / "run", picture, labels=["a", "b"], multi_label=True)
    with pytest.raises(UserError, match="neither prompts"):
        qkv.search(run / "run", run / "pairs.csv", "a", prompt="query")
    with pytest.raises(UserError, match="there is no file"):
        qkv.search(run / "run", run / "absent", "a")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": {"source": "x.csv", "inputs": {"image": "images"}}}, "reads two inputs, not 1"),
        ({"model": {"head": "matching"}}, "encoder: missing; a head of the kind"),
        ({"model": {"encoder": {"frontend": "text"}, "head": "matching"}}, "does not read 'image', which is images"),
        (
            {
                "model": {
                    "encoder": {"frontend": "patches"},
                    "blocks": [{"branches": ["cross_attention"]}],
                    "head": "matching",
                }
            },
            "no branch may read the encoder",
        ),
    ],
)
def test_recipes_that_cannot_match_are_refused(change: dict[str, Any], sentence: str) -> None:
    recipe = {
        "data": {"source": "x.csv", "inputs": {"image": "images", "text": "wordpiece"}},
        "task": "matching",
        "model": {"encoder": {"frontend": "patches"}, "head": "matching"},
    }
    with pytest.raises(SpecError, match=sentence):
        Recipe.parse({**recipe, **change})


def test_the_command_chooses_both_inputs(tmp_path: Path) -> None:
    recipe = automatic_task("matching", {"source": str(write_pairs(tmp_path, 24))})
    assert list(recipe.data.inputs) == ["image", "text"]
    assert recipe.data.columns == {"image": "picture", "text": "words"}
    assert recipe.model.encoder is not None
    assert recipe.model.encoder.frontend.kind == "patches"
