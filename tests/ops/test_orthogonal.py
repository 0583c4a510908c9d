"""Every path of orthogonalisation against the polynomial of singular values in float64; what decides the path."""

from __future__ import annotations

import pytest
import torch
from tests.ops.clock import forget_choices, inject
from tests.ops.compare import assert_same
from torch import Tensor

from qkv.ops.orthogonal import choose, products, reference
from qkv.ops.selection import choices, onednn
from qkv.ops.selection.choices import Choice

TWINS = {
    name: pytest.param(
        twin, marks=pytest.mark.skipif("oneDNN" in name and not onednn.available(), reason="no exact oneDNN here")
    )
    for name, twin in products.TWINS.items()
}
# Five steps of bf16, whose products keep eight bits of their factors.
TOLERANCE = {"fp32": 2e-5, "oneDNN": 2e-5, "bf16": 0.04}


def by_singular_values(g: Tensor) -> Tensor:
    """U p(p(p(p(p(S / ‖S‖))))) Vᵀ with p(s) = 3.4445 s − 4.7750 s³ + 2.0315 s⁵."""
    u, s, v = torch.linalg.svd(g.double(), full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s[..., None, :]) @ v


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (4, 4), (1, 7), (7, 1), (3, 6, 8), (3, 8, 6)])
def test_the_reference_applies_the_polynomial_to_singular_values(shape: tuple[int, ...]) -> None:
    g = random(*shape).double()
    assert_same(reference.orthogonal(g), by_singular_values(g))
    # A chosen path is taken for single precision alone.
    assert_same(choose.orthogonal(g), by_singular_values(g))


@pytest.mark.parametrize("shape", [(5, 9), (1, 7), (3, 6, 8)])
@pytest.mark.parametrize("name", TWINS)
def test_each_path_is_the_reference(name: str, shape: tuple[int, ...]) -> None:
    twin = products.TWINS[name]
    g = random(*shape) * 300
    assert_same(twin(g), by_singular_values(g), TOLERANCE[name])
    assert twin(g).dtype == torch.float32


@pytest.mark.parametrize("name", products.TWINS)
def test_no_gradient_makes_no_update(name: str) -> None:
    found = products.TWINS[name](torch.stack((torch.zeros(3, 4), random(3, 4))))
    assert found[0].abs().max() == 0
    assert found[1].abs().max() > 0.1


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (2, 10, 6)])
def test_the_choice_is_followed_for_both_ways_that_a_matrix_lies(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = random(*shape)
    lying = g if g.shape[-2] < g.shape[-1] else g.mT
    for name in ("bf16", "fp32"):
        forget_choices(monkeypatch)
        monkeypatch.setattr(
            choose, "fastest", lambda op, case, *_, name=name: Choice(op, case, name, "as the test says")
        )
        found = choose.orthogonal(g)
        assert torch.equal(found if lying is g else found.mT, products.TWINS[name](lying))
        (choice,) = choices.all_choices()
        assert (choice.op, choice.case) == ("orthogonal", "6 × 10")


@pytest.mark.parametrize(("factor", "taken"), [(100.0, "fp32"), (0.5, "bf16")])
@pytest.mark.usefixtures("nothing_turned_off")
def test_bf16_is_taken_where_it_is_faster(factor: float, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, lambda name: factor if name == "bf16" else 1.0)
    assert choose.choice(6, 10, torch.device("cpu")).twin == taken


@pytest.mark.usefixtures("nothing_turned_off")
def test_large_matrices_share_one_trial_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def fastest(op: str, case: str, plain: str, runs: dict[str, object], what: str) -> Choice:
        asked.append((case, list(runs)))
        return Choice(op, case, plain, what)

    forget_choices(monkeypatch)
    monkeypatch.setattr(choose, "fastest", fastest)
    for rows, columns in ((4096, 16384), (768, 768), (128, 512), (100, 4096)):
        choose.choice(rows, columns, torch.device("cpu"))
    assert [case for case, _ in asked] == ["128 × 512 and larger", "100 × 512"]
    assert {"fp32", "bf16"} <= set(asked[0][1])
