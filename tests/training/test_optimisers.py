"""The optimisers against hand-written update loops in float64, and their state through a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.ops.clock import forget_choices
from torch import Tensor, nn

from qkv.costs.cost import cost
from qkv.layers.branch import Branch, matrices
from qkv.models.build import build
from qkv.ops.orthogonal import choose
from qkv.ops.selection.choices import Choice
from qkv.runs.storage.files import read_tensors, write_tensors
from qkv.spec.branches import FeedForward
from qkv.spec.model import Model
from qkv.spec.training import AdamW, Muon, Optimizer
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer


class Little(nn.Module):
    """Kinds of parameters as in a model: a table, matrices in a branch, a table in it, vectors, a three-axis kernel."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frontend = nn.Embedding(7, 6)
        branch = Branch(FeedForward(), 6)
        branch.up, branch.down, branch.conv, branch.table = (
            nn.Linear(6, 12),
            nn.Linear(12, 6),
            nn.Conv1d(6, 6, 3),
            nn.Embedding(4, 6),
        )
        self.blocks = nn.ModuleList([branch])
        self.norm = nn.LayerNorm(6)


def with_gradients(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def adamw_reference(p: Tensor, gradients: list[Tensor], spec: AdamW, rates: list[float]) -> Tensor:
    """Algorithm 2 of Loshchilov & Hutter, with their decay multiplied by the rate."""
    p, m, v = p.double().clone(), torch.zeros_like(p, dtype=torch.float64), torch.zeros_like(p, dtype=torch.float64)
    decay = spec.weight_decay if p.ndim >= 2 else 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        p = p * (1 - rate * decay)
        m = spec.beta1 * m + (1 - spec.beta1) * g
        v = spec.beta2 * v + (1 - spec.beta2) * g * g
        p = p - rate * (m / (1 - spec.beta1**t)) / ((v / (1 - spec.beta2**t)).sqrt() + spec.eps)
    return p


MULTIPLIERS = [0.5, 1.0, 0.25, 0.125]


def run(model: nn.Module, spec: Optimizer) -> dict[str, list[Tensor]]:
    optimizer = build_optimizer(spec, model)
    history: dict[str, list[Tensor]] = {}
    for i, multiplier in enumerate(MULTIPLIERS):
        for name, gradient in with_gradients(model, i).items():
            history.setdefault(name, []).append(gradient)
        optimizer.step(multiplier)
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    return history


def test_adamw_is_the_papers_algorithm_with_decay_on_matrices_only() -> None:
    spec, model = AdamW(lr=0.03, weight_decay=0.3), Little()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    history = run(model, spec)
    for name, p in model.named_parameters():
        expected = adamw_reference(before[name], history[name], spec, [spec.lr * m for m in MULTIPLIERS])
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-5, atol=1e-6)


def orthogonalised(g: Tensor) -> Tensor:
    """Newton-Schulz as in the authors' post, in float64."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon_reference(p: Tensor, gradients: list[Tensor], spec: Muon) -> Tensor:
    """The authors' rule, in float64."""
    p, momentum = p.double(), torch.zeros_like(p, dtype=torch.float64)
    for g, multiplier in zip(gradients, MULTIPLIERS, strict=True):
        rate = spec.lr * multiplier
        momentum = spec.momentum * momentum + (1 - spec.momentum) * g
        update = orthogonalised((1 - spec.momentum) * g + spec.momentum * momentum if spec.nesterov else momentum)
        p = p * (1 - rate * spec.weight_decay) - rate * math.sqrt(max(1.0, p.shape[0] / p.shape[1])) * update
    return p


def multiply_in(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial be won by ``precision``."""
    forget_choices(monkeypatch)
    monkeypatch.setattr(choose, "fastest", lambda op, case, *_: Choice(op, case, precision, "as the test says"))


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_updates_the_matrices_of_the_blocks_and_adamw_the_rest(
    nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_in("fp32", monkeypatch)
    spec, model = Muon(lr=0.05, nesterov=nesterov, weight_decay=0.2, others=AdamW(lr=0.01, weight_decay=0.1)), Little()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    history = run(model, spec)
    maps = {"blocks.0.up.weight", "blocks.0.down.weight"}
    for name in maps:
        expected = muon_reference(before[name], history[name], spec)
        torch.testing.assert_close(model.get_parameter(name).detach().double(), expected, rtol=1e-5, atol=1e-5)
    for other in before:
        if other not in maps:
            expected = adamw_reference(
                before[other], history[other], spec.others, [spec.others.lr * m for m in MULTIPLIERS]
            )
            torch.testing.assert_close(model.get_parameter(other).detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_in_bf16_muon_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that lie either way are stacked, the large one goes alone."""
    multiply_in("bf16", monkeypatch)
    ours, theirs = Branch(FeedForward(), 6), Branch(FeedForward(), 6)
    shapes = [(6, 12), (12, 6), (6, 6), (12, 6), (520, 514), (1, 5)]
    for branch in (ours, theirs):
        torch.manual_seed(0)
        branch.maps = nn.ParameterList(torch.randn(shape) for shape in shapes)
    spec = Muon(lr=0.05, weight_decay=0.1)
    optimizer, torchs = build_optimizer(spec, ours), torch.optim.Muon(theirs.parameters(), lr=0.05, weight_decay=0.1)
    for i in range(3):
        with_gradients(ours, i), with_gradients(theirs, i)
        optimizer.step()
        torchs.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.01, atol=0.01)
        torch.testing.assert_close(
            optimizer.state_dict()[f"{optimizer.names[a]}/momentum_buffer"], torchs.state[b]["momentum_buffer"]
        )


