"""Mixtures of experts against loops over positions, the networks that they stand for, and their balance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.costs.cost import cost
from qkv.costs.counting.losses import backward, summed_loss
from qkv.data.batching.batch import Batch
from qkv.layers.context import Context
from qkv.layers.position_wise.experts import MixtureOfExperts
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.ops.experts import balance_loss, load, mixed
from qkv.spec import branches as spec
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Reversible
from qkv.spec.position_wise.experts import BalanceBias, BalanceLoss, NoBalance
from qkv.spec.position_wise.experts import MixtureOfExperts as Part

WIDTH, EXPERTS = 6, 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(part: spec.Branch) -> Any:
    branch = build_branch(part, WIDTH).double()
    for number, parameter in enumerate(branch.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=number))
    return branch.eval()


def applied(branch: Any, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    return branch(x, Context(torch.arange(x.shape[1])[None], lengths))[0]


@pytest.mark.parametrize("k", [1, 3, EXPERTS])
def test_sorted_positions_give_what_a_loop_gives(k: int) -> None:
    """Some experts are chosen by all positions, others by none."""
    x, maps = normal(7, WIDTH).requires_grad_(), normal(EXPERTS, WIDTH, WIDTH, seed=1).requires_grad_()
    weights = normal(7, k, seed=2).requires_grad_()
    chosen = torch.stack([torch.arange(k) * (t > 1) + (torch.arange(k) + t) % EXPERTS * (t <= 1) for t in range(7)])
    found = mixed(x, chosen, weights, [lambda v, e=e: (v @ maps[e]).tanh() for e in range(EXPERTS)])
    rows = [sum(weights[t, i] * (x[t] @ maps[chosen[t, i]]).tanh() for i in range(k)) for t in range(7)]
    seen = normal(7, WIDTH, seed=3)
    torch.testing.assert_close(found, torch.stack(rows))  # type: ignore[arg-type]
    got, expected = (
        torch.autograd.grad((out * seen).sum(), (x, maps, weights))
        for out in (found, torch.stack(rows))  # type: ignore[arg-type]
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_experts_that_nobody_chose_are_not_called_without_gradients() -> None:
    called = []

    def expert(e: int) -> Any:
        return lambda v: called.append(e) or v

    with torch.no_grad():
        mixed(normal(2, WIDTH), torch.tensor([[1, 3], [3, 1]]), normal(2, 2), [expert(e) for e in range(EXPERTS)])
    assert called == [1, 3]


@pytest.mark.parametrize("gated", [True, False])
def test_one_expert_is_a_feed_forward_network(gated: bool) -> None:
    mixture = built(Part(num_experts=1, top_k=1, hidden=7, gated=gated, activation="gelu", bias=True))
    kind = spec.GatedFeedForward if gated else spec.FeedForward
    network = built(kind(hidden=7, activation="gelu", bias=True))
    network.load_state_dict(mixture.experts[0].state_dict())
    torch.testing.assert_close(applied(mixture, normal(2, 4, WIDTH)), applied(network, normal(2, 4, WIDTH)))


def test_all_experts_with_equal_scores_are_their_mean() -> None:
    mixture, x = built(Part(num_experts=EXPERTS, top_k=EXPERTS, hidden=7)), normal(2, 4, WIDTH)
    mixture.router.weight.data.zero_()
    torch.testing.assert_close(
        applied(mixture, x), torch.stack([applied(expert, x) for expert in mixture.experts]).mean(0)
    )


def test_shared_experts_are_networks_side_by_side() -> None:
    part, x = Part(num_experts=2, top_k=1, num_shared=3, hidden=4, gated=False), normal(2, 4, WIDTH)
    mixture, without = built(part), built(part.changed(num_shared=0))
    without.load_state_dict({k: v for k, v in mixture.state_dict().items() if not k.startswith("shared")})
    added = torch.zeros_like(x)
    for i in range(3):
        own = slice(4 * i, 4 * (i + 1))
        added += torch.nn.functional.silu(x @ mixture.shared.up.weight[own].T) @ mixture.shared.down.weight[:, own].T
    torch.testing.assert_close(applied(mixture, x), applied(without, x) + added)


def loop_of_balance(scores: Tensor, chosen: Tensor, lengths: list[int]) -> Tensor:
    """E Σ_e f_e p_e, one position after the other."""
    count = scores.shape[-1]
    share, mean, real = [0.0] * count, [torch.zeros((), dtype=scores.dtype)] * count, sum(lengths)
    for b, length in enumerate(lengths):
        for i in range(length):
            for e in chosen[b, i].tolist():
                share[e] += 1 / (real * chosen.shape[-1])
            for e in range(count):
                mean[e] = mean[e] + scores[b, i, e] / scores[b, i].sum() / real
    return count * sum(f * p for f, p in zip(share, mean, strict=True))


def test_balance_loss_is_its_formula_and_ignores_padding() -> None:
    scores, lengths = normal(3, 4, EXPERTS).sigmoid(), [4, 1, 0]
    chosen = scores.topk(2).indices
    valid = torch.arange(4) < torch.tensor(lengths)[:, None]
    torch.testing.assert_close(balance_loss(scores, chosen, valid), loop_of_balance(scores, chosen, lengths))
    torch.testing.assert_close(balance_loss(scores, chosen), loop_of_balance(scores, chosen, [4, 4, 4]))
    assert load(chosen, EXPERTS, valid).sum() == 2 * 5


def test_an_even_load_has_the_smallest_balance_loss() -> None:
    even = torch.full((1, 4, 4), 0.25)
    assert balance_loss(even, torch.arange(4).view(1, 4, 1)) == 1
    assert balance_loss(torch.eye(4)[[0] * 4][None], torch.zeros(1, 4, 1, dtype=torch.long)) == 4


def model(balance: Any, **block: Any) -> Transformer:
    mixture = Part(num_experts=4, top_k=2, hidden=5, balance=balance)
    fields = {"width": WIDTH, "num_layers": 2, "context_length": 8, "frontend": Text(vocab_size=9), "init_std": 0.5}
    return build(Model(blocks=(Block(branches=(mixture,), **block),), **fields)).double().train()


def batch(rows: int = 3) -> Batch:
    ids = torch.randint(9, (rows, 5), generator=torch.Generator().manual_seed(rows))
    lengths = torch.tensor([5, 2, 4][:rows])
    targets = ids.roll(-1, 1).masked_fill(torch.arange(5) >= lengths[:, None], -100)
    return Batch.of(Signal(ids, lengths=lengths), targets, None, int(lengths.sum()))


def gradients(net: Transformer, batches: list[Batch]) -> list[Tensor]:
    net.zero_grad()
    backward(net, summed_loss, batches, sum(b.num_targets for b in batches), torch.autocast("cpu", enabled=False))
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_the_loss_of_a_branch_is_part_of_the_gradient_and_not_of_the_value() -> None:
    """Against the sum of both losses, computed from what a tap sees of the router's input."""
    net, given = model(BalanceLoss(coefficient=0.7)), [batch(3), batch(2)]
    found = gradients(net, given)
    plain = model(NoBalance())
    plain.load_state_dict(net.state_dict())
    count, total = sum(b.num_targets for b in given), torch.zeros((), dtype=torch.float64)
    values = []
    for one in given:
        own: list[Tensor] = []

        def keep(module: Any, read: Any, scores: Tensor, own: list[Tensor] = own, one: Batch = one) -> None:
            s = scores.softmax(-1)
            own.append(loop_of_balance(s, s.topk(2).indices, one.input.lengths.tolist()))

        hooks = [branch.router.register_forward_hook(keep) for branch in plain.branches]  # type: ignore[union-attr]
        nats = summed_loss(plain, one)
        total = total + nats / count + 0.7 * one.num_targets / count * sum(own)
        values.append((nats, summed_loss(net, one)))
        for hook in hooks:
            hook.remove()
    for got, expected in zip(found, torch.autograd.grad(total, list(plain.parameters())), strict=True):
        torch.testing.assert_close(got, expected)
    for nats, same in values:
        assert nats == same


