"""JSON format of the choices of completions and chats, whole and as chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.generation.decode.sample import TokenScore
from qkv.generation.queue.requests import TextDelta
from qkv.tokenizers.answers.reader import AnswerPart, AnswerReader
from qkv.tokenizers.stream import StreamDecoder
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass
class Written:
    """Text of one choice, as far as it has been generated."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    finished: str | None = None

    def add(self, piece: TextDelta) -> None:
        """Append a new piece of the text."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.scores += piece.scores
        self.finished = piece.finished or self.finished


class Form(ABC):
    """JSON format of the answers of an endpoint. whole, chunk: values of the field ``object`` in bodies and in chunks;
    prefix: start of the field ``id``.
    """

    whole: str
    chunk: str
    prefix: str

    def __init__(self, tokenizer: Tokenizer, scored: bool):
        """``scored``: whether answers include log-probabilities."""
        self.tokenizer, self.scored = tokenizer, scored

    @property
    def reasoning_tokens(self) -> int | None:
        """Number of generated tokens that are reasoning; None for answers that have none."""
        return None

    @abstractmethod
    def choice(self, index: int, written: Written) -> dict[str, Any]:
        """Build a choice of an answer that is not streamed."""

    @abstractmethod
    def delta(self, index: int, piece: TextDelta) -> dict[str, Any] | None:
        """Build the choice of a chunk; None if the piece has nothing to send yet."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Build the choice of a chunk that precedes the generated text; None if there is no such chunk."""
        return None

    def token(self, index: int) -> str:
        """Return the text of one token; a token with an incomplete character as its bytes, ``bytes:\\xe2\\x82``."""
        text = self.tokenizer.decode([index])
        if "\ufffd" in text and self.tokenizer.token_bytes is not None:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.tokenizer.token_bytes[index])
        return text


class CompletionForm(Form):
    """JSON format of ``/v1/completions``."""

    whole = chunk = "text_completion"
    prefix = "cmpl"

    def __init__(self, tokenizer: Tokenizer, scored: bool, echoes: Sequence[str]):
        """``echoes``: text to prepend to each choice."""
        super().__init__(tokenizer, scored)
        self._echoes = echoes
        self._prompts: Sequence[tuple[Sequence[int], Sequence[TokenScore]]] = [((), ()) for _ in echoes]
        self._offsets = [len(echo) for echo in echoes]
        """Number of characters of each choice before its next token."""

    def score_echoes(self, prompts: Sequence[tuple[Sequence[int], Sequence[TokenScore]]]) -> None:
        """Include the prompt's tokens in the log-probabilities. prompts: (tokens, scores of all but the first token) of
        each choice.
        """
        self._prompts, self._offsets = prompts, [0 for _ in self._echoes]

    def choice(self, index: int, written: Written) -> dict[str, Any]:
        scores = None
        if self.scored:
            parts = self._prompt(index), self._logprobs(index, written.tokens, written.scores)
            scores = {name: parts[0][name] + parts[1][name] for name in parts[0]}
        text = self._echoes[index] + written.text
        return {"text": text, "index": index, "logprobs": scores, "finish_reason": written.finished}

    def delta(self, index: int, piece: TextDelta) -> dict[str, Any] | None:
        if not (piece.text or piece.finished or (self.scored and piece.tokens)):
            return None
        scores = self._logprobs(index, piece.tokens, piece.scores) if self.scored else None
        return {"text": piece.text, "index": index, "logprobs": scores, "finish_reason": piece.finished}

    def opening(self, index: int) -> dict[str, Any] | None:
        tokens, _ = self._prompts[index]
        if not (self._echoes[index] or tokens):
            return None
        scores = self._prompt(index) if tokens else None
        return {"text": self._echoes[index], "index": index, "logprobs": scores, "finish_reason": None}

    def _prompt(self, index: int) -> dict[str, list[Any]]:
        """Build the log-probabilities of the prompt; they are null for its first token."""
        tokens, scores = self._prompts[index]
        return self._logprobs(index, tokens, [None, *scores] if tokens else [])

    def _logprobs(self, index: int, tokens: Sequence[int], scores: Sequence[TokenScore | None]) -> dict[str, list[Any]]:
        texts, offsets = [self.token(token) for token in tokens], list[int]()
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        best = [None if each is None else {self.token(i): value for i, value in each.alternatives} for each in scores]
        return {
            "tokens": texts,
            "token_logprobs": [each and each.log_probability for each in scores],
            "top_logprobs": best,
            "text_offset": offsets,
        }


