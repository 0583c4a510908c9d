"""The live line on a terminal and the plain lines elsewhere, with a clock that the test turns."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest
from rich.cells import cell_len

from qkv.report.progress import Progress


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def drawings(written: str) -> list[str]:
    """What each drawing of the line showed."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def work(
    stream: io.StringIO, clock: Clock, steps: int, seconds: float, total: int | None = None, unit: str = "steps"
) -> list[str]:
    with Progress("train", total, unit, stream=stream) as progress:
        for step in range(1, steps + 1):
            clock.now += seconds
            progress.update(step, loss=2.0, tokens_per_second=48_213.0)
            if step == 3:
                progress.news, progress.result = "validation loss 2.500 at step 3", "best validation loss 2.500"
    return drawings(stream.getvalue())


def test_elsewhere_a_line_at_each_tenth(clock: Clock) -> None:
    lines = work(io.StringIO(), clock, 100, 1.0, total=100)
    assert len(lines) == 11
    assert lines[0] == "train  10%  10/100  loss 2.000  validation loss 2.500 at step 3  48.2k tokens/s  1:30 left"
    assert lines[1] == "train  20%  20/100  loss 2.000  48.2k tokens/s  1:20 left"  # old news is not repeated
    assert lines[-1] == "train  100/100  in 1 min 40 s  loss 2.000  best validation loss 2.500  48.2k tokens/s"


def test_elsewhere_a_line_each_ten_seconds_and_rarer_in_long_runs(clock: Clock) -> None:
    lines = work(io.StringIO(), clock, 60, 1.0, total=10_000)
    assert len(lines) == 7
    hours = work(io.StringIO(), clock, 5 * 360, 10.0)
    assert 150 < len(hours) < 250


def test_elsewhere_fast_work_says_only_that_it_is_done(clock: Clock) -> None:
    lines = work(io.StringIO(), clock, 100, 0.001, total=100)
    assert lines == ["train  100/100  in 100 ms  loss 2.000  best validation loss 2.500  48.2k tokens/s"]


def test_elsewhere_no_control_characters_are_written(clock: Clock) -> None:
    stream = io.StringIO()
    work(stream, clock, 50, 1.0, total=50)
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_one_line_is_drawn_again_and_again(clock: Clock, terminal: Terminal) -> None:
    lines = work(terminal, clock, 100, 0.05, total=200)
    assert 30 <= len(lines) <= 45  # five seconds, eight drawings each
    last = lines[-2]
    assert "100/200" in last
    assert "loss 2.000  validation loss 2.500 at step 3  48.2k tokens/s  0:05 left" in last
    assert last.count("━") == 9  # what a hundred columns leave
    assert lines[-1].startswith("train  100/200  in 5.0 s  loss 2.000")
    assert terminal.getvalue().endswith("\n")
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


@pytest.mark.parametrize("columns", [12, 20, 30, 44, 60, 80, 200])
def test_the_line_fits_every_terminal(
    clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = work(terminal, clock, 50, 0.2, total=100)[:-1]
    assert all(cell_len(line) <= columns for line in lines)
    assert columns < 30 or "50/100" in lines[-1]
    assert columns < 44 or "left" in lines[-1]


def test_notes_stand_above_the_line(clock: Clock, terminal: Terminal) -> None:
    with Progress("train", 10, stream=terminal) as progress:
        progress.update(1)
        progress.note("saved [red]runs/x[/red]\x1b[2J")
    assert "saved [red]runs/x[/red]␛[2J" in drawings(terminal.getvalue())
    plain = io.StringIO()
    with Progress("train", 10, stream=plain) as progress:
        progress.note("saved runs/x")
    assert plain.getvalue().splitlines()[0] == "saved runs/x"


def _interrupted(stream: io.StringIO, clock: Clock) -> None:
    with Progress("train", 10, stream=stream) as progress:
        progress.update(4)
        clock.now += 3
        raise KeyboardInterrupt


@pytest.mark.parametrize("on_terminal", [True, False])
def test_an_interruption_is_told_and_passed_on(clock: Clock, terminal: Terminal, on_terminal: bool) -> None:
    stream = terminal if on_terminal else io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        _interrupted(stream, clock)
    assert drawings(stream.getvalue())[-1] == "train  4/10  stopped after 3.0 s"


def test_bytes_with_and_without_a_known_end(clock: Clock) -> None:
    with Progress("download", 40_000_000, "bytes", stream=io.StringIO()) as progress:
        clock.now += 4
        progress.advance(10_000_000)
        assert progress.parts() == ["10 MB/40 MB", "2.5 MB/s", "0:12 left"]
    with Progress("read", None, "bytes", stream=io.StringIO()) as progress:
        clock.now += 2
        progress.advance(10_000_000)
        assert progress.parts() == ["10 MB", "5 MB/s"]
    with Progress("tokenise", None, "tokens", stream=io.StringIO()) as progress:
        clock.now += 1
        progress.advance(1_234_567)
        assert progress.parts() == ["1,234,567 tokens", "1.23M tokens/s"]


def test_the_time_left_follows_a_change_of_speed(clock: Clock) -> None:
    with Progress("train", 10_000, stream=io.StringIO()) as progress:
        for step in range(1, 301):
            clock.now += 1.0
            progress.update(step)
        assert progress.speed.rate == pytest.approx(1.0)
        for step in range(310, 3310, 10):
            clock.now += 1.0
            progress.update(step)
        assert 9.0 < progress.speed.rate < 10.0


def test_a_resumed_run_does_not_count_the_old_steps_as_speed(clock: Clock) -> None:
    with Progress("train", 2000, done=1000, stream=io.StringIO()) as progress:
        clock.now += 10
        progress.update(1010)
        assert progress.parts() == ["1,010/2,000", "1 steps/s", "16:30 left"]


def test_a_dumb_terminal_gets_plain_lines(clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    work(terminal, clock, 10, 1.0, total=10)
    assert "\x1b" not in terminal.getvalue()


def test_standard_output_stays_free(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train", 10) as progress:
        progress.update(1)
        sys.stdout.write("data\n")
    captured = capsys.readouterr()
    assert captured.out == "data\n"
    assert "train  1/10" in captured.err


def test_units_in_parts_and_work_that_was_done_before(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("compare", 4000, "runs", stream=stream, per_unit=1000) as progress:
        progress.resume(2000)
        for done in range(2100, 3100, 100):
            clock.now += 2.0
            progress.update(done)
    lines = drawings(stream.getvalue())
    assert "compare  70%  2.8/4 runs  0:24 left" in lines  # 50 parts a second, those done before not counted
    assert lines[-1] == "compare  3/4 runs  in 20 s"
