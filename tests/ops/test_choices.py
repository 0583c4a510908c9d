"""A choice that is measured disturbs nothing around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ops.clock import forget_choices
from torch.utils.checkpoint import checkpoint

from qkv.ops.linear.choose import linear
from qkv.ops.selection import choices, timing
from qkv.ops.selection.timing import Race, race


def test_a_path_may_be_chosen_inside_activation_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial runs backward passes of its own; a checkpoint around it must not take their tensors for its own."""
    forget_choices(monkeypatch)
    x, weight = torch.randn(8, 128, requires_grad=True), torch.randn(256, 128, requires_grad=True)
    checkpoint(lambda x: linear(x, weight).tanh(), x, use_reentrant=False).sum().backward()
    assert [choice.op for choice in choices.all_choices()] == ["linear"], "the weights are large enough to be timed"
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.autograd.grad((x @ weight.t()).tanh().sum(), x)[0])


def test_a_candidate_that_cannot_run_is_not_chosen_and_the_reason_is_told() -> None:
    """As where a kernel needs instructions that the processor lacks; the message's first line is enough."""

    def broken() -> None:
        raise RuntimeError("could not create a primitive\nat line 7")

    found = choices.fastest("op", "case", "plain", {"plain": broken, "other": lambda: None}, "what")
    assert (found.twin, found.gain) == ("other", None)
    assert found.reason.endswith("; plain does not run here (could not create a primitive)")
    assert choices.fastest("op", "case", "plain", {"plain": lambda: None, "other": broken}, "what").twin == "plain"
    with pytest.raises(RuntimeError, match="could not create a primitive"):
        choices.fastest("op", "case", "plain", {"plain": broken, "other": broken}, "what")


@pytest.mark.parametrize(
    ("gain", "ratios", "taken"),
    [
        (1.4, [0.9, 0.98, 1.0, 1.0, 1.4], 1.0),  # one candidate was slowed during the race
        (1.4, [0.9, 1.2, 1.25, 1.3, 1.5], 1.25),
        (1.04, [0.99, 1.03, 1.04, 1.05, 1.1], 1.04),  # a small gain that holds in nearly every pair
        (1.04, [0.9, 0.95, 1.04, 1.05, 1.1], 1.0),  # … and one that does not
        (1.04, [1.01, 1.01, 1.01, 1.01, 1.01], 1.0),
        (3.0, None, 3.0),
        (0.97, None, 1.0),
    ],
)
def test_a_small_gain_is_confirmed_by_runs_in_turns(
    monkeypatch: pytest.MonkeyPatch, gain: float, ratios: list[float] | None, taken: float
) -> None:
    """Other work on the machine may slow a candidate during a race, and the choice is kept for later processes."""
    asked: list[float] = []

    def duel(plain: Callable[[], object], other: Callable[[], object]) -> list[float]:
        asked.append(gain)
        return ratios or []

    monkeypatch.setattr(timing, "race", lambda runs: Race({name: gain if name == "plain" else 1.0 for name in runs}))
    monkeypatch.setattr(timing, "duel", duel)
    found = choices.fastest(
        "op", "case", "plain", {"plain": lambda: None, "other": lambda: None, "slow": lambda: None}, "what"
    )
    assert (found.twin, found.gain) == ("other" if taken > 1 else "plain", taken)
    assert bool(asked) == (ratios is not None)


def test_a_duel_runs_in_turns_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def takes(name: str, seconds: list[float]) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            now[0] += seconds[(len(order) - 1) // 2 % len(seconds)]

        return run

    ratios = timing.duel(takes("a", [2.0, 3.0]), takes("b", [1.0]), pairs=4, budget=100.0)
    assert (order, ratios) == (["a", "b"] * 4, pytest.approx([2.0, 2.0, 3.0, 3.0]))
    order.clear()
    assert len(timing.duel(takes("a", [2.0]), takes("b", [1.0]), pairs=40, budget=1.0)) == 5


class TestRace:
    """Candidates take as long as the test says; each ticks the clock when it runs."""

    @pytest.fixture
    def run_for(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Race, dict[str, int]]]:
        now, calls = [0.0], {}
        monkeypatch.setattr("time.perf_counter", lambda: now[0])

        def run(seconds: dict[str, list[float]], **options: Any) -> tuple[Race, dict[str, int]]:
            left = {name: list(times) for name, times in seconds.items()}

            def runs(name: str) -> Callable[[], None]:
                def tick() -> None:
                    calls[name] = calls.get(name, 0) + 1
                    now[0] += left[name].pop(0) if len(left[name]) > 1 else left[name][0]

                return tick

            return race({name: runs(name) for name in seconds}, **options), calls

        return run

    def test_the_shortest_of_several_runs_counts_and_the_first_does_not(self, run_for: Any) -> None:
        found, calls = run_for({"a": [0.1, 3.0, 1.0, 2.0], "b": [0.1, 2.0, 4.0, 1.5]}, repeats=3, budget=100.0)
        assert found.seconds == {"a": 1.0, "b": 1.5}
        assert calls == {"a": 4, "b": 4}

    def test_one_that_is_clearly_slower_runs_no_more(self, run_for: Any) -> None:
        found, calls = run_for({"a": [1.0], "b": [1.2], "slow": [3.0], "hopeless": [100.0]}, budget=100.0)
        assert found.seconds == pytest.approx({"a": 1.0, "b": 1.2, "slow": 3.0, "hopeless": 100.0})
        assert calls == {"a": 5, "b": 5, "slow": 2, "hopeless": 1}

    def test_what_is_spent_is_bounded(self, run_for: Any) -> None:
        _, calls = run_for({"a": [1.0], "b": [1.0]}, budget=0.5)
        assert calls == {"a": 2, "b": 2}
