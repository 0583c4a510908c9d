"""Attention of a model over the patches of its pictures, as a report section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkv.models.rollout import heat
from qkv.models.transformer import Transformer
from qkv.tasks.inputs import InputReader

_NOTE = (
    "Attention rollout (Abnar & Zuidema 2020): share of each patch in what the head reads, from dark (none) to bright "
    "(the largest share of the picture). Each picture is shown as the model reads it."
)


def attention_section(
    model: Transformer, reader: InputReader, rows: Sequence[tuple[Mapping[str, Any], str]]
) -> list[dict[str, Any]]:
    """Report section with the attention over the picture of each of ``rows``, pairs (row, caption); empty if the model
    has no attention over positions on a grid, or the rows have no pictures.
    """
    found = [_heated(model, reader, *row) for row in rows]
    drawn = [picture for picture in found if picture is not None]
    title = "Attention over the picture"
    return [{"kind": "pictures", "title": title, "note": _NOTE, "pictures": drawn}] if drawn else []


def _heated(model: Transformer, reader: InputReader, row: Mapping[str, Any], caption: str) -> dict[str, Any] | None:
    parts, _ = reader.noted(row, 0.0)
    source = reader.picture_read(parts)
    if source is None:
        return None
    signal, _ = reader.signal([parts])
    shares = heat(model, signal.to(model.device))
    if shares is None:
        return None
    values = (shares[0] / shares[0].max().clamp(min=torch.finfo(shares.dtype).tiny)).cpu()
    covered = list(model.spec.frontend.covered)
    return {"source": source, "caption": caption, "heat": values.tolist(), "covered": covered}
