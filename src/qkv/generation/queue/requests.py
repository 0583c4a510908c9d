"""Queue of requests: texts of any length that join and leave the running batch at each step, within a memory budget.

    submit ── waiting, in order ── admitted while the budget allows ── a token per step ── finished
                    └─ cancelled or past the deadline ─┴──────────────────────────────────────┘

Each request has its own settings, seed, stop strings, constraint and deadline. It yields the same tokens as if it ran
alone, also with speculative decoding, up to the rounding of matrix products, which may vary with the batch size.

Keys and values are stored in pages (``qkv.state.pages``) for branches whose kernel reads pages: a row holds the pages
of its own positions, and they are never moved. All other states are rows of a batched buffer.

The budget is an upper bound of the bytes of the decoding states, copies included: when rows join, leave or grow, the
buffers are copied, so that two states exist for a moment. For rows r = 1 … R that may reach n_r positions, n = max n_r,
the states need

    Σ_r p(n_r) - f + c R (s(n) + m e)    p: bytes of a row's pages    s: bytes of a row of the buffers with n positions
                                         c = 2    m: longest source    e: bytes per position of a source

f: bytes that are saved because rows share full pages now and hold them until they end. f = 0 if the context of a
running row may slide, because such a row is read again, and f = 0 for a model whose state cannot drop positions.

Proposed tokens are read at positions that the request may reach anyway. To undo rejected tokens in a state that cannot
drop positions, a copy of it is stored, concatenated and indexed: c = 5 for such a model. A row and its copy also differ
in the pages of the k tokens read since the copy: p(n_r) + p(k) + a page. A draft model has no pages; its buffers count
like those of the model.

A request waits while the bytes, with all running requests, exceed the budget. The rest of the budget can hold a prefix
cache: states of texts that were read before, for texts with the same prefix (``qkv.generation.queue.prefixes``). These
states share pages with running requests: a full page of a running request (see f) is not counted again for a cached
state.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from qkv.generation import context
from qkv.generation.decode.sample import Drawn, Sampling, TokenScore
from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits.constrain import Constraint
from qkv.generation.queue.prefixes import COUNTS, Prefixes, shares
from qkv.generation.writer import PROMPT_END, TextWriter
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.state.pages import MemoryPage, paged, shared_bytes
from qkv.state.tree import nbytes, stores
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

Finish = Literal["stop", "length", "cancelled", "deadline", "refused", "failed"]
"""Reason why a text ended.

