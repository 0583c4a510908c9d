"""Autoregressive generation of several codes at each position, such as those of the codebooks of a neural codec."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.generation.logits.filters import sampled
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation


class CodeSampling:
    """Sampling of codes after prompts: each step adds a position with one code of each of K codebooks to every row.

    prompts: ids (S, 1 + K) of each row.   delay: codebook k begins k - 1 positions later.   The last output of the head
    in the first codebook ends a row; the other codebooks then complete its last vectors.

    lengths (B): number of vectors of each row, None if it has not ended.   columns: codes (B, K) of each step, -1 where
    a codebook has not begun or has ended.
    """

    @torch.inference_mode()
    def __init__(self, model: Transformer, prompts: Sequence[Tensor], generation: Generation, delay: bool):
        self.model, self.generation, self.delay = model, generation, delay
        self.books = int(prompts[0].shape[1]) - 1
        self.lengths: list[int | None] = [None] * len(prompts)
        self.columns = list[Tensor]()
        seed = secrets.randbits(32) if generation.seed is None else generation.seed
        self._generators = [torch.Generator().manual_seed(seed + row) for row in range(len(prompts))]
        sizes = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        values = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True).to(model.device)
        x, self._state = model.features(Signal(values, sizes), model.init_state(len(prompts)))
        self._next = x[torch.arange(len(prompts), device=x.device), sizes - 1]

    @property
    def running(self) -> bool:
        """True while a row is not complete, within the largest number of steps."""
        if len(self.columns) >= self.generation.max_new_tokens:
            return False
        rest = (self.books - 1) * self.delay
        return any(length is None or len(self.columns) < length + rest for length in self.lengths)

    @torch.inference_mode()
    def step(self) -> None:
        """Sample the codes of the next position of each row, and let the model read the position before it."""
        step = len(self.columns)
        if step:
            self._read(self.columns[-1])
        logits = self.model.head(self._next[:, None])[:, 0]
        end = logits.shape[-1] - 1
        logits[:, 1:, end] = -torch.inf
        if not step:
            logits[:, 0, end] = -torch.inf
        uniforms = [torch.rand(self.books, generator=each, dtype=torch.float64).tolist() for each in self._generators]
        ids = sampled(logits.flatten(0, 1), self.generation, None, [number for row in uniforms for number in row])
        codes = torch.tensor(ids).view(-1, self.books)
        for row, code in enumerate(codes[:, 0].tolist()):
            if code == end and self.lengths[row] is None:
                self.lengths[row] = step
        self.columns.append(self._present(codes, step))

    def _present(self, codes: Tensor, step: int) -> Tensor:
        """Return the codes of a step (B, K), -1 where a codebook has not begun or has ended."""
        shifts = torch.arange(self.books) * self.delay
        ends = torch.tensor([step + 1 if length is None else length for length in self.lengths])
        place = step - shifts
        return torch.where((place >= 0) & (place < ends[:, None]), codes, -1)

    def _read(self, codes: Tensor) -> None:
        values = torch.cat((torch.zeros(len(codes), 1, dtype=torch.long), codes + 1), 1).to(self.model.device)
        x, self._state = self.model.features(Signal(values[:, None]), self._state)
        self._next = x[:, 0]

    def ready(self, row: int) -> int:
        """Return the number of vectors of a row whose codes of all codebooks are known."""
        count = max(0, len(self.columns) - (self.books - 1) * self.delay)
        length = self.lengths[row]
        return count if length is None else min(count, length)

    def codes(self, row: int) -> Tensor:
        """Return the codes (T, K) of the vectors of a row that are ``ready``."""
        count = self.ready(row)
        columns = torch.stack([column[row] for column in self.columns]) if self.columns else torch.zeros(0, self.books)
        starts = [book * self.delay for book in range(self.books)]
        return torch.stack([columns[start : start + count, book] for book, start in enumerate(starts)], 1)
