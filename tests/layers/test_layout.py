"""Declared weight layouts: of every branch, and of an outside mixer adapted, optimised and transferred by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import Field
from tests.contracts.samples import SAMPLES, WIDTH
from torch import Tensor, nn

from qkv.interop.mapping.conversions import QKV, cut_of
from qkv.layers.branch import Branch, linear_maps, matrices
from qkv.layers.context import Context
from qkv.layers.layout import MATRIX, ROWS, WHOLE, Declared, Layout, Layouts, layouts, matrix
from qkv.layers.linear.lora import LowRank
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.models.edit.adapt import adapt
from qkv.models.edit.transplant import in_words, transplant
from qkv.models.transformer import Transformer
from qkv.spec import branches
from qkv.spec.model import Model
from qkv.spec.models.adapt import LoRA
from qkv.spec.register import implements
from qkv.spec.training import Muon, Training
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_parameters_outside_of_linear_layers_are_declared(kind: str) -> None:
    for sample in SAMPLES[kind]:
        built = build_branch(sample, WIDTH)
        found, named = layouts(built), set[str]()
        for path, module in built.named_modules():
            if isinstance(module, Declared):
                named |= {f"{path}.{name}".strip(".") for name in module.layouts()}
        for name, parameter in built.named_parameters():
            linear = isinstance(built.get_submodule(name.rpartition(".")[0]), nn.Linear)
            assert parameter.ndim < 2 or linear or name in named, name
            assert (found[name].kind == "matrix") <= (parameter.ndim == 2)


def test_heads_of_every_projection_to_queries_keys_and_values() -> None:
    part = branches.Attention(num_heads=6, num_kv_heads=2, head_dim=4, value_dim=3)
    found = layouts(build_branch(part, WIDTH))
    assert [(p.name, p.size, p.heads) for p in found["qkv.weight"].out] == [("q", 24, 6), ("k", 8, 2), ("v", 6, 2)]
    assert found["qkv.bias"] == Layout("whole", found["qkv.weight"].out)
    assert [(p.size, p.heads) for p in found["output.weight"].into] == [(18, 6)]


class Odd(branches.Branch, kind="odd_heads"):
    """Mixer outside of the package: values, keys and queries in one matrix, in this order, and a table of codes."""

    heads: int = 4
    groups: int = 4
    codes: int = Field(default=3, gt=0)


@implements(Odd)
class _Odd(Branch):
    """(q · k) v of each position, of group means."""

    def __init__(self, part: Odd, width: int):
        super().__init__(part, width)
        self.part: Odd = part
        self.vkq = nn.Linear(width, (2 * part.groups + part.heads) * 2)
        self.codes = nn.Parameter(torch.zeros(part.codes, width))
        self.lookup = nn.Linear(width, 7, bias=False)

    def layouts(self) -> Layouts:
        kept, asked = (self.part.groups * 2, 2), (self.part.heads * 2, 2)
        return {"vkq": matrix(v=kept, k=kept, q=asked), "codes": ROWS, "lookup": WHOLE}

    def forward(self, x: Tensor, context: Context, state: Any = None) -> tuple[Tensor, Any]:
        every = self.part.heads // self.part.groups
        v, k, q = self.vkq(x).split([self.part.groups * 2, self.part.groups * 2, self.part.heads * 2], -1)
        v, k = (t.unflatten(-1, (-1, 2)).repeat_interleave(every, -2) for t in (v, k))
        y = (q.unflatten(-1, (-1, 2)) * k).sum(-1, keepdim=True) * v
        return y.flatten(-2) @ self.codes.new_ones(self.part.heads * 2, self.width) + self.codes.sum(
            0
        ) + self.lookup.weight.sum(0), state


branches.Branch.kinds().pop("odd_heads")  # other tests ask for all kinds that there are


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(branches.Branch.kinds(), "odd_heads", Odd)


def model(seed: int, **fields: int) -> Transformer:
    branch = {"kind": "odd_heads", **fields}
    described = {
        "width": 6,
        "frontend": {"kind": "text", "vocab_size": 5},
        "blocks": [{"branches": [branch, "feed_forward(4)"]}],
    }
    built = build(Model.parse(described), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return built


BODY = "blocks.0.branches.0.body"


def test_a_mixer_outside_of_the_package_is_adapted_and_optimised_by_its_declaration() -> None:
    built = model(1)
    assert linear_maps(built) == [f"{BODY}.vkq", "blocks.0.branches.1.body.up", "blocks.0.branches.1.body.down"]
    weights = {name for name, p in built.named_parameters() if p in matrices(built)}
    assert weights == {f"{path}.weight" for path in linear_maps(built)}
    first, others = build_optimizer(Muon(), built).parts
    assert {p for group in first.param_groups for p in group["params"]} == matrices(built)
    assert built.get_parameter(f"{BODY}.codes") in {p for group in others.param_groups for p in group["params"]}
    with pytest.raises(UserError, match="no linear map of a block has a path that ends in 'lookup'"):
        adapt(built, Training(adapt=LoRA(targets=("lookup",))))
    adapt(built, Training(adapt=LoRA(rank=2, targets=("vkq",))))
    assert isinstance(built.get_submodule(f"{BODY}.vkq"), LowRank)
    assert layouts(built)[f"{BODY}.vkq.weight"].out == layouts(model(1))[f"{BODY}.vkq.weight"].out


def test_a_mixer_outside_of_the_package_is_transferred_by_its_declaration() -> None:
    old, new = model(1, groups=2), model(2, groups=4, codes=5)
    before = new.state_dict()[f"{BODY}.codes"][3:].clone()
    found = dict(in_words(transplant(old, new)))
    assert found["blocks.*.branches.0.body.vkq.weight"] == "v, k: each head copied 2 times; q: kept"
    assert found["blocks.*.branches.0.body.codes"] == "3 of 5 rows kept"
    assert torch.equal(new.state_dict()[f"{BODY}.codes"][3:], before)
    with torch.no_grad():
        new.get_parameter(f"{BODY}.codes")[3:] = 0
    ids = torch.tensor([[1, 4, 2]])
    torch.testing.assert_close(new(ids)[0], old(ids)[0], rtol=1e-5, atol=1e-5)


def test_a_mixer_outside_of_the_package_is_cut_by_its_declaration() -> None:
    weight = torch.arange(16.0)[:, None].expand(16, 6)
    cut = cut_of(layouts(model(1, groups=2))[f"{BODY}.vkq.weight"])
    assert (cut.sizes, cut.groups) == ((4, 4, 8), 2)
    assert [part[:, 0].tolist() for part in QKV.outward(weight, cut)] == [[0, 1, 2, 3], [4, 5, 6, 7], [*range(8, 16)]]


class _Wrong(Declared):
    def __init__(self, said: Layouts):
        super().__init__()
        self.said, self.map, self.kernel = said, nn.Linear(3, 4), nn.Parameter(torch.zeros(2, 3, 4))

    def layouts(self) -> Layouts:
        return self.said


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mop": MATRIX}, "_Wrong declares the layout of 'mop', but has no such weight"),
        (
            {"kernel": MATRIX},
            r"kernel: declared as a matrix, but it has the shape \[2, 3, 4\]; declare it as whole or as rows",
        ),
        (
            {"map": matrix(gate=2, up=3)},
            r"map.weight: the pieces gate, up have 5 features in all, but the shape is \[4, 3\]",
        ),
        ({"map": matrix(q=(4, 3))}, "map.weight: 4 features of q are not a multiple of the 3 per head"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(said: Layouts, message: str) -> None:
    with pytest.raises(UserError, match=message):
        layouts(_Wrong(said))
