"""Public functions under settings of torch that a notebook has changed: the same results, and the settings stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.spec.model import Text
from qkv.system.torch_settings import usual_settings

TEXT = "the cat sat on the mat and the dog sat on the log. " * 40
SMALL = ("model.width=16", "model.num_layers=1", "model.context_length=32", "training.steps=4")


@contextmanager
def changed(change: Callable[[Any], object], to: Any, back: Any) -> Iterator[None]:
    change(to)
    try:
        yield
    finally:
        change(back)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "set_grad_enabled": lambda: changed(lambda on: torch.set_grad_enabled(on), False, True),
    "inference_mode": torch.inference_mode,
    "float64": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: changed(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "meta": lambda: changed(torch.set_default_device, "meta", None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
    )


def everything(folder: Path) -> dict[str, Any]:
    """Results of public functions, from training to quantisation."""
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text(TEXT)
    run = qkv.train(str(text), out=folder / "run", overrides=SMALL)
    qkv.save(run.model, folder / "saved", run.tokenizer)
    quantized = qkv.quantize(run, folder / "small", bits=8)
    return {
        "weights": torch.cat([weight.flatten() for weight in run.model.parameters()]).tolist(),
        "evaluation": qkv.evaluate(run)["loss"],
        "quantized": quantized.figures["after"]["loss"],
        **uses(folder / "run"),
    }


def uses(folder: Path) -> dict[str, Any]:
    """Results of public functions on the run in ``folder``."""
    run = qkv.load(folder)
    return {
        "dtype": next(qkv.build(run.recipe.model).parameters()).dtype,
        "text": qkv.generate(run, "the ", max_new_tokens=4, temperature=0.0),
        "beams": qkv.generate(run, "the ", max_new_tokens=4, num_beams=2),
        "vectors": qkv.embed(run, ["the cat", "a dog"]).tolist(),
        "cost": qkv.cost(run.recipe).parameters,
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain") / "here"


@pytest.fixture(scope="module")
def plain(place: Path) -> dict[str, Any]:
    return everything(place)


def test_training_is_that_of_the_usual_settings_whatever_is_changed(plain: dict[str, Any], tmp_path: Path) -> None:
    with ExitStack() as stack:
        for enter in SETTINGS.values():
            stack.enter_context(enter())
        before = state()
        found = everything(tmp_path / "here")
        assert state() == before
    assert found == plain


@pytest.mark.parametrize("name", SETTINGS)
def test_results_are_those_of_the_usual_settings(name: str, plain: dict[str, Any], place: Path) -> None:
    with SETTINGS[name]():
        before = state()
        assert before != (True, False, torch.float32, torch.device("cpu"), False)
        found = uses(place / "run")
        assert state() == before
    assert found == {key: plain[key] for key in found}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_come_back_after_an_error(name: str) -> None:
    with SETTINGS[name]():
        before = state()
        with pytest.raises(qkv.UserError):
            qkv.load("no such folder")
        assert state() == before


def test_a_model_is_built_on_the_device_of_the_caller() -> None:
    with torch.device("meta"):
        model = qkv.build(qkv.Model(num_layers=1, width=16, frontend=Text(vocab_size=9)))
    assert next(model.parameters()).is_meta


def test_within_the_usual_settings_nothing_is_set() -> None:
    with usual_settings():
        assert state() == (True, False, torch.float32, torch.device("cpu"), False)
