"""Augmentations change training images as they say, and draw from the given numbers alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qkv.data.processors.augment import augmented
from qkv.spec.signals.images import Augmentation, Crop, CutMix, Erase, Flip, Mixup

PIXELS = torch.randn(64, 3, 10, 8, generator=torch.Generator().manual_seed(0))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("part", [Crop(padding=2), Flip(), Erase(rate=0.5), Mixup(), CutMix()], ids=lambda p: p.kind)
def test_equal_numbers_give_equal_images(part: Augmentation) -> None:
    before = PIXELS.clone()
    (first, _), (again, _), (other, _) = (augmented((part,), PIXELS, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(PIXELS, before)


def test_a_crop_is_the_image_shifted_and_continued_by_reflection() -> None:
    found, _ = augmented((Crop(padding=2),), PIXELS, rng())
    shifts = set()
    for row, image in zip(found, PIXELS, strict=True):
        wide = F.pad(image, (2, 2, 2, 2), mode="reflect")
        at = [(y, x) for y in range(5) for x in range(5) if torch.equal(wide[:, y : y + 10, x : x + 8], row)]
        assert at
        shifts.update(at[:1])
    assert len(shifts) > 12


def test_a_crop_may_shift_by_more_than_the_image() -> None:
    found, _ = augmented((Crop(padding=50),), PIXELS[:, :, :1], rng())
    assert found.isfinite().all()
    assert found.shape == PIXELS[:, :, :1].shape


def test_flips_are_of_whole_images() -> None:
    found, _ = augmented((Flip(rate=0.5),), PIXELS, rng())
    flipped = [torch.equal(row, image.flip(2)) for row, image in zip(found, PIXELS, strict=True)]
    kept = [torch.equal(row, image) for row, image in zip(found, PIXELS, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True))
    assert 16 < sum(flipped) < 48


def test_erased_are_rectangles_of_some_images() -> None:
    found, _ = augmented((Erase(rate=0.5, area=0.3),), PIXELS, rng())
    erased = (found == 0).all(1)
    rows = erased.flatten(1).any(1)
    assert 16 < int(rows.sum()) < 48
    for mask in erased[rows]:
        tall, wide = mask.any(1), mask.any(0)
        assert int(mask.sum()) == int(tall.sum()) * int(wide.sum()) <= 0.5 * mask.numel()
    assert torch.equal(found[~rows], PIXELS[~rows])


def test_mixup_is_the_weighted_mean_of_two_images() -> None:
    found, mixed = augmented((Mixup(alpha=1.0),), PIXELS, rng())
    assert mixed is not None
    expected = mixed.share * PIXELS + (1 - mixed.share) * PIXELS[mixed.partner]
    torch.testing.assert_close(found, expected)


def test_the_share_of_cutmix_is_its_area() -> None:
    found, mixed = augmented((CutMix(),), PIXELS, rng(3))
    assert mixed is not None
    own = (found == PIXELS).all(1) & (mixed.partner != torch.arange(64))[:, None, None]
    others = mixed.partner != torch.arange(64)
    assert own[others].float().mean() == pytest.approx(mixed.share, abs=1e-6)
    assert ((found == PIXELS) | (found == PIXELS[mixed.partner])).all()


def test_a_batch_is_mixed_once() -> None:
    found, mixed = augmented((Mixup(alpha=1.0), CutMix()), PIXELS, rng())
    alone, only = augmented((Mixup(alpha=1.0),), PIXELS, rng())
    assert mixed is not None
    assert only is not None
    assert torch.equal(found, alone)
    assert mixed.share == only.share
