"""Speech as codes of a trained neural codec, after the characters of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from qkv.data.batching.padding import lengths_or_none
from qkv.data.processors.codec import Codec
from qkv.data.processors.coders import CodesProcessor
from qkv.data.processors.sounds import SoundProcessor
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.speech import SpeechCodes
from qkv.system.errors import UserError, nearest, quoted


def plain_text(text: str) -> str:
    """Return a text in lower case with single spaces, as models of speech read it."""
    return " ".join(text.lower().split())


@implements(SpeechCodes)
class SpeechCodesProcessor(CodesProcessor[Codec]):
    """Codes of sounds: a file or samples with their rate -> codes (N, K) of the first codebooks."""

    example = SoundProcessor.example
    coders = Codec
    spec: SpeechCodes

    @property
    def codebooks(self) -> int:
        """Number of codebooks K."""
        return self.spec.codebooks or self.coder.head.part.quantizer.codebooks

    def fitted(self, values: Sequence[Any]) -> SpeechCodes:
        part = self.coder.head.part.quantizer
        if self.codebooks > part.codebooks:
            raise UserError(
                f"data.processor.codebooks: {self.codebooks} given, but the codec in {self.spec.run} has "
                f"{part.codebooks}; give at most as many"
            )
        return self.spec.changed(codes=part.codes_each, codebooks=self.codebooks, digest=self.coder.digest)

    def coded(self, encoded: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the codes (N, K) of encoded sounds."""
        return self.coder.codes(encoded, self.codebooks)

    def size(self, encoded: np.ndarray) -> int:
        return len(encoded)

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        rows = pad_sequence([torch.from_numpy(each.astype(np.int64)) for each in encoded], batch_first=True)
        return Signal(rows, lengths_or_none(rows[..., 0], torch.tensor([len(each) for each in encoded])))

    def symbols(self, text: str, voice: str | None) -> list[int]:
        """Return the ids of the voice, of the characters of ``text``, and of the mark. Raises ``UserError``."""
        voices, characters = self.spec.voices or (), self.spec.characters or ()
        index = {character: len(voices) + i for i, character in enumerate(characters)}
        plain = plain_text(text)
        unknown = next((character for character in plain if character not in index), None)
        if unknown is not None:
            raise UserError(
                f"the text {quoted(text)} has the character {unknown!r}, which the model was not trained on; it reads "
                f"{''.join(characters)!r}"
            )
        if not plain:
            raise UserError("the text to say is empty; give one character or more")
        return [self._voice(voice), *(index[character] for character in plain), len(voices) + len(characters)]

    def _voice(self, voice: str | None) -> int:
        voices = self.spec.voices or ()
        if voice is not None and voice not in voices:
            raise UserError(f"the model has no voice {voice!r}; {nearest(voice, voices)}")
        return 0 if voice is None else voices.index(voice)


def row_of(symbols: Sequence[int], codes: np.ndarray, delay: bool) -> np.ndarray:
    """Return the ids (N, 1 + K) of a row: S symbols, then the codes (T, K) of T vectors, each plus 1, and the end.

    The end is -1 in the first codebook, after its T codes. With ``delay``, codebook k is k - 1 positions later.
    """
    count, books = codes.shape
    length = count + max(1, (books - 1) * delay)
    row = np.zeros((len(symbols) + length, 1 + books), np.int64)
    row[: len(symbols), 0] = np.asarray(symbols) + 1
    for book in range(books):
        start = len(symbols) + book * delay
        row[start : start + count, 1 + book] = codes[:, book] + 1
    row[len(symbols) + count, 1] = -1
    return row
