"""Text generation: tokenize prompts, sample or beam search, decode to text in streamed pieces, with stop strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qkv.generation.decode.beam import Hypothesis, beam_search
from qkv.generation.decode.sample import Sampling
from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits.constrain import Constraint
from qkv.generation.writer import PROMPT_END, TextWriter
from qkv.models.evaluating import evaluating
from qkv.models.fast.frozen_weights import unchanged
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer


def generate_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    generation: Generation | None = None,
    capacity: int | None = None,
    speculation: Speculator | None = None,
    constraint: Constraint | None = None,
) -> str:
    """Generate text after ``prompt`` and return it without the prompt; with num_beams > 1 the text with the best score.

    An empty prompt is replaced by a line break. ``speculation``: decode speculatively, see
    ``qkv.generation.decode.speculate``; ``constraint``: regular expression or schema that the text must match, see
    ``qkv.generation.logits.constrain``. Raises ``UserError`` for invalid prompts or options. ``best_texts`` returns
    several texts of a beam search.
    """
    return generate_texts(model, tokenizer, [prompt], generation, capacity, speculation, constraint)[0]


def stream_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    generation: Generation | None = None,
    capacity: int | None = None,
    speculation: Speculator | None = None,
    constraint: Constraint | None = None,
) -> Iterator[str]:
    """Yield the text of ``generate_text`` in pieces as it is generated; with num_beams > 1 as one piece at the end.

    The caller may change the model between two pieces, so each token first checks whether weights have changed since
    the last token. Iterate within ``qkv.models.fast.frozen_weights.unchanged`` to skip this check.
    """
    pieces = _pieces(model, tokenizer, [prompt], generation or Generation(), capacity, speculation, constraint)
    return (piece for _, piece in pieces)


def generate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    generation: Generation | None = None,
    capacity: int | None = None,
    speculation: Speculator | None = None,
    constraint: Constraint | None = None,
) -> list[str]:
    """Generate text after each prompt in one batch.

    Row i uses seed ``generation.seed + i``; finished rows leave the batch.
    """
    texts = [""] * len(prompts)
    with unchanged():
        for row, piece in _pieces(
            model, tokenizer, prompts, generation or Generation(), capacity, speculation, constraint
        ):
            texts[row] += piece
    return texts


class BestText(NamedTuple):
    """Result of beam search: text, score (see ``qkv.generation.decode.beam``), and log p of its tokens in nats."""

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
    """Return the best ``num_return`` texts after each prompt, best first, without prompt, end token and stop string.

    See ``qkv.generation.decode.beam.beam_search``. A stop string ends a hypothesis at the token that completes it; that
    token is part of the score.
    """
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]

    def written(row: int, tokens: list[int]) -> tuple[str, bool]:
        writer = TextWriter(tokenizer, ids[row][-PROMPT_END:], generation.stop)
        text, ended = "".join(writer.feed(token) for token in tokens), writer.stop.ended
        return text + writer.flush(), ended

    def best(row: int, hypothesis: Hypothesis) -> BestText:
        last = hypothesis.tokens[-1] if hypothesis.tokens else None
        unwritten = last in generation.stop_token_ids and not _is_written(tokenizer, last)
        tokens = hypothesis.tokens[:-1] if last is not None and (last == end_id or unwritten) else hypothesis.tokens
        return BestText(written(row, tokens)[0], hypothesis.score, hypothesis.log_probability)

    ends = (lambda row, tokens: written(row, tokens)[1]) if generation.stop else None
    plain, drawn = generation.changed(stop=()), tokenizer.vocab_size
    hypotheses = beam_search(model, ids, plain, end_id, capacity, ends=ends, drawn=drawn)
    return [[best(row, hypothesis) for hypothesis in several] for row, several in enumerate(hypotheses)]


def _pieces(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    generation: Generation,
    capacity: int | None,
    speculation: Speculator | None,
    constraint: Constraint | None,
) -> Iterator[tuple[int, str]]:
    """Yield (row, piece of text) while sampling, as soon as the piece is final."""
    if generation.num_beams > 1 and speculation is None and constraint is None:
        yield from _searched(model, tokenizer, prompts, generation, capacity)
        return
    ids, generation = [prompt_ids(tokenizer, prompt) for prompt in prompts], _with_ends(tokenizer, generation)
    sampling = Sampling(model, ids, generation, capacity, tokenizer.vocab_size, constraint, speculation)
    writers = [TextWriter(tokenizer, prompt, generation.stop, generation.min_tokens) for prompt in ids]
    with evaluating(model):
        while sampling.running:
            drawn = sampling.step()
            sampling.check()
            for row, token, _ in drawn:
                piece = writers[row].feed(token)
                if piece:
                    yield row, piece
            sampling.drop({row for row in sampling.running if writers[row].stop.ended})
    sampling.check()
    for row, writer in enumerate(writers):
        end = sampling.ends[row].token if row in sampling.ends else None
        last = writer.feed(end) if end is not None and _is_written(tokenizer, end) else ""
        rest = last + writer.flush()
        if rest:
            yield row, rest


def _with_ends(tokenizer: Tokenizer, generation: Generation) -> Generation:
    """Add stop strings that are special tokens to ``stop_token_ids``, so that ``min_tokens`` suppresses them too."""
    special = special_ids(tokenizer.core) if generation.stop and generation.min_tokens else {}
    ids = {special[text] for text in generation.stop if text in special}
    return generation.changed(stop_token_ids=tuple({*generation.stop_token_ids, *ids})) if ids else generation


def _is_written(tokenizer: Tokenizer, end: int) -> bool:
    """Return whether the text includes an end token: True unless it is a special token, as in transformers."""
    return end not in special_ids(tokenizer.core).values()


def _searched(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[str], generation: Generation, capacity: int | None
) -> Iterator[tuple[int, str]]:
    """Yield (row, best text) of each prompt at the end of the beam search."""
    if generation.num_return > 1:
        raise UserError(
            f"num_return is {generation.num_return}, but this function returns one text per prompt; "
            "call qkv.generation.text.best_texts, or leave it at 1"
        )
    for row, (best, *_) in enumerate(best_texts(model, tokenizer, prompts, generation, capacity)):
        yield row, best.text


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Tokenize the prompt, or a line break if it is empty.

    Raises ``UserError`` for unknown characters or words.
    """
    unknown = tokenizer.unknown(prompt or "\n")
    if unknown and not prompt:
        raise UserError("the prompt is empty, and the tokenizer has no line break to replace it with; give a prompt")
    if unknown:
        named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise UserError(
            f"the prompt has {named}, which is not in the tokenizer's vocabulary; "
            "leave it out or train on a text that has it"
        )
    ids = tokenizer.encode(prompt or "\n")
    if not ids:
        raise UserError(f"the prompt {prompt!r} has no tokens after tokenization; give another one")
    return ids
