"""Particles on the sphere: the equations by loops, energy, clusters, and the theorem of high dimension."""

from __future__ import annotations

import math

import pytest
import torch

import qkv
from qkv.theory.depth import similarity_over_depth
from qkv.theory.particles import (
    Dynamics,
    count_clusters,
    energy,
    inner_product_in_high_dimension,
    random_particles,
    share_of_close_pairs,
    trajectory,
    velocity,
)


@pytest.mark.parametrize("dynamics", ["SA", "USA"])
def test_the_velocity_is_that_of_a_loop(dynamics: Dynamics) -> None:
    (x,), beta = random_particles(5, 3), 2.0
    found = velocity(x[None], beta, dynamics)[0]
    for i in range(5):
        weights = [math.exp(beta * float(x[i] @ x[j])) for j in range(5)]
        total = sum(weights) if dynamics == "SA" else 5
        pull = sum((w / total * x[j] for j, w in enumerate(weights)), torch.zeros(3, dtype=torch.float64))
        assert torch.allclose(found[i], pull - float(x[i] @ pull) * x[i])


@pytest.mark.parametrize("dynamics", ["SA", "USA"])
def test_energy_never_falls_and_particles_become_one(dynamics: Dynamics) -> None:
    sets = list(trajectory(random_particles(12, 3, 4), 1.0, 60, 0.5, dynamics))
    energies = torch.stack([energy(x, 1.0) for x in sets])
    assert bool((energies.diff(dim=0) > -1e-9).all())
    assert count_clusters(sets[0]).tolist() == [12] * 4
    assert count_clusters(sets[-1]).tolist() == [1] * 4
    assert share_of_close_pairs(sets[-1]).tolist() == [1.0] * 4


def test_low_temperature_keeps_several_clusters_for_long() -> None:
    *_, last = trajectory(random_particles(32, 2, 4), 25.0, 2, 6.0)
    assert all(1 < count < 16 for count in count_clusters(last, 0.01).tolist())


@pytest.mark.parametrize("dynamics", ["SA", "USA"])
def test_orthogonal_particles_follow_the_equation_of_high_dimension(dynamics: Dynamics) -> None:
    beta = torch.tensor([1.5], dtype=torch.float64)
    expected = inner_product_in_high_dimension(beta, 6, 8, 0.5, dynamics)
    for x, gamma in zip(
        trajectory(torch.eye(6, dtype=torch.float64)[None], 1.5, 8, 0.5, dynamics), expected, strict=True
    ):
        off = (x[0] @ x[0].T)[~torch.eye(6, dtype=torch.bool)]
        assert torch.allclose(off, gamma.expand(30), atol=1e-4)


def test_clusters_are_connected_groups() -> None:
    angles = torch.tensor([0.0, 0.04, 0.08, 0.12, 2.0, 2.04, 4.0], dtype=torch.float64)
    x = torch.stack((angles.cos(), angles.sin()), -1)[None]
    assert count_clusters(x).tolist() == [3]
    assert count_clusters(x, 1e-5).tolist() == [7]


def test_variants_of_a_model_over_depth() -> None:
    """Without its residuals, the stream after a mixer is its output; without feed-forward branches it does not move."""
    blocks = [{"branches": ["attention(2, mask=full)", "feed_forward(hidden=8)"]}]
    spec = qkv.Model.parse(
        {
            "width": 8,
            "num_layers": 3,
            "context_length": 8,
            "frontend": {"kind": "text", "vocab_size": 9},
            "blocks": blocks,
        }
    )
    model, ids = qkv.build(spec, seed=1), torch.tensor([[1, 5, 3, 8]])
    found = similarity_over_depth(model, ids)
    assert set(found) == {"as it is", "no feed-forward", "no residual", "attention alone"}
    assert all(len(values) == 7 for values in found.values())
    assert len({values[0] for values in found.values()}) == 1
    assert found["no feed-forward"][1] == found["no feed-forward"][2]
    assert found["no feed-forward"][2] != found["as it is"][2]
    assert found["attention alone"][-1] > 0.99 > found["as it is"][-1]
    assert model.tap is None
