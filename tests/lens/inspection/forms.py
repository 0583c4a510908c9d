"""Runs of every form that a page of an inspection shows, with an input of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.serving import models
from tests.tasks.test_forecasting import recipe_of
from tests.training.kill_storm import ignore

import qkv
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.training.loop import train

DECODERS = ("learned", "rope", "gru")
MIXERS = {
    "linear attention": ["linear_attention", "feed_forward"],
    "Mamba-2": ["mamba2", "feed_forward"],
    "hybrid": ["causal_convolution", "attention", "gated_feed_forward"],
}


def decoder(folder: Path, name: str) -> Run:
    """Decoder over characters: a stack of ``DECODERS``, or blocks of the branches ``MIXERS``."""
    if name in DECODERS:
        return models.text_run(folder, name)
    model = {"blocks": [{"branches": MIXERS[name]}], "num_layers": 2}
    return models.run_of(folder, models.characters(), model)


def image_run(folder: Path) -> tuple[Run, str]:
    """Classifier of images of two colours, trained for two steps, and the file of an image."""
    for label, colour in (("dark", 40), ("light", 220)):
        for number in range(8):
            pixels = np.full((12, 12, 3), colour, np.uint8)
            pixels[number % 12, :, 0] = 255 - colour
            path = folder / "images" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    run = qkv.train(folder / "images", task="classify", out=folder / "run", overrides=["training.steps=2"])
    return run, str(folder / "images" / "dark" / "0.png")


def masked_run(folder: Path) -> Run:
    """Encoder that fills in masked tokens."""
    model = {"blocks": [{"branches": ["attention(mask=full)", "feed_forward"], "order": "post"}], "num_layers": 2}
    tokenizer = models.byte_pairs("mask", "cls", "sep")
    return models.run_of(folder, tokenizer, {**model, "learned": True}, task="masked_tokens")


def graph_run(folder: Path) -> Run:
    """Classifier of small graphs, rings and stars."""
    folder.mkdir(parents=True)
    with (folder / "graphs.jsonl").open("w") as file:
        for i in range(24):
            n = 4 + i % 4
            edges = [[a, (a + 1) % n] for a in range(n)] if i % 2 else [[0, a] for a in range(1, n)]
            row = {"num_nodes": n, "edges": edges, "tags": ["C", "N", "C", "N", "O", "O", "O"][:n]}
            file.write(json.dumps({**row, "label": "ring" if i % 2 else "star"}) + "\n")
    branches = ["attention(num_heads=2, mask=full)", "graph_attention(2)", "propagation(1)", "feed_forward"]
    model = {"width": 16, "frontend": "nodes", "blocks": [{"branches": branches}], "head": "classification"}
    data = {"source": str(folder / "graphs.jsonl"), "processor": "graphs"}
    recipe = {"data": data, "task": "classification", "model": model, "training": {"steps": 2, "batch_size": 4}}
    train(Recipe.parse(recipe), folder / "run", on_event=ignore)
    return qkv.load(folder / "run")


def series_run(folder: Path) -> Run:
    """Forecaster of a series with a season."""
    folder.mkdir(parents=True)
    train(recipe_of(folder), folder / "run", on_event=ignore)
    return qkv.load(folder / "run")


def every_form(folder: Path) -> dict[str, tuple[Run, Any]]:
    """Return name -> (run, inputs) of all forms."""
    forms: dict[str, tuple[Run, Any]] = {
        name: (decoder(folder / name, name), {"text": "the quick brown fox"}) for name in (*DECODERS, *MIXERS)
    }
    forms["translation"] = models.translation_run(folder / "translation"), {"source": "the quick fox"}
    forms["masked"] = masked_run(folder / "masked"), {"text": "the quick <mask> fox"}
    run, image = image_run(folder)
    forms["graphs"] = graph_run(folder / "graphs"), 0
    forms["series"] = series_run(folder / "series"), 0
    return {**forms, "images": (run, {"image": image})}
