"""Every view on models drawn at random: each gives numbers or one sentence, and numbers that belong together agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fuzz import draw
from tests.fuzz.check import inputs

from qkv.layers.signal import Signal
from qkv.lens.views.attention_maps import attention_maps
from qkv.lens.views.head_roles import head_roles
from qkv.lens.views.hidden_similarity import hidden_similarity
from qkv.lens.views.influence_maps import influence_maps
from qkv.lens.views.integrated_gradients import integrated_gradients
from qkv.lens.views.logit_attribution import logit_attribution
from qkv.lens.views.logit_lens import logit_lens
from qkv.lens.views.neurons import neurons
from qkv.lens.views.stream import read_stream
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

SEEDS = (1, 8, 9, 31, 42, 66, 74, 1007, 1060, 1105)
"""Forms that differ: encoder–decoders, prefix decoders, latents, segments, pairs of heads, reversible blocks."""
Read = tuple[Transformer, Signal, Signal | None]
VIEWS: dict[str, Callable[[Transformer, Signal, Signal | None], Any]] = {
    "attention maps": attention_maps,
    "logit lens": lambda m, x, source: logit_lens(m, x, 2, source),
    "similarity": hidden_similarity,
    "attribution": lambda m, x, source: logit_attribution(m, x, [0], 0, source),
    "roles": lambda m, x, source: head_roles(m, x, source, delimiters=[1], ablate=1),
    "gradients": lambda m, x, source: integrated_gradients(m, x, 0, 0, "mean", source, most=32),
    "neurons": lambda m, x, source: neurons(m, [x if source is None else (x, source)], 2),
}


def drawn(seed: int) -> Read:
    """A model with random weights in float64, and padded rows of its input."""
    chance = draw.seeded(seed)
    torch.manual_seed(seed)
    model = build(draw.model(chance)).double()
    read = inputs(model, chance)
    lengths = torch.tensor([read["ids"].shape[1], chance.randint(1, read["ids"].shape[1])])
    known = {"types": read["types"]} if "types" in read else {}
    if "prefix" in read:
        known["prefix"] = torch.minimum(read["prefix"], lengths)
    source = Signal(read["source"]) if "source" in read else None
    return model, Signal(read["ids"], lengths=lengths, **known), source


def answer(view: Callable[..., Any], *read: Any, **options: Any) -> tuple[Any, str]:
    """(What a view returns, None if it refuses the model; the sentence of a refusal)."""
    try:
        return view(*read, **options), ""
    except UserError as error:
        return None, str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_view_gives_numbers_or_a_sentence(seed: int) -> None:
    read = drawn(seed)
    refusals = [answer(view, *read)[1] for view in VIEWS.values()]
    assert not any("\n" in refusal for refusal in refusals)
    assert refusals.count("") >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_influence_of_causal_branches_is_on_later_positions(seed: int) -> None:
    model, signal, source = drawn(seed)
    causal = {branch.name for branch in model.branches if branch.causal}
    maps, refusal = answer(influence_maps, model, signal, source, probes=1)
    assert maps or "it has none" in refusal
    for each in maps or []:
        assert each.norms.isfinite().all()
        if each.path in causal and each.kind == "self":
            assert not each.norms.triu(1).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_vectors_give_the_output(seed: int) -> None:
    model, signal, source = drawn(seed)
    stream = read_stream(model, signal, source)
    last = stream.read(stream.vectors[-1]) if stream.vectors and model.depth_average is None else stream.output
    torch.testing.assert_close(last, stream.output)
