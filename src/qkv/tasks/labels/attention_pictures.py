"""Attention of a model over the patches of its pictures, as a report section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkv.models.rollout import heat
from qkv.models.transformer import Transformer
from qkv.tasks.inputs import InputReader

_NOTE = (
    "Attention rollout (Abnar & Zuidema 2020): share of each patch in the vectors that the head reads, from dark "
    "(none) to bright (the largest share of the input). Each picture is shown as the model reads it; of a clip, the "
    "middle frame of each position in time."
)


def attention_section(
    model: Transformer, reader: InputReader, rows: Sequence[tuple[Mapping[str, Any], str]]
) -> list[dict[str, Any]]:
    """Build the report section of attention over the pictures of ``rows``, pairs (row, caption).

    Empty if the model has no attention over positions on a grid, or if the rows have no pictures.
    """
    drawn = [picture for row, caption in rows for picture in _heated(model, reader, row, caption)]
    title = "Attention over the picture"
    return [{"kind": "pictures", "title": title, "note": _NOTE, "pictures": drawn}] if drawn else []


def _heated(model: Transformer, reader: InputReader, row: Mapping[str, Any], caption: str) -> list[dict[str, Any]]:
    """Return the pictures of a row with the attention share of each patch, one picture per position in time."""
    fields, _ = reader.noted(row, 0.0)
    grid = model.spec.frontend.grid or ()
    sources = reader.frames_read(fields, grid[0] if len(grid) == 3 else 1)
    if not sources:
        return []
    signal, _ = reader.signal([fields])
    shares = heat(model, signal.to(model.device))
    if shares is None:
        return []
    values = (shares[0] / shares[0].max().clamp(min=torch.finfo(shares.dtype).tiny)).cpu()
    times = values if values.dim() == 3 else values[None]
    covered = list(model.spec.frontend.covered[-2:])
    captions = [caption] if len(times) == 1 else [f"{caption}, {i + 1} of {len(times)}" for i in range(len(times))]
    return [
        {"source": source, "caption": label, "heat": each.tolist(), "covered": covered}
        for source, label, each in zip(sources, captions, times, strict=True)
    ]
