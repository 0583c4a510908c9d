"""Random changes of training sounds, of their samples or of their frames, drawn from the generator of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from qkv.spec.register import implementation, implements
from qkv.spec.signals import sound as spec


class Clips(NamedTuple):
    """Rows of sounds: values (B, T) of samples or (B, T, bins) of frames, their lengths (B), and the rate in Hz."""

    values: Tensor
    lengths: Tensor
    rate: int


Change = Callable[..., Clips]
"""Function (part, clips, random generator) -> changed clips."""


def changed_clips(parts: Sequence[spec.SoundChange], clips: Clips, rng: np.random.Generator) -> Clips:
    """Apply changes in turn. Values after the length of a row stay 0 in samples."""
    for part in parts:
        clips = implementation(part, "qkv.data.processors")(part, clips, rng)
    return clips


def _chosen(rate: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random(rows) < rate


def _real(clips: Clips) -> Tensor:
    """Return a mask (B, T) that is True before the length of each row."""
    return torch.arange(clips.values.shape[1]) < clips.lengths[:, None]


@implements(spec.WhiteNoise)
def _white_noise(part: spec.WhiteNoise, clips: Clips, rng: np.random.Generator) -> Clips:
    rows = np.flatnonzero(_chosen(part.rate, len(clips.values), rng))
    ratio = torch.from_numpy((10 ** (-rng.uniform(part.least, part.most, len(rows)) / 20)).astype(np.float32))
    sounds, real = clips.values[rows], _real(clips)[rows]
    level = (sounds.square() * real).sum(1).div(clips.lengths[rows].clamp(min=1)).sqrt()
    noise = torch.from_numpy(rng.standard_normal(tuple(sounds.shape), np.float32))
    values = clips.values.clone()
    values[rows] = sounds + noise * (level * ratio)[:, None] * real
    return clips._replace(values=values)


@implements(spec.Shift)
def _shift(part: spec.Shift, clips: Clips, rng: np.random.Generator) -> Clips:
    rows, most = len(clips.values), round(part.seconds * clips.rate)
    steps = rng.integers(-most, most + 1, rows) * _chosen(part.rate, rows, rng)
    place = torch.arange(clips.values.shape[1]) - torch.from_numpy(steps)[:, None]
    inside = (place >= 0) & (place < clips.lengths[:, None])
    values = clips.values.gather(1, place.clamp(0, clips.values.shape[1] - 1))
    return clips._replace(values=values * (inside & _real(clips)))


@implements(spec.Speed)
def _speed(part: spec.Speed, clips: Clips, rng: np.random.Generator) -> Clips:
    rows = len(clips.values)
    factors = np.where(_chosen(part.rate, rows, rng), rng.uniform(part.least, part.most, rows), 1.0)
    lengths = [max(1, round(length / factor)) for length, factor in zip(clips.lengths.tolist(), factors, strict=True)]
    longest = max(lengths)
    values = torch.zeros(rows, longest)
    for row, (before, after) in enumerate(zip(clips.lengths.tolist(), lengths, strict=True)):
        sound = clips.values[row, :before]
        if after != before:
            sound = interpolate(sound[None, None], size=after, mode="linear", align_corners=False)[0, 0]
        values[row, :after] = sound
    return clips._replace(values=values, lengths=torch.tensor(lengths))


@implements(spec.Loudness)
def _loudness(part: spec.Loudness, clips: Clips, rng: np.random.Generator) -> Clips:
    rows = len(clips.values)
    decibels = rng.uniform(-part.decibels, part.decibels, rows) * _chosen(part.rate, rows, rng)
    gains = torch.from_numpy((10 ** (decibels / 20)).astype(np.float32))
    return clips._replace(values=clips.values * gains[:, None])


@implements(spec.Room)
def _room(part: spec.Room, clips: Clips, rng: np.random.Generator) -> Clips:
    rows, size = clips.values.shape
    tail = max(2, round(part.seconds * clips.rate))
    chosen, seconds = _chosen(part.rate, rows, rng), rng.uniform(0.2, 1.0, rows) * part.seconds
    noise = rng.standard_normal((rows, tail)).astype(np.float32)
    time = np.arange(tail) / clips.rate
    response = noise * np.exp(-np.log(1000) * time / seconds[:, None]) * 0.3
    response[:, 0] = 1.0
    response[~chosen, 1:] = 0.0
    response /= np.linalg.norm(response, axis=1, keepdims=True)
    length = size + tail
    spectrum = torch.fft.rfft(clips.values, n=length) * torch.fft.rfft(
        torch.from_numpy(response).to(torch.float32), n=length
    )
    return clips._replace(values=torch.fft.irfft(spectrum, n=length)[:, :size] * _real(clips))


@implements(spec.FrameMasks)
def _frame_masks(part: spec.FrameMasks, clips: Clips, rng: np.random.Generator) -> Clips:
    values = clips.values
    rows, count, bins = values.shape
    real = _real(clips)
    mean = (values * real[..., None]).sum(1, keepdim=True) / clips.lengths.clamp(min=1)[:, None, None]
    mask = torch.zeros(rows, count, bins, dtype=torch.bool)
    for _ in range(part.bands):
        width = rng.integers(0, min(part.bins, bins) + 1, rows)
        mask |= _spans(width, np.full(rows, bins), bins, rng)[:, None, :]
    for _ in range(part.spans):
        longest = clips.lengths.numpy()
        width = (rng.random(rows) * part.share * longest).astype(int)
        mask |= _spans(width, longest, count, rng)[:, :, None]
    return clips._replace(values=torch.where(mask, mean, values))


def _spans(widths: np.ndarray, lengths: np.ndarray, count: int, rng: np.random.Generator) -> Tensor:
    """Return a mask (B, ``count``) that is True in one span of each row, of width ``widths`` (B) within ``lengths``."""
    begin = torch.from_numpy((rng.random(len(widths)) * (lengths - widths + 1)).astype(int))[:, None]
    place = torch.arange(count)
    return (place >= begin) & (place < begin + torch.from_numpy(widths)[:, None])
