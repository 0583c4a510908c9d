"""Tokens of windows, sampled under the rules of transcripts, and again at higher temperatures if needed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from qkv.generation.decode.sample import Sampling
from qkv.generation.logits.speech import TranscriptRule
from qkv.layers.context import Memory
from qkv.models.evaluating import evaluating
from qkv.models.fast.frozen_weights import unchanged
from qkv.models.transformer import Transformer
from qkv.runs.transcription.speech_tokens import SpeechTokens
from qkv.spec.generation import Generation
from qkv.spec.recipes.transcribing import Transcribing
from qkv.tokenizers.tokenizer import Tokenizer

_APART = 1_000_003
"""Distance of the seeds of two temperatures."""


class WrittenWindow(NamedTuple):
    """Tokens of a window, timestamps included, without the end token and those before the text.

    log_probability: mean over the tokens, the end token included. compression: zlib ratio of the text. silence:
    probability of no speech; NaN if the model has no token for it. temperature: at which the tokens were sampled.
    """

    tokens: list[int]
    log_probability: float
    compression: float
    silence: float
    temperature: float


class WindowWriter:
    """Writer of transcripts of encoded windows."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, tokens: SpeechTokens, settings: Transcribing):
        self.model, self.tokenizer, self.tokens, self.settings = model, tokenizer, tokens, settings
        self.timed = settings.timestamps and tokens.no_times is not None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; timestamps and special tokens are left out."""
        return self.tokenizer.decode([token for token in tokens if token < self.tokens.end], skip_special=True)

    def is_silent(self, window: WrittenWindow) -> bool:
        """Return True if the window has no speech: silence is probable, and the text is not."""
        settings = self.settings
        if settings.silence is None or not window.silence > settings.silence:
            return False
        return settings.log_probability is None or window.log_probability < settings.log_probability

    def write(
        self, memory: Memory, prompts: Sequence[Sequence[int]], forced: Sequence[Sequence[int]]
    ) -> list[WrittenWindow]:
        """Write each window, a row of ``memory``, after its prompt; retry at the next temperature what fails a test.

        forced: first tokens of each window, such as those of language and task.
        """
        written, waiting = dict[int, WrittenWindow](), list(range(len(prompts)))
        for temperature in self.settings.temperatures:
            rows = _rows(memory, waiting)
            several = self._sample(rows, [(prompts[i], forced[i]) for i in waiting], temperature)
            written |= dict(zip(waiting, several, strict=True))
            waiting = [i for i in waiting if self._fails(written[i])]
            if not waiting:
                break
        return [written[i] for i in range(len(prompts))]

    def _fails(self, window: WrittenWindow) -> bool:
        settings = self.settings
        if self.is_silent(window):
            return False
        repeats = settings.compression is not None and window.compression > settings.compression
        return repeats or (settings.log_probability is not None and window.log_probability < settings.log_probability)

    def _sample(
        self, memory: Memory, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[WrittenWindow]:
        """Sample the tokens of ``rows``, each of (prompt, forced tokens)."""
        sampling, places = Sampling(self.model, [], Generation()), dict[int, int]()
        rules = [self._rule(forced) for _, forced in rows]
        for length in dict.fromkeys(len(prompt) for prompt, _ in rows):  # rows of one length share their settings
            some = [i for i, (prompt, _) in enumerate(rows) if len(prompt) == length]
            settings = self._generation(length, temperature, some[0])
            prompts, ruled = [rows[i][0] for i in some], [rules[i] for i in some]
            places |= dict(
                zip(sampling.admit(prompts, settings, _rows(memory, some), 0, rules=ruled), some, strict=True)
            )
        tokens, scores = [list[int]() for _ in rows], [list[float]() for _ in rows]
        with torch.inference_mode(), evaluating(self.model), unchanged():
            while sampling.running:
                for drawn in sampling.step():
                    assert drawn.score is not None
                    tokens[places[drawn.row]].append(drawn.token)
                    scores[places[drawn.row]].append(drawn.score.log_probability)
                ended = [row for row in sampling.running if tokens[places[row]][-1:] == [self.tokens.end]]
                sampling.drop(ended)
        counts = [len(forced) for _, forced in rows]
        return [
            self._window(tokens[i][count:], scores[i][count:], rules[i], temperature) for i, count in enumerate(counts)
        ]

    def _rule(self, forced: Sequence[int]) -> TranscriptRule:
        ids = self.tokens
        suppressed = ids.suppressed, ids.first_suppressed
        return TranscriptRule(ids.end, ids.first_time, forced, *suppressed, self.timed, ids.latest_start, ids.no_speech)

    def _generation(self, length: int, temperature: float, first: int) -> Generation:
        """Return the settings of rows whose prompts have ``length`` tokens; first: number of the first of them."""
        limit = self.model.limit or self.model.spec.context_length
        most = min(limit - length, self.settings.max_new_tokens or limit)
        seed = (self.settings.seed + first + round(temperature * 1000) * _APART) % 2**32
        return Generation(max_new_tokens=max(1, most), temperature=temperature, seed=seed)

    def _window(
        self, tokens: list[int], scores: list[float], rule: TranscriptRule, temperature: float
    ) -> WrittenWindow:
        mean = sum(scores) / len(scores) if scores else 0.0
        tokens = tokens[:-1] if tokens[-1:] == [self.tokens.end] else tokens
        return WrittenWindow(tokens, mean, compression(self.text(tokens).strip()), rule.silence, temperature)


def compression(text: str) -> float:
    """Return the number of bytes of a text, divided by that of its zlib compression."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def _rows(memory: Memory, places: Sequence[int]) -> Memory:
    """Return the rows of a memory at ``places``."""
    if list(places) == list(range(len(memory.lengths))):
        return memory
    index = torch.tensor(places, device=memory.lengths.device)
    return Memory(tuple(vectors[index] for vectors in memory.vectors), memory.lengths[index])
