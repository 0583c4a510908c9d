"""A short form of ``make fuzz``, specs with which it once found something, and checks that notice their faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fuzz import check, draw, specs
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.ops.linear_attention.reference import linear_attention
from qkv.spec.model import Model
from qkv.system.errors import UserError

TEXT = {"kind": "text", "vocab_size": 9}


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_drawn_specs_hold(first: int) -> None:
    results = [specs.tried(seed) for seed in range(first, first + 10)]
    assert [why for _, why in results if why] == []
    assert sum(result == "valid" for result, _ in results) >= 3  # about seven on average


def decoding(mask: str) -> Model:
    return Model.parse(
        {"width": 8, "frontend": TEXT, "blocks": [{"branches": [{"kind": "attention", "num_heads": 2, "mask": mask}]}]}
    )


@pytest.mark.parametrize(
    "mask",
    [
        "prefix | causal & window(3)",
        "prefix",
        "prefix & causal",
        "strided(2) & causal | prefix",
        "(causal | prefix) & window(5)",
    ],
)
def test_a_state_remembers_the_prefix_that_a_mask_asks_for_later(mask: str) -> None:
    """Positions after the prefix see the keys that they see in one call."""
    spec = decoding(mask)
    assert (spec.decodes, spec.reads_prefix) == (True, True)
    model, ids, prefix = build(spec).double(), torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), torch.tensor([3])
    whole, _ = model(Signal(ids, prefix=prefix))
    first, state = model(Signal(ids[:, :3], prefix=prefix), model.init_state(1))
    rest = []
    for i in range(3, 7):
        logits, state = model(ids[:, i : i + 1], state)
        rest.append(logits)
    torch.testing.assert_close(torch.cat((first, *rest), 1), whole)


@pytest.mark.parametrize("mask", ["prefix(3) | causal", "prefix | causal | window(2)"])
def test_a_mask_that_shows_later_positions_beyond_the_prefix_does_not_decode(mask: str) -> None:
    assert (decoding(mask).decodes, decoding(mask).reads_prefix) == (False, False)


def test_positions_end_where_the_shorter_of_two_tables_does() -> None:
    """Beyond the grid of the front end a position would be that of another cell."""
    reads = [{"branches": ["cross_attention"]}]
    grid = {**TEXT, "positions": {"kind": "axial", "shape": [2, 3]}}
    m = build(Model.parse({"width": 8, "frontend": grid, "latents": {"blocks": reads}, "blocks": reads, "queries": {}}))
    assert m(torch.zeros(1, 6, dtype=torch.long))[0].shape == (1, 6, 9)
    with pytest.raises(UserError, match="7 positions are more than the 6"):
        m(torch.zeros(1, 7, dtype=torch.long))


def test_weights_that_all_vanish_have_finite_gradients() -> None:
    q, k = (torch.full((1, 1, 1, 2), 1e-20, requires_grad=True) for _ in range(2))
    v = torch.full((1, 1, 1, 2), 1e3, requires_grad=True)
    out = linear_attention(q, k, v)[0]
    out.sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (q, k, v) if t.grad is not None)


def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that forgets a position, and one without a gradient, are failures with a short spec."""
    data = {**decoding("causal").to_dict(), "frontend": TEXT}
    assert check.outcome(data, 0, sound=True) == "valid"
    whole = Transformer.features

    def late(self: Transformer, ids: Tensor, state: Any = None, *given: Any, **more: Any) -> Any:
        y, after = whole(self, ids, state, *given, **more)
        return (y if state is None else y + 0.1), after

    monkeypatch.setattr(Transformer, "features", late)
    with pytest.raises(check.Failure, match="decoding is off by"):
        check.outcome(data, 0, sound=True)
    found = specs.smallest(data, 0, True, "Failure: decoding is off by #.#e-## of #.#e+##")
    assert len(str(found)) <= len(str(data))


def test_a_refused_spec_that_was_drawn_as_valid_is_a_failure() -> None:
    with pytest.raises(check.Failure, match="a valid spec was refused: width: 0 given"):
        check.outcome({"width": 0}, 0, sound=True)
    assert check.outcome({"width": 0}, 0) == "invalid"
    assert draw.seeded(3).random() == draw.seeded(3).random()
