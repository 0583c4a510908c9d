"""Masks are predicates of positions, written as expressions. This script draws them as matrices.

python examples/masks.py
"""

import torch

from qkv.mixers.masks import build_mask
from qkv.ops.attention.reference import AttentionProblem, attention, weights
from qkv.ops.masks import Sites
from qkv.spec.branches import Attention
from qkv.spec.masks import Causal, Mask, Window

LENGTH = 12


def parsed(expression: str) -> Mask:
    """Parse the text form of a mask, as in a YAML file."""
    return Attention.parse({"mask": expression}).mask


def drawn(mask: Mask) -> list[str]:
    """Matrix of the mask: one row per query, one column per key, ■ if the key is visible."""
    positions = torch.arange(LENGTH)[None]
    seen = Sites(positions, positions).visible(build_mask(mask), num_heads=1)[0, 0]
    return ["".join("■ " if key else "· " for key in row) for row in seen.tolist()]


def side_by_side(*expressions: str) -> None:
    columns = [[expression, *drawn(parsed(expression))] for expression in expressions]
    for lines in zip(*columns, strict=True):
        print("   ".join(f"{line:<{max(2 * LENGTH, 30)}}" for line in lines).rstrip())
    print()


# Causal: a query sees itself and earlier positions. A window limits the distance; sinks are initial positions that stay
# visible.
side_by_side("causal", "causal & window(4)", "causal & window(4, sinks=2)")

# Combined by "or": bidirectional within a prefix, causal after it.
side_by_side("causal | prefix(5)", "causal & blocks(4)", "causal & strided(3)")

# The same operators combine masks in Python.
local = Causal() & Window(size=4)
assert local == parsed("causal & window(4)")

# A mask determines the size of the state: this one never looks back further than four positions, so the model keeps a
# ring buffer of four keys and values, however long the text.
print(f"{local}: causal {local.causal}, reach {local.reach}")
print(f"causal | prefix(5): causal {parsed('causal | prefix(5)').causal}, so a model with it cannot decode")

# Masked logits are set to -inf, never multiplied, and a query without visible keys gets output 0, not NaN. Query 0 here
# precedes every key:
sites = Sites(query=torch.tensor([[0, 3]]), key=torch.tensor([[1, 2, 3]]))
problem = AttentionProblem(build_mask(Causal()), sites, scale=1.0)
q, k, v = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.arange(3.0)[None, None, :, None]
print("weights of a query without visible keys:", weights(q, k, problem)[0, 0, 0].tolist())
print("outputs of both queries:", attention(q, k, v, problem).flatten().tolist())