@pytest.mark.parametrize("block", [{"residual": Reversible()}, {}], ids=["reversible", "recomputed"])
def test_the_loss_of_a_branch_reaches_the_gradient_where_activations_are_computed_again(block: dict[str, Any]) -> None:
    head = {"head": {"kind": "language_model", "tied": False}} if block else {}
    mixture = Part(num_experts=4, hidden=5, balance=BalanceLoss(coefficient=0.7))
    fields = {"width": WIDTH, "num_layers": 2, "context_length": 8, "frontend": Text(vocab_size=9), "init_std": 0.5}
    net = build(Model.parse({**fields, **head, "blocks": [Block(branches=(mixture,), **block)]})).double().train()
    net.recompute_blocks(not block)
    found = gradients(net, [batch()])
    net.recompute_blocks(False)
    seen = Recorder("residual_before")  # with a tap, reversible blocks keep their activations
    loss = summed_loss(net, batch(), seen) / batch().num_targets
    for got, expected in zip(found, torch.autograd.grad(loss, list(net.parameters())), strict=True):
        torch.testing.assert_close(got, expected)


def test_evaluation_has_no_loss_of_a_branch() -> None:
    net, plain = model(BalanceLoss(coefficient=0.7)).eval(), model(NoBalance()).eval()
    plain.load_state_dict(net.state_dict())
    for got, expected in zip(gradients(net, [batch()]), gradients(plain, [batch()]), strict=True):
        assert torch.equal(got, expected)


