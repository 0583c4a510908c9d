"""Short-time spectra against loops over their definition, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qkv.layers.sound.spectra import ShortTimeFourier, features_of, spectra_of


@pytest.mark.parametrize("step", [2, 4, 10])
def test_spectra_are_those_of_a_loop(step: int) -> None:
    samples = np.random.default_rng(step).normal(size=6 * step)
    window, spectra = 4 * step, ShortTimeFourier(step).spectra(torch.from_numpy(samples)[None])
    assert spectra.shape == (1, 6, 2, 2 * step + 1)
    for m in range(6):
        for k in range(2 * step + 1):
            total = 0j
            for t in range(window):
                place = m * step + t - 3 * step // 2
                weight = 0.5 - 0.5 * np.cos(2 * np.pi * t / window)
                if 0 <= place < len(samples):
                    total += weight * samples[place] * np.exp(-2j * np.pi * k * t / window)
            assert complex(*spectra[0, m, :, k].tolist()) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("step", "windows"), [(2, 1), (4, 3), (40, 20)])
def test_the_inverse_gives_back_every_sample(step: int, windows: int) -> None:
    samples = torch.randn(3, step * windows, generator=torch.Generator().manual_seed(step))
    transform = ShortTimeFourier(step)
    torch.testing.assert_close(transform.samples(transform.spectra(samples)), samples, rtol=0, atol=2e-5)


def test_magnitude_and_phase_give_back_spectra_above_the_floor() -> None:
    spectra = torch.randn(2, 5, 2, 9, generator=torch.Generator().manual_seed(0))
    features = features_of(spectra)
    assert features.shape == (2, 5, 3, 9)
    torch.testing.assert_close(spectra_of(features, 100.0), spectra, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features[..., 1:, :].square().sum(-2), torch.ones(2, 5, 9))
    assert torch.equal(features_of(torch.zeros(1, 2, 3))[0, 1:], torch.zeros(2, 3))
    assert float(spectra_of(torch.full((3, 1), 9.0), 2.0).square().sum().sqrt()) == pytest.approx(2.0, rel=1e-4)
