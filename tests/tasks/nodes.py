"""A small graph of two groups of nodes, in an ``.npz`` file and in two tables, and recipes that read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qkv.spec.recipe import Recipe

NODES = 24


def arrays(**changed: Any) -> dict[str, np.ndarray]:
    """Two rings of twelve nodes with one edge between them; a node's features say little about its ring."""
    rng = np.random.default_rng(0)
    ring = np.arange(12)
    edges = np.concatenate([np.stack((ring, (ring + 1) % 12), 1) + start for start in (0, 12)] + [[[0, 12]]])
    labels = np.repeat([0, 1], 12)
    features = rng.random((NODES, 4)) + 0.3 * np.eye(2)[labels].repeat(2, 1)
    index = rng.permutation(NODES)
    parts = {"train_index": index[:8], "val_index": index[8:16], "test_index": index[16:]}
    return {"edges": edges, "labels": labels, "features": features, **parts, **changed}


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "rings.npz"
    np.savez(path, **arrays(**changed))
    return path


def write_tables(folder: Path, extra: str = "") -> str:
    """Source that names a table of nodes and one of edges; ``extra``: further lines of the edges."""
    found = arrays()
    split = dict.fromkeys(range(NODES), "train") | dict.fromkeys(found["val_index"].tolist(), "val")
    lines = ["id,colour,size,label,split"]
    for i, label in enumerate(found["labels"].tolist()):
        colour, size = ("red", "green")[int(found["features"][i, 0] > 0.6)], found["features"][i, 1]
        lines.append(f"n{i},{colour},{size:.3f},{('left', 'right')[label]},{split[i]}")
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    rows = [f"n{a},n{b}" for a, b in found["edges"].tolist()]
    (folder / "edges.csv").write_text("from,to\n" + "\n".join(rows) + "\n" + extra)
    return f"{folder / 'nodes.csv'} | {folder / 'edges.csv'}"


def recipe(source: str | Path, task: Any = "node_classification", processor: Any = "graphs", **training: Any) -> Recipe:
    return Recipe.parse(
        {
            "data": {"source": str(source), "processor": processor},
            "task": task,
            "model": {
                "width": 8,
                "frontend": "nodes(dropout=0.1)",
                "blocks": [{"branches": ["propagation(2)", "global_attention"], "norm": "none"}],
                "head": "tokens",
                "init_std": 0.3,
            },
            "training": {
                "steps": 4,
                "batch_size": 1,
                "schedule": "constant",
                "validation": {"every": 2, "batches": None, "best": "accuracy"},
                **training,
            },
        }
    )
