"""Wide path of a model: TF-IDF by loops, factors, and paths that are skipped."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.costs.cost import cost
from qkv.layers.features import FeatureBag, features_of, with_features
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.edit.adapt import adapt, learned_sentence
from qkv.models.transformer import Transformer
from qkv.models.wide import WidePath
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.training import Training
from qkv.system.errors import UserError


def model_of(**fields: object) -> Transformer:
    wide = {"kind": "ngrams", "buckets": 8}
    blocks = [{"branches": ["attention(2, mask=full)"]}]
    frontend = {"kind": "text", "vocab_size": 11}
    plain = {"width": 8, "context_length": 6, "frontend": frontend, "blocks": blocks, "head": "classification(3)"}
    return build(Model.parse({**plain, "wide": wide, **fields})).eval()


def path_of(model: Transformer) -> WidePath:
    assert model.wide is not None
    return model.wide


def signal() -> Signal:
    torch.manual_seed(0)
    bag = torch.tensor([[0, 3, 9, 15], [5, 8, 0, 0]])
    counts = torch.tensor([[1.0, 2.0, 4.0, 1.0], [3.0, 1.0, 0.0, 0.0]])
    return with_features(Signal(torch.randint(11, (2, 5))), FeatureBag(bag, counts=counts))


@torch.no_grad()
def filled(model: Transformer) -> Transformer:
    torch.manual_seed(1)
    wide = path_of(model)
    wide.table.normal_()
    wide.bias.normal_()
    wide.idf.uniform_(1, 5)
    return model


def by_loops(model: Transformer, given: Signal) -> list[list[float]]:
    wide = path_of(model)
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
    model, given = filled(model_of()), signal()
    torch.testing.assert_close(path_of(model)(given), torch.tensor(by_loops(model, given)))


def test_factors_weight_both_paths() -> None:
    model, given = filled(model_of()), signal()
    deep = model(given)[0]
    path_of(model).set_share(0.5, 2.0)
    torch.testing.assert_close(model(given)[0], 0.5 * deep + 2 * torch.tensor(by_loops(model, given)))


def test_without_factors_the_outputs_are_those_of_the_deep_path() -> None:
    model, given = filled(model_of()), signal()
    plain = model_of(wide=None)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("wide.")})
    assert torch.equal(model(given)[0], plain(given)[0])
    path_of(model).set_share(1.0, 3.0)
    model.train()  # the deep path is trained alone
    assert torch.equal(model(given)[0], plain(given)[0])


def test_a_deep_path_with_the_factor_0_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = filled(model_of()), signal()
    path_of(model).set_share(0.0, 1.0)
    monkeypatch.setattr(model, "embed", lambda *_, **__: pytest.fail("the deep path was computed"))
    torch.testing.assert_close(model(given)[0], torch.tensor(by_loops(model, given)))


def test_gradients_leave_the_wide_path_alone() -> None:
    model = filled(model_of()).train()
    model(signal())[0].sum().backward()
    assert path_of(model).table.grad is None
    assert model.head.output.weight.grad is not None  # type: ignore[union-attr]


def test_a_fitted_table_is_no_frozen_parameter() -> None:
    model = model_of()
    assert learned_sentence(model, Training()) == ""
    head = Training.parse({"adapt": "head"})
    adapt(model, head)
    total = sum(p.numel() for p in build(model.spec.changed(wide=None)).parameters())
    assert learned_sentence(model, head).startswith(f"27 of {total:,} parameters are trainable")  # (8 + 1) · 3


def test_a_signal_without_features_is_refused() -> None:
    model = filled(model_of())
    path_of(model).set_share(1.0, 1.0)
    with pytest.raises(UserError, match="has no features; pass them as its input 'wide'"):
        model(torch.randint(11, (2, 5)))


def test_heads_with_an_output_per_position_have_no_wide_path() -> None:
    with pytest.raises(SpecError, match="a wide path adds to one output per row, but the head 'language_model'"):
        Model.parse({"wide": "ngrams"})


def test_ngrams_of_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="neither words nor characters"):
        Model.parse({"wide": {"kind": "ngrams", "words": 0, "characters": 0}, "head": "classification(2)"})


def test_the_cost_counts_the_tables() -> None:
    with_wide, without = (cost(model_of(wide=wide).spec, 2) for wide in ({"kind": "ngrams", "buckets": 8}, None))
    assert with_wide.parameters - without.parameters == 16 * 3 + 3
    assert with_wide.trained_parameters == without.parameters
    assert with_wide.forward_flops == without.forward_flops  # training computes the deep path alone
