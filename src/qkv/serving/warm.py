"""Preparation of a model for its first request, done before a server takes requests.

A text is written through the model's queue, twice, so that kernels are chosen and built for a prompt, for single tokens
and for a prompt that begins like another one, and weights are laid out; a text is embedded; tokenizer, chat template,
end tokens and the library of constraints are read. What fails here is told by the request that needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice

from qkv.generation.prefixes import FEWEST
from qkv.generation.requests import Request, RequestQueue
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation

_PROMPT, _NEW = 2 * FEWEST, 4
"""Tokens of the prompt, so many that its state is kept, and new ones."""


def write_twice(requests: RequestQueue, tokens: Sequence[int], source: Sequence[int] | None) -> None:
    """Write a text of a queue twice, after a prompt of ``tokens``, and forget it. source: for an encoder."""
    prompt = list(tokens) if source is not None else list(islice(cycle(tokens), _PROMPT))
    for number in range(2):
        # The second prompt lacks a token, so that it begins with a part of the state that the first has left.
        requests.submit(Request([*prompt[: len(prompt) - number], *tokens[:1]], _SETTINGS, source))
        while not requests.idle:
            requests.step()
    known = requests.prefixes
    known.shrink(0)
    known.hits = known.tokens = 0


_SETTINGS = Generation(max_new_tokens=_NEW, temperature=0.0)


def attempt(steps: Iterable[Callable[[], object]]) -> None:
    """Call each step; one that fails does not keep the others from being done."""
    for step in steps:
        with contextlib.suppress(UserError, RuntimeError, MemoryError):
            step()
