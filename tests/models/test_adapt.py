"""Parameters that learn, chosen by path; adapters in whole models, including parts that use a matrix by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qkv.layers.linear.lora import adapters, merged
from qkv.models.build import build
from qkv.models.edit.adapt import adapt, rate_factors
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.training import Training
from qkv.system.errors import UserError

FORMS: dict[str, dict[str, Any]] = {
    "decoder": {"blocks": [{"branches": ["attention(2)", "feed_forward(16)"]}]},
    "classifier": {
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}],
        "head": "classification(3)",
    },
    "disentangled": {
        "blocks": [{"branches": ["disentangled_attention(2)", "feed_forward(16)"]}],
        "head": "classification(3)",
    },
    "relative": {"blocks": [{"branches": ["relative_attention(2)", "feed_forward(16)"]}], "head": "classification(3)"},
    "gru": {"blocks": [{"branches": ["gru", "feed_forward(16)"]}]},
}
TARGETS = {"gru": ["output", "up"]}


def model_of(form: str) -> Transformer:
    spec = {
        "width": 8,
        "num_layers": 3,
        "context_length": 12,
        "frontend": {"kind": "text", "vocab_size": 11},
        **FORMS[form],
    }
    return build(Model.parse(spec), seed=1)


def learning(form: str, **training: Any) -> tuple[Transformer, set[str]]:
    model = model_of(form)
    adapt(model, Training.parse(training))
    return model, {name for name, p in model.named_parameters() if p.requires_grad}


def tops(names: set[str]) -> set[str]:
    return {".".join(name.split(".")[: 2 if name.startswith("blocks") else 1]) for name in names}


def test_whole_lets_all_learn() -> None:
    model, names = learning("decoder")
    assert names == {name for name, _ in model.named_parameters()}


def test_head_alone() -> None:
    assert learning("classifier", adapt="head")[1] == {"head.output.weight", "head.output.bias"}
    with pytest.raises(UserError, match="the head's matrix is the token embedding table"):
        learning("decoder", adapt="head")


def test_the_last_blocks() -> None:
    assert tops(learning("classifier", adapt="last(2)")[1]) == {"head", "norm", "blocks.1", "blocks.2"}
    with pytest.raises(UserError, match="more layers than the 3"):
        learning("classifier", adapt="last(4)")


def test_lora_learns_its_matrices_and_a_head_of_the_task() -> None:
    ends = {"qkv.lora_a", "qkv.lora_b", "output.lora_a", "output.lora_b"}
    _, names = learning("decoder", adapt="lora(2)")
    assert {".".join(name.split(".")[-2:]) for name in names} == ends
    assert len(names) == 12
    _, names = learning("classifier", adapt={"kind": "lora", "rank": 2, "targets": ["up"], "whole": ["frontend.table"]})
    assert tops(names) == {"blocks.0", "blocks.1", "blocks.2", "head", "frontend"}
    assert "frontend.positions.table" not in names


def test_frozen_parameters_stay_out_of_every_choice() -> None:
    model, names = learning("decoder", frozen=["frontend", "blocks.[01].*"])
    assert tops(names) == {"blocks.2", "norm"}
    _, names = learning("classifier", adapt="lora(2)", frozen=["blocks.*.lora_a"])
    assert not any(name.endswith("lora_a") for name in names)
    model(torch.tensor([[1, 2, 3]]))[0].sum().backward()
    assert all(
        p.grad is None for name, p in model.named_parameters() if tops({name}) <= {"frontend", "blocks.0", "blocks.1"}
    )


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        (
            {"frozen": ["blocks.0.branchs"]},
            r"training\.frozen: no parameter has a path like 'blocks.0.branchs'; did you mean 'blocks.0.branches'",
        ),
        ({"frozen": ["*"]}, r"leave no trainable parameter"),
        (
            {"adapt": {"kind": "lora", "targets": ["qkw"]}},
            r"training\.adapt\.targets: no linear map .* ends in 'qkw'; did you mean 'qkv'",
        ),
        ({"adapt": {"kind": "lora", "whole": ["frontnd"]}}, r"training\.adapt\.whole: .* did you mean 'frontend'"),
    ],
    ids=["path", "all", "target", "whole"],
)
def test_what_meets_nothing_is_refused(training: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        learning("classifier", **training)


def test_of_rates_the_first_pattern_counts() -> None:
    names = ["frontend.table", "blocks.0.a.weight", "blocks.1.a.weight", "head.bias"]
    factors = rate_factors({"blocks.1": 0.5, "blocks.*": 0.25, "frontend": 0.125}, names)
    assert [factors[name] for name in names] == [0.125, 0.25, 0.5, 1.0]
    with pytest.raises(UserError, match=r"training\.rates: .*'blocs.1'; did you mean 'blocks.1'"):
        rate_factors({"blocs.1": 0.5}, names)


@pytest.mark.parametrize("form", FORMS)
def test_a_merged_model_computes_what_the_adapted_one_does(form: str) -> None:
    model, _ = learning(form, adapt={"kind": "lora", "rank": 2, "targets": TARGETS.get(form, ["qkv", "output"])})
    before = model_of(form)
    ids = torch.tensor([[1, 4, 2, 9, 3], [7, 7, 1, 0, 5]])
    torch.testing.assert_close(model(ids)[0], before(ids)[0], rtol=1e-5, atol=1e-6)
    torch.manual_seed(0)
    for module in adapters(model).values():
        nn.init.normal_(module.lora_b, std=0.5)
    apart = model(ids)[0]
    assert (apart - before(ids)[0]).abs().max() > 1e-3
    with merged(model):
        torch.testing.assert_close(model(ids)[0], apart, rtol=1e-4, atol=1e-5)


def test_adapters_are_drawn_from_the_seed_alone() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.rand(seed)
        drawn.append(next(iter(adapters(learning("decoder", adapt="lora(2)", seed=seed)[0]).values())).lora_a)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