class ChatForm(Form):
    """JSON format of ``/v1/chat/completions``."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, scored: bool, readers: Callable[[], AnswerReader], count: int):
        """``readers``: function that returns a reader of one choice. count: number of choices."""
        super().__init__(tokenizer, scored)
        self._readers, self._calls = [readers() for _ in range(count)], [0] * count
        self._thoughts = [_ThoughtCounter(tokenizer, readers()) for _ in range(count)]

    @property
    def reasoning_tokens(self) -> int:
        return sum(each.count for each in self._thoughts)

    def choice(self, index: int, written: Written) -> dict[str, Any]:
        part, finished = self._read(index, written.text, written.tokens, written.finished)
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.calls:
            message |= {"content": part.content or None, "tool_calls": [call.to_dict() for call in part.calls]}
        message |= _reasoning(part)
        scores = self._logprobs(written.tokens, written.scores) if self.scored else None
        return {"index": index, "message": message, "logprobs": scores, "finish_reason": finished}

    def delta(self, index: int, piece: TextDelta) -> dict[str, Any] | None:
        first = self._calls[index]
        part, finished = self._read(index, piece.text, piece.tokens, piece.finished)
        if not (any(part) or finished or (self.scored and piece.tokens)):
            return None
        scores = self._logprobs(piece.tokens, piece.scores) if self.scored else None
        delta: dict[str, Any] = _reasoning(part) | ({"content": part.content} if part.content else {})
        if part.calls:
            delta["tool_calls"] = [{"index": first + i, **call.to_dict()} for i, call in enumerate(part.calls)]
        return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finished}

    def _read(
        self, index: int, text: str, tokens: Sequence[int], finished: str | None
    ) -> tuple[AnswerPart, str | None]:
        """Parse a piece of a choice; return (what it completes, finish reason)."""
        reader = self._readers[index]
        part = reader.feed(text)
        if finished:
            part += reader.flush()
        self._thoughts[index].add(tokens)
        self._calls[index] += len(part.calls)
        return part, "tool_calls" if finished == "stop" and self._calls[index] else finished

    def opening(self, index: int) -> dict[str, Any] | None:
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def _logprobs(self, tokens: Sequence[int], scores: Sequence[TokenScore]) -> dict[str, Any]:
        content = [
            {
                **self._scored(token, score.log_probability),
                "top_logprobs": [self._scored(*each) for each in score.alternatives],
            }
            for token, score in zip(tokens, scores, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, log_probability: float) -> dict[str, Any]:
        table = self.tokenizer.token_bytes
        text = self.tokenizer.decode([token])
        data = list(text.encode() if table is None else table[token])
        return {"token": self.token(token), "logprob": log_probability, "bytes": data}


class _ThoughtCounter:
    """Counter of the tokens of one choice before its content; ``count`` is 0 for a choice that does not reason."""

    def __init__(self, tokenizer: Tokenizer, reader: AnswerReader):
        self._decoder, self._reader, self._tokens, self.count = StreamDecoder(tokenizer), reader, 0, 0
        self._reasons = False

    def add(self, tokens: Sequence[int]) -> None:
        """Count the tokens of a piece."""
        for token in tokens:
            if not self._reader.thinks:
                return
            part = self._reader.feed(self._decoder.feed([token]))
            self._tokens += 1
            self._reasons = self._reasons or bool(part.reasoning)
            self.count = self._tokens if self._reasons else 0


def _reasoning(part: AnswerPart) -> dict[str, str]:
    """Return the reasoning under both names that clients know; nothing without reasoning."""
    return {"reasoning_content": part.reasoning, "reasoning": part.reasoning} if part.reasoning else {}