"stop": an end token, a stop string or the constraint. "length": ``max_new_tokens``. "cancelled": by the caller.
"deadline": it has passed. "refused": no token meets the constraint, or the constraint is too complex. "failed": an
error in the model.
"""


@dataclass(frozen=True)
class Request:
    """Prompt to continue, with settings.

    prompt: token ids. source: token ids for the encoder of an encoder–decoder. alternatives, constraint: see
    ``Sampling.admit``; a text that ends at its maximum length may not match its constraint. deadline: seconds after
    submission. inputs: values of the inputs other than text, such as images, whose placeholders are in the prompt, see
    ``Signal.inputs``.
    """

    prompt: Sequence[int]
    generation: Generation = field(default_factory=Generation)
    source: Sequence[int] | None = None
    alternatives: int | None = None
    deadline: float | None = None
    constraint: Constraint | None = None
    inputs: Mapping[str, Signal] | None = None


class TextDelta(NamedTuple):
    """Text and tokens that one step has added to a request.

    number: number of the request. text: new text that is final; text that may be the start of a stop string, and the
    bytes of an incomplete character, are held back. tokens: sampled ids, without an end token. scores: one per token,
    if requested. finished: why the request ended; None while it runs. error: error message of a refused or failed
    request.
    """

    number: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    finished: Finish | None = None
    error: str = ""


class QueueFull(UserError):
    """Raised by ``RequestQueue.submit`` if as many requests wait as the queue holds."""


@dataclass
class _Waiting:
    """Submitted request, waiting or running. until: time of its deadline. positions: maximum number of positions in its
    state. row: its row in the sampler; None while it waits.
    """

    number: int
    request: Request
    until: float | None
    writer: TextWriter
    positions: int
    row: int | None = None


class RequestQueue:
    """Continuous batching of requests to one model. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None,
        budget: int | None = None,
        max_batch: int = 32,
        max_queue: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
        keep: int = 0,
        pages: bool = True,
    ):
        """Create an empty queue, and set the model to evaluation mode. tokenizer: None to return ids without text.

        budget: maximum bytes of decoding states, see the module; None for no limit. max_batch: maximum number of
        running requests. max_queue: maximum number of waiting requests. clock: function that returns seconds, for
        deadlines. speculator: proposes tokens for all requests. keep: maximum bytes of the prefix cache, within the
        budget; see ``qkv.generation.queue.prefixes``. pages: store keys and values in pages, for branches that can
        read pages.
        """
        self.model, self.tokenizer, self.clock = model.eval(), tokenizer, clock
        self.budget, self.max_batch, self.max_queue, self.speculator = budget, max_batch, max_queue, speculator
        self.keep, self.pages = keep, pages
        self.prefixes = Prefixes(model, keep if shares(model) else 0, pages)
        """Prefix cache: states of texts that have been read."""
        self._sampling = self._empty()
        self._waiting: deque[_Waiting] = deque()
        self._running: dict[int, _Waiting] = {}
        """Running requests by their row of the sampler."""
        self._ended: list[TextDelta] = []
        """Last deltas of requests that ended outside of a sampling step, for the next ``step`` to return."""
        self._numbers = itertools.count()
        self._source_bytes = _bytes_per_source_position(model)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests in the batch."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """True if a step would do nothing."""
        return not (self._waiting or self._running or self._ended)

    @property
    def nbytes(self) -> int:
        """Bytes of all decoding states now, the prefix cache included."""
        return nbytes([*self._sampling.engine.states, *self.prefixes.states])

    def submit(self, request: Request) -> int:
        """Add a request at the end of the queue; return its number.

        Raises ``QueueFull``, and ``UserError`` for a prompt or settings that the model cannot use, and for a request
        that would exceed the budget even if it ran alone.
        """
        if len(self._waiting) >= self.max_queue:
            raise QueueFull(
                f"{len(self._waiting)} requests wait, and the queue has room for {self.max_queue}; try again later"
            )
        self._check(request)
        until = None if request.deadline is None else self.clock() + request.deadline
        settings, before = request.generation, [token for token in request.prompt if token >= 0]
        writer = TextWriter(self.tokenizer, before[-PROMPT_END:], settings.stop, settings.min_tokens)
        new = _Waiting(next(self._numbers), request, until, writer, self._positions(request))
        needed = self._needed([new])
        if self.budget is not None and needed > self.budget:
            raise UserError(
                f"the request needs {needed:,} bytes of memory for {new.positions} positions, "
                f"but the budget is {self.budget:,}; ask for fewer tokens or shorten the prompt"
            )
        self._waiting.append(new)
        return new.number

    def cancel(self, number: int) -> None:
        """End a request and free its state; do nothing if it has ended already."""
        self._end([each for each in self._all() if each.number == number], "cancelled")

    def step(self) -> list[TextDelta]:
        """End requests past their deadline, admit waiting requests that fit, and run one sampling step."""
        now = self.clock()
        self._end([each for each in self._all() if each.until is not None and each.until <= now], "deadline")
        self._admit()
        try:
            drawn = self._sampling.step() if self._running else []
        except (UserError, RuntimeError, MemoryError) as error:
            self._fail(error)
            drawn = []
        of_rows: dict[int, list[Drawn]] = {row: [] for row in self._running}
        for each in drawn:
            of_rows[each.row].append(each)
        pieces = [self._piece(self._running[row], several) for row, several in of_rows.items()]
        ended, self._ended = self._ended, []
        return ended + [piece for piece in pieces if piece.tokens or piece.text or piece.finished]

    def _check(self, request: Request) -> None:
        """Raise ``UserError`` for a request that the model cannot answer."""
        for guard in (request.constraint, self.speculator):
            if guard is not None:
                guard.check(self.model, request.generation)
        if request.generation.num_beams > 1:
            raise UserError(f"num_beams is {request.generation.num_beams}, but requests are sampled; leave it at 1")
        if request.generation.stop and self.tokenizer is None:
            raise UserError("stop: stop strings need a tokenizer, and only token ids are given")
        inputs = None if request.inputs is None else [request.inputs]
        context.check(self.model, [request.prompt], request.generation, inputs)
        if (request.source is None) == (self.model.encoder is not None):
            problem = "needs a source for its encoder" if request.source is None else "has no encoder to read a source"
            raise UserError(f"source: the model {problem}")
        if request.source is not None:
            self._check_source(request.source)

    def _check_source(self, source: Sequence[int]) -> None:
        assert self.model.encoder is not None
        vocab_size, limit = self.model.encoder.vocab_size or 0, self.model.encoder.limit
        if not source or (limit is not None and len(source) > limit):
            allowed = "at least 1" if limit is None else f"1 to {limit}"
            raise UserError(f"source: it has {len(source)} tokens; allowed: {allowed}")
        wrong = next((index for index in source if not 0 <= index < vocab_size), None)
        if wrong is not None:
            raise UserError(
                f"source: it has the token {wrong}, which is outside the vocabulary (0 to {vocab_size - 1})"
            )

    def _all(self) -> list[_Waiting]:
        return [*self._waiting, *self._running.values()]

    def _needed(self, requests: Iterable[_Waiting]) -> int:
        """Return the maximum bytes that the states of these requests take in one batch, by the module's formula."""
        several = list(requests)
        longest = max(each.positions for each in several)
        source = max(len(each.request.source or ()) for each in several) * self._source_bytes
        draft = self.speculator and self.speculator.draft
        needed = sum(map(self._page_bytes, several))
        for model, memory, pages in ((self.model, source, self.pages), *([(draft, 0, False)] if draft else [])):
            copies = 2 if self.speculator is None or model.rewindable else 5
            needed += copies * (model.room_bytes(longest, len(several), pages) + len(several) * (COUNTS + memory))
        return needed

    def _page_bytes(self, request: _Waiting) -> int:
        """Return the maximum bytes of a request's pages, including a copy of its state made before proposals."""
        if not self.pages:
            return 0
        size = self.model.page_bytes(request.positions)
        if self.speculator is None or self.model.rewindable:
            return size
        # Up to num_tokens + 1 tokens since the copy are read again, and as many more with the proposals.
        between = 2 * (self.speculator.speculation.num_tokens + 1)
        return size + self.model.page_bytes(min(between, request.positions)) + self.model.page_bytes(1)

    def _positions(self, request: Request) -> int:
        """Return the maximum number of positions that the state of a request may reach."""
        needed = _most_tokens(request)
        return needed if self.model.limit is None else min(needed, self.model.limit)

    def _slides(self, waiting: _Waiting) -> bool:
        """Return whether the text may become longer than the model's context."""
        return waiting.positions < _most_tokens(waiting.request)

    def _empty(self) -> Sampling:
        """Return a sampler without rows."""
        drawn = None if self.tokenizer is None else self.tokenizer.vocab_size
        sampling = Sampling(self.model, [], Generation(), drawn=drawn, pages=self.pages)
        if self.keep and shares(self.model):
            sampling.engine.share(self.prefixes)
        return sampling

    def _admit(self) -> None:
        """Admit waiting requests, and limit the prefix cache to the rest of the budget."""
        if self.budget is None:
            self._admit_waiting(None)
            return
        lasting = self._lasting_pages()
        self.prefixes.lent = None if lasting is None else {id(page) for page in lasting}
        most = self.budget + shared_bytes(lasting or [])
        self._admit_waiting(most)
        if shares(self.model):
            left = most - (self._needed(self._running.values()) if self._running else 0)
            self.prefixes.most = min(self.keep, left)
            self.prefixes.shrink(self.prefixes.most)

    def _lasting_pages(self) -> list[MemoryPage] | None:
        """Return the full pages that running requests hold until they end, a shared page once for each request.

        ``_needed`` also counts them once for each request. Return None if a request may release pages before it ends.
        """
        if not self.model.rewindable or any(map(self._slides, self._running.values())):
            return None
        stores_of_pages = paged(store for state in self._sampling.engine.states for store in stores(state))
        return [page for store in stores_of_pages for page in store.full]

    def _admit_waiting(self, most: int | None) -> None:
        """Admit waiting requests in order while ``max_batch`` and ``most`` bytes (None: no bound) allow."""
        while self._waiting and len(self._running) < self.max_batch:
            first = self._waiting[0]
            if most is not None and not self._fits(first, most):
                return
            self._waiting.popleft()
            try:
                self._start(first)
            except (UserError, RuntimeError, MemoryError) as error:
                self._ended.append(TextDelta(first.number, finished="failed", error=_sentence(error)))

    def _fits(self, first: _Waiting, most: int) -> bool:
        """Return whether a request fits into ``most`` bytes together with the running requests and with the cached
        prefix from which it starts.

        The prefix counts because, if it were removed, the request would need the shared pages for itself.
        """
        needed = self._needed([first, *self._running.values()])
        cached = self.prefixes.hold(first.request.prompt) if self._running and self._page_bytes(first) else 0
        return needed + cached <= most

    def _start(self, waiting: _Waiting) -> None:
        """Add a request to the batch."""
        request = waiting.request
        memory = None if request.source is None else self._encoded(request.source)
        inputs = None if request.inputs is None else [request.inputs]
        (waiting.row,) = self._sampling.admit(
            [request.prompt],
            request.generation,
            memory,
            request.alternatives,
            request.constraint,
            self.speculator,
            inputs,
        )
        self._running[waiting.row] = waiting
        if waiting.row in self._sampling.ends:  # no new token is requested
            self._ended.append(self._piece(waiting, []))

    @torch.inference_mode()
    def _encoded(self, source: Sequence[int]) -> Memory:
        return self.model.encode(Signal(torch.tensor([list(source)], device=self.model.device)))

    def _piece(self, running: _Waiting, drawn: Sequence[Drawn]) -> TextDelta:
        """Return the delta of a running request whose row has sampled the tokens ``drawn``; remove it if it ended."""
        assert running.row is not None
        end, draws, text, finished = self._sampling.ends.get(running.row), list[Drawn](), "", None
        for each in drawn:
            draws.append(each)
            text += running.writer.feed(each.token)
            if running.writer.stop.ended:
                finished = "stop"
                break
        else:
            finished = None if end is None else end.reason
        if finished:
            text += running.writer.flush()
            self._leave(running)
        tokens, scores = tuple(each.token for each in draws), tuple(each.score for each in draws if each.score)
        problem = end.problem if end is not None and finished == "refused" else ""
        return TextDelta(running.number, text, tokens, scores, finished, problem)

    def _leave(self, running: _Waiting) -> None:
        """Remove a running request and its state."""
        assert running.row is not None
        self._sampling.drop({running.row})
        self._sampling.forget(running.row)
        del self._running[running.row]

    def _end(self, requests: Sequence[_Waiting], finished: Finish) -> None:
        """End requests, and record a last delta of each, with the text that its writer still holds back."""
        for request in requests:
            if request.row is None:
                self._waiting.remove(request)
            else:
                self._leave(request)
            self._ended.append(TextDelta(request.number, request.writer.flush(), finished=finished))

    def _fail(self, error: Exception) -> None:
        """End all running requests with the error; the queue continues with an empty batch."""
        message = _sentence(error)
        self._ended += [
            TextDelta(request.number, finished="failed", error=message) for request in self._running.values()
        ]
        self._sampling.engine.clear()
        self.prefixes.shrink(0)  # cached states may be the cause of the failure
        self._running, self._sampling = {}, self._empty()


def _most_tokens(request: Request) -> int:
    """Return the maximum number of tokens that the model reads for a request; it never reads the last new token."""
    return len(request.prompt) + max(0, request.generation.max_new_tokens - 1)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"the model failed: {error}"


@torch.inference_mode()
def _bytes_per_source_position(model: Transformer) -> int:
    """Return the bytes of encoder output and decoding state per source position; 0 without an encoder."""
    if model.encoder is None:
        return 0

    def bytes_of(length: int) -> int:
        memory = model.encode(torch.zeros(1, length, dtype=torch.long, device=model.device))
        return nbytes(memory) + nbytes(model.init_state(1, 1, memory))

    return bytes_of(2) - bytes_of(1)
