"""Progress display: one live line on a terminal (progress, metrics, rate, remaining time), plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import IO, Any

from qkv.report.figures import clock, duration, fixed, short, size
from qkv.report.markup import visible

_REDRAW, _LINE, _HALF_LIFE = 0.12, 10.0, 60.0
_SPEED = "_per_second"


class Progress:
    """Progress display on standard error: description, progress bar, metrics, rate and remaining time.

    On a terminal this is one line, redrawn at most eight times per second; elsewhere a plain line at every tenth of the
    work and every ten seconds, less often in long runs. ``total``: amount of work, counted in ``unit``; without it,
    there is no progress bar and no remaining time. ``unit="bytes"`` counts in kB and MB. ``per_unit``: number of
    subunits that make up a unit; ``done`` and ``total`` count subunits. An update that is not drawn costs about a
    microsecond.

        with Progress("train", total=2000) as progress:
            for step in range(2000):
                progress.update(step + 1, loss=1.9, tokens_per_second=48_000)
    """

    def __init__(
        self,
        description: str,
        total: int | None = None,
        unit: str = "steps",
        done: int = 0,
        stream: IO[str] | None = None,
        per_unit: int = 1,
    ) -> None:
        self.description = visible(description)
        self.total = total
        self.unit = unit
        self.done = done
        self.after = 0.0
        """Seconds of work after the last step, included in the remaining time."""
        self.figures: dict[str, float | str | None] = {}
        self.news = ""
        """Text shown beside the metrics: on a terminal until it is replaced, elsewhere in one line only."""
        self.result = ""
        """Text shown only in the summary at the end."""
        self._stream = stream or sys.stderr
        self._per_unit = per_unit
        self._display: _Live | _Lines | None = None
        self._due = 0.0
        self.speed = _Speed(done)

    def __enter__(self) -> Progress:
        self.speed = _Speed(self.done)
        live = _is_terminal(self._stream)
        self._display = _Live(self, self._stream) if live else _Lines(self, self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._display is not None:
            self.speed.see(self.done)
            self._display.end(self._summary(stopped=kind is not None))
            self._display = None

    def update(self, done: int, **figures: float | str | None) -> None:
        """Set the amount of work done, and metrics to show, such as ``loss`` and ``tokens_per_second``; a metric is
        shown until it is replaced.
        """
        self.done = done
        if figures:
            self.figures.update(figures)
        now = time.monotonic()
        if now >= self._due:
            self._show(now)

    def resume(self, done: int) -> None:
        """Set the amount of work that was done before this process started, which does not count towards the rate."""
        self.done, self.speed = done, _Speed(done)

    def advance(self, by: int) -> None:
        """Increase the amount of work done by ``by`` units."""
        self.update(self.done + by)

    def note(self, text: str) -> None:
        """Print a message on its own line above the progress line."""
        if self._display is not None:
            self._display.note(visible(text))

    def parts(self) -> list[str]:
        """Return the texts of the progress line, without the progress bar: amount done, metrics, rate, remaining
        time.
        """
        texts = [self._amount(), *self._figures(self.news)]
        if not any(map(_is_speed, self.figures)) and self.speed.rate and self._per_unit == 1:
            texts.append(
                f"{self._count(self.speed.rate)}/s"
                if self.unit == "bytes"
                else f"{short(self.speed.rate)} {self.unit}/s"
            )
        if self.total and self.speed.rate and self.done < self.total:
            texts.append(f"{clock((self.total - self.done) / self.speed.rate + self.after)} left")
        return texts

    def share(self) -> float | None:
        """Return the fraction of the work that is done, from 0 to 1; None if the total is unknown."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None

    def _show(self, now: float) -> None:
        if self._display is not None:
            self.speed.see(self.done)
            self._due = now + self._display.show()

    def _amount(self) -> str:
        done = self._count(self.done)
        if self.total:
            whole = f"{done}/{self._count(self.total)}"
            return whole if self._per_unit == 1 else f"{whole} {self.unit}"
        return done if self.unit == "bytes" else f"{done} {self.unit}"

    def _count(self, amount: float) -> str:
        if self.unit == "bytes":
            return size(amount)
        whole, parts = divmod(amount, self._per_unit)
        return f"{amount / self._per_unit:,.1f}" if parts and self._per_unit > 1 else f"{whole:,.0f}"

    def _summary(self, stopped: bool) -> str:
        texts = [self._amount(), f"{'stopped after' if stopped else 'in'} {duration(self.speed.seconds)}"]
        return "  ".join([*texts, *self._figures(self.result)])

    def _figures(self, news: str) -> list[str]:
        """Format the metrics of the progress line, then the text ``news``, then the speeds."""
        pairs = [(name, value) for name, value in self.figures.items() if value is not None]
        speeds = [_figure(name, value) for name, value in pairs if _is_speed(name)]
        figures = [_figure(name, value) for name, value in pairs if not _is_speed(name)]
        return [*figures, *([visible(news)] if news else []), *speeds]


