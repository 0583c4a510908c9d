"""Tests of every registered front end: shapes, independence of rows and padding, cost. A new one needs a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.inventory import assert_lists
from torch import Tensor

import qkv
from qkv.costs.cost import cost
from qkv.frontends.frontend import Frontend
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.model import Model
from qkv.spec.register import implementations

LENGTH = 12
TILES = {"kind": "patches", "patch": 4, "height": 8, "width": 4, "channels": 1, "class_token": True}
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "text": [{"vocab_size": 20}, {"vocab_size": 20, "positions": "none", "types": 2}],
    "marked_text": [
        {"vocab_size": 20, "marks": [3, 5, 2], "box": 7, "cells": True},
        {"vocab_size": 20, "appended": [{"rows": 4, "width": 5}, {"rows": 6, "width": 3}], "types": 2},
    ],
    "words": [{"features": {"buckets": 64}}],
    "patches": [
        {"patch": 4, "height": 12, "width": 8, "channels": 3, "class_token": True},
        {"patch": 1, "height": 12, "width": 8, "channels": 1, "stem": [4], "positions": "sinusoidal_2d"},
        {"patch": 4, "height": 12, "width": 8, "channels": 1, "registers": 2, "positions": "sinusoidal_2d"},
    ],
    "series_patches": [
        {"features": 3, "covariates": 0, "steps": 16, "patch": 4, "stride": 2},
        {"features": 3, "covariates": 0, "steps": 16, "patch": 4, "stride": 4, "channels": "mixed"},
        {"features": 3, "covariates": 0, "steps": 16, "channels": "inverted"},
        {"features": 3, "covariates": 0, "patch": 3, "stride": 2, "channels": "mixed"},
    ],
    "series_steps": [{"features": 3, "covariates": 2, "steps": LENGTH}],
    "nodes": [{"num_columns": 5}],
    "tubelets": [{"frames": 5, "height": 8, "width": 9, "channels": 3, "positions": "sinusoidal_3d"}],
    "contour_points": [{"points": 9}, {"points": 9, "positions": "none"}],
    "cell": [{"features": 4}],
    "image_codes": [{"vocab_size": 20}],
    "joined": [
        {
            "vocab_size": 20,
            "inputs": {
                "outline": {"kind": "contour_points", "points": 3},
                "picture": {"kind": "patches", "patch": 4, "height": 8, "width": 4, "channels": 1},
            },
        }
    ],
    "tower": [
        {"skip": 1, "hidden": 10, "stack": {"width": 12, "num_layers": 1, "frontend": TILES}},
        {"norm": "layer_norm", "stack": {"width": 12, "frontend": TILES, "latents": {"count": 3, "width": 8}}},
        {"merge": 2, "norm": "layer_norm", "stack": {"width": 12, "frontend": "sized_patches(channels=2)"}},
    ],
    "image_patches": [{"features": 4, "starts": 2}],
    "sized_patches": [{"patch": 3, "channels": 2}, {"patch": 2, "channels": 1, "bias": True}],
    "wave_convolutions": [
        {"channels": [6, 8], "kernels": [4, 3], "strides": [3, 2], "near": 4, "groups": 2},
        {"channels": [6], "kernels": [3], "strides": [2], "norms": "layer", "near": 3, "groups": 4, "near_layers": 2},
    ],
    "wave_encoder": [
        {"network": {"channels": 4, "strides": [2, 3]}},
        {"network": {"channels": 4, "strides": [3], "activation": "snake", "shortcut": True, "norm": "none"}},
    ],
    "spectra": [{"hop": 8, "frames": 2}, {"hop": 6, "frames": 1}],
    "speech_codes": [{"symbols": 7, "codebooks": 2, "codes": 5}],
    "mel_patches": [{"patch": 4, "stride": 3, "height": 12, "width": 8, "channels": 1, "class_token": True}],
    "wave_stem": [
        {"kernels": [7, 3, 2], "strides": [4, 2, 1]},
        {"multiples": [3, 1], "kernels": [4, 3], "strides": [2, 2]},
    ],
    "mel_subsampling": [
        {"bins": 9, "channels": 6},
        {"bins": 7, "channels": 3, "kernels": [5, 4], "strides": [2, 3], "scale": False},
    ],
    "mel_convolutions": [{"bins": 5}, {"bins": 4, "kernels": [5], "strides": [3], "positions": "sinusoidal"}],
}
SOUND = ("wave_convolutions", "wave_stem", "mel_convolutions", "mel_subsampling", "wave_encoder", "spectra")
PADDED = ("text", "marked_text", "words", "image_codes", "image_patches", "speech_codes", *SOUND)
"""Kinds whose rows may be padded."""
CASES = [(kind, sample) for kind, samples in SAMPLES.items() for sample in samples]


def model_of(kind: str, sample: dict[str, Any]) -> Model:
    return Model.parse(
        {
            "width": 16,
            "context_length": LENGTH,
            "frontend": {"kind": kind, **sample},
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}],
            "head": "classification(3, pooling=mean)",
        }
    )


def built(kind: str, sample: dict[str, Any]) -> Any:
    return build(model_of(kind, sample).changed(init_std=0.2), 1).double().eval()


def wide(signal: Signal) -> Signal:
    """Copy of a signal with its numbers in double precision."""
    values = signal.values
    inputs = signal.inputs and {name: wide(each) for name, each in signal.inputs.items()}
    return replace(signal, values=values.double() if values.is_floating_point() else values, inputs=inputs)


def drawn(frontend: Frontend, rows: int = 3) -> Signal:
    return wide(frontend.random(rows, LENGTH, torch.Generator().manual_seed(0)))


def row(signal: Signal, i: int) -> Signal:
    """Signal of one row."""
    inputs = signal.inputs and {name: row(each, i) for name, each in signal.inputs.items()}
    lengths = None if signal.lengths is None else signal.lengths[i : i + 1]
    return Signal(signal.values[i : i + 1], lengths, inputs=inputs)


def test_every_front_end_has_a_sample() -> None:
    own = {part.kind for part in implementations(FrontendSpec, "qkv.frontends") if part.__module__.startswith("qkv.")}
    assert_lists("tests/frontends/test_battery.py, SAMPLES", SAMPLES, own)


@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_it_makes_as_many_vectors_as_it_says(kind: str, sample: dict[str, Any]) -> None:
    model = built(kind, sample)
    signal = drawn(model.frontend)
    x, context = model.frontend.embed(signal)
    count = model.frontend.count(signal)
    assert x.shape[1:] == (count, 16)
    assert model.frontend.computed(signal) == x.shape[0] * count
    assert context.coordinates.shape[1] == count
    assert model.spec.frontend.num_positions in (None, count)
    assert torch.isfinite(x).all()


@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_a_row_does_not_depend_on_the_others(kind: str, sample: dict[str, Any]) -> None:
    model = built(kind, sample)
    signal = drawn(model.frontend)
    if signal.values.shape[0] != 3 or model.frontend.graph(signal) is not None:
        pytest.skip("edges join the rows of a batch; tests of graphs cut them")
    together: Tensor = model(signal)[0].reshape(3, -1)
    for i in range(3):
        torch.testing.assert_close(model(row(signal, i))[0].reshape(1, -1), together[i : i + 1])


_OF_ANY_LENGTH = [case for case in CASES if case[0] in PADDED or case[1] == SAMPLES["series_patches"][-1]]


@pytest.mark.parametrize(("kind", "sample"), _OF_ANY_LENGTH)
def test_padding_changes_nothing(kind: str, sample: dict[str, Any]) -> None:
    model = built(kind, sample)
    signal = drawn(model.frontend)
    lengths = (signal.values.shape[1], 5, 1)
    found = model(Signal(signal.values, torch.tensor(lengths)))[0]
    for i, length in enumerate(lengths):
        torch.testing.assert_close(model(Signal(signal.values[i : i + 1, :length]))[0], found[i : i + 1])


@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_its_cost_is_counted(kind: str, sample: dict[str, Any]) -> None:
    spec = model_of(kind, sample)
    counted = cost(spec, 2)
    assert counted.parameters == sum(parameter.numel() for parameter in qkv.build(spec).parameters())
    assert counted.forward_flops > 0
    assert counted.memory.peak > 0
