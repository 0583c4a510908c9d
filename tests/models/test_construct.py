"""Weights written by hand: pieces found by name, and a model that copies the token before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.layers.layout import layouts
from qkv.spec.files.yaml_io import read_recipe, write_spec
from qkv.spec.models.start import CheckpointStart, ConstructedStart, RandomStart
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

HEADS: dict[str, Any] = {
    "width": 12,
    "num_layers": 2,
    "context_length": 8,
    "frontend": {"kind": "text", "vocab_size": 5},
    "blocks": [{"branches": ["attention(4, num_kv_heads=2)", "gated_feed_forward(hidden=6)"]}],
}


def started(pieces: list[dict[str, Any]], **fields: Any) -> ConstructedStart:
    return ConstructedStart.parse({"pieces": pieces, **fields})


def test_queries_of_one_head_are_written_and_nothing_else() -> None:
    """Head 2 of layer 1 has the rows 6 to 8 of the queries, after 12 of which come the keys."""
    spec = qkv.Model.parse(HEADS)
    start = started([{"layer": 1, "piece": "q", "head": 2, "values": 0.5}, {"layer": 0, "piece": "heads", "values": 2}])
    before, after = qkv.build(spec, seed=3).state_dict(), qkv.build(spec, seed=3, start=start).state_dict()
    qkv_name, out_name = "blocks.1.branches.0.body.qkv.weight", "blocks.0.branches.0.body.output.weight"
    wanted = {name: tensor.clone() for name, tensor in before.items()}
    wanted[qkv_name][6:9] = 0.5
    wanted[out_name][:] = 2.0
    assert all(torch.equal(after[name], wanted[name]) for name in wanted)


def test_every_piece_of_every_layout_can_be_named() -> None:
    spec = qkv.Model.parse(HEADS)
    model = qkv.build(spec)
    pieces, places = list[dict[str, Any]](), list[tuple[str, int, int]]()
    for name, layout in layouts(model).items():
        for axis, several in ((0, layout.out), (-1, layout.into)):
            begin = 0
            for piece in several:
                for head in range(piece.heads) if piece.head else [None]:
                    pieces.append({"weight": name, "piece": piece.name, "head": head, "values": 100.0 + len(pieces)})
                    places.append((name, axis, begin + (head or 0) * (piece.head or 0)))
                begin += piece.size
    assert len(pieces) > 30
    for piece, (name, axis, begin) in zip(pieces, places, strict=True):
        written = qkv.build(spec, start=started([piece])).state_dict()[name]
        assert bool((written.select(axis, begin) == piece["values"]).all())


def test_a_model_written_by_hand_copies_the_token_before() -> None:
    """Vectors are one-hot tokens and one-hot positions. The query of position i is the key of position i - 1."""
    tokens, places = 4, 6
    width = tokens + places
    eye, zero = torch.eye(width), torch.zeros(width, width)
    shift = zero.clone()  # feature of position i -> feature of position i - 1
    for i in range(1, places):
        shift[tokens + i - 1, tokens + i] = 1.0
    token = zero.clone()
    token[:tokens, :tokens] = torch.eye(tokens)
    position = eye - token
    body = "blocks.0.branches.0.body"
    start = started(
        [
            {"weight": "frontend.table", "values": eye[:tokens].tolist()},
            {"weight": "frontend.positions.table", "values": eye[tokens:].tolist()},
            {"layer": 0, "piece": "q", "values": (30.0 * shift).tolist()},
            {"layer": 0, "piece": "k", "values": position.tolist()},
            {"layer": 0, "piece": "v", "values": token.tolist()},
            {"weight": f"{body}.output", "values": (2.0 * eye).tolist()},
            {"weight": "head", "values": eye[:tokens].tolist()},
        ],
        rest="zero",
    )
    attention = {"kind": "attention", "num_heads": 1, "bias": False, "output_bias": False}
    spec = qkv.Model.parse(
        {
            "width": width,
            "num_layers": 1,
            "context_length": places,
            "frontend": {"kind": "text", "vocab_size": tokens, "positions": "learned"},
            "blocks": [{"branches": [attention], "norm": "none"}],
            "norm": "none",
            "head": {"kind": "language_model", "tied": False},
        }
    )
    model = qkv.build(spec, start=start).eval()
    ids = torch.randint(tokens, (8, places), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = model(ids)[0].argmax(-1)
    assert torch.equal(found[:, 1:], ids[:, :-1])


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ({"layer": 5, "piece": "q", "values": 0}, "layer 5 has no branch 0 with weights; the model has 2 layers"),
        ({"layer": 0, "branch": 3, "piece": "q", "values": 0}, "layer 0 has no branch 3 with weights"),
        ({"layer": 0, "piece": "queries", "values": 0}, "has no 'queries'; pieces: heads, k, q, v"),
        ({"layer": 0, "piece": "q", "head": 4, "values": 0}, "head 4 of 'q' is given; allowed: 0 to 3"),
        ({"layer": 0, "branch": 1, "piece": "gate", "head": 0, "values": 0}, "'gate' is not divided into heads"),
        ({"weight": "frontend.tabel", "values": 0}, "no weight 'frontend.tabel'; did you mean 'frontend.table'?"),
        ({"weight": "norm.weight", "piece": "q", "values": 0}, "has no piece 'q'; it is not divided"),
        ({"layer": 0, "piece": "q", "values": [[1, 2], [3, 4]]}, "the shape [2, 2], the weight has [12, 12]"),
        ({"layer": 0, "piece": "q", "values": [[1, 2], [3]]}, "the values have rows of different lengths"),
        ({"weight": "norm.weight", "values": "identity"}, "only a matrix can be an identity"),
    ],
)
def test_what_cannot_be_named_is_refused(piece: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        qkv.build(qkv.Model.parse(HEADS), start=started([piece]))


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ({"values": 0}, "name a weight, or a layer and a piece"),
        ({"layer": 0, "values": 0}, "name a weight or a piece of the layer"),
        ({"weight": "x", "head": 1, "values": 0}, "name the piece that the head belongs to"),
    ],
)
def test_an_incomplete_piece_is_refused(piece: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        started([piece])


def test_the_seed_of_a_random_start_counts() -> None:
    spec = qkv.Model.parse(HEADS)
    wanted, found = (
        qkv.build(spec, seed=9).state_dict(),
        qkv.build(spec, seed=1, start=RandomStart(seed=9)).state_dict(),
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_build_copies_no_checkpoint() -> None:
    with pytest.raises(UserError, match=r"or use qkv\.load or qkv\.train for 'bert-base-uncased'"):
        qkv.build(qkv.Model.parse(HEADS), start=CheckpointStart(source="bert-base-uncased"))


def test_a_text_without_a_kind_is_a_checkpoint(tmp_path: Path) -> None:
    """As in recipes of earlier versions; the settings that are stored with weights are the same."""
    (tmp_path / "text.txt").write_text("a b c\n" * 50)
    file = tmp_path / "recipe.yaml"
    data = f"data: {{source: {tmp_path / 'text.txt'}}}\n"
    for text in ("runs/base", "bert-base-uncased", "google/flan-t5-small", "random", "./random(1)", "C:\\runs\\x"):
        file.write_text(f"{data}start: {'./random' if text == 'random' else text}\n")
        recipe = read_recipe(file)
        wanted = "./random" if text == "random" else text
        assert recipe.start == CheckpointStart(source=wanted)
        assert recipe.essential()["start"] == wanted
        write_spec(tmp_path / "again.yaml", recipe)
        assert read_recipe(tmp_path / "again.yaml").start == recipe.start
    file.write_text(f"{data}start: random(seed=4)\n")
    assert read_recipe(file).start == RandomStart(seed=4)
    file.write_text(f"{data}start: null\n")
    assert read_recipe(file).start == Recipe.model_fields["start"].default == RandomStart()


def test_training_begins_with_the_constructed_weights(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    pieces = [{"layer": 0, "piece": "q", "head": 1, "values": 0.25}]
    recipe = Recipe.parse(
        {
            "data": {"source": str(tmp_path / "text.txt"), "tokenizer": "characters"},
            "model": {key: value for key, value in HEADS.items() if key != "frontend"},
            "start": {"kind": "constructed", "pieces": pieces},
            "training": {"steps": 1, "batch_size": 2, "optimizer": "adamw(lr=1e-30)", "schedule": "constant"},
        }
    )
    run = qkv.train(recipe, tmp_path / "run", on_event=lambda event: None)
    weight = run.model.state_dict()["blocks.0.branches.0.body.qkv.weight"]
    assert bool((weight[3:6] - 0.25).abs().max() < 1e-6)
    assert bool((weight[:3] - 0.25).abs().max() > 0.1)
    assert qkv.load(tmp_path / "run").recipe.start == recipe.start