def test_the_bias_moves_against_the_load_after_a_step_alone() -> None:
    net = model(BalanceBias(rate=0.25))
    routers = Recorder("router")
    for _ in range(2):
        summed_loss(net, batch(), routers).backward()
    balances = [branch.balance for branch in net.branches]  # type: ignore[union-attr]
    assert all(not balance.bias.any() for balance in balances)
    net.after_step()
    for i, balance in enumerate(balances):
        weights = routers.calls(f"blocks.{i}.branches.0.router")[-1]
        chosen_by = sum((weights[b, :n] > 0).sum(0) for b, n in enumerate(batch().input.lengths.tolist()))
        assert balance.bias.tolist() == (0.25 * (chosen_by.double().mean() - chosen_by).sign()).tolist()  # type: ignore[union-attr]
    before = [balance.bias.clone() for balance in balances]
    net.after_step()  # no batch since the last step: an even load
    assert all(torch.equal(balance.bias, bias) for balance, bias in zip(balances, before, strict=True))
    assert [name for name in net.state_dict() if "balance" in name] == [
        f"blocks.{i}.branches.0.body.balance.bias" for i in range(2)
    ]


def test_a_bias_decides_the_choice_and_not_the_weights() -> None:
    mixture, x, seen = (
        built(Part(num_experts=3, top_k=1, balance=BalanceBias())),
        normal(1, 4, WIDTH),
        Recorder("router"),
    )
    mixture.balance.bias.copy_(torch.tensor([0.0, 5.0, 0.0]))
    mixture.assign_name("mixture")
    mixture(x, Context(torch.arange(4)[None], tap=seen))
    scores = (x @ mixture.router.weight.T).softmax(-1)
    expected = torch.zeros_like(scores)
    expected[..., 1] = scores[..., 1]
    torch.testing.assert_close(seen["mixture.router"], expected)


def test_a_frozen_router_keeps_its_bias() -> None:
    net = model(BalanceBias(rate=0.25))
    for p in net.parameters():
        p.requires_grad = False
    summed_loss(net, batch())
    net.after_step()
    assert not any(branch.balance.bias.any() for branch in net.branches)  # type: ignore[union-attr]


def test_projections_of_all_experts_shrink_with_depth() -> None:
    deep = Model(width=64, num_layers=50, frontend=Text(vocab_size=9), blocks=(Block(branches=(Part(num_shared=1),)),))
    branch = build(deep).requires_grad_(False).branches[0]
    assert isinstance(branch, MixtureOfExperts)
    for network in (*branch.experts, branch.shared):
        assert float(network.down.weight.std()) == pytest.approx(0.02 / 50**0.5, rel=0.1)  # type: ignore[union-attr]
        assert float(network.gate_up.weight.std()) == pytest.approx(0.02, rel=0.1)  # type: ignore[union-attr]


def test_cost_counts_the_experts_that_are_chosen() -> None:
    def of(part: spec.Branch, rows: int = 1) -> Any:
        return cost(Model(width=32, frontend=Text(vocab_size=9), blocks=(Block(branches=(part,)),)), rows, 8)

    mixture, alone = of(Part(num_experts=16, top_k=2, hidden=20)), of(spec.GatedFeedForward(hidden=20))
    expert = 3 * 32 * 20
    assert mixture.parameters == alone.parameters + 15 * expert + 16 * 32
    assert mixture.active_parameters == mixture.parameters - 14 * expert
    assert alone.active_parameters == alone.parameters
    assert mixture.forward_flops == alone.forward_flops + 8 * 2 * (expert + 16 * 32)
    assert mixture.to_dict()["active_parameters"] == mixture.active_parameters
    read = [of(Part(num_experts=16, top_k=2, hidden=20), rows) for rows in (1, 3, 100)]
    states = [found.state_bytes() for found in read]
    assert [found.step_bytes() - state for found, state in zip(read, states, strict=True)] == [
        read[2].step_bytes() - states[2] - 4 * idle * expert for idle in (14, 10, 0)
    ]


def test_more_experts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(SpecError, match="5 experts cannot be chosen among 4; give at most 4"):
        Part.parse({"num_experts": 4, "top_k": 5})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_experts": 6, "groups": 4}, "6 experts cannot form 4 groups of equal size"),
        ({"groups": 2, "top_groups": 3}, "3 groups cannot be chosen among 2; give at most 2"),
        ({"groups": 4, "top_groups": 1, "top_k": 3}, "1 groups have 2 experts, fewer than the 3 to choose"),
        ({"groups": 8, "top_groups": 2}, "a group has 1 experts, fewer than the 2 that rank it"),
        ({"shared_gate": True}, "there are no shared experts; give num_shared, or leave it out"),
        ({"shared_scale": 0.5}, "there are no shared experts; give num_shared, or leave it out"),
        ({"norm": "batch_norm"}, "batch_norm normalises over positions; use another norm"),
        ({"gated": False, "limit": 2.0}, "it applies only to gated experts; leave it out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Part.parse(fields)


def test_without_a_choice_of_groups_their_number_changes_nothing() -> None:
    part = Part(num_experts=8, groups=4, top_groups=4, num_shared=2, hidden=3)
    assert part.canonical(WIDTH) == Part(num_experts=8, num_shared=1, shared_hidden=6, hidden=3).canonical(WIDTH)
    parts = Part(num_experts=8, groups=4, top_groups=2), Part(num_experts=8, groups=4, top_groups=2, group_best=1)
    assert parts[0].canonical(WIDTH) != parts[1].canonical(WIDTH)
