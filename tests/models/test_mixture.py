"""The mixture head against torch.distributions and a loop over components."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from qkv.models.heads.head import build_head
from qkv.spec.heads import MixtureHead
from qkv.spec.signals.image_sequences import PatchVectors

K, F, WIDTH = 3, 4, 6


def built() -> Any:
    torch.manual_seed(0)
    head: Any = build_head(MixtureHead(components=K, features=F), WIDTH, None).double()
    head.initialise(0.02)
    return head


def outputs(rows: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randn(rows, length, K * (1 + 2 * F), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_loss_is_that_of_torch_s_mixture() -> None:
    head, raw = built(), outputs().requires_grad_()
    y = torch.randn(2, 5, F, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    means = raw[..., K : K + K * F].unflatten(-1, (K, F))
    deviations = (1 + raw[..., K + K * F :].exp()).log().unflatten(-1, (K, F)) + 1e-4
    expected = MixtureSameFamily(Categorical(logits=raw[..., :K]), Independent(Normal(means, deviations), 1))
    loss = head.loss(raw, y)
    torch.testing.assert_close(loss, -expected.log_prob(y).sum())
    (own,) = torch.autograd.grad(loss, raw, retain_graph=True)
    (theirs,) = torch.autograd.grad(-expected.log_prob(y).sum(), raw)
    torch.testing.assert_close(own, theirs)


def test_a_far_vector_has_a_finite_loss() -> None:
    loss = built().loss(outputs().float(), torch.full((2, 5, F), 1e3))
    assert math.isfinite(loss.item())


def test_samples_have_the_mixture_s_means_and_deviations() -> None:
    head, raw = built(), torch.zeros(4000, K * (1 + 2 * F), dtype=torch.float64)
    raw[:, 0] = math.log(3)  # weights 0.6, 0.2, 0.2
    raw[:, K : K + F] = 5.0
    generators = [torch.Generator().manual_seed(i) for i in range(4000)]
    drawn = head.drawn(raw, generators).numpy()
    first = drawn.mean(1) > 2.5
    assert abs(first.mean() - 0.6) < 0.03
    deviation = math.log(2) + 1e-4
    np.testing.assert_allclose(drawn[first].mean(0), 5, atol=0.06)
    np.testing.assert_allclose(drawn[~first].mean(0), 0, atol=0.06)
    np.testing.assert_allclose(drawn[first].std(0), deviation, rtol=0.06)
    assert (head.drawn(raw[:2], generators[:2], 0.0) == 5).all()


def test_a_row_s_sample_does_not_depend_on_the_others() -> None:
    head, raw = built(), outputs(1, 3)[0]
    together = head.drawn(raw, [torch.Generator().manual_seed(i) for i in range(3)])
    alone = head.drawn(raw[2:], [torch.Generator().manual_seed(2)])
    torch.testing.assert_close(together[2:], alone, rtol=0, atol=0)


def test_the_size_is_that_of_the_front_end() -> None:
    assert MixtureHead().reading(PatchVectors(features=7, starts=1)).features == 7
