"""Drawn specs: every form and kind occurs, a seed fixes the spec, and the spec refuses fields that do not fit."""

from __future__ import annotations

from functools import cache
from itertools import count, islice
from typing import Any

import pytest
from tests.fuzz import draw

from qkv.models.build import build
from qkv.spec.base import Part, Spec
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import Norm, Positions, Relative, Residual
from qkv.system.errors import UserError


@pytest.mark.parametrize("form", draw.FORMS)
def test_a_model_of_each_form_is_drawn_again_by_its_seed(form: str) -> None:
    first, again = ([draw.model(draw.seeded(seed), form) for seed in range(5)] for _ in range(2))
    assert first == again
    assert len(set(map(repr, first))) == 5
    assert all(spec.decodes for spec in first) or form not in draw.DECODING


@pytest.mark.parametrize("slot", [Branch, Norm, Residual, Positions, Relative, Head, Segmentation])
def test_every_kind_of_a_slot_is_drawn(slot: type[Part]) -> None:
    left = {kind.kind for kind in draw.kinds(slot)} - ({*draw.OF_OTHER_SIGNALS} if slot is Head else set())
    place = in_branch if slot is Relative else in_model
    for seed in islice(count(), 1500):
        left -= {part.kind for part in place(seed) if isinstance(part, slot)}
        if not left:
            break
    assert not left, f"tests/fuzz/draw.py draws no {sorted(left)}; a head of another signal enters OF_OTHER_SIGNALS"


@cache
def in_model(seed: int) -> list[Part]:
    """The parts of a random model: the same models serve every slot."""
    return parts(draw.model(draw.seeded(seed)))


def in_branch(seed: int) -> list[Part]:
    """Those of a random branch of attention, as models draw it, where relative positions stand: few models have one."""
    return parts(draw.branch(draw.seeded(seed), 12, lambda branch: True, of=Attention))


def parts(value: Any) -> list[Part]:
    """Every part of a spec, those inside of others too."""
    if isinstance(value, tuple):
        return [part for item in value for part in parts(item)]
    if not isinstance(value, Spec):
        return []
    inner = [part for name in type(value).model_fields for part in parts(getattr(value, name))]
    return [value, *inner] if isinstance(value, Part) else inner


def test_what_is_drawn_is_built() -> None:
    sizes = [sum(p.numel() for p in build(draw.model(draw.seeded(seed))).parameters()) for seed in range(40)]
    assert max(sizes) < 150_000


TEXT = {"kind": "text", "vocab_size": 9}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"frontend": {**TEXT, "join": "concatenate"}}, r"^head\.tied: .* width 8, but they have 4"),
        (
            {"frontend": {**TEXT, "positions": {"kind": "axial", "widths": [3, 4]}}},
            r"^frontend\.positions\.widths: .* = 7 features, but positions",
        ),
        (
            {
                "latents": {},
                "blocks": [{"branches": ["cross_attention"]}],
                "queries": {"positions": {"kind": "axial", "widths": [3, 4]}},
            },
            r"^queries\.positions\.widths: .* = 7 features",
        ),
        (
            {
                "encoder": {"frontend": {**TEXT, "vocab_size": 7}, "share_embedding": True},
                "blocks": [{"branches": ["cross_attention"]}],
            },
            r"^encoder\.share_embedding: .* 7 and 9 tokens",
        ),
        (
            {
                "encoder": {"frontend": {**TEXT, "join": "concatenate"}, "share_embedding": True},
                "blocks": [{"branches": ["cross_attention"]}],
            },
            r"^encoder\.share_embedding: .* 4 features in the source and 8 in the target",
        ),
    ],
)
def test_one_table_in_two_places_and_axes_fit_the_width(model: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Model.parse({"width": 8, "frontend": TEXT, **model})
