"""Attention as a dictionary: keys, queries and values set by hand, in a model that is described as data.

python examples/dictionary.py
"""

import torch

import qkv
from qkv.lens.record import record
from qkv.spec.models.start import ConstructedStart

# An entry has a key and a value. Its query has the key only. Tokens: first the entries, then their queries.
entries = {"cat": "chat", "dog": "chien", "mat": "tapis", "moon": "lune"}
names = [*entries, *(f"{name}?" for name in entries)]
count, width = len(entries), 3 * len(entries)
eye = torch.eye(count)

# The vector of a token is [key | query | value], with one feature for each entry.
table = torch.zeros(2 * count, width)
table[:count, :count], table[:count, 2 * count :] = eye, eye
table[count:, count : 2 * count] = eye


def part(number: int, factor: float = 1.0) -> list[list[float]]:
    """Return the matrix that reads one third of a vector, times a factor."""
    matrix = torch.zeros(count, width)
    matrix[:, number * count : (number + 1) * count] = factor * eye
    return matrix.tolist()


def lookup(sharpness: float, row: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return (weight of each token, share of each value) for the query at the end of ``row``."""
    attention = {"kind": "attention", "num_heads": 1, "head_dim": count, "mask": "full", "bias": False}
    spec = qkv.Model.parse(
        {
            "width": width,
            "context_length": 8,
            "frontend": {"kind": "text", "vocab_size": 2 * count, "positions": "none"},
            "blocks": [{"branches": [attention], "norm": "none"}],
            "norm": "none",
            "head": {"kind": "language_model", "tied": False},
        }
    )
    pieces = [
        {"weight": "frontend.table", "values": table.tolist()},
        {"layer": 0, "piece": "q", "values": part(1, sharpness * count**0.5)},  # √d is divided out again
        {"layer": 0, "piece": "k", "values": part(0)},
        {"layer": 0, "piece": "v", "values": part(2)},
        {"layer": 0, "weight": "output", "values": torch.tensor(part(2)).T.tolist()},
        {"weight": "head", "values": torch.cat((torch.tensor(part(2)), torch.zeros(count, width))).tolist()},
    ]
    model = qkv.build(spec, start=ConstructedStart.parse({"pieces": pieces, "rest": "zero"}))
    ids = torch.tensor([[names.index(name) for name in row.split()]])
    tap = record(model, ids, "weights", "head.output")
    weights = dict(zip(row.split(), tap["blocks.0.branches.0.weights"][0, 0, -1].tolist(), strict=True))
    values = dict(zip(entries.values(), tap["head.output"][0, -1, :count].tolist(), strict=True))
    return weights, values


def show(title: str, numbers: dict[str, float]) -> None:
    print(f"{title:<12}" + "  ".join(f"{name} {number:.3f}" for name, number in numbers.items()))


# A key that is there: the sharper the softmax, the more it is a dictionary's exact lookup.
for sharpness in (1, 4, 16):
    weights, values = lookup(sharpness, "cat dog mat dog?")
    print(f"sharpness {sharpness}")
    show("  weights", weights)
    show("  values", values)

# A key that is not there: a dictionary raises KeyError, attention returns the mean of what it sees.
_, values = lookup(16, "cat dog mat moon?")
show("no such key", values)
