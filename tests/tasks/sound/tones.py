"""Tones of several lengths, and a small codec that is trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
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


def write_tones(folder: Path) -> Path:
    """Write short tones of two pitches, in subfolders of their names; return the folder."""
    for name, pitch in (("low", 0.2), ("high", 1.2)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(20):
            samples = (np.sin(np.arange(1500 + 40 * i) * (pitch + 0.01 * i)) / 2).astype(np.float32)
            (folder / name / f"{i}.wav").write_bytes(sound_bytes(Sound(samples, 8000)))
    return folder
