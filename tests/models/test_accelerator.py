"""Models on an accelerator against the same models on the CPU, in float64; skipped without one.

The default suite runs on CPUs. On a machine with an accelerator: ``pytest tests/models/test_accelerator.py``.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.samples import SAMPLES, STACKS
from tests.contracts.subjects import OneBranch, Stack
from tests.training.kill_storm import ignore, small_recipe
from torch import Tensor

import qkv
from qkv.generation.decode.sample import generate
from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.signal import Signal
from qkv.models.fast.replayed_step import RECORDERS
from qkv.runs.metrics import rows_of
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.state.arrival import Arrival, Counts
from qkv.training.loop import train
from qkv.training.watch.events import Event, Stepped

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(DEVICE.type == "cpu", reason="this machine has no accelerator"),
    pytest.mark.usefixtures("nothing_turned_off"),
]
LENGTH, STEPS = 9, 3
BRANCHES = [pytest.param(part, id=f"{kind}-{i}") for kind, parts in SAMPLES.items() for i, part in enumerate(parts)]


@pytest.fixture(autouse=True)
def _default_operators() -> Iterator[None]:
    """Operators whose results may depend on the order of sums are permitted, as in a run of a user."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True)


def same(found: Tensor, expected: Tensor) -> None:
    assert found.device.type == DEVICE.type
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-9, atol=1e-9)


def moved(memory: Memory, device: torch.device) -> Memory:
    return Memory(tuple(x.to(device) for x in memory.vectors), memory.lengths.to(device))


def outputs(subject: OneBranch, module: Any, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Output and gradient of the input of a whole pass, and outputs of steps by one position after the first ones."""
    x = subject.inputs(2, LENGTH).to(device).requires_grad_()
    memory = moved(subject._memory(2), device) if subject.part.reads_memory else None
    memories = {} if memory is None else {MEMORY: memory}
    y = module(x, Context(torch.arange(LENGTH, device=device)[None], memories=memories))[0]
    y.square().sum().backward()
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    known = {} if memory is None else {"memory": memory}
    state, steps, counts = module.init_state(2, None, **known), list[Tensor](), Counts((0, 0))
    with torch.no_grad():
        for begin, end in [(0, LENGTH - STEPS), *((i, i + 1) for i in range(LENGTH - STEPS, LENGTH))]:
            positions = torch.arange(begin, end, device=device)[None]
            context = Context(positions.expand(2, -1), arrival=Arrival(counts, end - begin, None, device))
            out, state = module(x[:, begin:end], context, state)
            counts = Counts((end, end))
            steps.append(out)
    return y, gradient, torch.cat(steps, dim=1)


@pytest.mark.parametrize("part", BRANCHES)
def test_a_branch_computes_the_same(part: Any) -> None:
    """Forward, backward and decoding."""
    subject = OneBranch(part)
    other = copy.deepcopy(subject.module).to(DEVICE)
    expected = outputs(subject, subject.module, torch.device("cpu"))
    for found, right in zip(outputs(subject, other, DEVICE), expected, strict=True):
        same(found, right)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_computes_and_generates_the_same(name: str) -> None:
    """Logits of padded rows, and greedy texts of two prompts of unequal length."""
    subject = Stack(STACKS[name])
    model: Any = subject.module.eval()
    other = copy.deepcopy(model).to(DEVICE)
    ids, lengths = subject.inputs(2, LENGTH), torch.tensor([LENGTH, LENGTH - 4])
    with torch.no_grad():
        found = other(Signal(ids.to(DEVICE), lengths.to(DEVICE)))[0]
        expected = model(Signal(ids, lengths))[0]
    same(found[0], expected[0])
    same(found[1, : lengths[1]], expected[1, : lengths[1]])
    settings = Generation(max_new_tokens=6, temperature=0.0)
    texts = [ids[0].tolist(), ids[1, :3].tolist()]
    assert generate(other, texts, settings) == generate(model, texts, settings)


@pytest.mark.parametrize("mixer", ["attention(4)", "attention(4, num_kv_heads=2, relative=rope)"])
@pytest.mark.skipif(DEVICE.type not in RECORDERS, reason="steps are not recorded on this accelerator")
def test_recorded_steps_give_the_text_of_steps_part_by_part(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], RECORDERS[DEVICE.type]

    def counted(run: Callable[[], Tensor], device: torch.device) -> Any:
        made.append(real(run, device))
        return made[-1]

    monkeypatch.setitem(RECORDERS, DEVICE.type, counted)
    blocks = [{"branches": [mixer, "gated_feed_forward"]}]
    sizes = {"width": 32, "num_layers": 2, "context_length": 300, "frontend": "text(vocab_size=50)"}
    torch.manual_seed(0)
    model = qkv.build(Model.parse({**sizes, "blocks": blocks})).eval().double().to(DEVICE)
    settings, texts = Generation(max_new_tokens=200, temperature=0.0), [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    written = generate(model, texts, settings)
    assert made
    monkeypatch.setenv("QKV_WITHOUT", "graphs")
    assert generate(model, texts, settings) == written
    assert generate(model.cpu(), texts, settings) == written


class Killed(BaseException):
    """Stands for a kill: nothing of the package catches it."""


def die(event: Event) -> None:
    if isinstance(event, Stepped) and event.step == 16:
        raise Killed


def test_a_run_that_was_cut_goes_on_bit_for_bit(text: Path, tmp_path: Path) -> None:
    recipe, whole, parts = small_recipe(text, 24), tmp_path / "whole", tmp_path / "parts"
    train(recipe, whole, on_event=ignore)
    with pytest.raises(Killed):
        train(recipe, parts, on_event=die)
    train(recipe, parts, on_event=ignore)
    losses = [{row["step"]: row["loss"] for row in rows_of(each) if "loss" in row} for each in (whole, parts)]
    assert losses[0] == losses[1]
    a, b = (qkv.load(each).model.state_dict() for each in (whole, parts))
    assert all(torch.equal(a[key], b[key]) for key in a)
    runs = [qkv.load(whole, device=each) for each in ("cpu", DEVICE.type)]
    texts = [qkv.generate(run, "ab", max_new_tokens=9, seed=1) for run in runs]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_run_has_the_loss_of_the_cpu(bits: int, straight: Path, tmp_path: Path) -> None:
    qkv.quantize(straight, tmp_path / "small", bits=bits)
    runs = [qkv.load(tmp_path / "small", device=each) for each in ("cpu", DEVICE.type)]
    assert runs[1].model.device.type == DEVICE.type
    first, second = (qkv.evaluate(run, batches=2) for run in runs)
    assert second["loss"] == pytest.approx(first["loss"], rel=0.02)
    assert qkv.generate(runs[1], "ab", max_new_tokens=9)


def test_the_command_and_the_server_compute_on_the_named_device(straight: Path) -> None:
    environment = {**os.environ, "QKV_DEVICE": DEVICE.type}
    right = qkv.generate(straight, "ab", max_new_tokens=9, temperature=0.0)
    command = [sys.executable, "-m", "qkv"]
    words = ["generate", str(straight), "ab", "--max-new-tokens", "9", "--temperature", "0"]
    printed = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip("\n") == f"ab{right}".strip("\n")
    words = [*command, "serve", str(straight), "--port", "0"]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        url = next(line for line in server.stdout if line.startswith("serving at")).split()[2]
        body = json.dumps({"prompt": "ab", "max_tokens": 9, "temperature": 0}).encode()
        asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            text = json.load(answer)["choices"][0]["text"]
        server.terminate()
    assert text == right
