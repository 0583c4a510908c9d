"""LayoutLM, TAPAS and RoCBert with the marks of their tokens: boxes, cells of a table, shapes and sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.cases import marked_text
from transformers import LayoutLMForMaskedLM, RoCBertForMaskedLM, TapasForMaskedLM

from qkv.interop.load import load_published
from qkv.layers.marks import MarkedTokens
from qkv.system.errors import UserError

ROWS, COUNT = 3, 11
LENGTHS = torch.tensor([11, 6, 2])


def written(kind: type[Any], config: Any, folder: Path) -> Any:
    """A random model of that library in ``folder``; no weight keeps its initial value."""
    torch.manual_seed(5)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def drawn(*sizes: int) -> torch.Tensor:
    """Random marks (B, N, K), below their sizes."""
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randint(size, (ROWS, COUNT), generator=generator) for size in sizes], -1)


def compared(theirs: Any, folder: Path, marks: torch.Tensor, types: torch.Tensor | None = None, **given: Any) -> float:
    """Largest difference at real positions, relative to the largest logit; without marks the answers differ."""
    ids, real = torch.randint(4, 61, (ROWS, COUNT)), torch.arange(COUNT) < LENGTHS[:, None]
    model = load_published(folder).model
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=real.long(), **given).logits[real]
        found = model(MarkedTokens(ids, LENGTHS, types=types, marks=marks))[0][real]
        alone = model(MarkedTokens(ids, LENGTHS))[0][real]
    assert (alone - wanted).abs().max() > 1e-2
    return float((found - wanted).abs().max() / wanted.abs().max())


def test_boxes_of_layoutlm(tmp_path: Path) -> None:
    theirs = written(LayoutLMForMaskedLM, marked_text.layout(), tmp_path)
    left, upper, wide, tall = drawn(9, 9, 8, 8).unbind(-1)
    boxes, types = torch.stack((left, upper, left + wide, upper + tall), -1), drawn(2)[..., 0]
    assert compared(theirs, tmp_path, boxes, types, bbox=boxes, token_type_ids=types) < 1e-5
    model, ids = load_published(tmp_path).model, torch.full((ROWS, COUNT), 5)
    with pytest.raises(UserError, match="a side of the box of a token is -1; allowed: 0 to 16"):
        model(MarkedTokens(ids, marks=torch.tensor([3, 3, 2, 4]).expand(ROWS, COUNT, 4)))
    with pytest.raises(UserError, match=r"marks have the shape \(3, 11, 3\); give 4 for each token"):
        model(MarkedTokens(ids, marks=boxes[..., :3]))


@pytest.mark.parametrize("cells", [True, False])
def test_cells_of_tapas(cells: bool, tmp_path: Path) -> None:
    theirs = written(TapasForMaskedLM, marked_text.tapas(reset_position_index_per_cell=cells), tmp_path)
    kinds = drawn(3, 6, 5, 2, 4)
    kinds[:, 4:8, 1:3] = kinds[:, 4:5, 1:3]  # several tokens in one cell
    real = torch.arange(COUNT) < LENGTHS[:, None]
    kinds = kinds.where(real[..., None], 0)
    assert compared(theirs, tmp_path, kinds[..., 1:], kinds[..., 0], token_type_ids=kinds) < 1e-5
    with pytest.raises(UserError, match="mark 1 of a token is 5; allowed: 0 to 4"):
        load_published(tmp_path).model(
            MarkedTokens(torch.full((ROWS, COUNT), 5), marks=torch.tensor([0, 5, 0, 0]).expand(ROWS, COUNT, 4))
        )


def test_shapes_and_sounds_of_roc_bert(tmp_path: Path) -> None:
    theirs = written(RoCBertForMaskedLM, marked_text.shaped(), tmp_path)
    marks = drawn(11, 9)
    shapes, sounds = marks.unbind(-1)
    assert compared(theirs, tmp_path, marks, input_shape_ids=shapes, input_pronunciation_ids=sounds) < 1e-5
