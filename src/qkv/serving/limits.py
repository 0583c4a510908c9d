"""Limits of a server."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHOICES = 128
"""Maximum number of texts of one HTTP request: prompts times ``n``."""
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
"""Maximum number of stop strings of a request, and of characters of one."""
MAX_BIASES, MAX_STOP_TOKENS = 2048, 128
"""Maximum number of tokens of a request with a bias, and of those that end its text."""
MAX_LOGPROBS = 20
"""Maximum number of alternatives per token."""
MAX_INPUTS, AT_ONCE = 2048, 16
"""Maximum number of inputs of embeddings and predictions, and how many of them hold up the other requests at once."""
KEPT = 256 * 2**20
"""Bytes of states that a model keeps for texts that begin alike, if no memory is given; else what is left of that."""
MAX_TOOLS = 128
"""Maximum number of tools of a request."""
COMPILED = 32
"""Compiled constraints that a model keeps."""
UNREAD = 64
"""Pieces kept for a reader who does not read; further ones are joined to the last, so that nothing is lost."""


@dataclass(frozen=True)
class Limits:
    """Limits of each model and request.

    body: bytes of a request's body. tokens: prompt and new tokens of one text together; None: the model's context
    length, but at least 2,048. batch: texts that are written at once. queue: texts, embeddings or predictions that
    wait. memory: bytes of decoding states per model; None for no bound. seconds: time for one request from its
    arrival; None for no limit. read_seconds: time in which a body has to arrive. strict: refuse requests that have
    parameters without effect.
    """

    body: int = 8 * 2**20
    tokens: int | None = None
    batch: int = 32
    queue: int = 1000
    memory: int | None = None
    seconds: float | None = None
    read_seconds: float = 60.0
    strict: bool = False
