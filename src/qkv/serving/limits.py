"""Limits of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_CHOICES = 128
"""Maximum number of texts of one HTTP request: prompts times ``n``."""
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
"""Maximum number of stop strings of a request, and of characters of a stop string."""
MAX_BIASES, MAX_STOP_TOKENS = 2048, 128
"""Maximum number of tokens with a logit bias, and of stop tokens, of a request."""
MAX_LOGPROBS = 20
"""Maximum number of most probable tokens returned with each token's log-probability."""
MAX_INPUTS, AT_ONCE = 2048, 16
"""Maximum number of inputs of a request for embeddings or predictions, and number of inputs that one call of the worker
computes while other requests wait.
"""
KEPT = 256 * 2**20
"""Maximum bytes of a model's prefix cache without a memory limit; with a limit, the cache uses what texts leave."""
MAX_PICTURES, MAX_PIXELS, PICTURE_BYTES = 64, 40_000_000, 32 * 2**20
"""Maximum number of pictures of a chat, of pixels of one, and of bytes of a file in the folder of pictures."""
MAX_TOOLS = 128
"""Maximum number of tools of a request."""
COMPILED = 32
"""Number of latest compiled constraints that are cached per model."""
MAX_RESPONSES, RESPONSE_BYTES = 1000, 64 * 2**20
"""Maximum number of responses whose messages a server keeps, and of bytes of these messages."""
MAX_POINTS, MAX_EDITS, MAX_VALUES, MAX_INSPECTED = 64, 64, 2**20, 64
"""Maximum number of names of points and of edits of an inspection, of numbers in its response, and of tokens that it
generates.
"""
UNREAD = 64
"""Maximum number of unread pieces per HTTP request; further pieces are joined to the last, so that no text is lost."""


@dataclass(frozen=True)
class Limits:
    """Limits of each model and request.

    body: bytes of a request's body. sound: bytes of a body with a sound, if that is more. tokens: prompt and new tokens
    of one text together; None: the model's context length, but at least 2,048. batch: number of texts that are
    generated at once. queue: number of waiting texts, and of waiting calls (embeddings, predictions). memory: bytes of
    decoding states per model; None for no bound. seconds: time for one request from its arrival; None for no limit.
    read_seconds: time in which a body has to arrive. strict: refuse requests that have parameters without effect.
    inspect: answer requests for values inside the models. pictures: folder whose files messages may name as pictures;
    None: pictures are data URIs only.
    """

    body: int = 8 * 2**20
    tokens: int | None = None
    batch: int = 32
    queue: int = 1000
    memory: int | None = None
    seconds: float | None = None
    read_seconds: float = 60.0
    strict: bool = False
    inspect: bool = False
    sound: int = 32 * 2**20
    pictures: Path | None = None
