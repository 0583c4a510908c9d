"""Worker thread of one model: the only thread that uses the model and its queue of requests.

    event loop                                    worker thread
    submit, cancel, call  ── commands ──────────→  before each step
    mailbox of a request  ←── pieces of a step ──  after each step

The worker sends pieces at once when a text begins or ends, and otherwise at most 25 times a second; it joins waiting
pieces of the same text. Each delivery wakes the event loop and the client, which takes about 1 ms of two cores, and the
next step waits for them: with 50 deliveries per second, a model of 150 tokens per second loses 6 % of its rate.

A client that does not read delays no other: its unread pieces are kept in the mailbox of its request, at most
``UNREAD`` of them; further pieces are joined to the last. The size of a mailbox is bounded by the tokens of its
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qkv.generation.queue.requests import QueueFull, Request, RequestQueue, TextDelta
from qkv.models.fast.frozen_weights import unchanged
from qkv.serving.errors import as_api_error
from qkv.serving.limits import UNREAD
from qkv.system.openmp import release_team

_PAUSE = 0.04
"""Minimum seconds between two deliveries, unless a text begins or ends."""
_RECOUNT = 0.25
"""Seconds after which the bytes of decoding states are counted again while texts are generated."""


class Mailbox:
    """Asynchronous iterator over (index of the text, piece) of the texts of one HTTP request, with a buffer of unread
    pieces. Used in the event loop only.
    """

    def __init__(self, numbers: Sequence[int]):
        self.open = {number: index for index, number in enumerate(numbers)}
        """Number in the queue of each request that has not ended -> index of its text."""
        self._unread: deque[tuple[int, TextDelta]] = deque()
        self._arrived = asyncio.Event()

    def put(self, piece: TextDelta) -> None:
        """Add a piece; nothing happens for a text that has ended."""
        index = self.open.get(piece.number)
        if index is None:
            return
        if piece.finished:
            del self.open[piece.number]
        if len(self._unread) >= UNREAD:
            piece = self._joined(index, piece)
        self._unread.append((index, piece))
        self._arrived.set()

    def _joined(self, index: int, piece: TextDelta) -> TextDelta:
        """Remove the last unread piece of the same text and return it joined with ``piece``."""
        for place in reversed(range(len(self._unread))):
            if self._unread[place][0] == index:
                last = self._unread[place][1]
                del self._unread[place]
                return _joined(last, piece)
        return piece

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> tuple[int, TextDelta]:
        while not self._unread:
            if not self.open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._unread.popleft()


class _Call(NamedTuple):
    function: Callable[[], Any]
    future: asyncio.Future[Any]


class LoadCounts(NamedTuple):
    """Load of a worker: numbers of running texts and of waiting texts and calls, bytes of decoding states.

    The worker's thread counts them, because it owns the states and no other thread may traverse them.

    kept: bytes of the prefix cache, part of ``nbytes``. hits: number of texts that started from a cached state. shared:
    number of their tokens that were not read again.
    """

    running: int
    waiting: int
    nbytes: int = 0
    kept: int = 0
    hits: int = 0
    shared: int = 0


class Worker:
    """Thread that owns a ``RequestQueue``. Call all methods but ``start`` and ``stop`` in the event loop."""

    def __init__(
        self, requests: RequestQueue | None, name: str, max_calls: int, warm_up: Callable[[], None] = lambda: None
    ):
        """Create the thread. requests: None for a model that generates no text. max_calls: maximum number of waiting
        calls. warm_up: called in the thread before it takes requests.
        """
        self.requests, self._max_calls, self._warm_up = requests, max_calls, warm_up
        self._warm = threading.Event()
        self._counted, self._recount = LoadCounts(0, 0), 0.0
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._calls: deque[_Call] = deque()
        self._open: dict[int, Mailbox] = {}
        self._unsent: dict[int, TextDelta] = {}
        """Number of a request -> its unsent pieces, joined to one."""
        self._begun: set[int] = set()
        """Numbers of the running requests whose first piece has been sent."""
        self._send_at = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)

    @property
    def counts(self) -> LoadCounts:
        """Latest load counts; while texts are generated, bytes are counted every ``_RECOUNT`` seconds."""
        counted = self._counted
        return counted._replace(waiting=counted.waiting + len(self._calls))

    @property
    def _idle(self) -> bool:
        return (self.requests is None or self.requests.idle) and not self._calls

    def warm(self) -> None:
        """Start the thread if it does not run, and wait until its warm-up has ended."""
        if self._thread.ident is None:
            self._thread.start()
        self._warm.wait()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver results to the event loop ``loop`` from now on; start the thread and wait for its warm-up."""
        self._loop = loop
        self.warm()

    def stop(self) -> None:
        """End the thread when all requests have ended, and wait for that."""
        self._commands.put(self._stop)
        self._thread.join()

    async def submit(self, requests: Sequence[Request]) -> Mailbox:
        """Submit the requests of one HTTP request; return their mailbox. If one is refused, none is accepted, and the
        error is raised.
        """
        future: asyncio.Future[Mailbox] = asyncio.get_running_loop().create_future()
        self._commands.put(lambda: self._submit(requests, future))
        return await future

    def cancel(self, mailbox: Mailbox) -> None:
        """Cancel the requests of ``mailbox`` that have not ended."""
        numbers = list(mailbox.open)
        mailbox.open.clear()
        for number in numbers:
            self._open.pop(number, None)
            self._commands.put(lambda number=number: self._queue.cancel(number))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the thread between two steps and return its result.

        Raises ``QueueFull``, and the exceptions of ``function``.
        """
        if len(self._calls) >= self._max_calls:
            raise QueueFull(
                f"{len(self._calls)} calls wait, and the queue has room for {self._max_calls}; try again later"
            )
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(function, future))
        self._commands.put(lambda: None)  # wakes the thread
        return await future

    def _run(self) -> None:
        with unchanged():  # a served model belongs to its thread
            try:
                self._warm_up()
            finally:
                self._warm.set()
            while not (self._stopping and self._idle):
                self._count()
                self._obey()
                self._next_call()
                if self.requests is not None and not self.requests.idle:
                    self._step(self.requests)

    def _count(self) -> None:
        """Publish the counts. Bytes are counted only when the number of running texts has changed, when the worker is
        idle, or after ``_RECOUNT`` seconds, because counting traverses the states.
        """
        queued, before = self.requests, self._counted
        if queued is None:
            return
        prefixes, now = queued.prefixes, time.monotonic()
        some = before._replace(
            running=queued.running, waiting=queued.waiting, hits=prefixes.hits, shared=prefixes.tokens
        )
        if self._idle or some.running != before.running or now >= self._recount:
            some, self._recount = some._replace(nbytes=queued.nbytes, kept=prefixes.nbytes), now + _RECOUNT
        self._counted = some

    def _obey(self) -> None:
        """Execute all waiting commands; wait for a command if the worker is idle."""
        command = None
        if self._idle:
            release_team()  # another model of this process decodes faster without it
            command = self._commands.get()
        while True:
            if command is not None:
                command()
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return

    def _stop(self) -> None:
        self._stopping = True

    def _submit(self, requests: Sequence[Request], future: asyncio.Future[Mailbox]) -> None:
        if future.cancelled():
            return
        numbers: list[int] = []
        try:
            for request in requests:
                numbers.append(self._queue.submit(request))
        except Exception as error:
            for number in numbers:
                self._queue.cancel(number)
            self._tell(_fail, future, error)
            return
        self._tell(self._accepted, numbers, future)

    def _accepted(self, numbers: Sequence[int], future: asyncio.Future[Mailbox]) -> None:
        mailbox = Mailbox(numbers)
        self._open.update(dict.fromkeys(numbers, mailbox))
        if future.cancelled():  # the client left meanwhile
            self.cancel(mailbox)
        else:
            future.set_result(mailbox)

    def _next_call(self) -> None:
        """Execute one waiting call; only one, so that a decoding step follows each call."""
        if not self._calls:
            return
        call = self._calls.popleft()
        if call.future.cancelled():
            return
        try:
            result = call.function()
        except Exception as error:
            self._tell(_fail, call.future, error)
        else:
            self._tell(_succeed, call.future, result)

    @property
    def _queue(self) -> RequestQueue:
        assert self.requests is not None
        return self.requests

    def _step(self, old: RequestQueue) -> None:
        try:
            pieces = old.step()
        except Exception as error:  # a bug ends the requests, not the server
            limits = old.budget, old.max_batch, old.max_queue
            self.requests = RequestQueue(old.model, old.tokenizer, *limits, old.clock, old.speculator, old.keep)
            self._send_unsent()
            self._begun.clear()  # the new queue numbers its requests from 0 again
            self._tell(self._broken, as_api_error(error).sentence)
            return
        self._count()  # before sending, so that a client with its last piece finds it counted
        self._send(pieces)

    def _send(self, pieces: Sequence[TextDelta]) -> None:
        """Add the pieces of a step to the unsent pieces, and send all of them if it is time to."""
        for piece in pieces:
            last = self._unsent.pop(piece.number, None)
            self._unsent[piece.number] = piece if last is None else _joined(last, piece)
        queued, now = self._queue, time.monotonic()
        due = now >= self._send_at or queued.running + queued.waiting > len(pieces)  # a long prompt may be read next
        if due or any(piece.finished or piece.number not in self._begun for piece in pieces):
            self._send_unsent()
            self._send_at = now + _PAUSE

    def _send_unsent(self) -> None:
        """Send all unsent pieces to the event loop."""
        if self._unsent:
            self._tell(self._deliver, list(self._unsent.values()))
            self._begun |= self._unsent.keys()
            self._begun -= {piece.number for piece in self._unsent.values() if piece.finished}
            self._unsent = {}

    def _deliver(self, pieces: Sequence[TextDelta]) -> None:
        for piece in pieces:
            mailbox = self._open.get(piece.number)
            if mailbox is not None:
                mailbox.put(piece)
                if piece.finished:
                    del self._open[piece.number]

    def _broken(self, sentence: str) -> None:
        self._deliver([TextDelta(number, finished="failed", error=sentence) for number in list(self._open)])

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function`` in the event loop; do nothing if the loop is closed."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def _joined(last: TextDelta, piece: TextDelta) -> TextDelta:
    """Join two consecutive pieces of one text."""
    return piece._replace(
        text=last.text + piece.text, tokens=last.tokens + piece.tokens, scores=last.scores + piece.scores
    )


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
