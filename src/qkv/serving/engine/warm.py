"""Warm-up of a model, done before a server takes requests.

Two texts are generated through the model's queue. So kernels are selected and built for a prompt, for single tokens and
for a prompt with a cached prefix, and weights are laid out. A text is embedded; tokenizer, chat template, end tokens
and the library for constraints are loaded. Errors are ignored here: the request that needs the failed part reports
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice

from qkv.generation.queue.prefixes import FEWEST
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

_PROMPT, _NEW = 2 * FEWEST, 4
"""Number of prompt tokens, enough for the prefix cache to keep the state, and number of new tokens."""


def write_twice(requests: RequestQueue, tokens: Sequence[int], source: Sequence[int] | None) -> None:
    """Generate two texts through a queue and clear the prefix cache. tokens: prompt, repeated to a fixed length if
    there is no source. source: ids for the encoder; None without one.
    """
    prompt = list(tokens) if source is not None else list(islice(cycle(tokens), _PROMPT))
    for number in range(2):
        # The second prompt is one token shorter, so that it starts from a part of the cached state of the first.
        requests.submit(Request([*prompt[: len(prompt) - number], *tokens[:1]], _SETTINGS, source))
        while not requests.idle:
            requests.step()
    prefixes = requests.prefixes
    prefixes.shrink(0)
    prefixes.hits = prefixes.tokens = 0


_SETTINGS = Generation(max_new_tokens=_NEW, temperature=0.0)


def attempt(steps: Iterable[Callable[[], object]]) -> None:
    """Call each step; if a step fails, go on with the next."""
    for step in steps:
        with contextlib.suppress(UserError, RuntimeError, MemoryError):
            step()
