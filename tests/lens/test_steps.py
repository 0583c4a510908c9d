"""The walk through a forward pass shows the numbers of a loop by hand, and every equation gives the next one."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.lens.steps.equations import number_text, vector_text
from qkv.lens.steps.walk import walk_through
from qkv.report.theory.equations import equation_lines, equations_page
from qkv.system.errors import UserError

TEXT = "the cat sat on the mat. the dog ran. " * 8


def trained(folder: Path, model: dict[str, Any]) -> qkv.Run:
    (folder / "text.txt").write_text(TEXT)
    recipe = {
        "data": {"source": str(folder / "text.txt"), "tokenizer": "characters"},
        "model": {"width": 8, "context_length": 12, **model},
        "training": {"steps": 1, "batch_size": 2},
    }
    return qkv.train(qkv.Recipe.parse(recipe), folder / "run", on_event=lambda event: None)


FULL = "attention(2, mask=full)"
GATED = ["attention(2, num_kv_heads=1, relative=rope)", "gated_feed_forward(hidden=6)"]
MODELS: dict[str, dict[str, Any]] = {
    "pre": {"blocks": [{"branches": ["attention(2)", "feed_forward(hidden=6)"]}]},
    "gated": {"frontend": {"kind": "text", "positions": "none"}, "blocks": [{"branches": GATED, "norm": "rms_norm"}]},
    "post": {
        "num_layers": 2,
        "norm": "none",
        "blocks": [{"branches": ["attention(1)", "feed_forward"], "order": "post"}],
    },
    "sandwich": {"blocks": [{"branches": ["attention(1)"], "order": "sandwich"}]},
    "res_post": {"blocks": [{"branches": ["attention(1, relative=alibi)"], "order": "res_post"}]},
    "parallel": {"blocks": [{"branches": ["attention(2)", "feed_forward"], "order": "parallel"}], "rounds": 2},
    "linear": {"blocks": [{"branches": ["linear_attention(2)", "feed_forward"]}]},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_equation_gives_the_next_numbers(name: str, tmp_path: Path) -> None:
    run = trained(tmp_path, MODELS[name])
    walk = walk_through(run, "the cat sa")
    assert walk.error < 1e-5
    ids = torch.tensor([run.vocabulary.tokenizer.encode("the cat sa")])
    with torch.no_grad():
        chances = run.model.eval()(ids)[0][0, -1].softmax(-1)
    assert [chance for _, chance in walk.answers] == pytest.approx(chances.topk(5).values.tolist(), abs=1e-6)
    sums = [step for step in walk.steps if step.title == "residual"]
    assert len(sums) == len(run.model.walked_branches)


def printed(lines: Any, name: str) -> list[float]:
    """Numbers of the line of this name."""
    return [float(text.replace("−", "-")) for text in re.findall(r"−?\d[\d.e−]*", dict(lines)[name])]


def attended(weights: dict[str, Tensor], ids: list[int]) -> tuple[list[float], list[float]]:
    """Weights and output of one head at the last position, by loops in float64."""
    x = [weights["frontend.table"][i] + weights["frontend.positions.table"][n] for n, i in enumerate(ids)]
    norm = [(v - v.mean()) / math.sqrt(float(((v - v.mean()) ** 2).mean()) + 1e-5) for v in x]
    norm = [v * weights["blocks.0.branches.0.norm.weight"] + weights["blocks.0.branches.0.norm.bias"] for v in norm]
    matrix, bias = weights["blocks.0.branches.0.body.qkv.weight"], weights["blocks.0.branches.0.body.qkv.bias"]
    mixed = [[float(matrix[r] @ v + bias[r]) for r in range(24)] for v in norm]
    scores = [sum(mixed[-1][c] * row[8 + c] for c in range(4)) / 2 for row in mixed]
    total = sum(math.exp(s) for s in scores)
    shares = [math.exp(s) / total for s in scores]
    return shares, [sum(a * row[16 + c] for a, row in zip(shares, mixed, strict=True)) for c in range(4)]


def test_the_numbers_are_those_of_a_loop(tmp_path: Path) -> None:
    run = trained(tmp_path, MODELS["pre"])
    walk = walk_through(run, "the cat")
    weights = {name: tensor.double() for name, tensor in run.model.state_dict().items()}
    shares, output = attended(weights, run.vocabulary.tokenizer.encode("the cat"))
    head = next(step for step in walk.steps if step.title == "head 0")
    assert printed(head.lines, "o = Σ a v") == pytest.approx(output, abs=6e-4)
    column = list(head.columns).index("weight a")
    assert [float(str(row[column])) for row in head.rows] == pytest.approx(shares, abs=6e-4)


def test_a_classifier_is_walked_through_to_its_labels(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "a good film,yes\na bad film,no\n" * 12)
    recipe = {
        "task": "classification",
        "data": {"source": str(table), "tokenizer": "words"},
        "model": {
            "width": 8,
            "context_length": 8,
            "head": "classification",
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
        },
        "training": {"steps": 1, "batch_size": 2},
    }
    run = qkv.train(qkv.Recipe.parse(recipe), tmp_path / "run", on_event=lambda event: None)
    walk = walk_through(run, "a good film")
    (answer,) = qkv.predict(run, "a good film")
    assert dict(walk.answers) == pytest.approx(answer["probabilities"], abs=1e-6)
    assert walk.error < 1e-5


def test_terminal_and_page_show_every_step(tmp_path: Path) -> None:
    walk = walk_through(trained(tmp_path, MODELS["pre"]), "the cat", position=1)
    text = "\n".join(str(line) for line in equation_lines(walk.steps, every=True))
    few = "\n".join(str(line) for line in equation_lines(walk.steps, every=False))
    page = equations_page("walk", walk.tokens, walk.position, walk.steps, walk.answers).html()
    for step in walk.steps:
        assert step.formula in text
        assert all(value in text for _, value in step.lines)
    assert "head 1:" in text
    assert "head 1:" not in few
    assert page.count("<details") == len(walk.steps)


def test_numbers_are_short_and_vectors_are_cut() -> None:
    assert [number_text(v) for v in (0.0, -1.23456, 0.00012, 12345.6, float("-inf"))] == [
        "0.000",
        "−1.235",
        "0.00012",
        "1.23e+04",
        "−inf",
    ]
    assert vector_text(torch.ones(9), 2) == "[1.000, 1.000, … of 9]"
    assert vector_text(torch.ones(3), 2) == "[1.000, 1.000, 1.000]"


def test_refusals(tmp_path: Path) -> None:
    run = trained(tmp_path, MODELS["sandwich"])
    with pytest.raises(UserError, match="position 9 given; the text has 3 tokens, so allowed: -3 to 2"):
        walk_through(run, "the", position=9)
