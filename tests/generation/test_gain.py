"""The decision whether to propose, on times that the tests give."""

from __future__ import annotations

import pytest

from qkv.generation.decode.gain import CHECK, FIRST, LONGEST_REST, PERIOD, REST, TRIAL, Gain


def periods(gain: Gain, tokens: float, seconds: float, count: int) -> list[int]:
    """Lengths of the first periods, plain and proposing in turns; a plain step takes a second and gives one token."""
    found, on = [0], False
    while len(found) <= count:
        if gain.proposes != on:
            on = gain.proposes
            found.append(0)
        found[-1] += 1
        gain.record(tokens if on else 1.0, seconds if on else 1.0, on)
    return found[:count]


def test_a_gain_goes_on_with_plain_steps_now_and_then() -> None:
    gain = Gain()
    assert periods(gain, 3.0, 1.5, 7) == [FIRST, TRIAL, CHECK, PERIOD, CHECK, PERIOD, CHECK]
    assert gain.latest == pytest.approx(2.0)


def test_after_a_loss_it_rests_twice_as_long_each_time() -> None:
    gain = Gain()
    found = periods(gain, 3.0, 4.0, 18)
    assert found[::2][1:] == [min(REST * 2**n, LONGEST_REST) for n in range(8)]
    assert set(found[1::2]) == {TRIAL}
    assert gain.latest == pytest.approx(0.75)


def test_it_comes_back_when_proposals_pay_again() -> None:
    gain = Gain()
    periods(gain, 1.0, 2.0, 6)  # two trials lost, and within the rest after the second
    while not gain.proposes:
        gain.record(1.0, 1.0, False)
    found = 0
    while gain.proposes:
        gain.record(5.0, 1.0, True)
        found += 1
    assert found == TRIAL
    assert gain.latest == pytest.approx(5.0), "steps of earlier trials are forgotten"
    for _ in range(CHECK):
        assert not gain.proposes
        gain.record(1.0, 1.0, False)
    assert gain.proposes


def test_the_first_step_of_a_period_is_not_measured() -> None:
    """It may choose implementations for new shapes."""
    gain = Gain()
    for seconds in (100.0, 1.0, 1.0):
        gain.record(1.0, seconds, False)
    for seconds in (100.0, *[1.0] * (TRIAL - 1)):
        assert gain.proposes
        gain.record(2.0, seconds, True)
    assert gain.latest == pytest.approx(2.0)
    assert gain.whole == pytest.approx((3 + 2 * TRIAL) / (200 + 2 + TRIAL - 1))


def test_steps_that_found_nothing_to_propose_are_plain_ones_and_decide_nothing() -> None:
    gain = Gain()
    while not gain.proposes:
        gain.record(1.0, 1.0, False)
    for _ in range(10 * PERIOD):
        gain.record(1.0, 2.0, False)
    assert gain.proposes
    gain.record(2.0, 1.0, True)
    assert gain.latest == pytest.approx(4.0)


def test_without_a_choice_it_always_proposes() -> None:
    gain = Gain(adaptive=False)
    for _ in range(3 * PERIOD):
        assert gain.proposes
        gain.record(1.0, 9.0, True)
    assert gain.latest is gain.whole is None
    gain.record(1.0, 1.0, False)
    assert gain.latest == pytest.approx(1 / 9)
