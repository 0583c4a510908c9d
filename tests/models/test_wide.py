"""Wide path beside a model: TF-IDF by loops, factors, and paths that are skipped."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.layers.features import FeatureBag, features_of, with_features
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.models.wide import Ngrams, build_wide
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.models import wide as spec
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.tasks.task import Task


def model_of() -> Transformer:
    blocks = [{"branches": ["attention(2, mask=full)"]}]
    frontend = {"kind": "text", "vocab_size": 11}
    plain = {"width": 8, "context_length": 6, "frontend": frontend, "blocks": blocks, "head": "classification(3)"}
    return build(Model.parse(plain)).eval()


def signal() -> Signal:
    torch.manual_seed(0)
    bag = torch.tensor([[0, 3, 9, 15], [5, 8, 0, 0]])
    counts = torch.tensor([[1.0, 2.0, 4.0, 1.0], [3.0, 1.0, 0.0, 0.0]])
    return with_features(Signal(torch.randint(11, (2, 5))), FeatureBag(bag, counts=counts))


@torch.no_grad()
def path_of() -> Ngrams:
    torch.manual_seed(1)
    wide = build_wide(spec.Ngrams(buckets=8), 3)
    assert isinstance(wide, Ngrams)
    wide.table.normal_()
    wide.bias.normal_()
    wide.idf.uniform_(1, 5)
    return wide


def task_with(wide: Ngrams) -> Task:
    task = build_task(Recipe.parse({"data": "x", "task": "classification", "model": {"head": "classification"}}).task)
    task.wide = wide
    return task


def by_loops(wide: Ngrams, given: Signal) -> list[list[float]]:
    features = FeatureBag.of(features_of(given) or given)
    rows = []
    for ids, counts in zip(features.values.tolist(), features.amounts.tolist(), strict=True):
        weights = {i: (1 + math.log(n)) * float(wide.idf[i]) for i, n in zip(ids, counts, strict=True) if n}
        norms = [math.sqrt(sum(w * w for i, w in weights.items() if (i < 8) == words)) for words in (True, False)]
        row = wide.bias.tolist()
        for i, w in weights.items():
            row = [y + w / norms[i >= 8] * v for y, v in zip(row, wide.table[i].tolist(), strict=True)]
        rows.append(row)
    return rows


def test_outputs_are_those_of_loops() -> None:
    wide, given = path_of(), signal()
    torch.testing.assert_close(wide(given), torch.tensor(by_loops(wide, given)))


def test_factors_weight_both_paths() -> None:
    model, wide, given = model_of(), path_of(), signal()
    deep = model(given)[0]
    wide.set_share(0.5, 2.0)
    expected = 0.5 * deep + 2 * torch.tensor(by_loops(wide, given))
    torch.testing.assert_close(task_with(wide).outputs(model, given), expected)


def test_without_factors_and_in_training_the_outputs_are_those_of_the_model() -> None:
    model, wide, given = model_of(), path_of(), signal()
    assert torch.equal(task_with(wide).outputs(model, given), model(given)[0])
    wide.set_share(1.0, 3.0)
    assert not torch.equal(task_with(wide).outputs(model, given), model(given)[0])
    model.train()  # the deep path is trained alone
    assert torch.equal(task_with(wide).outputs(model, given), model(given)[0])


def test_a_deep_path_with_the_factor_0_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, wide, given = model_of(), path_of(), signal()
    wide.set_share(0.0, 1.0)
    monkeypatch.setattr(model, "embed", lambda *_, **__: pytest.fail("the deep path was computed"))
    torch.testing.assert_close(task_with(wide).outputs(model, given), torch.tensor(by_loops(wide, given)))


def test_gradients_leave_the_wide_path_alone() -> None:
    model, wide = model_of().train(), path_of()
    task_with(wide).outputs(model, signal()).sum().backward()
    assert wide.table.grad is None
    assert model.head.output.weight.grad is not None  # type: ignore[union-attr]


def test_a_signal_without_features_is_refused() -> None:
    model, wide = model_of(), path_of()
    wide.set_share(1.0, 1.0)
    with pytest.raises(UserError, match="has no features; pass them as its input 'wide'"):
        task_with(wide).outputs(model, Signal(torch.randint(11, (2, 5))))


def test_heads_with_an_output_per_position_have_no_wide_path() -> None:
    with pytest.raises(SpecError, match="a wide path adds to one output per row, but the head 'language_model'"):
        Recipe.parse({"data": "x", "wide": "ngrams"})


def test_ngrams_of_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="neither words nor characters"):
        spec.Ngrams.parse({"words": 0, "characters": 0})
