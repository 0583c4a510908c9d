"""Sections of reports with pictures of generated and reconstructed images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.processors.sheets import sheet
from qkv.data.records.images.pictures import as_uri


def picture_section(title: str, images: Sequence[np.ndarray], columns: int, caption: str) -> dict[str, Any]:
    """Build a report section with images (H, W) or (H, W, 3) on one sheet of ``columns`` columns."""
    source = as_uri(sheet(images, columns))
    return {"kind": "pictures", "title": title, "pictures": [{"source": source, "caption": caption}]}
