"""The weights that a model starts with."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.stacks import SEVEN, ids, model, seven

from qkv.layers.linear.linear import Linear
from qkv.layers.norms import BatchNorm
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.lens.capture.edits import replace
from qkv.models.build import build
from qkv.models.families.presets import PRESETS, preset
from qkv.models.transformer import Transformer
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import BatchNorm as BatchNormSpec
from qkv.system.errors import UserError


def wide(**fields: object) -> Transformer:
    """Large enough for its standard deviations to be measured."""
    return build(
        Model(width=256, num_layers=3, context_length=64, frontend=Text(vocab_size=500), init_std=0.05, **fields)
    )  # type: ignore[arg-type]


def test_matrices_start_with_the_given_standard_deviation_and_endings_with_less() -> None:
    built = wide(head=LanguageModelHead(tied=False))
    endings = {id(branch.ending()) for branch in built.branches}
    assert len(built.branches) == len(endings) == 6
    for module in built.modules():
        if isinstance(module, Linear):
            expected = 0.05 / math.sqrt(6) if id(module) in endings else 0.05
            assert float(module.weight.data.std()) == pytest.approx(expected, rel=0.03)
            assert float(module.weight.data.mean()) == pytest.approx(0.0, abs=0.001)
    for table in (built.frontend.table, built.frontend.positions.table, built.head.weight):  # type: ignore[union-attr]
        assert float(table.data.std()) == pytest.approx(0.05, rel=0.03)  # type: ignore[union-attr,operator]


def test_norms_start_as_the_identity_and_biases_at_zero() -> None:
    built = wide(blocks=(Block(norm=BatchNormSpec()),), norm=BatchNormSpec())
    named = dict(built.named_parameters())
    norms = {name for name, module in built.named_modules() if isinstance(module, BatchNorm)}
    for name, value in named.items():
        if name.endswith("bias"):
            assert not value.any()
        elif name.rsplit(".", 1)[0] in norms:
            assert bool((value == 1).all())
    assert len(norms) == 7


def test_mixers_with_weights_of_their_own_keep_the_variance() -> None:
    built = build(Model(width=128, frontend=Text(vocab_size=5), blocks=(Block(branches=SEVEN),)))
    modules = {branch.spec.kind: branch for branch in built.branches}
    convolution, gru = modules["causal_convolution"], modules["gru"].cells[0]  # type: ignore[index]
    assert float(convolution.weight.data.std()) == pytest.approx((3 * 128) ** -0.5, rel=0.03)  # type: ignore[operator,union-attr]
    assert float(gru.input_weight.data.std()) == pytest.approx(128**-0.5, rel=0.03)  # type: ignore[operator,union-attr]
    for gate in gru.hidden_weight.chunk(3):  # type: ignore[operator,union-attr]
        torch.testing.assert_close(gate @ gate.t(), torch.eye(128), atol=1e-4, rtol=0.0)


def test_every_parameter_is_written() -> None:
    """In the tests uninitialised memory is NaN."""
    built = build(seven(head=LanguageModelHead(tied=False, bias=True)))
    assert all(bool(p.isfinite().all()) for p in built.parameters())
    assert bool(built(ids())[0].isfinite().all())


def test_a_seed_is_all_that_the_weights_depend_on() -> None:
    torch.manual_seed(1)
    first = build(seven(), seed=5).state_dict()
    torch.manual_seed(2)
    again, other = build(seven(), seed=5).state_dict(), build(seven(), seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["frontend.table"], other["frontend.table"])


def test_building_leaves_the_random_state_of_the_program_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    build(seven(), seed=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_paths_of_parameters_are_paths_of_the_spec() -> None:
    built = build(model(Block(), num_layers=2))
    assert built.spec.layers[1].branches[0].kind == "attention"
    assert {
        "frontend.table",
        "frontend.positions.table",
        "blocks.1.branches.0.body.qkv.weight",
        "norm.weight",
    } <= built.state_dict().keys()
    branches = [f"blocks.{i}.branches.{j}.output" for i in range(2) for j in range(2)]
    tap = Recorder("output")
    built(ids(), tap=tap)
    assert [path for path, _ in tap] == ["frontend.output", *branches, "norm.output", "head.output"]


def test_what_a_tap_returns_takes_the_place_of_what_was_computed() -> None:
    built = build(model(num_layers=2)).eval()
    with torch.no_grad():
        plain = built(ids())[0]
        silent = built(ids(), tap=replace("blocks.*.branches.*.output", 0.0))[0]
        alone = built.head(built.norm(*built.embed(Signal(ids()))))
    torch.testing.assert_close(silent, alone)
    assert not torch.allclose(silent, plain, atol=1e-4)


@pytest.mark.parametrize(("name", "parameters"), [("gpt2", 124_439_808), ("gpt3", 174_604_259_328)])
def test_published_sizes_are_counted_without_allocating(name: str, parameters: int) -> None:
    with torch.device("meta"):
        built = Transformer(preset(name))
    assert sum(p.numel() for p in built.parameters()) == parameters


def test_the_sizes_of_the_first_transformer() -> None:
    """Each block: 4 D² + 4 D of attention, 2 D F + F + D of feed-forward, two norms of 2 D; one table."""
    for name, (width, hidden) in {"base": (512, 2048), "big": (1024, 4096)}.items():
        with torch.device("meta"):
            built = Transformer(preset(name))
        block = 4 * width * width + 4 * width + 2 * width * hidden + hidden + width + 4 * width
        assert sum(p.numel() for p in built.parameters()) == 6 * block + 37000 * width


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"there is no preset 'gtp2'; did you mean 'gpt2'\?"):
        preset("gtp2")
    assert all(PRESETS[name]().causal for name in PRESETS)
