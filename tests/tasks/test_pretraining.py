"""Contrastive pretraining on sounds, against loops in float64: masks, quantiser, loss, and what starts from it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.sounds import write_tunes

import qkv
from qkv.layers.signal import Signal
from qkv.layers.times import MaskedSignal
from qkv.models.build import build
from qkv.models.heads.contrastive import ContrastivePretrainer
from qkv.models.heads.head import build_head
from qkv.spec.errors import SpecError
from qkv.spec.heads import ContrastiveHead
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.tasks.sound.pretraining import NEGATIVES, other_places, span_mask

HEAD = {"kind": "contrastive", "groups": 2, "codes": 4, "code_width": 6, "features": 5}
FRONTEND = {
    "kind": "wave_convolutions",
    "channels": [8, 8, 8],
    "kernels": [8, 4, 4],
    "strides": [4, 2, 2],
    "near": 4,
    "groups": 2,
    "mask_vector": True,
}
TEXTS = ["".join(some) for some in itertools.product("abc", repeat=2)] * 2


def recipe_for(path: Path, steps: int = 3, **changes: Any) -> Recipe:
    return Recipe.parse(
        {
            "data": {"source": str(path), "processor": "waveform", "batching": "length_buckets"},
            "model": {
                "width": 12,
                "frontend": FRONTEND,
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}],
                "head": HEAD,
            },
            "task": {"kind": "contrastive_pretraining", "span": 3, "negatives": 5, "share": 0.1},
            "training": {"steps": steps, "batch_size": 4, "validation": {"every": steps}},
            **changes,
        }
    )


def test_spans_are_masked_and_never_all() -> None:
    draw = np.random.default_rng(0)
    for count in (3, 4, 7, 50):
        masks = np.stack([span_mask(count, 0.1, 5, draw) for _ in range(200)])
        assert ((masks.sum(1) >= 2) & (masks.sum(1) < count)).all()
        length = max(2, min(5, count // 2))
        if count > 4:
            runs = [[len(list(run)) for real, run in itertools.groupby(mask) if real] for mask in masks]
            assert min(map(min, runs)) == length
        assert masks.any(0).all()


def test_wrong_candidates_are_other_places() -> None:
    drawn = other_places(4, 300, np.random.default_rng(0))
    for place, row in enumerate(drawn):
        assert set(row) == set(range(4)) - {place}


def _sizes() -> dict[str, Any]:
    return {**{name: value for name, value in HEAD.items() if name != "kind"}, "latent_width": 8}


def test_quantiser_joins_the_most_probable_codes_and_draws_them_in_training() -> None:
    torch.manual_seed(0)
    head = build_head(ContrastiveHead.parse({**_sizes(), "gumbel": [1.0, 0.5], "decay": 0.9}), 12, None)
    assert isinstance(head, ContrastivePretrainer)
    latents = torch.randn(7, 8)
    choice = head.eval().quantised(latents)
    for i, z in enumerate(latents):
        scores = (head.scores.weight @ z + head.scores.bias).reshape(2, 4)
        codes = torch.cat([head.codes[group, scores[group].argmax()] for group in range(2)])
        torch.testing.assert_close(choice.vectors[i], head.code_map.weight @ codes + head.code_map.bias)
        torch.testing.assert_close(choice.chances[i], scores.softmax(-1))
    assert float(head.gumbel_temperature) == 1.0
    drawn = torch.stack([head.train().quantised(latents).ids for _ in range(400)])
    shares = torch.nn.functional.one_hot(drawn, 4).double().mean(0)
    assert (shares - choice.chances).abs().max() < 0.12  # Gumbel's argmax has the probabilities of the softmax
    assert float(head.gumbel_temperature) == 0.5
    loss = head.quantised(latents.requires_grad_()).vectors.square().sum()
    loss.backward()
    assert latents.grad is not None
    assert latents.grad.abs().max() > 0  # straight through


@torch.no_grad()
def test_loss_is_that_of_loops(tmp_path: Path) -> None:
    recipe = recipe_for(write_tunes(tmp_path, TEXTS))
    task: Any = build_task(recipe.task, recipe.data)
    dataset = task.open(recipe)
    model = build(dataset.recipe.model.changed(init_std=0.3), 0).double().eval()
    batch = next(iter(dataset.rows("validation")))
    masked, frontend, head = MaskedSignal.of(batch.input).masked, model.frontend, model.head
    assert masked is not None
    outputs = model(batch.input)[0]
    latents = frontend.feature_norm(frontend.features(batch.input))
    total, chances = 0.0, []
    places = [divmod(place, masked.shape[1]) for place in batch.targets.tolist()]
    assert places == [tuple(place) for place in masked.nonzero().tolist()]
    for (row, step), negatives in zip(places, batch.extras[NEGATIVES].tolist(), strict=True):
        right = head.quantised(latents[row, step])
        chances.append(right.chances)
        terms = [math.exp(float(torch.cosine_similarity(outputs[row, step], right.vectors, 0)) / 0.1)]
        for place in negatives:
            other = divmod(place, masked.shape[1])
            assert other[0] == row
            assert other[1] != step
            assert masked[other]
            wrong = head.quantised(latents[other])
            if not torch.equal(wrong.ids, right.ids):
                terms.append(math.exp(float(torch.cosine_similarity(outputs[row, step], wrong.vectors, 0)) / 0.1))
        total -= math.log(terms[0] / sum(terms))
    mean = torch.stack(chances).mean(0)
    perplexity = sum(math.exp(-sum(float(p) * math.log(float(p) + 1e-7) for p in group)) for group in mean)
    expected = total + 0.1 * len(places) * (8 - perplexity) / 8
    assert task.summed_loss(model, batch).item() == pytest.approx(expected, rel=1e-6)
    assert batch.num_targets == len(places)


def test_masked_positions_have_the_learned_vector(tmp_path: Path) -> None:
    recipe = recipe_for(write_tunes(tmp_path, TEXTS))
    task: Any = build_task(recipe.task, recipe.data)
    dataset = task.open(recipe)
    model = build(dataset.recipe.model, 0).eval()
    signal = dataset.batch(0).input
    loud = signal.values.clone()
    masked = MaskedSignal.of(signal).masked
    assert masked is not None
    whole = MaskedSignal(loud, signal.lengths, masked=torch.ones_like(masked))
    quiet = MaskedSignal(0 * loud, signal.lengths, masked=torch.ones_like(masked))
    torch.testing.assert_close(model(whole)[0], model(quiet)[0])
    bare = build(dataset.recipe.model.changed(frontend=dataset.recipe.model.frontend.changed(mask_vector=False)), 0)
    with pytest.raises(UserError, match="no vector for them; give mask_vector=true"):
        bare(whole)
    assert not torch.equal(model(Signal(loud, signal.lengths))[0], model(whole)[0])


def test_a_pretrained_run_starts_a_transcriber(tmp_path: Path) -> None:
    path = write_tunes(tmp_path, TEXTS)
    quiet: dict[str, Any] = {"on_event": lambda event: None}
    run = qkv.train(recipe_for(path), tmp_path / "pretrained", **quiet)
    assert float(run.model.head.updates) == 3
    figures = next(iter(json.loads((tmp_path / "pretrained" / "evaluation.json").read_text())["splits"].values()))
    assert {"accuracy", "codes_in_use", "code_perplexity", "accuracy_of_chance"} <= figures["figures"].keys()
    again = qkv.train(
        str(path),
        tmp_path / "transcriber",
        ["training.steps=2", "training.validation.every=2", "training.optimizer.lr=1e-9"],
        task="transcribe",
        start=str(tmp_path / "pretrained"),
        **quiet,
    )
    before, after = dict(run.model.named_parameters()), dict(again.model.named_parameters())
    moved = [name for name in before if not name.startswith("head")]
    assert moved
    for name in moved:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-5)
    assert qkv.predict(again, str(tmp_path / "0.wav"))[0].keys() >= {"answer", "confidence"}


def test_other_front_ends_are_refused() -> None:
    model = {"frontend": {**FRONTEND, "mask_vector": False}, "head": "contrastive"}
    with pytest.raises(SpecError, match="use wave_convolutions with mask_vector=true"):
        Recipe.parse(
            {"data": {"source": "x.csv", "processor": "waveform"}, "task": "contrastive_pretraining", "model": model}
        )
    with pytest.raises(SpecError, match="7 features cannot be divided among 2 groups"):
        ContrastiveHead.parse({"code_width": 7})