def _is_speed(name: str) -> bool:
    return name.endswith(_SPEED)


def _figure(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return f"{name.replace('_', ' ')} {visible(value)}"
    if _is_speed(name):
        return f"{short(value)} {name.removesuffix(_SPEED)}/s"
    return f"{name.replace('_', ' ')} {fixed(value)}"


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") not in ("dumb", "unknown")


class _Speed:
    """Exponentially weighted rate, decayed sum of work / decayed sum of time, which takes pauses into account."""

    def __init__(self, done: int) -> None:
        self.began = self._at = time.monotonic()
        self._done, self._work, self._time = done, 0.0, 0.0

    @property
    def rate(self) -> float:
        return self._work / self._time if self._time > 0 else 0.0

    @property
    def seconds(self) -> float:
        return self._at - self.began

    def see(self, done: int) -> None:
        now = time.monotonic()
        passed = now - self._at
        fade = 0.5 ** (passed / _HALF_LIFE)
        self._work, self._time = self._work * fade + max(0, done - self._done), self._time * fade + passed
        self._at, self._done = now, done


class _Lines:
    """Progress display for logs and pipes: a plain line from time to time."""

    def __init__(self, progress: Progress, stream: IO[str]) -> None:
        self.progress, self.stream = progress, stream
        self._printed = time.monotonic()
        self._tenth = self._tenths()

    def show(self) -> float:
        """Print a line if enough time or work has passed since the last line; return the seconds until the next
        check.
        """
        now, tenth = time.monotonic(), self._tenths()
        waited = now - self._printed
        # A line every ten seconds would be too many in runs that take hours.
        often = max(_LINE, self.progress.speed.seconds / 60)
        if waited >= often or (tenth > self._tenth and waited >= 1):
            self._printed, self._tenth = now, tenth
            share = self.progress.share()
            percent = [] if share is None else [f"{share:.0%}"]
            self.note(f"{self.progress.description}  {'  '.join(percent + self.progress.parts())}")
            self.progress.news = ""
        return 0.2

    def note(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def end(self, summary: str) -> None:
        self.note(f"{self.progress.description}  {summary}")

    def _tenths(self) -> int:
        return int(10 * (self.progress.share() or 0))


class _Live:
    """Progress display on a terminal: one line, which the library rich redraws.

    It is only redrawn by the thread that does the work, so that the spinner stands still when no work is done.
    """

    def __init__(self, progress: Progress, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.progress = progress
        self.console = Console(file=stream, force_terminal=True)
        # Redirected output is printed above the line. Standard output is only redirected if it is a terminal.
        ours = stream is sys.stderr
        prints = ours and _is_terminal(sys.stdout)
        line = _Line(progress)
        self.live = Live(
            line, console=self.console, auto_refresh=False, transient=True, redirect_stdout=prints, redirect_stderr=ours
        )
        self.live.start()

    def show(self) -> float:
        self.live.refresh()
        return _REDRAW

    def note(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text(text))

    def end(self, summary: str) -> None:
        from rich.text import Text

        self.live.stop()
        self.console.print(Text.assemble((self.progress.description, "bold"), "  ", summary), soft_wrap=True)


class _Line:
    """Contents of the live progress line: spinner, description, progress bar and texts.

    Metrics are left out, one after the other, until the line fits the terminal's width.
    """

    frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    plain_frames = "|/-\\"

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.drawn = 0

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.text import Text

        self.drawn += 1
        ascii_only = options.ascii_only
        frames = self.plain_frames if ascii_only else self.frames
        line = Text(frames[self.drawn % len(frames)] + " ", style="cyan", no_wrap=True, overflow="ellipsis", end="")
        line.append(self.progress.description, style="bold default")
        parts, share = self.progress.parts(), self.progress.share()
        least = 0 if share is None else 10
        room = options.max_width - line.cell_len - 1
        while len(parts) > 1 and sum(2 + len(part) for part in parts) + least > room:
            # The amount done and the remaining time are removed last.
            parts.pop(-2 if len(parts) > 2 else -1)
        if share is not None:
            width = min(32, room - sum(2 + len(part) for part in parts) - 2)
            _append_bar(line, share, width, "-" if ascii_only else "━")
        for i, part in enumerate(parts):
            line.append("  " + part, style="default" if i else "bold default")
        yield line


def _append_bar(line: Any, share: float, width: int, piece: str) -> None:
    if width < 4:
        return
    full = round(share * width)
    line.append("  ").append(piece * full, style="cyan").append(piece * (width - full), style="bright_black")
