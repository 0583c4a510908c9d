"""Masks are predicates of positions. They are written as expressions, and drawn here as the squares that they show.

python examples/masks.py
"""

import torch

from qkv.mixers.masks import build_mask
from qkv.ops.attention.problem import Problem
from qkv.ops.attention.reference import attention, weights
from qkv.ops.masks import Sites
from qkv.spec.branches import Attention
from qkv.spec.masks import Causal, Mask, Window

LENGTH = 12


def parsed(expression: str) -> Mask:
    """The text form, as it stands in a YAML file, read where an attention's mask is expected."""
    return Attention.parse({"mask": expression}).mask


def drawn(mask: Mask) -> list[str]:
    """A row a query, a column a key; ■ where the key is visible."""
    positions = torch.arange(LENGTH)[None]
    seen = Sites(positions, positions).visible(build_mask(mask), num_heads=1)[0, 0]
    return ["".join("■ " if key else "· " for key in row) for row in seen.tolist()]


def side_by_side(*expressions: str) -> None:
    columns = [[expression, *drawn(parsed(expression))] for expression in expressions]
    for lines in zip(*columns, strict=True):
        print("   ".join(f"{line:<{max(2 * LENGTH, 30)}}" for line in lines).rstrip())
    print()


# Causal: a query sees itself and what is before it. A window bounds how far back; sinks are first positions that stay
# visible for ever.
side_by_side("causal", "causal & window(4)", "causal & window(4, sinks=2)")

# Joined by "or", a prefix can be read in both directions before the text goes on.
side_by_side("causal | prefix(5)", "causal & blocks(4)", "causal & strided(3)")

# In Python the same parts are joined by the same operators.
local = Causal() & Window(size=4)
assert local == parsed("causal & window(4)")

# A mask knows what it means for memory: this one never looks back further than four positions, so the model keeps a
# ring of four keys and values and nothing more, however long the text gets.
print(f"{local}: causal {local.causal}, reach {local.reach}")
print(f"causal | prefix(5): causal {parsed('causal | prefix(5)').causal}, so a model with it does not decode")

# A mask is added to the logits as -inf, never multiplied into the weights, and a query that sees nothing gets 0, not
# NaN. Query 0 here stands before every key:
sites = Sites(query=torch.tensor([[0, 3]]), key=torch.tensor([[1, 2, 3]]))
problem = Problem(build_mask(Causal()), sites, scale=1.0)
q, k, v = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.arange(3.0)[None, None, :, None]
print("weights of a query that sees nothing:", weights(q, k, problem)[0, 0, 0].tolist())
print("outputs of both queries:", attention(q, k, v, problem).flatten().tolist())
