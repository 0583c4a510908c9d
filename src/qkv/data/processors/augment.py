"""Augmentations: random changes of a training batch of images, drawn from the random generator of its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.spec.register import implementation, implements
from qkv.spec.signals import images as spec


class Mixed(NamedTuple):
    """Images mixed with other images of the batch: index of each row's ``partner`` (B), and the ``share`` of the row's
    own target, 0 to 1.
    """

    partner: Tensor
    share: float


Augment = Callable[[Tensor, np.random.Generator], tuple[Tensor, Mixed | None]]
"""Function (standardised pixels (B, C, H, W), random generator) -> (changed pixels, mixing)."""


def augmented(
    parts: Sequence[spec.Augmentation], pixels: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Mixed | None]:
    """Apply augmentations in turn to pixels (B, C, H, W); a batch is mixed at most once."""
    mixed: Mixed | None = None
    for part in parts:
        if mixed is None or not part.mixes:
            pixels, mixing = implementation(part, "qkv.data.processors")(part, pixels, rng)
            mixed = mixing or mixed
    return pixels, mixed


@implements(spec.Crop)
def _crop(part: spec.Crop, pixels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Mixed | None]:
    rows, _, height, width = pixels.shape
    shifts = torch.from_numpy(rng.integers(-part.padding, part.padding + 1, (2, rows)))
    y = _reflected(shifts[0][:, None] + torch.arange(height), height)[:, None, :, None]
    x = _reflected(shifts[1][:, None] + torch.arange(width), width)[:, None, None, :]
    row, channel = torch.arange(rows)[:, None, None, None], torch.arange(pixels.shape[1])[None, :, None, None]
    return pixels[row, channel, y, x], None


def _reflected(index: Tensor, size: int) -> Tensor:
    """Map indices to 0 … size - 1 by reflection at both ends, without repeating the end points."""
    period = max(1, 2 * (size - 1))
    place = index % period
    return torch.minimum(place, period - place).clamp_max(size - 1)


@implements(spec.Flip)
def _flip(part: spec.Flip, pixels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Mixed | None]:
    chosen = torch.from_numpy(rng.random(len(pixels)) < part.rate)
    return torch.where(chosen[:, None, None, None], pixels.flip(3), pixels), None


@implements(spec.Erase)
def _erase(part: spec.Erase, pixels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Mixed | None]:
    rows, _, height, width = pixels.shape
    chosen, area = rng.random(rows) < part.rate, rng.uniform(0.02, max(part.area, 0.02), rows) * height * width
    ratio = np.exp(rng.uniform(-np.log(3), np.log(3), rows))
    tall, wide = np.sqrt(area * ratio) * chosen, np.sqrt(area / ratio) * chosen
    inside = _boxes(rng.random((2, rows)), tall, wide, (height, width))
    return pixels.masked_fill(inside[:, None], 0.0), None


@implements(spec.Mixup)
def _mixup(part: spec.Mixup, pixels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Mixed | None]:
    partner, share = torch.from_numpy(rng.permutation(len(pixels))), float(rng.beta(part.alpha, part.alpha))
    if rng.random() >= part.rate:
        return pixels, None
    return share * pixels + (1 - share) * pixels[partner], Mixed(partner, share)


@implements(spec.CutMix)
def _cutmix(part: spec.CutMix, pixels: Tensor, rng: np.random.Generator) -> tuple[Tensor, Mixed | None]:
    partner, share = torch.from_numpy(rng.permutation(len(pixels))), float(rng.beta(part.alpha, part.alpha))
    place, side = rng.random((2, 1)), np.sqrt(1 - share)
    if rng.random() >= part.rate:
        return pixels, None
    height, width = pixels.shape[2:]
    inside = _boxes(place, np.array([side * height]), np.array([side * width]), (height, width))
    mixture = torch.where(inside[:, None], pixels[partner], pixels)
    return mixture, Mixed(partner, 1 - float(inside.double().mean()))


def _boxes(place: np.ndarray, tall: np.ndarray, wide: np.ndarray, size: tuple[int, int]) -> Tensor:
    """Return masks (R, H, W) that are True inside boxes of ``tall`` × ``wide`` pixels (R).

    ``place`` (2, R): centres of the boxes, as fractions of the height and the width.
    """
    inside = []
    for centre, extent, count in zip(place, (tall, wide), size, strict=True):
        begin = np.clip(np.round(centre * count - extent / 2), 0, count)[:, None]
        end = np.clip(np.round(centre * count + extent / 2), 0, count)[:, None]
        inside.append((np.arange(count) >= begin) & (np.arange(count) < end))
    return torch.from_numpy(inside[0][:, :, None] & inside[1][:, None, :])
