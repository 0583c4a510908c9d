"""Trained neural codecs: sounds to codes and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from qkv.data.processors.coders import CodingModel
from qkv.data.processors.sounds import WaveformProcessor
from qkv.models.heads.sample_decoder import SampleDecoderHead

_AT_ONCE = 32


class Codec(CodingModel[WaveformProcessor]):
    """Trained neural codec."""

    kinds, name = ("wave_decoder", "spectrum_decoder"), "a neural codec, trained by 'qkv train compress'"

    @property
    def head(self) -> SampleDecoderHead:
        """Head of the model, which holds quantizer and decoder."""
        head = self.model.head
        assert isinstance(head, SampleDecoderHead)
        return head

    @property
    def rate(self) -> int:
        """Samples per second."""
        assert self.processor.spec.rate is not None
        return self.processor.spec.rate

    @property
    def bits_per_second(self) -> float:
        """Bits of the codes of one codebook in a second."""
        return self.head.part.quantizer.bits * self.rate / self.head.hop

    @torch.inference_mode()
    def codes(self, encoded: Sequence[np.ndarray], codebooks: int | None = None) -> list[np.ndarray]:
        """Return the codes (N, n) of encoded sounds, of the first n codebooks, by default all."""
        results = dict[int, np.ndarray]()
        for rows in self._groups([len(each) for each in encoded]):
            signal = self.processor.signal([encoded[i] for i in rows]).to(self.model.device)
            x, _ = self.model.features(signal)
            ids = self.head.ids(x, codebooks).to(torch.int32).cpu().numpy()
            real = self.model.frontend.lengths(signal)
            lengths = [ids.shape[1]] * len(rows) if real is None else self.head.count(real).tolist()
            results |= {i: ids[row, :length] for row, (i, length) in enumerate(zip(rows, lengths, strict=True))}
        return [results[i] for i in range(len(encoded))]

    @torch.inference_mode()
    def decoded(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Decode codes (N, n) of the first n codebooks to samples (N · hop) in float32."""
        results = dict[int, np.ndarray]()
        for rows in self._groups([len(each) for each in codes]):
            ids = pad_sequence([torch.from_numpy(codes[i].astype(np.int64)) for i in rows], batch_first=True)
            samples = self.head.samples(ids.to(self.model.device)).to(torch.float32).cpu().numpy()
            results |= {i: samples[row, : len(codes[i]) * self.head.hop] for row, i in enumerate(rows)}
        return [results[i] for i in range(len(codes))]

    def _groups(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the indices of rows that are read together: of any length if padding on the right changes no output."""
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        for _, group in groupby(order, key=lambda i: 0 if self.head.exact else lengths[i]):
            rows = list(group)
            yield from (rows[begin : begin + _AT_ONCE] for begin in range(0, len(rows), _AT_ONCE))
