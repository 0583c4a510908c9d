"""What is counted from the spec is what the built model has, and the published numbers come out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.costs.strategies import BRANCHES, models

from qkv.costs.cost import cost
from qkv.costs.measuring.machine import Machine
from qkv.costs.measuring.measure import count_flops
from qkv.layers.branch import Branch as BranchModule
from qkv.layers.branch import matrices
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.models.build import build
from qkv.models.families.presets import PRESETS, preset
from qkv.spec.branches import Attention, Branch, FeedForward, Recurrent
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.mixers.matrix_state import GatedDelta, Mamba2, Retention
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import RMSNorm, Sinusoidal
from qkv.spec.register import implements
from qkv.spec.training import AdamW, Muon, Optimizer, Training
from qkv.state.tree import nbytes
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer

TEXT = Text(vocab_size=50, positions=Sinusoidal())


def model_of(*branches: Branch, **fields: Any) -> Model:
    return Model(
        **{
            "width": 32,
            "context_length": 24,
            "frontend": TEXT,
            "blocks": (Block(branches=branches or (FeedForward(),)),),
            **fields,
        }
    )


def built_on_paper(model: Model) -> torch.nn.Module:
    with torch.device("meta"):
        return build(model)


@settings(max_examples=6)
@given(model=models())
def test_parameters_are_those_of_the_built_model(model: Model) -> None:
    assert cost(model, length=5).parameters == sum(p.numel() for p in built_on_paper(model).parameters())


@settings(max_examples=6)
@given(model=models(causal=True), batch=st.integers(1, 3), length=st.integers(1, 12))
def test_state_bytes_are_those_of_a_real_state(model: Model, batch: int, length: int) -> None:
    state = build(model).init_state(batch, length)
    assert cost(model, batch).state_bytes(length) == nbytes(state)


@settings(max_examples=4)
@given(model=models(), batch=st.integers(1, 3), length=st.integers(2, 12))
def test_forward_flops_are_those_of_torchs_counter(model: Model, batch: int, length: int) -> None:
    counted = cost(model, batch, length)
    assert counted.forward_flops == count_flops(counted)[0]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", BRANCHES, ids=lambda kind: kind.kind)
def test_training_flops_are_those_of_torchs_counter(kind: type[Branch], recompute: bool) -> None:
    model = model_of(kind(), num_layers=2, context_length=12)
    counted = cost(model, 2, training=Training(recompute=recompute, accumulate=2))
    # The zero state before the first position, the one after the last, and a distance's sinusoid have no gradient.
    nearly = issubclass(kind, (LinearAttention, Retention, Mamba2, GatedDelta, Recurrent, RelativeAttention))
    assert counted.train_flops == pytest.approx(count_flops(counted)[1], rel=0.05 if nearly else 0)


def test_recomputation_repeats_what_a_later_part_keeps() -> None:
    block = Block(branches=(Attention(), FeedForward()), order="sandwich")
    counted = cost(model_of(blocks=(block,)), 2, training=Training(recompute=True))
    assert counted.train_flops == count_flops(counted)[1]


@pytest.mark.parametrize("kind", [kind for kind in Optimizer.kinds().values() if kind.__module__.startswith("qkv.")])
def test_numbers_of_an_optimizer_are_those_that_it_stores(kind: type[Optimizer]) -> None:
    model = build(model_of(num_layers=2))
    optimizer = build_optimizer(kind(), model)
    model(torch.zeros(1, 3, dtype=torch.long))[0].sum().backward()
    optimizer.step()
    stored = sum(tensor.numel() for name, tensor in optimizer.state_dict().items() if not name.endswith("/step"))
    assert kind().numbers(sum(p.numel() for p in model.parameters()), sum(p.numel() for p in matrices(model))) == stored


def test_optimizers_remember_two_moments_or_one() -> None:
    assert AdamW().numbers(100, 60) == 200
    assert Muon().numbers(100, 60) == 60 + 40 * 2


def test_gpt3_has_its_published_size() -> None:
    gpt3 = cost(preset("gpt3"))
    assert gpt3.parameters == 174_604_259_328
    assert gpt3.parts["embedding"].parameters == (50257 + 2048) * 12288
    assert gpt3.parts["attention"].parameters + gpt3.parts["feed_forward"].parameters == 96 * (
        12 * 12288**2 + 9 * 12288
    )


def test_a_pass_of_175_billion_parameters_takes_717_teraflop_and_not_700_gigaflop() -> None:
    gpt3 = cost(preset("gpt3"), length=2048)
    assert round(2 * 175e9 * 2048 / 1e12) == 717
    scores = 4 * 96 * 2048**2 * 12288
    assert gpt3.forward_flops - scores == pytest.approx(2 * 175e9 * 2048, rel=0.01)


def test_attention_matrices_of_eight_heads_at_1024_tokens() -> None:
    counted = cost(model_of(Attention(num_heads=8), width=512, context_length=1024))
    assert counted.blocks[0][0].scores == 33_554_432


@pytest.mark.parametrize(("name", "parameters"), [("base", 37_858_304), ("big", 113_465_344), ("gpt2", 124_439_808)])
def test_presets(name: str, parameters: int) -> None:
    assert (
        cost(preset(name)).parameters == parameters == sum(p.numel() for p in built_on_paper(preset(name)).parameters())
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_paper_says(name: str) -> None:
    width, layers, heads, hidden, dropout = {
        "base": (512, 6, 8, 2048, 0.1),
        "big": (1024, 6, 16, 4096, 0.3),
        "gpt2": (768, 12, 12, 3072, 0.1),
        "gpt3": (12288, 96, 96, 49152, 0.0),
    }[name]
    model = preset(name)
    attention, feed_forward = model.layers[0].branches
    assert isinstance(attention, Attention)
    assert isinstance(feed_forward, FeedForward)
    found = (
        model.width,
        len(model.layers),
        attention.num_heads,
        feed_forward.hidden_at(model.width),
        model.layers[0].dropout,
    )
    assert found == (width, layers, heads, hidden, dropout)


def test_there_is_no_other_preset() -> None:
    with pytest.raises(UserError, match="no preset 'gpt4'; did you mean"):
        preset("gpt4")


def test_needed_flops_are_half_of_causal_scores() -> None:
    full, causal = (cost(model_of(Attention(mask=mask)), 2) for mask in (Full(), Causal()))
    scores = 4 * 2 * 24 * 24 * 32
    assert full.needed_flops == full.forward_flops == causal.forward_flops
    assert causal.needed_flops == full.forward_flops - scores * 23 // 48


def test_half_of_each_chunk_of_linear_attention_is_hidden() -> None:
    counted = cost(model_of(LinearAttention(num_heads=4, chunk=6)), 2)
    # A value has one feature more than its 8, whose sum is that of the weights.
    assert counted.total.masked == 2 * (2 * 4) * (8 + 9) * (4 * 6 * 5 // 2)


def test_a_key_value_state_grows_and_others_do_not() -> None:
    window = Attention(mask=Causal() & Window(size=4, sinks=1))
    grows, bounded, constant = (cost(model_of(part)).state_bytes for part in (Attention(), window, LinearAttention()))
    assert grows(200) - grows(100) == grows(300) - grows(200) == 100 * 2 * 32 * 4
    assert bounded(4) < bounded(5) == bounded(500)
    assert constant(1) == constant(500)


def test_no_state_is_told_for_no_positions() -> None:
    with pytest.raises(UserError, match="the length is 0"):
        cost(model_of(Attention())).state_bytes(0)


def test_a_step_reads_every_weight_but_tables_that_are_looked_up() -> None:
    tied = cost(model_of(FeedForward()))
    untied = cost(model_of(FeedForward(), head=LanguageModelHead(tied=False)))
    assert tied.step_bytes() - tied.state_bytes() == 4 * tied.parameters
    assert untied.step_bytes() == tied.step_bytes()
    assert cost(model_of(FeedForward()), precision="bf16").step_bytes() - tied.state_bytes() == 2 * tied.parameters


@pytest.mark.parametrize("changed", [{"recompute": True}, {"optimizer": Muon()}])
def test_less_memory_is_seen(changed: dict[str, Any]) -> None:
    model = model_of(Attention(), FeedForward(), num_layers=6)
    assert cost(model, 8, training=Training(**changed)).memory.peak < cost(model, 8).memory.peak


def test_accumulated_gradients_take_memory_from_the_start() -> None:
    model = model_of(FeedForward(), num_layers=4)
    assert cost(model, 8, training=Training(accumulate=2)).memory.peak > cost(model, 8).memory.peak


def test_speed_follows_the_machine() -> None:
    counted = cost(preset("gpt2"), 8, 512)
    slow, fast = (counted.speed(Machine("", {"fp32": rate}, rate / 10, 1e-9)) for rate in (1e11, 1e12))
    for name in ("train", "prefill", "decode"):
        assert getattr(fast, name) == pytest.approx(10 * getattr(slow, name), rel=0.01)
    assert slow.train == pytest.approx(8 * 512 * 1e11 / counted.train_flops, rel=0.5)
    assert slow.decode == pytest.approx(8 * 1e10 / counted.step_bytes(), rel=0.1)


class Doubling(Branch, kind="doubling_for_cost"):
    """tanh(x W)."""


@implements(Doubling)
class DoublingModule(BranchModule):
    def __init__(self, part: Doubling, width: int):
        super().__init__(part, width)
        self.map = Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, context: Context, state: Any = None) -> tuple[torch.Tensor, Any]:
        return self.map(x).tanh(), state


class Peeking(Branch, kind="peeking_for_cost"):
    """x or -x."""


@implements(Peeking)
class PeekingModule(BranchModule):
    def forward(self, x: torch.Tensor, context: Context, state: Any = None) -> tuple[torch.Tensor, Any]:
        return (x if x.sum() > 0 else -x), state


for own in (Doubling, Peeking):  # other tests ask for all kinds that there are
    Branch.kinds().pop(own.kind)


def test_a_part_of_ones_own_needs_no_formula() -> None:
    counted = cost(model_of(Doubling(), num_layers=7), 2)
    part = counted.parts["doubling_for_cost"]
    assert (part.parameters, part.matrices, part.flops) == (7 * 32 * 32, 7 * 32 * 32, 7 * 2 * 2 * 24 * 32 * 32)
    assert part.saved == 7 * 2 * (2 * 24 * 32 * 4), "the map's input, which is the norm's output, and tanh's result"
    assert part.step == part.flops // 24


def test_values_that_do_not_exist_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="a part of the model reads values of a tensor"):
        cost(model_of(Peeking()))


def test_layers_that_are_alike_stand_for_each_other() -> None:
    """A deep model costs what its layers cost: parameters, FLOPs and state exactly, memory by its layers."""
    blocks = (Block(branches=(Attention(),)), Block(branches=(FeedForward(),), norm=RMSNorm()))
    five, nine, many = (cost(model_of(blocks=blocks, num_layers=n), 2) for n in (10, 18, 26))
    for figure in ("parameters", "forward_flops", "train_flops"):
        assert getattr(many, figure) - getattr(nine, figure) == getattr(nine, figure) - getattr(five, figure) > 0
    assert many.memory.activations - nine.memory.activations == nine.memory.activations - five.memory.activations > 0
    assert len(many.blocks) == 26


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (model_of(frontend=Text()), {}, "vocab_size is unknown without the tokenizer"),
        (model_of(), {"batch_size": 0}, "the batch size is 0"),
        (model_of(), {"length": -1}, "the length is -1"),
        (model_of(), {"precision": "fp16"}, "no precision 'fp16'; allowed: "),
        (model_of(frontend=Text(vocab_size=9)), {"length": 25}, "25 positions are more than the 24"),
    ],
)
def test_what_cannot_be_counted(model: Model, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        cost(model, **options)


def test_counting_imports_no_compiler() -> None:
    """Importing it would take longer than everything else."""
    code = (
        "import sys; from qkv.cli.main import main; main(['cost', 'gpt3', '--json']); "
        "sys.exit('torch._dynamo' in sys.modules or 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"total": 174604259328' in done.stdout


def test_counting_uses_no_random_numbers_of_the_process() -> None:
    """A run counts its cost between two steps, and resumes bit for bit."""
    before = torch.get_rng_state()
    cost(model_of(width=24))
    assert torch.equal(torch.get_rng_state(), before)
