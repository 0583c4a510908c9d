"""What a mask says about itself, held against its predicate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.spec.strategies import valid

from qkv.mixers.masks import build_mask
from qkv.ops.masks import Grid
from qkv.spec.errors import SpecError
from qkv.spec.masks import AllOf, AnyOf, Blocks, Causal, Full, Mask, Prefix, Strided, Window

LENGTH = 12


def seen(mask: Mask) -> list[tuple[int, int]]:
    """Every (query, key) that the predicate allows, of ``LENGTH`` positions."""
    steps = torch.arange(LENGTH)
    one = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    allowed = build_mask(mask).allowed(Grid(one, one, steps[:, None], steps)).expand(1, 1, LENGTH, LENGTH)[0, 0]
    return [(int(i), int(j)) for i, j in allowed.nonzero()]


@settings(max_examples=100)
@given(valid(Mask, depth=3))
def test_causal_reach_and_first_visible_never_promise_too_much(mask: Mask) -> None:
    for query, key in seen(mask):
        assert not (mask.causal and key > query)
        if mask.reach is not None and key <= query:
            assert query - key < mask.reach or key < mask.first_visible


@pytest.mark.parametrize(
    ("mask", "causal", "reach", "first_visible"),
    [
        (Full(), False, None, 0),
        (Causal(), True, None, 0),
        (Window(size=4, sinks=2), False, 4, 2),
        (Causal() & Window(size=4, sinks=2), True, 4, 2),
        (Causal() & Window(size=8) & Window(size=4), True, 4, 0),
        (Causal() | Prefix(length=3), False, None, 0),
        (Causal() & Strided(stride=2) | Causal() & Window(size=2), True, None, 0),
        (Window(size=2) | Window(size=5, sinks=1), False, 5, 1),
        (Blocks(size=4), False, 4, 0),
        (Causal() & Blocks(size=4, back=2), True, 12, 0),
        (AllOf(masks=(Causal(),)), True, None, 0),
        (AnyOf(masks=(Causal(), Full())), False, None, 0),
    ],
    ids=str,
)
def test_what_masks_say_about_themselves(mask: Mask, causal: bool, reach: int | None, first_visible: int) -> None:
    assert (mask.causal, mask.reach, mask.first_visible) == (causal, reach, first_visible)


@given(valid(Mask, depth=3))
def test_an_expression_means_what_it_says(mask: Mask) -> None:
    if len(str(mask)) <= 400:
        assert seen(Mask.parse(str(mask))) == seen(mask)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal & window(512, sinks=4)", Causal() & Window(size=512, sinks=4)),
        ("full | causal & window(2)", Full() | (Causal() & Window(size=2))),
        ("(full | causal) & window(2)", (Full() | Causal()) & Window(size=2)),
        ("  causal\t&full ", Causal() & Full()),
        ("window(size=3)", Window(size=3)),
    ],
)
def test_expressions_are_read_with_their_precedence(text: str, mask: Mask) -> None:
    assert Mask.parse(text) == mask


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("casual", "there is no mask 'casual'; did you mean 'causal'?"),
        ("causal & windw(3)", "there is no mask 'windw'; did you mean 'window'?"),
        ("causal &", "'causal &' cannot be read as a mask"),
        ("causal + full", "cannot be read as a mask"),
        ("window(0)", "size: 0 given, but it should be greater than 0"),
        ("causal & window(-1)", "masks.1.size: -1 given, but it should be greater than 0"),
        ("window", "size: this key is missing and has no default"),
        ("window(3, 4, 5)", "window takes at most 2 values, not 3"),
        ("window(3, size=3)", "gives a value twice or without a name"),
        ("window(3, sink=1)", "sink: unknown key; did you mean 'sinks'?"),
        ("window(wide)", "size: 'wide' given, but it should be a valid integer"),
        ("window(*[3])", "size: '*[3]' given"),
        ("window(**{'size': 3})", "gives a value twice or without a name"),
        ("__import__('os').system('ls')", "cannot be read as a mask"),
        ("print(3)", "there is no mask 'print'"),
        ("", "'' cannot be read as a mask"),
    ],
)
def test_expressions_that_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        Mask.parse(text)
    assert sentence in str(caught.value)
