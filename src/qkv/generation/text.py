"""Text from text: the tokenizer on both sides of ``Sampling`` and of beam search, stop strings, and pieces as soon as they are certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qkv.generation.beam import Hypothesis, beam_search
from qkv.generation.sample import Sampling, evaluating
from qkv.generation.stop import StopStrings
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation
from qkv.tokenizers.stream import StreamDecoder
from qkv.tokenizers.tokenizer import Tokenizer

PROMPT_END = 16
"""Tokens before a text that are enough for its decoding: more than one character's bytes, and more than none."""


def generate_text(
    model: Transformer, tokenizer: Tokenizer, prompt: str, generation: Generation | None = None, capacity: int | None = None
) -> str:
    """What the model writes after ``prompt``, without the prompt. Raises UserError for a prompt or a model that does not allow it.

    An empty prompt begins after a line break. With beams it is the text of the best score; ``best_texts`` gives more of them.
    """
    return "".join(stream_text(model, tokenizer, prompt, generation, capacity))


def stream_text(
    model: Transformer, tokenizer: Tokenizer, prompt: str, generation: Generation | None = None, capacity: int | None = None
) -> Iterator[str]:
    """The pieces of ``generate_text`` while they are drawn; joined they are the same text. With beams there is one piece, at the end."""
    return (piece for _, piece in _pieces(model, tokenizer, [prompt], generation or Generation(), capacity))


def generate_texts(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[str], generation: Generation | None = None, capacity: int | None = None
) -> list[str]:
    """``generate_text`` of every prompt in one batch, row i with ``generation.seed + i``; a row that is done leaves the batch."""
    texts = [""] * len(prompts)
    for row, piece in _pieces(model, tokenizer, prompts, generation or Generation(), capacity):
        texts[row] += piece
    return texts


class BestText(NamedTuple):
    """A text that beam search found, the score that ranks it, and the log probability (nats) of its tokens."""

    text: str
    score: float
    log_probability: float


def best_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    generation: Generation,
    capacity: int | None = None,
    end_id: int | None = None,
) -> list[list[BestText]]:
    """The best ``num_return`` texts after each prompt, best first, without the prompt, the end token and the stop string.

    See ``qkv.generation.beam.beam_search``. A stop string ends a hypothesis with the token that completes it, and that token counts.
    """
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]

    def written(row: int, tokens: list[int]) -> tuple[str, bool]:
        writer = _Writer(tokenizer, ids[row][-PROMPT_END:], generation.stop)
        text, ended = "".join(writer.feed(token) for token in tokens), writer.stop.ended
        return text + writer.flush(), ended

    def best(row: int, found: Hypothesis) -> BestText:
        tokens = found.tokens[:-1] if found.tokens and found.tokens[-1] == end_id else found.tokens
        return BestText(written(row, tokens)[0], found.score, found.log_probability)

    ends = (lambda row, tokens: written(row, tokens)[1]) if generation.stop else None
    hypotheses = beam_search(model, ids, generation.changed(stop=()), end_id, capacity, ends=ends)
    return [[best(row, found) for found in several] for row, several in enumerate(hypotheses)]


class _Writer:
    """One row on its way from tokens to text."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stop: Sequence[str]):
        self.decoder, self.stop = StreamDecoder(tokenizer), StopStrings(stop)
        # Some decoders treat the first token of a text differently, and the first new one is not the first.
        self.decoder.feed(prompt)

    def feed(self, token: int) -> str:
        return self.stop.feed(self.decoder.feed([token]))

    def flush(self) -> str:
        return self.stop.feed(self.decoder.flush()) + self.stop.flush()


def _pieces(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[str], generation: Generation, capacity: int | None
) -> Iterator[tuple[int, str]]:
    """(row, text) as the rows grow."""
    if generation.num_beams > 1:
        yield from _searched(model, tokenizer, prompts, generation, capacity)
        return
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    sampling = Sampling(model, ids, generation, capacity)
    writers = [_Writer(tokenizer, prompt, generation.stop) for prompt in ids]
    with evaluating(model):
        for _ in range(generation.max_new_tokens):
            for row, token in sampling.step():
                piece = writers[row].feed(token)
                if piece:
                    yield row, piece
            sampling.drop({row for row in sampling.running if writers[row].stop.ended})
            if not sampling.running:
                break
    for row, writer in enumerate(writers):
        rest = writer.flush()
        if rest:
            yield row, rest


def _searched(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[str], generation: Generation, capacity: int | None
) -> Iterator[tuple[int, str]]:
    """(row, best text); there is none to give before the search has ended."""
    if generation.num_return > 1:
        raise UserError(
            f"num_return is {generation.num_return}, but this gives one text a prompt; call qkv.generation.text.best_texts, or leave it at 1"
        )
    for row, (best, *_) in enumerate(best_texts(model, tokenizer, prompts, generation, capacity)):
        yield row, best.text


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids to start from: those of the prompt, or of a line break if it is empty. Raises UserError for unknown characters or words."""
    unknown = tokenizer.unknown(prompt or "\n")
    if unknown and not prompt:
        raise UserError("the prompt is empty, and the tokenizer knows no line break to start from instead; give a prompt")
    if unknown:
        named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise UserError(f"the prompt holds {named}, which the tokenizer has never seen; leave it out or train on a text that has it")
    ids = tokenizer.encode(prompt or "\n")
    if not ids:
        raise UserError(f"the tokenizer makes no token of the prompt {prompt!r}; give another one")
    return ids