READS = ["cross_attention(2)", "feed_forward"]
SEES = ["attention(2, mask=full)", "feed_forward"]
STACKS: dict[str, dict[str, object]] = {
    "encoder": {
        "blocks": [{"branches": ["attention(2)", *READS]}],
        "encoder": {"context_length": 8, "frontend": {"kind": "text", "vocab_size": 5}, "blocks": [{"branches": SEES}]},
    },
    "latents": {
        "blocks": [{"branches": READS}],
        "latents": {"count": 4, "width": 6, "num_layers": 2, "blocks": [{"branches": READS}, {"branches": SEES}]},
        "queries": {},
        "head": "tokens(3)",
    },
}


@pytest.mark.parametrize("stack", STACKS)
def test_muon_has_the_matrices_of_every_stack(stack: str) -> None:
    model = build(
        Model.parse({"width": 8, "context_length": 8, "frontend": {"kind": "text", "vocab_size": 5}, **STACKS[stack]}),
        0,
    )
    optimizer = build_optimizer(Muon(), model)
    with_gradients(model, 0)
    optimizer.step()
    under = {
        name.removesuffix("/momentum_buffer") for name in optimizer.state_dict() if name.endswith("/momentum_buffer")
    }
    inside = {
        name
        for name, p in model.named_parameters()
        if ".branches." in name and name.endswith(".weight") and p.ndim == 2
    }
    assert under == inside
    assert {name.split(".")[0] for name in under} == {stack, "blocks"}


@pytest.mark.parametrize(
    ("branch", "tables"),
    [
        ("attention(2, relative=t5)", ["table"]),
        ({"kind": "attention", "num_heads": 2, "relative": "shaw(3, values=true)"}, ["key_table", "value_table"]),
        ("disentangled_attention(2)", ["table"]),
        ("relative_attention(2, by_type=true)", ["vectors"]),
    ],
)
def test_tables_inside_a_branch_are_no_maps(branch: object, tables: list[str]) -> None:
    spec = Model.parse(
        {
            "width": 8,
            "context_length": 8,
            "frontend": {"kind": "text", "vocab_size": 5},
            "blocks": [{"branches": [branch]}],
        }
    )
    model = build(spec, 0)
    left = {
        name
        for name, p in model.named_parameters()
        if name.startswith("blocks.") and p.ndim == 2 and p not in matrices(model)
    }
    assert sorted(name.rpartition(".")[2] for name in left) == tables
    total = cost(spec).total
    assert total.matrices == sum(p.numel() for p in matrices(model))


def test_a_state_of_another_rule_is_refused() -> None:
    optimizer = build_optimizer(Muon(), Little())
    state = {"blocks.0.up.weight/exp_avg": torch.zeros(12, 6)}
    with pytest.raises(UserError, match=r"'blocks\.0\.up\.weight/exp_avg' .* momentum_buffer"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("spec", [AdamW(), Muon()])
def test_a_state_that_went_through_a_file_goes_on_bit_for_bit(spec: Optimizer, tmp_path: Path) -> None:
    straight, stopped = Little(), Little()
    kept = build_optimizer(spec, straight)
    first = build_optimizer(spec, stopped)
    for i in range(3):
        for model, optimizer in ((straight, kept), (stopped, first)):
            with_gradients(model, i)
            optimizer.step(0.5)
    write_tensors(tmp_path / "optimizer.safetensors", first.state_dict(), {})
    second = build_optimizer(spec, stopped)
    second.load_state_dict(read_tensors(tmp_path / "optimizer.safetensors")[0])
    assert second.state_dict().keys() == kept.state_dict().keys()
    for key, value in kept.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key
    for i in range(3, 6):
        for model, optimizer in ((straight, kept), (stopped, second)):
            with_gradients(model, i)
            optimizer.step(0.25)
    for name, p in straight.named_parameters():
        assert torch.equal(p, stopped.get_parameter(name)), name


def test_a_fresh_state_forgets_what_was_there() -> None:
    model = Little()
    optimizer = build_optimizer(AdamW(), model)
    with_gradients(model, 0)
    optimizer.step()
    optimizer.load_state_dict({})
    assert optimizer.state_dict() == {}


def test_a_state_of_another_model_is_refused() -> None:
    model = Little()
    optimizer = build_optimizer(AdamW(), model)
    with pytest.raises(
        UserError, match=r"'norm\.weigth/exp_avg', but the model has no such parameter.*did you mean 'norm\.weight'"
    ):
        optimizer.load_state_dict({"norm.weigth/exp_avg": torch.zeros(6)})
    with pytest.raises(UserError, match=r"shape \[5\], but its parameter has the shape \[6\]"):
        optimizer.load_state_dict({"norm.weight/exp_avg": torch.zeros(5)})


def test_frozen_parameters_are_left_alone() -> None:
    model = Little()
    model.frontend.weight.requires_grad_(False)
    optimizer = build_optimizer(Muon(), model)
    assert "frontend.weight" not in optimizer.names.values()
    before = model.frontend.weight.clone()
    with_gradients(model, 0)
    optimizer.step()
    assert torch.equal(before, model.frontend.weight)


def test_an_optimiser_without_a_rule_is_named() -> None:
    class Secret(Optimizer):
        lr: float = 1.0

    with pytest.raises(UserError, match=r"@implements\(Secret\)"):
        build_optimizer(Secret(), Little())
