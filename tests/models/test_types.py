"""A front end with token types and a norm of its own: padded rows and pieces of rows are those alone."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import VOCABULARY, model
from tests.models.test_forms import LENGTHS, NORMS, SEES_ALL, double, padded, same_rows, some_ids

from qkv.layers.signal import Signal
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.model import Block, Text
from qkv.spec.parts import LayerNorm


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_padded_rows_with_types_and_a_normed_front_end_are_those_alone(norm: str) -> None:
    text = Text(vocab_size=VOCABULARY, types=2, norm=NORMS[norm])
    m = double(model(Block(branches=SEES_ALL), num_layers=2, frontend=text))
    ids, types = some_ids(3, 9), torch.arange(27).view(3, 9) % 2
    seen = m(Signal(padded(ids, LENGTHS), lengths=LENGTHS, types=types))[0]
    same_rows(
        seen,
        [
            m(Signal(ids[row : row + 1, :length], types=types[row : row + 1, :length]))[0]
            for row, length in enumerate(LENGTHS.tolist())
        ],
    )
    assert not torch.allclose(seen[0], m(Signal(ids, types=1 - types))[0][0])


@torch.no_grad()
def test_types_of_each_piece_are_given_with_it() -> None:
    m = double(
        model(
            Block(branches=(Attention(num_heads=2), FeedForward())),
            frontend=Text(vocab_size=VOCABULARY, types=3, norm=LayerNorm()),
        )
    )
    ids, types = some_ids(2, 6), some_ids(2, 6, seed=4) % 3
    state, outs = m.init_state(2), []
    for piece in (slice(0, 3), slice(3, 4), slice(4, 6)):
        y, state = m(Signal(ids[:, piece], types=types[:, piece]), state)
        outs.append(y)
    torch.testing.assert_close(torch.cat(outs, 1), m(Signal(ids, types=types))[0])
