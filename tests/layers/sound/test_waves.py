"""Convolutions of waveforms against loops in double precision, and the networks of codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qkv.layers.sound.waves import (
    LOUDNESS,
    Snake,
    TransposedWaveConvolution,
    WaveConvolution,
    WaveLayers,
    decoder_layers,
    encoder_layers,
)
from qkv.spec.signals.codecs import SeaNet


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ready(module: Any) -> Any:
    torch.manual_seed(2)
    module = module.double()
    module.initialise()
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return module


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "dilation", "length"), [(7, 1, 1, 9), (6, 3, 1, 11), (3, 1, 4, 12)])
def test_a_convolution_is_that_of_a_loop(causal: bool, kernel: int, stride: int, dilation: int, length: int) -> None:
    net = SeaNet(causal=causal)
    layer, x = ready(WaveConvolution(net, (2, 3), kernel, stride, dilation)), drawn(1, 2, length, seed=1)
    direction = layer.direction.detach().numpy()
    norms = np.sqrt((direction**2).sum((1, 2), keepdims=True))
    weight = layer.gain.detach().numpy() * direction / norms
    total = (kernel - 1) * dilation + 1 - stride
    left = total if causal else total - total // 2
    found = layer(x)[0].detach().numpy()
    assert found.shape == (3, -(-length // stride))
    for place in range(found.shape[1]):
        wanted = layer.bias.detach().numpy().copy()
        for tap in range(kernel):
            sample = place * stride + tap * dilation - left
            if 0 <= sample < length:
                wanted += weight[:, :, tap] @ x[0, :, sample].numpy()
        np.testing.assert_allclose(found[:, place], wanted, rtol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_transposed_convolution_is_that_of_a_loop(causal: bool, stride: int) -> None:
    layer = ready(TransposedWaveConvolution(SeaNet(causal=causal, norm="none", ends="each"), (2, 3), stride))
    x, before = drawn(1, 2, 4, seed=1), 0 if causal else stride - stride // 2
    wanted = np.tile(layer.bias.detach().numpy()[:, None], (1, 4 * stride))
    for place in range(4):
        for tap in range(2 * stride):
            sample = place * stride + tap - before
            if 0 <= sample < 4 * stride:
                wanted[:, sample] += layer.weight.detach().numpy()[:, :, tap].T @ x[0, :, place].numpy()
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), wanted, rtol=1e-10)


@pytest.mark.parametrize("lstm", [0, 1])
def test_a_causal_codec_never_reads_later_samples(lstm: int) -> None:
    net = SeaNet(channels=4, strides=(2, 3), dilations=(1, 2), lstm=lstm)
    encoder, decoder = (ready(WaveLayers(layers(net, 5))) for layers in (encoder_layers, decoder_layers))
    x = drawn(1, 1, 30, seed=3)
    later = x.clone()
    later[..., 12:] = 7.0
    vectors, other = encoder(x), encoder(later)
    assert vectors.shape == (1, 5, 5)
    torch.testing.assert_close(vectors[..., :2], other[..., :2])
    assert not torch.allclose(vectors[..., 2], other[..., 2])
    wave = decoder(vectors)
    assert wave.shape == (1, 1, 30)
    vectors[..., 2:] = 7.0
    torch.testing.assert_close(decoder(vectors)[..., :12], wave[..., :12])


@torch.no_grad()
def test_networks_begin_with_unit_vectors_for_the_usual_loudness() -> None:
    torch.manual_seed(0)
    net = SeaNet(channels=8, strides=(2, 5, 4))
    encoder, decoder = (WaveLayers(layers(net, 32)).double() for layers in (encoder_layers, decoder_layers))
    encoder.initialise(first=1 / LOUDNESS)
    decoder.initialise(last=LOUDNESS)
    vectors = encoder(LOUDNESS * drawn(4, 1, 2000))
    assert 0.5 < float(vectors.std()) < 2
    assert 0.5 < float(decoder(drawn(4, 32, 50)).std()) / LOUDNESS < 2
    upsampling = TransposedWaveConvolution(SeaNet(ends="each"), (64, 16), 5).double()
    upsampling.initialise()
    assert float(upsampling(drawn(1, 64, 400)).std()) == pytest.approx(1, abs=0.15)


def test_snake_is_its_equation() -> None:
    snake: Any = Snake(3).double()
    snake.rate.data.copy_(torch.tensor([0.5, 1.0, 2.0])[None, :, None])
    x = drawn(2, 3, 4)
    for feature, rate in enumerate((0.5, 1.0, 2.0)):
        wanted = x[:, feature] + torch.sin(rate * x[:, feature]) ** 2 / rate
        torch.testing.assert_close(snake(x)[:, feature], wanted, rtol=1e-6, atol=1e-8)


def test_short_rows_are_reflected_as_far_as_they_reach() -> None:
    layer = ready(WaveConvolution(SeaNet(padding="reflect"), (1, 1), 7))
    assert layer(drawn(1, 1, 2)).shape == (1, 1, 2)
    assert torch.isfinite(layer(drawn(1, 1, 1))).all()
