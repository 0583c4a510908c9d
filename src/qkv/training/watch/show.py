"""Progress of a run on standard error: a line with loss, speed and remaining time; notices and validations above it."""

from __future__ import annotations

import sys
from functools import singledispatchmethod
from types import TracebackType

from qkv.report.evaluation import words
from qkv.report.figures import duration, fixed
from qkv.report.progress import Progress
from qkv.training.watch.events import Ended, Event, Notice, Planned, Started, Stepped, Validated


class Show:
    """Default event handler of ``train``, a context manager: shows progress on standard error. ``with Show() as tell:
    ...``
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._counted = "tokens"
        self._best = ""

    def __enter__(self) -> Show:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.__exit__(kind, error, trace)
            self._progress = None

    def __call__(self, event: Event) -> None:
        self._show(event)

    @singledispatchmethod
    def _show(self, event: Event) -> None:
        """Show an event on standard error. By default show nothing: the report has the samples, the folder the
        checkpoints.
        """

    @_show.register
    def _(self, event: Started) -> None:
        self._counted = event.counted
        self._progress = Progress("train", event.steps, done=event.step)
        self._progress.__enter__()
        if event.step:
            self._progress.note(f"resuming after step {event.step:,} of {event.steps:,}")

    @_show.register
    def _(self, event: Planned) -> None:
        if self._progress:
            self._progress.total, self._progress.after = event.steps, event.after
            self._progress.note(planned_sentence(event))

    @_show.register
    def _(self, event: Stepped) -> None:
        if self._progress:
            self._progress.update(
                event.step, loss=event.loss, **{f"{self._counted}_per_second": event.tokens_per_second}
            )

    @_show.register
    def _(self, event: Validated) -> None:
        if self._progress:
            value, name = event.figures.get(event.decides, event.loss), words(event.decides)
            if event.best:
                self._best = f"{fixed(value)} at step {event.step:,}"
                self._progress.result = f"best validation {name} {self._best}"
                self._progress.news = f"validation {name} {self._best}, best"
            else:
                best = f" (best {self._best})" if self._best else ""
                self._progress.news = f"validation {name} {fixed(value)} at step {event.step:,}{best}"
            self._progress.update(event.step)

    @_show.register
    def _(self, event: Notice) -> None:
        if self._progress:
            self._progress.note(event.text)
        else:
            sys.stderr.write(event.text + "\n")

    @_show.register
    def _(self, event: Ended) -> None:
        self.__exit__(None, None, None)


def planned_sentence(event: Planned) -> str:
    """Return a sentence with the planned number of steps and their expected time, and a warning if they exceed the
    budget.
    """
    fewer = f" of at most {event.most:,}" * (event.steps < event.most)
    planned = (
        f"{'after ' + format(event.step, ',') + ' steps: ' if event.step else ''}about {duration(event.seconds)} for "
        f"{event.steps:,} steps{fewer}"
    )
    if event.seconds <= 60 * event.minutes:
        return planned
    return (
        f"{planned}; even this minimum exceeds training.minutes={event.minutes:g} on this machine; "
        "increase it, or use a smaller model"
    )
