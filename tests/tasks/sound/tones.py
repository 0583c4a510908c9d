"""Tones of several lengths, and a small codec that is trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.spec.recipe import Recipe

RATE = 2000


def tone(seconds: float, pitch: float) -> np.ndarray:
    steps = np.arange(round(seconds * RATE)) / RATE
    return (0.4 * np.sin(2 * np.pi * pitch * steps) * np.exp(-2 * steps)).astype(np.float32)


def clips() -> dict[str, list[Any]]:
    """Tones of several lengths."""
    rng = np.random.default_rng(0)
    return {"sound": [(tone(0.15 + 0.02 * (i % 7), rng.uniform(100, 600)), RATE) for i in range(24)]}


def quiet(_: object) -> None:
    """Show nothing of a training."""


def trained(recipe: dict[str, Any], out: Path, **training: Any) -> Any:
    changed = {**recipe, "training": {**recipe["training"], **training}}
    return qkv.train(Recipe.parse(changed), out, data=clips(), on_event=quiet)


def recipe(**head: Any) -> dict[str, Any]:
    return {
        "data": {"source": "clips", "processor": {"kind": "waveform", "normalise": False}},
        "task": {"kind": "autoencoding", "sound": {"excerpt": 0.2}},
        "model": {
            "width": 8,
            "norm": "none",
            "frontend": {"kind": "wave_encoder", "network": {"channels": 4, "strides": [2, 5]}},
            "blocks": [],
            "head": {"kind": "wave_decoder", **head},
        },
        "training": {
            "steps": 12,
            "batch_size": 4,
            "optimizer": {"kind": "adamw", "lr": 5e-3},
            "validation": {"every": 6},
            "checkpoints": {"every": 6},
        },
    }
