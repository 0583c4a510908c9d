"""A run that allows bf16 takes it where it is faster, says where it is not, and goes on as it began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.ops.clock import inject
from tests.training.kill_storm import small_recipe

from qkv.training.loop import train
from qkv.training.watch.events import Event, Notice

SLOW = "products run in fp32, not bf16"

pytestmark = pytest.mark.usefixtures("nothing_turned_off")


def trained(
    text: Path, folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch, factor: float
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Weights and notices after training on a machine where bf16 products take ``factor`` times as long."""
    inject(monkeypatch, lambda name: factor if name == "bf16" else 1.0)
    events: list[Event] = []
    recipe = small_recipe(text, steps, precision="bf16", schedule="constant(warmup=1)")
    model = train(recipe, folder, on_event=events.append).model
    return model.state_dict(), [
        event.text for event in events if isinstance(event, Notice) and event.text.startswith(SLOW)
    ]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_where_bf16_is_slower_a_run_is_one_of_fp32_and_says_so_once(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, said = trained(text, tmp_path / "slow", 3, monkeypatch, 100.0)
    assert said == ["products run in fp32, not bf16, which is slower on this cpu; 'qkv why' shows both times"]
    plain = train(
        small_recipe(text, 3, schedule="constant(warmup=1)"), tmp_path / "fp32", on_event=lambda event: None
    ).model.state_dict()
    assert same(slow, plain)
    fast, said = trained(text, tmp_path / "fast", 3, monkeypatch, 0.1)
    assert said == []
    assert not same(fast, plain)


def test_a_run_goes_on_in_the_precision_that_it_began_with(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start measures the opposite, and pays no heed to it."""
    straight, _ = trained(text, tmp_path / "straight", 4, monkeypatch, 100.0)
    trained(text, tmp_path / "cut", 2, monkeypatch, 100.0)
    resumed, said = trained(text, tmp_path / "cut", 4, monkeypatch, 0.1)
    stored = json.loads((tmp_path / "cut" / "resume" / "surroundings.json").read_bytes())["paths"]
    assert [choice["twin"] for choice in stored if choice["op"] == "precision"] == ["fp32"]
    assert len(said) == 1
    assert same(straight, resumed)


def test_a_run_says_that_bf16_is_turned_off(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_WITHOUT", "bf16")
    _, said = trained(text, tmp_path / "off", 2, monkeypatch, 0.1)
    assert said == ["products run in fp32, not bf16, which QKV_WITHOUT=bf16 turns off"]
