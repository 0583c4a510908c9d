"""A classifier of images in stages, trained from a recipe."""

from __future__ import annotations

from pathlib import Path

from tests.tasks.test_images import folder, quiet, recipe_on

import qkv

SWIN = {
    "width": 12,
    "frontend": {"kind": "patches", "patch": 2, "norm": "layer_norm", "positions": "none"},
    "blocks": [
        {"branches": ["window_attention(2, window=3)", "feed_forward"]},
        {"branches": ["window_attention(2, window=3, shift=1)", "feed_forward"]},
        {"merge": "patch_merging", "branches": ["window_attention(4, window=3)", "feed_forward"]},
    ],
    "head": "classification",
}


def test_a_small_swin_learns_resumes_and_predicts(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    recipe = qkv.override(recipe_on(photos, model=SWIN), ["training.steps=40"])
    run = qkv.train(recipe, tmp_path / "run", on_event=quiet)
    assert qkv.evaluate(run)["accuracy"] == 100
    loaded = qkv.load(tmp_path / "run")
    assert loaded.model.spec.merges
    assert [answer["answer"] for answer in qkv.predict(loaded, str(photos / "dark" / "0.png"))] == ["dark"]
