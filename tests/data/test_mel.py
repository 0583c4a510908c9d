"""Tests of spectra of sound against loops, the published filter banks, and the transformers library."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.features.mel import cepstrum, log_mel, mel_filters
from qkv.spec.signals.sound import LogMel

RATE = 8000
WHISPER = LogMel(rate=16_000)
AST = LogMel(
    rate=16_000, bins=64, transform=512, shape="symmetric_hann", scale="kaldi", lowest=20, centre=False,
    preemphasis=0.97, offset=True, form="log", floor=1.192092955078125e-07,
)  # fmt: skip


def noise(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(0)) * 0.1


def by_loop(samples: np.ndarray, spec: LogMel) -> np.ndarray:
    """Whisper's frames by the definition of the discrete Fourier transform, in float64."""
    frame, step = spec.frame, spec.step
    half = frame // 2
    longer = np.concatenate((samples[1 : half + 1][::-1], samples, samples[-half - 1 : -1][::-1]))
    window = np.array([0.5 - 0.5 * math.cos(2 * math.pi * n / frame) for n in range(frame)])
    assert spec.rate is not None
    filters = mel_filters(spec.rate, frame, spec.bins, "slaney", 0, spec.rate / 2)
    rows = []
    for t in range(len(samples) // step):
        piece = longer[t * step : t * step + frame] * window
        turns = np.exp(-2j * np.pi * np.outer(np.arange(half + 1), np.arange(frame)) / frame)
        rows.append(np.log10(np.maximum(np.abs(turns @ piece) ** 2 @ filters, 1e-10)))
    levels = np.array(rows)
    return (np.maximum(levels, levels.max() - 8) + 4) / 4


def test_frames_equal_the_definition() -> None:
    spec = LogMel(rate=RATE, bins=20)
    samples = noise(1, 1000)
    expected = torch.from_numpy(by_loop(samples[0].double().numpy(), spec))
    torch.testing.assert_close(log_mel(samples, spec)[0].double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "spec",
    [LogMel(rate=RATE, bins=20), LogMel(rate=RATE, bins=20, transform=512, ends="zeros", form="log"), AST],
    ids=["whisper", "zeros", "kaldi"],
)
def test_frames_do_not_depend_on_padding(spec: LogMel) -> None:
    samples, lengths = noise(4, 3000), torch.tensor([3000, 1200, 90, 1])
    together = log_mel(samples, spec, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = log_mel(samples[row : row + 1, :length], spec)[0]
        assert len(alone) == spec.frames(length)
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-6, rtol=0)
        assert not together[row, len(alone) :].any()


def test_frames_equal_the_extractors_of_published_models() -> None:
    from transformers import ASTFeatureExtractor, WhisperFeatureExtractor

    samples = noise(1, 20_000)
    whole = torch.nn.functional.pad(samples, (0, 480_000 - 20_000))
    expected = WhisperFeatureExtractor()(samples[0].numpy(), sampling_rate=16_000, return_tensors="pt").input_features
    torch.testing.assert_close(log_mel(whole, WHISPER), expected.mT, atol=3e-5, rtol=0)  # theirs is in fp32
    extractor = ASTFeatureExtractor(num_mel_bins=64, max_length=100)
    expected = extractor(samples[0].numpy(), sampling_rate=16_000, return_tensors="pt").input_values
    found = (log_mel(samples, AST) - extractor.mean) / (2 * extractor.std)
    torch.testing.assert_close(found[:, :100], expected, atol=1e-5, rtol=0)


@pytest.mark.data
def test_filters_equal_those_that_whisper_publishes() -> None:
    published = np.load(Path(os.environ["QKV_DATA"]) / "whisper" / "mel_filters.npz")
    for bins in (80, 128):
        found = mel_filters(16_000, 400, bins, "slaney", 0.0, 8000.0)
        np.testing.assert_allclose(found.T, published[f"mel_{bins}"], atol=1e-8)


def test_cepstrum_is_an_orthonormal_transform() -> None:
    from scipy.fft import dct

    levels = np.random.default_rng(0).standard_normal((7, 40))
    np.testing.assert_allclose(cepstrum(levels, 13), dct(levels, norm="ortho", axis=1)[:, :13], atol=1e-12)
    assert cepstrum(levels[:, :5], 13).shape == (7, 13)
