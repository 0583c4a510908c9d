"""Neurons and memory slots, with the tokens that fire them most, against a loop over all positions."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import ids, model

from qkv.layers.signal import Signal
from qkv.lens.record import record
from qkv.lens.views.neurons import Neurons, neurons
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.position_wise.memory_layer import MemoryLayer
from qkv.spec.position_wise.product_keys import ProductKeyMemory
from qkv.system.errors import UserError

KEYS = ProductKeyMemory(num_keys=3, top_k=2, num_heads=2)
BLOCK = Block(branches=(Attention(), FeedForward(hidden=5), GatedFeedForward(hidden=6), MemoryLayer(), KEYS))


def test_the_highest_values_equal_a_loop() -> None:
    m = build(model(BLOCK, num_layers=2)).double()
    batches = [Signal(ids(3, 7), lengths=torch.tensor([7, 2, 5])), Signal(ids(2, 9, 4))]
    found = neurons(m, batches, k=4)
    parts = ("feed_forward", "gated_feed_forward", "memory_layer", "product_key_memory")
    assert [(each.layer, each.part) for each in found] == [(layer, part) for layer in (0, 1) for part in parts]
    for each in found:
        places = dict[tuple[int, int, int], torch.Tensor]()
        for first, batch in zip((0, 3), batches, strict=True):
            values = record(m, batch, f"{each.path}.{each.point}")[f"{each.path}.{each.point}"].flatten(2)
            lengths = [values.shape[1]] * len(values) if batch.lengths is None else batch.lengths.tolist()
            for b, length in enumerate(lengths):
                places |= {(first + b, t, int(batch.values[b, t])): values[b, t] for t in range(length)}
        for neuron in range(len(each.values)):
            best = sorted((float(x[neuron]) for x in places.values()), reverse=True)
            assert each.values[neuron].tolist() == pytest.approx(best[:4])
            for value, *place in zip(*(x[neuron].tolist() for x in (each.values, *shown(each))), strict=True):
                assert float(places[tuple(map(int, place))][neuron]) == value  # type: ignore[index]
            assert float(each.mean[neuron]) == pytest.approx(sum(best) / len(best))
            assert float(each.share[neuron]) == pytest.approx(sum(value > 0 for value in best) / len(best))


def shown(each: Neurons) -> tuple[torch.Tensor, ...]:
    return each.rows, each.positions, each.tokens


def test_neurons_of_an_encoder_fire_at_its_source() -> None:
    block = Block(branches=(Attention(mask=Full()), FeedForward(hidden=5)))
    encoder = Encoder(frontend=Text(vocab_size=9), blocks=(block,))
    m = build(model(Block(branches=(CrossAttention(num_heads=2), FeedForward(hidden=4))), encoder=encoder)).double()
    own, source = ids(2, 5), Signal(ids(2, 6, 4) % 9, lengths=torch.tensor([6, 3]))
    coded, written = neurons(m, [(own, source)], k=3)
    assert [each.stack for each in (coded, written)] == ["encoder", "model"]
    values = record(m, own, "activation", source=source)
    for each, signal, lengths in ((coded, source.values, (6, 3)), (written, own, (5, 5))):
        x = values[f"{each.path}.activation"]
        flat = torch.cat([x[row, :length] for row, length in enumerate(lengths)])
        torch.testing.assert_close(each.values, flat.topk(3, 0).values.T)
        assert torch.equal(each.tokens, signal[each.rows, each.positions])


def test_few_positions_leave_places_empty() -> None:
    (found,) = neurons(build(model(Block(branches=(FeedForward(hidden=3),)))), [ids(1, 2)], k=5)
    assert found.values.shape == (3, 5)
    assert found.values[:, 2:].isnan().all()
    assert (found.rows[:, 2:] == -1).all()


def test_what_has_no_neurons_is_refused() -> None:
    m = build(model(BLOCK))
    with pytest.raises(UserError, match="k is 0"):
        neurons(m, [ids()], k=0)
    with pytest.raises(UserError, match="there are no rows"):
        neurons(m, [])
    with pytest.raises(UserError, match=r"those that do: blocks\.0\.branches\.1, "):
        neurons(m, [ids()], branches=("blocks.0.branches.0",))
